//! ResourceQuota objects bound what a namespace holds; use is counted before an object is stored.
//! The last of the validating row in `admission`.
//! Use is raised in one transaction on the versions it was decided on, so that it never passes the limit.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, ResourceQuota as Quota, ResourceQuotaSpec, Service},
    resource::v1::ResourceClaim,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use api::{
    ApiError, kinds,
    pod_resources::{Amounts, amounts_from_value, is_pod_level},
    quantity::{Format, Quantity},
    quota,
};
use store::{Compare, Outcome, Transaction};

use super::{Attributes, Operation, Plugin, limited_resources};
use crate::{
    storage,
    storage::{cluster::Cluster, watch_cache::store_error},
};

pub struct ResourceQuota {
    pub cluster: Arc<Cluster>,
    pub limited: limited_resources::Settings,
}

/// Beyond this the client is told to try itself.
const ATTEMPTS: usize = 50;

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if !writes || !a.resource.namespaced() || !matches!(a.subresource, "" | "resize") || !a.object.is_object() {
            return Ok(());
        }
        // Most namespaces have no quota, and the cache says so at once.
        let quotas = self.cluster.list("resourcequotas", a.namespace);
        if quotas.is_empty() && self.limited.is_empty() {
            return Ok(());
        }
        let change = Change::read(a, self.cluster.env.now())?;
        if !self.limited.is_empty() && change.raises_use() {
            let quotas = quotas.iter().map(|quota| quota.typed::<Quota>()).collect::<Result<Vec<_>, _>>()?;
            self.limited.check(a, &change.now, &change.whole, &quotas)?;
        }
        let served = self.cluster.served.find("", "v1", "resourcequotas");
        let served = served.ok_or_else(|| ApiError::internal("resource quotas are not served"))?;
        for _ in 0..ATTEMPTS {
            let mut transaction = Transaction { compare: Vec::new(), operations: Vec::new() };
            for cached in self.cluster.list("resourcequotas", a.namespace) {
                let Some(quota) = self.cluster.live(&served, a.namespace, &cached.meta.name).await? else { continue };
                let delta = change.charged_to(quota.typed::<Quota>()?.spec.as_ref());
                if delta.is_empty() {
                    continue;
                }
                let Some(charged) = charge(a, &quota.value(), &quota.meta.name, delta)? else { continue };
                let key = served.key(a.namespace, &quota.meta.name);
                transaction.compare.push(Compare { key: key.clone(), mod_revision: quota.meta.resource_version });
                let value = storage::encode(&charged);
                transaction.operations.push(store::Operation::Put { key, value, ttl_seconds: None });
            }
            if transaction.operations.is_empty() || a.dry_run {
                return Ok(());
            }
            match self.cluster.store.transact(transaction).await.map_err(store_error)? {
                Outcome::Done { .. } => return Ok(()),
                Outcome::Conflict { .. } => {}
            }
        }
        let why = "status.used of a quota changes too fast; please try again";
        Err(ApiError::conflict("", "resourcequotas", "", why))
    }
}

/// The quota with its use raised; `None` if it has nothing to do with the object.
fn charge(a: &Attributes<'_>, quota: &Value, name: &str, delta: &Amounts) -> Result<Option<Value>, ApiError> {
    let (hard, mut used) = (amounts_from_value(&quota["status"]["hard"]), amounts_from_value(&quota["status"]["used"]));
    if a.is("", "pods") && a.operation == Operation::Create {
        let unset = unspecified(&hard, &a.object["spec"]);
        if !unset.is_empty() {
            return Err(a.forbidden(&format!("failed quota: {name}: must specify {}", unset.join("; "))));
        }
    }
    let counted: Vec<_> = delta.iter().filter(|(resource, _)| hard.contains_key(*resource)).collect();
    if counted.is_empty() {
        return Ok(None);
    }
    let mut exceeded: Vec<(&String, &Quantity, Quantity)> = Vec::new();
    for (resource, amount) in counted {
        let before = used.get(resource).cloned().unwrap_or_else(|| Quantity::new(0, amount.format()));
        let mut after = before.clone();
        after.add(amount);
        // What makes things better is never refused.
        if amount.sign() > 0 && hard.get(resource).is_some_and(|limit| after > *limit) {
            exceeded.push((resource, amount, before));
        }
        used.insert(resource.clone(), after);
    }
    if !exceeded.is_empty() {
        let list = |value: &dyn Fn(&(&String, &Quantity, Quantity)) -> String| {
            exceeded.iter().map(|e| format!("{}={}", e.0, value(e))).collect::<Vec<_>>().join(",")
        };
        let why = format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            list(&|e| e.1.to_string()),
            list(&|e| e.2.to_string()),
            list(&|e| hard.get(e.0).map(ToString::to_string).unwrap_or_default()),
        );
        return Err(a.forbidden(&why));
    }
    let mut charged = quota.clone();
    for (resource, amount) in &used {
        charged["status"]["used"][resource] = json!(amount.to_string());
    }
    Ok(Some(charged))
}

