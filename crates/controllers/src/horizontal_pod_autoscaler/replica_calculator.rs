//! How many replicas one metric asks for, as upstream's `replica_calculator` counts.
//! Asked by `plan`; what a metric says is fetched by `metrics_client`.
//! Invariant: pure (tidy: `pure_files`). Amounts are in thousandths, so that no fraction is lost on the way.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use api::{
    pod_resources::{self, is_pod_level, is_sidecar},
    quantity,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::common::{
    meta::Object,
    pods::{condition, phase, ready},
};

/// What one pod uses, averaged over a window that ends at `at`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodMetric {
    pub milli: i64,
    pub at: Timestamp,
    pub window: Duration,
}

pub type PodMetrics = BTreeMap<String, PodMetric>;

/// How far the ratio of use to target may be from one before anything is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerances {
    pub scale_down: f64,
    pub scale_up: f64,
}

impl Tolerances {
    fn allow(&self, ratio: f64) -> bool {
        1.0 - self.scale_down <= ratio && ratio <= 1.0 + self.scale_up
    }
}

/// When the processor time of a young pod counts.
#[derive(Debug, Clone, Copy)]
pub struct PodInitialization {
    pub cpu_initialization_period: Duration,
    pub initial_readiness_delay: Duration,
}

/// What a calculation is about: the pods of the target, and the rules.
pub struct ReplicaCalculator<'a> {
    pub pods: &'a [Arc<Pod>],
    pub tolerances: Tolerances,
    pub initialization: PodInitialization,
    pub now: Timestamp,
}

/// A proposal from what each pod uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Proposal {
    pub replicas: i32,
    /// Percent of what is requested, where that was asked.
    pub utilization: Option<i32>,
    pub average_milli: i64,
}

/// Use against the target.
#[derive(Debug, Clone, Copy)]
struct Usage {
    ratio: f64,
    utilization: Option<i32>,
    average_milli: i64,
}

#[derive(Debug, Default)]
struct PodGroups {
    ready: usize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

impl ReplicaCalculator<'_> {
    /// By percent of what the pods (or their containers of one name) request.
    pub fn by_utilization(
        &self,
        current: i32,
        target_percent: i32,
        resource: &str,
        container: Option<&str>,
        metrics: PodMetrics,
    ) -> Result<Proposal, String> {
        let (groups, metrics) = self.counted(metrics, resource)?;
        let requests = self.requests(resource, container)?;
        let usage = |metrics: &PodMetrics| utilization(metrics, &requests, target_percent);
        // A pod nobody measured shall not make us take pods away: it counts as using all it asked for.
        let whole = i64::from(target_percent.max(100));
        let missing = |pod: &str| requests.get(pod).copied().unwrap_or(0).saturating_mul(whole) / 100;
        self.propose(current, groups, metrics, usage, missing)
    }

    /// By the average over the pods. `resource` is empty where the metric is none of the kubelet's.
    pub fn by_average(
        &self,
        current: i32,
        target_milli: i64,
        resource: &str,
        metrics: PodMetrics,
    ) -> Result<Proposal, String> {
        let (groups, metrics) = self.counted(metrics, resource)?;
        self.propose(current, groups, metrics, |metrics| Ok(average(metrics, target_milli)), |_| target_milli)
    }

    /// By one value for the whole target. With no replica at all there is nothing to compare the value with.
    pub fn by_value(&self, current: i32, target_milli: i64, used_milli: i64) -> Result<i32, String> {
        let ratio = used_milli as f64 / target_milli as f64;
        if current == 0 {
            return Ok(ratio.ceil() as i32);
        }
        if self.tolerances.allow(ratio) {
            return Ok(current);
        }
        self.any_pods().map_err(|error| format!("unable to calculate ready pods: {error}"))?;
        let ready = self.pods.iter().filter(|pod| phase(pod) == "Running" && ready(pod)).count();
        Ok((ratio * ready as f64).ceil() as i32)
    }

    /// By one value that the replicas share: how many, and what each has now.
    pub fn by_value_per_pod(&self, replicas: i32, target_milli: i64, used_milli: i64) -> (i32, i64) {
        let (used, target) = (used_milli as f64, target_milli as f64);
        let ratio = used / (target * f64::from(replicas));
        let proposed = if self.tolerances.allow(ratio) { replicas } else { (used / target).ceil() as i32 };
        let each = if used_milli == i64::MAX { i64::MAX } else { (used / f64::from(replicas)).ceil() as i64 };
        (proposed, each)
    }

    fn any_pods(&self) -> Result<(), String> {
        match self.pods.is_empty() {
            true => Err("no pods returned by selector while calculating replica count".into()),
            false => Ok(()),
        }
    }

    /// The metrics of pods that count, and what is to be said of the others.
    fn counted(&self, mut metrics: PodMetrics, resource: &str) -> Result<(PodGroups, PodMetrics), String> {
        self.any_pods()?;
        let groups = self.group(&metrics, resource);
        metrics.retain(|pod, _| !groups.ignored.contains(pod) && !groups.unready.contains(pod));
        if metrics.is_empty() {
            return Err("did not receive metrics for targeted pods (pods might be unready)".into());
        }
        Ok((groups, metrics))
    }

