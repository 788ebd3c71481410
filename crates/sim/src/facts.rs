//! What the simulator reads out of objects: small questions with one answer each.
//! Used by the pretended node and by both sets of checks.
//! Shares no code with what is being tested; the oracle has its own arithmetic.

use k8s_openapi::{
    Metadata,
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        core::v1::{Node, Pod},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};

/// What every pretended node has.
pub const MILLI_CPU: i64 = 8000;
pub const NODE_PODS: usize = 30;

pub trait Object: Metadata<Ty = ObjectMeta> {}
impl<T: Metadata<Ty = ObjectMeta>> Object for T {}

pub fn uid(object: &impl Object) -> &str {
    object.metadata().uid.as_deref().unwrap_or_default()
}

pub fn name(object: &impl Object) -> &str {
    object.metadata().name.as_deref().unwrap_or_default()
}

pub fn namespace(object: &impl Object) -> &str {
    object.metadata().namespace.as_deref().unwrap_or_default()
}

pub fn deleting(object: &impl Object) -> bool {
    object.metadata().deletion_timestamp.is_some()
}

pub fn generation(object: &impl Object) -> i64 {
    object.metadata().generation.unwrap_or(0)
}

pub fn controller(object: &impl Object) -> Option<&OwnerReference> {
    object.metadata().owner_references.iter().flatten().find(|o| o.controller == Some(true))
}

pub fn identity(object: &impl Object) -> (String, String) {
    (namespace(object).to_string(), name(object).to_string())
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

pub fn finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub fn active(pod: &Pod) -> bool {
    !finished(pod) && !deleting(pod)
}

pub fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty())
}

pub fn image(pod: &Pod) -> String {
    let containers = pod.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default();
    containers.first().and_then(|c| c.image.clone()).unwrap_or_default()
}

pub fn milli_cpu(pod: &Pod) -> i64 {
    let containers = pod.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default();
    let request =
        |c: &k8s_openapi::api::core::v1::Container| quantity(&c.resources.as_ref()?.requests.as_ref()?.get("cpu")?.0);
    containers.iter().filter_map(request).sum()
}

/// In thousandths. Only the forms that the workload uses, and those that the server turns them into.
pub fn quantity(text: &str) -> Option<i64> {
    match text.strip_suffix('m') {
        Some(milli) => milli.parse().ok(),
        None => text.parse::<i64>().ok().map(|n| n * 1000),
    }
}

pub fn node_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// The node that a daemon's pod is meant for.
pub fn meant_for(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    terms.iter().flat_map(|t| t.match_fields.iter().flatten()).find_map(|f| f.values.as_ref()?.first().cloned())
}

pub fn job_finished(job: &Job) -> bool {
    let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

/// Whether the job's containers end with 0 when nobody disturbs them.
pub fn ends_well(job: &Job) -> bool {
    let containers = job.spec.as_ref().and_then(|s| s.template.spec.as_ref()).map(|s| s.containers.as_slice());
    containers.unwrap_or_default().iter().all(|c| c.image.as_deref() == Some("ends:0"))
}

fn share(of: i32, value: Option<&IntOrString>, up: bool) -> i32 {
    match value {
        Some(IntOrString::Int(count)) => *count,
        Some(IntOrString::String(text)) => {
            let percent: i32 = text.trim_end_matches('%').parse().unwrap_or(0);
            (of * percent + if up { 99 } else { 0 }) / 100
        }
        None => share(of, Some(&IntOrString::String("25%".into())), up),
    }
}

pub fn wanted(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// The most pods a deployment may have and the fewest that must be available.
pub fn bounds(deployment: &Deployment) -> (i32, i32) {
    let wanted = wanted(deployment);
    let strategy = deployment.spec.as_ref().and_then(|s| s.strategy.as_ref());
    if strategy.and_then(|s| s.type_.as_deref()) == Some("Recreate") {
        return (wanted, 0);
    }
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let surge = share(wanted, rolling.and_then(|r| r.max_surge.as_ref()), true);
    let unavailable = share(wanted, rolling.and_then(|r| r.max_unavailable.as_ref()), false);
    // Neither more nor fewer would never move.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    (wanted + surge, (wanted - unavailable).max(0))
}

/// Whether the budget speaks of the pod. Only the forms that the workload uses.
pub fn protects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let wanted = budget.spec.as_ref().and_then(|s| s.selector.as_ref()?.match_labels.as_ref());
    let labels = pod.metadata.labels.as_ref();
    let has = |(key, value): (&String, &String)| labels.and_then(|l| l.get(key)) == Some(value);
    namespace(budget) == namespace(pod) && wanted.is_some_and(|wanted| wanted.iter().all(has))
}

/// Names of the pods whose eviction was granted and that are not known to have gone.
pub fn let_go(budget: &PodDisruptionBudget) -> std::collections::BTreeSet<String> {
    let disrupted = budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref());
    disrupted.into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

/// How many healthy pods must stay, of `scale` that are wanted.
pub fn fewest_healthy(budget: &PodDisruptionBudget, scale: i32) -> i32 {
    let Some(spec) = &budget.spec else { return 0 };
    match (&spec.min_available, &spec.max_unavailable) {
        (Some(least), _) => share(scale, Some(least), true),
        (None, Some(most)) => (scale - share(scale, Some(most), true)).max(0),
        (None, None) => 0,
    }
}
