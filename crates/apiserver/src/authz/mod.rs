//! Who may do what: a chain of authorizers, the first with an opinion decides.
//! Called by `pipeline`, by impersonation and by the access reviews.
//! Nobody has an opinion means no.

pub mod rbac;
pub mod selectors;

mod abac;
mod configuration;
mod node;
mod webhook;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use api::{ApiError, Verb};

use self::{configuration::AuthorizerConfiguration, node::NodeAuthorizer, rbac::Rbac, webhook::WebhookAuthorizer};
pub use abac::Abac;
pub use node::identity as node_identity;

use crate::{
    authn::User,
    metrics::{DecisionCounts, Decisions},
    request::request_info::RequestInfo,
    server::{
        config::Config,
        reload::{self, ReloadMetrics, Reloadable, WatchedFiles},
    },
    storage::cluster::Cluster,
};

/// What is to be decided.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    pub user: User,
    pub verb: Verb,
    pub is_resource: bool,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub path: String,
    pub field_selector: String,
    pub label_selector: String,
}

impl Attributes {
    pub fn new(user: &User, info: &RequestInfo) -> Self {
        Self {
            user: user.clone(),
            verb: info.verb.clone(),
            is_resource: info.is_resource,
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            path: info.path.clone(),
            field_selector: info.field_selector.clone(),
            label_selector: info.label_selector.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allow(String),
    Deny(String),
    /// With the reason, which may be empty.
    NoOpinion(String),
}

#[async_trait]
pub trait Authorizer: Send + Sync {
    async fn authorize(&self, attributes: &Attributes) -> Decision;

    /// What SelfSubjectRulesReview shows of a user in a namespace.
    async fn rules(&self, _user: &User, _namespace: &str) -> Rules {
        Rules::default()
    }
}

/// Rules as SelfSubjectRulesReview shows them.
#[derive(Debug, Default)]
pub struct Rules {
    pub resources: Vec<Value>,
    pub paths: Vec<Value>,
    /// There may be more.
    pub incomplete: bool,
    pub error: String,
}

impl Rules {
    fn unknown(why: &str) -> Self {
        Self { incomplete: true, error: why.into(), ..Self::default() }
    }
}

/// An authorizer, and what it has decided so far; nothing is counted of those that no configuration names.
struct Link {
    authorizer: Arc<dyn Authorizer>,
    counts: Option<Arc<DecisionCounts>>,
}

pub struct Chain {
    authorizers: Arc<Reloadable<Vec<Link>>>,
    pub decisions: Arc<Decisions>,
    /// Roles and bindings, whether or not they decide: nobody hands out what they do not hold.
    pub rbac: Option<Arc<Rbac>>,
}

impl Chain {
    pub async fn authorize(&self, attributes: &Attributes) -> Decision {
        let mut reasons = Vec::new();
        for link in self.authorizers.current().iter() {
            let decision = link.authorizer.authorize(attributes).await;
            link.counts.iter().for_each(|counts| counts.count(&decision));
            match decision {
                Decision::NoOpinion(reason) => reasons.extend(Some(reason).filter(|r| !r.is_empty())),
                decided => return decided,
            }
        }
        Decision::NoOpinion(reasons.join("\n"))
    }

    /// All rules any authorizer knows of.
    pub async fn rules(&self, user: &User, namespace: &str) -> Rules {
        let mut all = Rules::default();
        let mut errors = Vec::new();
        for link in self.authorizers.current().iter() {
            let found = link.authorizer.rules(user, namespace).await;
            all.resources.extend(found.resources);
            all.paths.extend(found.paths);
            all.incomplete |= found.incomplete;
            errors.extend(Some(found.error).filter(|e| !e.is_empty()));
        }
        all.error = errors.join(", ");
        all
    }
}

/// The chain a configuration asks for. `system:masters` come first, whatever is configured.
pub fn chain(config: &Config, cluster: &Arc<Cluster>, metrics: &ReloadMetrics) -> Result<Chain, String> {
    let rbac = Arc::new(Rbac::new(cluster));
    let node: Arc<dyn Authorizer> = Arc::new(NodeAuthorizer::new(cluster, &config.feature_gates));
    let abac = config.authorization.policy_file.as_ref().map(|path| Abac::load(path)).transpose()?.map(Arc::new);
    let decisions = Arc::new(Decisions::default());
    let build = {
        let (rbac, env, webhooks) = (rbac.clone(), cluster.env.clone(), metrics.metrics.clone());
        let decisions = decisions.clone();
        move |configured: Vec<AuthorizerConfiguration>| -> Result<Vec<Link>, String> {
            let mut links = vec![Link { authorizer: Arc::new(PrivilegedGroups), counts: None }];
            for configured in configured {
                let counts = Some(decisions.of(&configured.kind, &configured.name));
                let authorizer: Arc<dyn Authorizer> = match configured.settings {
                    Some(settings) => {
                        Arc::new(WebhookAuthorizer::new(configured.name, *settings, env.clone(), webhooks.clone())?)
                    }
                    None => match configured.kind.as_str() {
                        "AlwaysAllow" => Arc::new(Always(Decision::Allow(String::new()))),
                        "AlwaysDeny" => Arc::new(Always(Decision::NoOpinion("Everything is forbidden.".into()))),
                        "ABAC" => {
                            let missing = "authorization mode ABAC's authorization policy file not passed";
                            abac.clone().ok_or(missing)?
                        }
                        "RBAC" => rbac.clone(),
                        _ => node.clone(),
                    },
                };
                links.push(Link { authorizer, counts });
            }
            Ok(links)
        }
    };
    let authorizers = match &config.authorization.config_file {
        None => Reloadable::new(build(configuration::from_flags(&config.authorization_modes, &config.authorization)?)?),
        Some(path) => {
            let files = WatchedFiles::new(vec![path.clone()]);
            let load = {
                let path = path.clone();
                move || configuration::load(&path).and_then(&build)
            };
            let authorizers = Reloadable::new(load()?);
            reload::follow(&authorizers, files, &reload::AUTHORIZATION, metrics, &cluster.env, move || {
                Box::pin(std::future::ready(load()))
            });
            authorizers
        }
    };
    Ok(Chain { authorizers, decisions, rbac: Some(rbac) })
}

/// The same answer to everything.
struct Always(Decision);

#[async_trait]
impl Authorizer for Always {
    async fn authorize(&self, _: &Attributes) -> Decision {
        self.0.clone()
    }

    async fn rules(&self, _: &User, _: &str) -> Rules {
        match self.0 {
            Decision::Allow(_) => Rules {
                resources: vec![json!({ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] })],
                paths: vec![json!({ "verbs": ["*"], "nonResourceURLs": ["*"] })],
                ..Rules::default()
            },
            _ => Rules::default(),
        }
    }
}

/// `system:masters` may do everything.
struct PrivilegedGroups;

#[async_trait]
impl Authorizer for PrivilegedGroups {
    async fn authorize(&self, attributes: &Attributes) -> Decision {
        match attributes.user.in_group("system:masters") {
            true => Decision::Allow(String::new()),
            false => Decision::NoOpinion(String::new()),
        }
    }
}

/// The 403 of a refused request, in upstream's words.
pub fn refusal(a: &Attributes, reason: &str) -> ApiError {
    let why = match a.is_resource {
        true => {
            let resource = match a.subresource.as_str() {
                "" => a.resource.clone(),
                sub => format!("{}/{sub}", a.resource),
            };
            let place = match a.namespace.as_str() {
                "" => " at the cluster scope".to_string(),
                namespace => format!(" in the namespace \"{namespace}\""),
            };
            format!(
                "User \"{}\" cannot {} resource \"{resource}\" in API group \"{}\"{place}",
                a.user.name, a.verb, a.group
            )
        }
        false => format!("User \"{}\" cannot {} path \"{}\"", a.user.name, a.verb, a.path),
    };
    let why = if reason.is_empty() { why } else { format!("{why}: {reason}") };
    ApiError::forbidden(&a.group, &a.resource, &a.name, &why)
}