/// Computing resources that are limited must be said by every container (`cpu for: c1,c2`), unless the pod says any.
fn unspecified(hard: &Amounts, spec: &Value) -> Vec<String> {
    let (requests, limits) =
        (amounts_from_value(&spec["resources"]["requests"]), amounts_from_value(&spec["resources"]["limits"]));
    if requests.keys().chain(limits.keys()).any(|name| is_pod_level(name)) {
        return Vec::new();
    }
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for resource in hard.keys() {
        let (which, name) = match resource.as_str() {
            "cpu" | "memory" => ("requests", resource.as_str()),
            "requests.cpu" | "requests.memory" => ("requests", &resource["requests.".len()..]),
            "limits.cpu" | "limits.memory" => ("limits", &resource["limits.".len()..]),
            _ => continue,
        };
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array().into_iter().flatten() {
                if container["resources"][which][name].is_null() {
                    let text = container["name"].as_str().unwrap_or_default().to_string();
                    missing.entry(resource).or_default().push(text);
                }
            }
        }
    }
    missing.into_iter().map(|(resource, containers)| format!("{resource} for: {}", containers.join(","))).collect()
}

/// The object that quotas are asked about, read once.
pub(super) enum Subject {
    Pod(Box<Pod>),
    Service(Box<Service>),
    Claim(Box<PersistentVolumeClaim>),
    ResourceClaim(Box<ResourceClaim>),
    /// Anything else only counts, under these names.
    Other(Vec<String>),
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<Box<K>, ApiError> {
    K::deserialize(object).map(Box::new).map_err(|e| ApiError::internal(format!("failed to count the object: {e}")))
}

impl Subject {
    fn read(a: &Attributes<'_>, object: &Value) -> Result<Self, ApiError> {
        let name = a.resource.group_resource();
        Ok(match name.as_str() {
            "pods" => Self::Pod(read(object)?),
            "services" => Self::Service(read(object)?),
            "persistentvolumeclaims" => Self::Claim(read(object)?),
            "resourceclaims.resource.k8s.io" => Self::ResourceClaim(read(&kinds::as_stored(a.resource, object))?),
            // These could be limited before everything could be counted.
            "replicationcontrollers" | "resourcequotas" | "secrets" | "configmaps" => {
                Self::Other(vec![format!("count/{name}"), name])
            }
            _ => Self::Other(vec![format!("count/{name}")]),
        })
    }

    fn usage(&self, now: Timestamp) -> Amounts {
        match self {
            Self::Pod(pod) => quota::pod(pod, now),
            Self::Service(service) => quota::service(service),
            Self::Claim(claim) => quota::claim(claim),
            Self::ResourceClaim(claim) => quota::resource_claim(claim),
            Self::Other(names) => names.iter().map(|n| (n.clone(), Quantity::new(1, Format::DecimalSI))).collect(),
        }
    }

    pub(super) fn covered(&self, spec: &ResourceQuotaSpec) -> bool {
        match self {
            Self::Pod(pod) => quota::covers_pod(spec, pod),
            Self::Claim(claim) => quota::covers_claim(spec, claim),
            Self::Service(_) | Self::ResourceClaim(_) | Self::Other(_) => !quota::scoped(spec),
        }
    }
}

/// By how much storing the object raises use.
struct Change {
    now: Subject,
    whole: Amounts,
    /// What it was, and by how much it uses more now.
    before: Option<(Subject, Amounts)>,
}

impl Change {
    fn read(a: &Attributes<'_>, time: Timestamp) -> Result<Self, ApiError> {
        let now = Subject::read(a, &a.object)?;
        let whole = now.usage(time);
        if a.operation == Operation::Create {
            return Ok(Self { now, whole, before: None });
        }
        let before = Subject::read(a, &a.old)?;
        let mut more = whole.clone();
        for (resource, amount) in before.usage(time) {
            let zero = Quantity::new(0, amount.format());
            more.entry(resource).or_insert(zero).sub(&amount);
        }
        more.retain(|_, amount| !amount.is_zero());
        Ok(Self { now, whole, before: Some((before, more)) })
    }

    /// Whether there is more or less of anything than before.
    fn raises_use(&self) -> bool {
        let more = self.before.as_ref().map_or(&self.whole, |(_, more)| more);
        more.values().any(|amount| !amount.is_zero())
    }

    /// For one quota: all of it for an object that comes under the quota only now.
    fn charged_to(&self, spec: Option<&ResourceQuotaSpec>) -> &Amounts {
        static NOTHING: Amounts = Amounts::new();
        let covers = |subject: &Subject| spec.is_none_or(|spec| subject.covered(spec));
        match &self.before {
            _ if !covers(&self.now) => &NOTHING,
            Some((before, more)) if covers(before) => more,
            _ => &self.whole,
        }
    }
}
