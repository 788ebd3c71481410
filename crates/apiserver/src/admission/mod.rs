//! What may be stored: an ordered table of plugins that complete objects and refuse them.
//! Called by `registry` before every write; plugins read the cluster through `cluster::Cluster`.
//! Mutating comes before validating; a refused request writes nothing.

mod admission_metrics;
mod always;
#[cfg(test)]
mod certificate_kind_tests;
mod configuration;
pub mod device_admin_access;
mod event_rate_limit;
pub mod expressions;
mod image_policy_webhook;
mod limit_ranger;
mod limited_resources;
mod matching;
mod mutating_policy;
#[cfg(test)]
mod mutating_policy_tests;
mod namespace_existence;
mod namespace_lifecycle;
mod node_restriction;
mod permissions;
#[cfg(test)]
mod plugin_tests;
mod pod_anti_affinity;
mod pod_certificates;
mod pod_node_selector;
mod pod_security;
mod pod_security_checks;
mod pod_toleration_restriction;
mod pods;
mod policy;
mod policy_index;
#[cfg(test)]
mod policy_tests;
mod priority;
mod resource_quota;
mod service_account;
mod service_external_ips;
mod storage_classes;
#[cfg(test)]
mod subresource_tests;
#[cfg(test)]
pub mod tests;
mod token_audience;
mod vertical_pod_autoscaler;
#[cfg(test)]
mod webhook_tests;
mod webhooks;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use api::{
    ApiError, Resource,
    feature_gates::{FeatureGates, POD_TOPOLOGY_LABELS_ADMISSION},
};

use self::{
    admission_metrics::{AdmissionMetrics, Step},
    always::{AlwaysAdmit, AlwaysDeny},
    configuration::Configuration,
    event_rate_limit::EventRateLimit,
    image_policy_webhook::ImagePolicyWebhook,
    limit_ranger::LimitRanger,
    mutating_policy::{Invocations, MutatingPolicies},
    namespace_existence::{NamespaceAutoProvision, NamespaceExists},
    namespace_lifecycle::NamespaceLifecycle,
    node_restriction::NodeRestriction,
    permissions::{
        CertificateApproval, CertificateSigning, CertificateSubjectRestriction, ClusterTrustBundleAttest,
        OwnerReferencesPermissionEnforcement,
    },
    pod_anti_affinity::LimitPodHardAntiAffinityTopology,
    pod_node_selector::PodNodeSelector,
    pod_security::PodSecurity,
    pod_toleration_restriction::PodTolerationRestriction,
    pods::{
        AlwaysPullImages, DefaultTolerationSeconds, ExtendedResourceToleration, PodTopologyLabels, RuntimeClass,
        TaintNodesByCondition,
    },
    policy::Policies,
    priority::Priority,
    resource_quota::ResourceQuota,
    service_account::ServiceAccount,
    service_external_ips::DenyServiceExternalIPs,
    storage_classes::{
        DefaultIngressClass, DefaultStorageClass, PersistentVolumeClaimResize, StorageObjectInUseProtection,
    },
    vertical_pod_autoscaler::VerticalPodAutoscaler,
    webhooks::Webhooks,
};
use crate::{
    authn::User,
    authz::{self, rbac::escalation::Escalation},
    server::{config::Config, loopback::Loopback},
    storage::cluster::Cluster,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// One write as plugins see it.
pub struct Attributes<'a> {
    pub user: &'a User,
    pub operation: Operation,
    pub resource: &'a Resource,
    /// Empty for the main resource.
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// Empty when the server makes the name.
    pub name: &'a str,
    /// The object to be stored; null for deletions. For subresources with a body of their own (eviction, binding,
    /// scale …) that body.
    pub object: Value,
    /// The object as it is; null for creations.
    pub old: Value,
    pub dry_run: bool,
    /// Create, update or delete options as sent.
    pub options: Value,
    /// Shown to the client as `Warning` headers.
    pub warnings: Vec<String>,
}

impl Attributes<'_> {
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.resource.group == group && self.resource.plural == plural
    }

    pub fn forbidden(&self, why: &str) -> ApiError {
        // A name that is still to be generated is told by what it will be made of.
        let made_of = self.object["metadata"]["generateName"].as_str().filter(|prefix| !prefix.is_empty());
        let name = match self.name {
            "" if self.operation == Operation::Create => made_of.unwrap_or("Unknown"),
            name => name,
        };
        ApiError::forbidden(&self.resource.group, &self.resource.plural, name, why)
    }
}

