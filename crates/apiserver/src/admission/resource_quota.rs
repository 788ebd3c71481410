//! ResourceQuota objects bound what a namespace holds; use is counted before an object is stored.
//! The last of the validating row in `admission`.
//! Invariant: use is raised in one transaction on the versions it was decided on, so that it never passes the limit.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde_json::{Value, json};

use api::{
    ApiError,
    quantity::{Format, Quantity},
};
use store::{Compare, Outcome, Transaction};

use super::{
    Attributes, Operation, Plugin,
    pod_resources::{Amounts, amounts, pod_total},
};
use crate::{cluster::Cluster, storage, watch_cache::store_error};

pub struct ResourceQuota(pub Arc<Cluster>);

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
        if self.0.list("resourcequotas", a.namespace).is_empty() {
            return Ok(());
        }
        let delta = delta(a);
        if delta.is_empty() {
            return Ok(());
        }
        let served = self.0.served.find("", "v1", "resourcequotas");
        let served = served.ok_or_else(|| ApiError::internal("resource quotas are not served"))?;
        for _ in 0..ATTEMPTS {
            let mut transaction = Transaction { compare: Vec::new(), operations: Vec::new() };
            for cached in self.0.list("resourcequotas", a.namespace) {
                let Some(quota) = self.0.live(&served, a.namespace, &cached.meta.name).await? else { continue };
                let Some(charged) = charge(a, &quota.value(), &quota.meta.name, &delta)? else { continue };
                let key = served.key(a.namespace, &quota.meta.name);
                transaction.compare.push(Compare { key: key.clone(), mod_revision: quota.meta.resource_version });
                let value = storage::encode(&charged);
                transaction.operations.push(store::Operation::Put { key, value, ttl_seconds: None });
            }
            if transaction.operations.is_empty() || a.dry_run {
                return Ok(());
            }
            match self.0.store.transact(transaction).await.map_err(store_error)? {
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
    if !scopes_match(quota, a) {
        return Ok(None);
    }
    let (hard, mut used) = (amounts(&quota["status"]["hard"]), amounts(&quota["status"]["used"]));
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

/// Computing resources that are limited must be said by every container: `cpu for: c1,c2`.
fn unspecified(hard: &Amounts, spec: &Value) -> Vec<String> {
    let mut missing: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for resource in hard.keys() {
        let (which, name) = match resource.as_str() {
            "cpu" | "memory" => ("requests", resource.as_str()),
            "requests.cpu" | "requests.memory" => ("requests", &resource["requests.".len()..]),
            "limits.cpu" | "limits.memory" => ("limits", &resource["limits.".len()..]),
            _ => continue,
        };
        if !spec["resources"][which][name].is_null() {
            continue;
        }
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

/// By how much storing the object raises use.
fn delta(a: &Attributes<'_>) -> Amounts {
    let mut now = usage(a, &a.object);
    if a.operation == Operation::Create {
        return now;
    }
    for (resource, amount) in usage(a, &a.old) {
        let zero = Quantity::new(0, amount.format());
        now.entry(resource).or_insert(zero).sub(&amount);
    }
    now.retain(|_, amount| !amount.is_zero());
    now
}

fn usage(a: &Attributes<'_>, object: &Value) -> Amounts {
    let resource = a.resource;
    let mut used = Amounts::new();
    let one = || Quantity::new(1, Format::DecimalSI);
    let counted = match resource.group.as_str() {
        "" => format!("count/{}", resource.plural),
        group => format!("count/{}.{group}", resource.plural),
    };
    if a.is("", "pods") {
        let finished = matches!(object["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
        used.insert(counted, one());
        if finished {
            return used;
        }
        used.insert("pods".into(), one());
        pod_usage(&object["spec"], &mut used);
        return used;
    }
    used.insert(counted, one());
    if !resource.group.is_empty() {
        return used;
    }
    match resource.plural.as_str() {
        "services" => service_usage(&object["spec"], &mut used),
        "persistentvolumeclaims" => claim_usage(object, &mut used),
        "replicationcontrollers" | "resourcequotas" | "secrets" | "configmaps" => {
            used.insert(resource.plural.clone(), one());
        }
        _ => {}
    }
    used
}

fn pod_usage(spec: &Value, used: &mut Amounts) {
    for (name, amount) in pod_total(spec, "requests") {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if plain {
            used.insert(name.clone(), amount.clone());
        }
        used.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in pod_total(spec, "limits") {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            used.insert(format!("limits.{name}"), amount);
        }
    }
}

fn service_usage(spec: &Value, used: &mut Amounts) {
    let number = |n: usize| Quantity::new(n as i64, Format::DecimalSI);
    let ports = spec["ports"].as_array().map_or(0, Vec::len);
    let node_ports = match spec["type"].as_str() {
        Some("NodePort") => ports,
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == false => {
            let asked = |p: &&Value| p["nodePort"].as_i64().is_some_and(|n| n != 0);
            spec["ports"].as_array().into_iter().flatten().filter(asked).count()
        }
        Some("LoadBalancer") => ports,
        _ => 0,
    };
    used.insert("services".into(), number(1));
    used.insert("services.nodeports".into(), number(node_ports));
    used.insert("services.loadbalancers".into(), number(usize::from(spec["type"] == "LoadBalancer")));
}

fn claim_usage(claim: &Value, used: &mut Amounts) {
    let one = Quantity::new(1, Format::DecimalSI);
    let class = claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"]
        .as_str()
        .or_else(|| claim["spec"]["storageClassName"].as_str())
        .unwrap_or_default();
    let by_class = |name: &str| format!("{class}.storageclass.storage.k8s.io/{name}");
    used.insert("persistentvolumeclaims".into(), one.clone());
    if !class.is_empty() {
        used.insert(by_class("persistentvolumeclaims"), one);
    }
    if let Some(storage) = amounts(&claim["spec"]["resources"]["requests"]).remove("storage") {
        if !class.is_empty() {
            used.insert(by_class("requests.storage"), storage.clone());
        }
        used.insert("requests.storage".into(), storage);
    }
}

/// Scopes narrow a quota to some pods; one with scopes counts nothing else.
fn scopes_match(quota: &Value, a: &Attributes<'_>) -> bool {
    let spec = &quota["spec"];
    let mut terms: Vec<Value> = Vec::new();
    for scope in spec["scopes"].as_array().into_iter().flatten() {
        terms.push(json!({ "scopeName": scope, "operator": "Exists" }));
    }
    terms.extend(spec["scopeSelector"]["matchExpressions"].as_array().cloned().unwrap_or_default());
    if terms.is_empty() {
        return true;
    }
    if a.is("", "persistentvolumeclaims") {
        return terms.iter().all(|t| {
            t["scopeName"] == "VolumeAttributesClass"
                && class_term(t, a.object["spec"]["volumeAttributesClassName"].as_str())
        });
    }
    a.is("", "pods") && terms.iter().all(|term| scope_matches(term, &a.object["spec"]))
}

fn scope_matches(term: &Value, pod: &Value) -> bool {
    let terminating = pod["activeDeadlineSeconds"].as_i64().is_some_and(|s| s >= 0);
    let best_effort = || {
        let list = |name: &str| pod[name].as_array().cloned().unwrap_or_default();
        let asks = |c: &Value| {
            let named = |which: &str| {
                amounts(&c["resources"][which])
                    .iter()
                    .any(|(n, q)| matches!(n.as_str(), "cpu" | "memory") && !q.is_zero())
            };
            named("requests") || named("limits")
        };
        !asks(pod) && !list("containers").iter().chain(&list("initContainers")).any(asks)
    };
    let crosses = || {
        let affinity = |which: &str| {
            let rules = &pod["affinity"][which];
            let required =
                rules["requiredDuringSchedulingIgnoredDuringExecution"].as_array().cloned().unwrap_or_default();
            let preferred =
                rules["preferredDuringSchedulingIgnoredDuringExecution"].as_array().cloned().unwrap_or_default();
            let preferred = preferred.iter().map(|p| p["podAffinityTerm"].clone()).collect::<Vec<_>>();
            required
                .into_iter()
                .chain(preferred)
                .any(|t| t["namespaces"].as_array().is_some_and(|n| !n.is_empty()) || !t["namespaceSelector"].is_null())
        };
        affinity("podAffinity") || affinity("podAntiAffinity")
    };
    match term["scopeName"].as_str().unwrap_or_default() {
        "Terminating" => terminating,
        "NotTerminating" => !terminating,
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "CrossNamespacePodAffinity" => crosses(),
        "PriorityClass" => class_term(term, pod["priorityClassName"].as_str()),
        _ => false,
    }
}

fn class_term(term: &Value, class: Option<&str>) -> bool {
    let class = class.unwrap_or_default();
    let listed = term["values"].as_array().is_some_and(|v| v.iter().any(|v| v == class));
    match term["operator"].as_str().unwrap_or_default() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => !class.is_empty(),
        "DoesNotExist" => class.is_empty(),
        _ => false,
    }
}
