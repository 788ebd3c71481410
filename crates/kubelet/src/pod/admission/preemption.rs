//! Which pods make room for a critical one: as few as possible, of the lowest class of service.
//! Asked by `pod_workers` when only resources keep a critical pod out.
//! Invariant: pure; no pod goes for one that is not more important (tidy: `pure_files`).

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;

use super::requests;
use crate::pod::pod_spec::{self, QosClass};

const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// What a pod that had to go shows, and its Event.
pub const REASON: &str = "Preempting";
pub const MESSAGE: &str = "Preempted in order to admit critical pod";
pub const DISRUPTION_MESSAGE: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// Pods that the cluster or this node can't do without.
pub fn is_critical(pod: &Pod) -> bool {
    pod_spec::is_static(pod)
        || pod_spec::is_mirror(pod)
        || pod_spec::spec(pod).priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL_PRIORITY)
}

fn is_preemptable(preemptor: &Pod, pod: &Pod) -> bool {
    if is_critical(preemptor) && !is_critical(pod) {
        return true;
    }
    match (pod_spec::spec(preemptor).priority, pod_spec::spec(pod).priority) {
        (Some(higher), Some(lower)) => higher > lower,
        _ => false,
    }
}

/// What is missing, by resource; "pods" is one per pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirements(pub Vec<(String, i64)>);

#[derive(Debug, Clone)]
struct Candidate {
    pod: Arc<Pod>,
    requests: BTreeMap<String, i64>,
}

impl Candidate {
    fn new(pod: &Arc<Pod>) -> Self {
        let mut requests = requests(pod);
        requests.insert("pods".into(), 1);
        Self { pod: pod.clone(), requests }
    }

    fn request(&self, resource: &str) -> i64 {
        self.requests.get(resource).copied().unwrap_or(0)
    }
}

impl Requirements {
    /// How far a pod is from giving all of it; each resource counts the same.
    fn distance(&self, candidate: &Candidate) -> f64 {
        let left = |(resource, missing): &(String, i64)| {
            let left = (missing - candidate.request(resource)).max(0) as f64;
            (left / *missing as f64).powi(2)
        };
        self.0.iter().map(left).sum()
    }

    fn without<'a>(&self, candidates: impl IntoIterator<Item = &'a Candidate> + Clone) -> Self {
        let left = self.0.iter().map(|(resource, missing)| {
            let given = candidates.clone().into_iter().map(|candidate| candidate.request(resource));
            (resource.clone(), given.fold(*missing, i64::saturating_sub))
        });
        Self(left.filter(|(_, missing)| *missing > 0).collect())
    }

    fn unmet(&self) -> String {
        let shown: String =
            self.0.iter().map(|(resource, missing)| format!("(res: {resource}, q: {missing}), ")).collect();
        format!("no set of running pods found to reclaim resources: [{shown}]")
    }
}

/// Guaranteed pods go only for what all others together can't give, and best-effort ones first.
pub fn pods_to_preempt(preemptor: &Pod, pods: &[Arc<Pod>], missing: &Requirements) -> Result<Vec<Arc<Pod>>, String> {
    let preemptable = pods.iter().filter(|pod| is_preemptable(preemptor, pod));
    let candidates: Vec<(QosClass, Candidate)> =
        preemptable.map(|pod| (pod_spec::qos_class(pod), Candidate::new(pod))).collect();
    let of_class = |class: QosClass| -> Vec<Candidate> {
        candidates.iter().filter(|(found, _)| *found == class).map(|(_, candidate)| candidate.clone()).collect()
    };
    let best_effort = of_class(QosClass::BestEffort);
    let burstable = of_class(QosClass::Burstable);
    let guaranteed = of_class(QosClass::Guaranteed);
    let unmet = missing.without(candidates.iter().map(|(_, candidate)| candidate));
    if !unmet.0.is_empty() {
        return Err(unmet.unmet());
    }
    let lower = best_effort.iter().chain(&burstable);
    let guaranteed = nearest(guaranteed, missing.without(lower))?;
    let burstable = nearest(burstable, missing.without(best_effort.iter().chain(&guaranteed)))?;
    let best_effort = nearest(best_effort, missing.without(burstable.iter().chain(&guaranteed)))?;
    Ok(best_effort.into_iter().chain(burstable).chain(guaranteed).map(|candidate| candidate.pod).collect())
}

/// Takes the pod nearest to what is missing until nothing is; of two that are as near, the one that asks for less.
fn nearest(mut candidates: Vec<Candidate>, mut missing: Requirements) -> Result<Vec<Candidate>, String> {
    let mut chosen: Vec<Candidate> = Vec::new();
    while !missing.0.is_empty() {
        let size = |candidate: &Candidate| (candidate.request("memory"), candidate.request("cpu"));
        let better = |a: &Candidate, b: &Candidate| {
            missing.distance(a).total_cmp(&missing.distance(b)).then_with(|| size(a).cmp(&size(b)))
        };
        let best = candidates.iter().enumerate().min_by(|(_, a), (_, b)| better(a, b)).map(|(index, _)| index);
        let Some(best) = best else { return Err(missing.unmet()) };
        let next = candidates.swap_remove(best);
        missing = missing.without([&next]);
        chosen.push(next);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, priority: i32, requests: Value, limits: Value) -> Arc<Pod> {
        let resources = json!({"requests": requests, "limits": limits});
        let value = json!({"metadata": {"name": name}, "spec": {"priority": priority,
            "containers": [{"name": "a", "resources": resources}]}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn as_few_and_as_unimportant_as_possible() {
        let full = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
        let pods = [
            pod("best-effort", 0, json!({}), json!({})),
            pod("small", 0, full("100m", "100Mi"), json!({})),
            pod("medium", 0, full("200m", "200Mi"), json!({})),
            pod("large", 0, full("500m", "500Mi"), json!({})),
            pod("guaranteed", 0, full("1", "1Gi"), full("1", "1Gi")),
            pod("critical", SYSTEM_CRITICAL_PRIORITY, full("4", "4Gi"), json!({})),
        ];
        let preemptor = pod("new", SYSTEM_CRITICAL_PRIORITY, json!({}), json!({}));
        let check = |missing: &[(&str, i64)], expected: Result<&[&str], &str>| {
            let missing = Requirements(missing.iter().map(|(name, amount)| (name.to_string(), *amount)).collect());
            let found = pods_to_preempt(&preemptor, &pods, &missing);
            let names = found.map(|pods| pods.iter().map(|pod| pod_spec::name(pod).to_string()).collect::<Vec<_>>());
            let expected = expected.map(|names| names.iter().map(ToString::to_string).collect());
            assert_eq!(names, expected.map_err(String::from), "{missing:?}");
        };
        check(&[("pods", 1)], Ok(&["best-effort"]));
        check(&[("cpu", 100)], Ok(&["small"]));
        check(&[("cpu", 150)], Ok(&["medium"]));
        check(&[("cpu", 600)], Ok(&["large", "small"]));
        check(&[("cpu", 100), ("memory", 300 << 20)], Ok(&["large"]));
        check(&[("cpu", 900)], Ok(&["guaranteed"]));
        let unmet = "no set of running pods found to reclaim resources: [(res: cpu, q: 200), ]";
        check(&[("cpu", 2000)], Err(unmet));
        let usual = pod("usual", 10, json!({}), json!({}));
        let found = pods_to_preempt(&usual, &pods[5..], &Requirements(vec![("cpu".into(), 1)]));
        assert!(found.is_err(), "nobody makes room for a lower one");
    }
}