#[async_trait]
pub trait Plugin: Send + Sync {
    /// Upstream's name, as in `--enable-admission-plugins`.
    fn name(&self) -> &'static str;

    /// Why it can't work as it is configured; asked of those that are on, before the server starts.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    async fn admit(&self, _attributes: &mut Attributes<'_>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Whether `validate` does anything.
    fn validates(&self) -> bool {
        false
    }

    /// Whether `admit` does anything; said by those that do both.
    fn mutates(&self) -> bool {
        !self.validates()
    }

    /// May only add warnings.
    async fn validate(&self, _attributes: &mut Attributes<'_>) -> Result<(), ApiError> {
        Ok(())
    }
}

/// What plugins are made from.
pub struct Context<'a> {
    cluster: &'a Arc<Cluster>,
    authorizer: &'a Arc<authz::Chain>,
    configuration: &'a Configuration,
    loopback: &'a Loopback,
    gates: &'a FeatureGates,
}

type Make = fn(&Context<'_>) -> Arc<dyn Plugin>;

/// In upstream's order; the flag says whether it is on by default. Webhooks and policies, which come after all of
/// these but the quota, are parts of the chain itself.
const PLUGINS: &[(Make, bool)] = &[
    (|_| Arc::new(AlwaysAdmit), false),
    (
        |c| {
            let (cluster, loopback) = (c.cluster.clone(), c.loopback.clone());
            Arc::new(NamespaceAutoProvision { cluster, loopback })
        },
        false,
    ),
    (|c| Arc::new(NamespaceLifecycle(c.cluster.clone())), true),
    (|c| Arc::new(NamespaceExists(c.cluster.clone())), false),
    (|_| Arc::new(LimitPodHardAntiAffinityTopology), false),
    (|c| Arc::new(LimitRanger(c.cluster.clone())), true),
    (|c| Arc::new(ServiceAccount(c.cluster.clone())), true),
    (
        |c| {
            let (cluster, authorizer) = (c.cluster.clone(), c.authorizer.clone());
            Arc::new(NodeRestriction { cluster, authorizer, gates: c.gates.clone() })
        },
        false,
    ),
    (|_| Arc::new(TaintNodesByCondition), true),
    (|_| Arc::new(AlwaysPullImages), false),
    (|c| Arc::new(ImagePolicyWebhook::new(&c.configuration.image_policy_webhook, &c.cluster.env)), false),
    (|c| Arc::new(PodSecurity::new(c.cluster, &c.configuration.pod_security)), true),
    (
        |c| {
            let (cluster, settings) = (c.cluster.clone(), c.configuration.pod_node_selector.clone());
            Arc::new(PodNodeSelector { cluster, settings })
        },
        false,
    ),
    (|c| Arc::new(Priority(c.cluster.clone())), true),
    (|_| Arc::new(DefaultTolerationSeconds), true),
    (
        |c| {
            let (cluster, settings) = (c.cluster.clone(), c.configuration.pod_toleration_restriction.clone());
            Arc::new(PodTolerationRestriction { cluster, settings })
        },
        false,
    ),
    (|c| Arc::new(EventRateLimit::new(&c.configuration.event_rate_limit, &c.cluster.env)), false),
    (|_| Arc::new(ExtendedResourceToleration), false),
    (|c| Arc::new(DefaultStorageClass(c.cluster.clone())), true),
    (|_| Arc::new(StorageObjectInUseProtection), true),
    (
        |c| {
            let (cluster, authorizer) = (c.cluster.clone(), c.authorizer.clone());
            Arc::new(OwnerReferencesPermissionEnforcement { cluster, authorizer })
        },
        false,
    ),
    (|c| Arc::new(PersistentVolumeClaimResize(c.cluster.clone())), true),
    (|c| Arc::new(RuntimeClass(c.cluster.clone())), true),
    (|c| Arc::new(CertificateApproval(c.authorizer.clone())), true),
    (|c| Arc::new(CertificateSigning(c.authorizer.clone())), true),
    (|c| Arc::new(ClusterTrustBundleAttest(c.authorizer.clone())), true),
    (|_| Arc::new(CertificateSubjectRestriction), true),
    (|c| Arc::new(DefaultIngressClass(c.cluster.clone())), true),
    (|_| Arc::new(DenyServiceExternalIPs), false),
    (
        |c| {
            let is_on = c.gates.enabled(POD_TOPOLOGY_LABELS_ADMISSION);
            Arc::new(PodTopologyLabels { cluster: c.cluster.clone(), is_on })
        },
        true,
    ),
    (|c| Arc::new(VerticalPodAutoscaler(c.cluster.clone())), false),
    (
        |c| {
            let limited = c.configuration.limited_resources.clone();
            Arc::new(ResourceQuota { cluster: c.cluster.clone(), limited })
        },
        true,
    ),
    (|_| Arc::new(AlwaysDeny), false),
];

const MUTATING_WEBHOOKS: &str = "MutatingAdmissionWebhook";
const VALIDATING_WEBHOOKS: &str = "ValidatingAdmissionWebhook";
const POLICIES: &str = "ValidatingAdmissionPolicy";
const MUTATING_POLICIES: &str = api::feature_gates::MUTATING_ADMISSION_POLICY;
const QUOTA: &str = "ResourceQuota";
/// What is counted as a plugin and is a part of the chain itself.
const PARTS: [&str; 4] = [MUTATING_POLICIES, MUTATING_WEBHOOKS, POLICIES, VALIDATING_WEBHOOKS];

/// On in other clusters, absent from ours: turning them off is granted.
const ABSENT: &[&str] = &["NodeDeclaredFeatureValidator"];

/// Whether MutatingAdmissionPolicies count, and are served; beta, so off by default.
pub fn mutates_by_policy(config: &Config) -> bool {
    let listed = |names: &[String]| names.iter().any(|n| n == MUTATING_POLICIES);
    let enabled = listed(&config.enable_admission_plugins) || config.feature_gates.enabled(MUTATING_POLICIES);
    enabled && !listed(&config.disable_admission_plugins)
}

pub struct Chain {
    plugins: Vec<Arc<dyn Plugin>>,
    mutating_policies: Option<MutatingPolicies>,
    webhooks: Webhooks,
    policies: Policies,
    cluster: Arc<Cluster>,
    authorizer: Arc<authz::Chain>,
    off: Vec<String>,
    /// What webhooks and policies come to.
    pub metrics: ::metrics::Metrics,
    /// Of the plugins in their order, then of `PARTS`.
    pub durations: Arc<AdmissionMetrics>,
    /// Not a plugin: it cannot be turned off.
    escalation: Option<Escalation>,
}

impl Chain {
    pub fn new(
        config: &Config,
        cluster: &Arc<Cluster>,
        authorizer: &Arc<authz::Chain>,
        loopback: &Loopback,
    ) -> Result<Self, String> {
        let listed = |names: &[String], name: &str| names.iter().any(|n| n == name);
        let configuration = match &config.admission_control_config_file {
            Some(path) => Configuration::load(path)?,
            None => Configuration::default(),
        };
        let gates = &config.feature_gates;
        let context = Context { cluster, authorizer, configuration: &configuration, loopback, gates };
        let (enable, disable) = (&config.enable_admission_plugins, &config.disable_admission_plugins);
        let all: Vec<_> = PLUGINS.iter().map(|(make, default)| (make(&context), *default)).collect();
        let known = |name: &str| PARTS.contains(&name) || all.iter().any(|(p, _)| p.name() == name);
        if let Some(name) = enable.iter().find(|n| !known(n)) {
            return Err(format!("enable-admission-plugins plugin {name:?} is unknown"));
        }
        if let Some(name) = disable.iter().find(|n| !known(n) && !ABSENT.contains(&n.as_str())) {
            return Err(format!("disable-admission-plugins plugin {name:?} is unknown"));
        }
        let on = |name: &str, default: bool| (default || listed(enable, name)) && !listed(disable, name);
        let plugins: Vec<_> = all.into_iter().filter(|(p, default)| on(p.name(), *default)).map(|(p, _)| p).collect();
        for plugin in &plugins {
            plugin.check().map_err(|e| format!("couldn't init admission plugin {:?}: {e}", plugin.name()))?;
        }
        let metrics = ::metrics::Metrics::default();
        let durations = Arc::new(AdmissionMetrics::new(plugins.iter().map(|plugin| plugin.name()).chain(PARTS)));
        let escalation = authorizer.rbac.clone().map(|rbac| Escalation { rbac, authorizer: authorizer.clone() });
        Ok(Self {
            plugins,
            mutating_policies: mutates_by_policy(config).then(|| MutatingPolicies::new(cluster, authorizer)),
            webhooks: Webhooks::new(cluster, authorizer, &metrics)
                .with_identities(configuration.mutating_webhooks.clone(), configuration.validating_webhooks.clone()),
            policies: Policies::new(cluster, authorizer, &metrics),
            cluster: cluster.clone(),
            authorizer: authorizer.clone(),
            off: disable.clone(),
            metrics,
            durations,
            escalation,
        })
    }

    fn is_on(&self, name: &str) -> bool {
        !self.off.iter().any(|n| n == name)
    }

    /// Whether anything is to be asked after mutation, which costs a copy of the object.
    pub fn has_validators(&self) -> bool {
        true
    }

    /// Runs what a plugin does in a step, and counts how long it took.
    async fn measured<T>(
        &self,
        (plugin, step): (usize, Step),
        operation: Operation,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let began = self.cluster.env.monotonic();
        let result = work.await;
        let took = self.cluster.env.monotonic().saturating_sub(began);
        self.durations.plugin(plugin, step, operation, result.is_err(), took);
        result
    }

    fn part(&self, name: &str) -> usize {
        self.plugins.len() + PARTS.iter().position(|part| *part == name).unwrap_or(0)
    }

    /// Completes the object. What webhooks change is completed once more, as upstream does.
    pub async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<(), ApiError> {
        let (began, operation) = (self.cluster.env.monotonic(), attributes.operation);
        let result = self.admit_all(attributes).await;
        let took = self.cluster.env.monotonic().saturating_sub(began);
        self.durations.step(Step::Admit, operation, result.is_err(), took);
        result
    }

    async fn admit_all(&self, attributes: &mut Attributes<'_>) -> Result<(), ApiError> {
        self.admit_plugins(attributes).await?;
        let mut invocations = Invocations::default();
        let by_policy = self.mutate_by_policy(attributes, &mut invocations).await?;
        let (place, operation) = ((self.part(MUTATING_WEBHOOKS), Step::Admit), attributes.operation);
        let by_webhook =
            self.is_on(MUTATING_WEBHOOKS) && self.measured(place, operation, self.webhooks.mutate(attributes)).await?;
        if by_policy || by_webhook {
            self.admit_plugins(attributes).await?;
            self.mutate_by_policy(attributes, &mut invocations).await?;
        }
        permissions::stamp_requester(attributes);
        match &self.escalation {
            Some(escalation) => escalation.check(attributes).await,
            None => Ok(()),
        }
    }

    async fn mutate_by_policy(
        &self,
        attributes: &mut Attributes<'_>,
        invocations: &mut Invocations,
    ) -> Result<bool, ApiError> {
        match &self.mutating_policies {
            Some(policies) => {
                let (place, operation) = ((self.part(MUTATING_POLICIES), Step::Admit), attributes.operation);
                self.measured(place, operation, Box::pin(policies.mutate(attributes, invocations))).await
            }
            None => Ok(false),
        }
    }

    async fn admit_plugins(&self, attributes: &mut Attributes<'_>) -> Result<(), ApiError> {
        let operation = attributes.operation;
        for (index, plugin) in self.plugins.iter().enumerate() {
            match plugin.mutates() {
                true => self.measured((index, Step::Admit), operation, plugin.admit(attributes)).await?,
                false => plugin.admit(attributes).await?,
            }
        }
        Ok(())
    }

    /// May the object be stored? Changes nothing but the warnings. The quota comes last, because it counts.
    pub async fn validate(&self, attributes: &mut Attributes<'_>) -> Result<(), ApiError> {
        let (began, operation) = (self.cluster.env.monotonic(), attributes.operation);
        let result = self.validate_all(attributes).await;
        let took = self.cluster.env.monotonic().saturating_sub(began);
        self.durations.step(Step::Validate, operation, result.is_err(), took);
        result
    }

    async fn validate_all(&self, attributes: &mut Attributes<'_>) -> Result<(), ApiError> {
        pod_certificates::check(&self.authorizer, self.cluster.env.now(), attributes).await?;
        let operation = attributes.operation;
        let (counting, others): (Vec<_>, Vec<_>) =
            self.plugins.iter().enumerate().filter(|(_, p)| p.validates()).partition(|(_, p)| p.name() == QUOTA);
        for (index, plugin) in others {
            self.measured((index, Step::Validate), operation, plugin.validate(attributes)).await?;
        }
        if self.is_on(POLICIES) {
            let place = (self.part(POLICIES), Step::Validate);
            self.measured(place, operation, self.policies.validate(attributes)).await?;
        }
        if self.is_on(VALIDATING_WEBHOOKS) {
            let place = (self.part(VALIDATING_WEBHOOKS), Step::Validate);
            self.measured(place, operation, self.webhooks.validate(attributes)).await?;
        }
        for (index, plugin) in counting {
            self.measured((index, Step::Validate), operation, plugin.validate(attributes)).await?;
        }
        Ok(())
    }
}