    fn propose(
        &self,
        current: i32,
        groups: PodGroups,
        mut metrics: PodMetrics,
        usage: impl Fn(&PodMetrics) -> Result<Usage, String>,
        missing_milli: impl Fn(&str) -> i64,
    ) -> Result<Proposal, String> {
        let first = usage(&metrics)?;
        let proposal = |replicas: i32| {
            Ok(Proposal { replicas, utilization: first.utilization, average_milli: first.average_milli })
        };
        let up_with_unready = !groups.unready.is_empty() && first.ratio > 1.0;
        if !up_with_unready && groups.missing.is_empty() {
            return match self.tolerances.allow(first.ratio) {
                true => proposal(current),
                false => proposal((first.ratio * groups.ready as f64).ceil() as i32),
            };
        }
        // What nobody measured must neither cause a change nor make it larger.
        let assumed = |milli: i64| PodMetric { milli, at: self.now, window: Duration::ZERO };
        for pod in groups.missing {
            if first.ratio < 1.0 {
                metrics.insert(pod.clone(), assumed(missing_milli(&pod)));
            } else if first.ratio > 1.0 {
                metrics.insert(pod, assumed(0));
            }
        }
        if up_with_unready {
            metrics.extend(groups.unready.into_iter().map(|pod| (pod, assumed(0))));
        }
        let ratio = usage(&metrics)?.ratio;
        let turned = (first.ratio < 1.0 && ratio > 1.0) || (first.ratio > 1.0 && ratio < 1.0);
        if self.tolerances.allow(ratio) || turned {
            return proposal(current);
        }
        let replicas = (ratio * metrics.len() as f64).ceil() as i32;
        if (ratio < 1.0 && replicas > current) || (ratio > 1.0 && replicas < current) {
            return proposal(current);
        }
        proposal(replicas)
    }

    fn group(&self, metrics: &PodMetrics, resource: &str) -> PodGroups {
        let mut groups = PodGroups::default();
        for pod in self.pods {
            let name = || pod.name().to_string();
            if pod.deleting() || phase(pod) == "Failed" {
                groups.ignored.insert(name());
            } else if phase(pod) == "Pending" {
                groups.unready.insert(name());
            } else {
                match metrics.get(pod.name()) {
                    None => drop(groups.missing.insert(name())),
                    Some(metric) if resource == "cpu" && self.is_warming_up(pod, metric) => {
                        groups.unready.insert(name());
                    }
                    Some(_) => groups.ready += 1,
                }
            }
        }
        groups
    }

    /// Whether what the pod burns may still be that of its start.
    fn is_warming_up(&self, pod: &Pod, metric: &PodMetric) -> bool {
        let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
        let (Some(condition), Some(started)) = (condition(pod, "Ready"), started) else { return true };
        let changed = condition.last_transition_time.as_ref().map_or(Timestamp::MIN, |time| time.0);
        let unready = condition.status == "False";
        if started + self.initialization.cpu_initialization_period > self.now {
            return unready || changed.checked_add(metric.window).is_ok_and(|measured| metric.at < measured);
        }
        unready && started + self.initialization.initial_readiness_delay > changed
    }

    fn requests(&self, resource: &str, container: Option<&str>) -> Result<HashMap<String, i64>, String> {
        self.pods.iter().map(|pod| Ok((pod.name().to_string(), request(pod, resource, container)?))).collect()
    }
}

/// What a pod requests of a resource, in thousandths. A container of the given name wins over what the pod says as a whole.
fn request(pod: &Pod, resource: &str, container: Option<&str>) -> Result<i64, String> {
    let Some(spec) = &pod.spec else { return Ok(0) };
    let pod_level = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    if container.is_none() && pod_level.is_some_and(|requests| requests.keys().any(|name| is_pod_level(name))) {
        let amounts = pod_resources::requests(pod);
        let missing = || format!("missing pod-level request for {resource} in Pod {}", pod.name());
        return amounts.get(resource).map(|amount| amount.milli_value()).ok_or_else(missing);
    }
    let of = |found: &Container| {
        let requests = found.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        requests
            .and_then(|requests| requests.get(resource))
            .and_then(quantity::milli_value)
            .ok_or_else(|| format!("missing request for {resource} in container {} of Pod {}", found.name, pod.name()))
    };
    let sidecars = spec.init_containers.iter().flatten().filter(|container| is_sidecar(container));
    let mut containers = spec.containers.iter().chain(sidecars);
    match container {
        Some(name) => {
            let missing = || format!("container {name} not found in Pod {}", pod.name());
            of(containers.find(|found| found.name == name).ok_or_else(missing)?)
        }
        None => containers.try_fold(0i64, |sum, found| Ok(sum.saturating_add(of(found)?))),
    }
}

fn utilization(metrics: &PodMetrics, requests: &HashMap<String, i64>, target_percent: i32) -> Result<Usage, String> {
    let (mut used, mut requested, mut pods) = (0i128, 0i128, 0i128);
    for (pod, metric) in metrics {
        // Metrics of pods that the selector no longer selects.
        let Some(request) = requests.get(pod) else { continue };
        used += i128::from(metric.milli);
        requested += i128::from(*request);
        pods += 1;
    }
    if requested == 0 {
        return Err("no metrics returned matched known pods".into());
    }
    let percent = saturated(used * 100 / requested);
    let percent = i32::try_from(percent).unwrap_or(if percent < 0 { i32::MIN } else { i32::MAX });
    Ok(Usage {
        ratio: f64::from(percent) / f64::from(target_percent),
        utilization: Some(percent),
        average_milli: saturated(used / pods),
    })
}

fn average(metrics: &PodMetrics, target_milli: i64) -> Usage {
    let used: i128 = metrics.values().map(|metric| i128::from(metric.milli)).sum();
    let average_milli = saturated(used / metrics.len().max(1) as i128);
    Usage { ratio: average_milli as f64 / target_milli as f64, utilization: None, average_milli }
}

fn saturated(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
#[path = "replica_calculator_tests.rs"]
mod tests;
