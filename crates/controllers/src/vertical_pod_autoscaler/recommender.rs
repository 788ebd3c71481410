//! What the containers of one target have used, and what they should request.
//! Fed and asked by `mod` once a minute; the arithmetic is upstream's recommender's.
//! Invariant: pure (tidy: `pure_files`). With little history the bounds are far apart, so nothing is disturbed early.

use std::{collections::BTreeMap, time::Duration};

use api::{
    pod_resources::Amounts,
    quantity::{Format, Quantity},
    vertical_pod_autoscaler::{is_off, within_policy},
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::histogram::{Histogram, Scale};

const TARGET_PERCENTILE: f64 = 0.9;
const LOWER_BOUND_PERCENTILE: f64 = 0.5;
const UPPER_BOUND_PERCENTILE: f64 = 0.95;
const SAFETY_MARGIN: f64 = 1.15;
/// Of a pod, divided by its containers.
const POD_CPU_CORES_MIN: f64 = 0.025;
const POD_MEMORY_BYTES_MIN: f64 = 250.0 * 1024.0 * 1024.0;
/// So that containers with tiny requests count for something.
const CPU_SAMPLE_WEIGHT_MIN: f64 = 0.1;
/// Of memory only the peak of each such time counts.
const MEMORY_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// After a container ran out of memory it is taken to have needed more.
const OOM_BYTES_MIN: f64 = 100.0 * 1024.0 * 1024.0;
const OOM_FACTOR: f64 = 1.2;
/// In millicores or bytes: the bound of a container that has hardly been seen.
const AMOUNT_MAX: f64 = 1e14;
const SAMPLES_PER_DAY: f64 = 24.0 * 60.0;

/// One measurement of a container.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    pub cpu_cores: f64,
    pub memory_bytes: f64,
    pub at: Timestamp,
}

/// What is known of the containers of one name.
#[derive(Debug, Clone)]
pub struct ContainerState {
    cpu: Histogram,
    memory: Histogram,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
    samples: u64,
    /// By pod: the peak of the running interval, and when that ends.
    peaks: BTreeMap<String, (f64, Timestamp)>,
}

impl Default for ContainerState {
    fn default() -> Self {
        Self {
            cpu: Histogram::new(Scale::cpu()),
            memory: Histogram::new(Scale::memory()),
            first: None,
            last: None,
            samples: 0,
            peaks: BTreeMap::new(),
        }
    }
}

impl ContainerState {
    pub fn add(&mut self, pod: &str, usage: Usage, requested_cores: f64) {
        self.cpu.add(usage.cpu_cores, requested_cores.max(CPU_SAMPLE_WEIGHT_MIN), usage.at);
        self.add_memory(pod, usage.memory_bytes, usage.at);
        self.first.get_or_insert(usage.at);
        self.last = self.last.max(Some(usage.at));
        self.samples += 1;
    }

    /// It was killed when it wanted more than it had.
    pub fn out_of_memory(&mut self, pod: &str, requested_bytes: f64, at: Timestamp) {
        let had = self.peaks.get(pod).map_or(requested_bytes, |(peak, _)| peak.max(requested_bytes));
        self.add_memory(pod, (had + OOM_BYTES_MIN).max(had * OOM_FACTOR), at);
    }

    fn add_memory(&mut self, pod: &str, bytes: f64, at: Timestamp) {
        let running = self.peaks.get(pod).copied().filter(|(_, end)| at < *end);
        let end = running.map_or(at + MEMORY_INTERVAL, |(_, end)| end);
        if let Some((peak, end)) = running {
            if peak >= bytes {
                return;
            }
            self.memory.subtract(peak, 1.0, end);
        }
        self.memory.add(bytes, 1.0, end);
        self.peaks.insert(pod.to_string(), (bytes, end));
    }

    /// Forgets the pods that are gone; what they used stays known.
    pub fn retain_pods(&mut self, is_there: impl Fn(&str) -> bool) {
        self.peaks.retain(|pod, _| is_there(pod));
    }

    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// In days of history with a sample a minute.
    fn confidence(&self) -> f64 {
        let (Some(first), Some(last)) = (self.first, self.last) else { return 0.0 };
        let days = last.duration_since(first).as_secs_f64() / (24.0 * 3600.0);
        days.min(self.samples as f64 / SAMPLES_PER_DAY)
    }

    fn amounts(&self, percentile: f64, factor: f64, containers: usize) -> Amounts {
        let share = containers.max(1) as f64;
        let cores = (self.cpu.percentile(percentile) * SAFETY_MARGIN * factor).max(POD_CPU_CORES_MIN / share);
        let bytes = (self.memory.percentile(percentile) * SAFETY_MARGIN * factor).max(POD_MEMORY_BYTES_MIN / share);
        Amounts::from([
            (
                "cpu".to_string(),
                Quantity::from_milli((cores * 1000.0).round().min(AMOUNT_MAX) as i64, Format::DecimalSI),
            ),
            ("memory".to_string(), Quantity::new(bytes.round().min(AMOUNT_MAX) as i64, Format::DecimalSI)),
        ])
    }

    /// A `containerRecommendation`, within the policy.
    pub fn recommendation(&self, autoscaler: &Value, container: &str, containers: usize) -> Value {
        let confidence = self.confidence();
        let target = self.amounts(TARGET_PERCENTILE, 1.0, containers);
        let lower = self.amounts(LOWER_BOUND_PERCENTILE, (1.0 + 0.001 / confidence).powi(-2), containers);
        let upper = self.amounts(UPPER_BOUND_PERCENTILE, 1.0 + 1.0 / confidence, containers);
        let shown = |amounts: &Amounts| -> Value {
            amounts.iter().map(|(name, amount)| (name.clone(), Value::from(amount.canonical()))).collect()
        };
        let allowed = |amounts: &Amounts| shown(&within_policy(autoscaler, container, amounts));
        json!({
            "containerName": container, "target": allowed(&target), "lowerBound": allowed(&lower),
            "upperBound": allowed(&upper), "uncappedTarget": shown(&target),
        })
    }

    pub fn checkpoint(&self) -> Value {
        let time = |at: Option<Timestamp>| at.map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        json!({
            "version": "v3", "cpuHistogram": self.cpu.checkpoint(), "memoryHistogram": self.memory.checkpoint(),
            "firstSampleStart": time(self.first), "lastSampleStart": time(self.last), "totalSamplesCount": self.samples,
        })
    }

    pub fn load(checkpoint: &Value) -> Self {
        let time = |name: &str| checkpoint[name].as_str().and_then(|text| text.parse().ok());
        Self {
            cpu: Histogram::load(Scale::cpu(), &checkpoint["cpuHistogram"]),
            memory: Histogram::load(Scale::memory(), &checkpoint["memoryHistogram"]),
            first: time("firstSampleStart"),
            last: time("lastSampleStart"),
            samples: checkpoint["totalSamplesCount"].as_u64().unwrap_or(0),
            peaks: BTreeMap::new(),
        }
    }
}

/// The recommendations for the containers that are not turned off, in the order of their names.
pub fn recommendations(autoscaler: &Value, containers: &BTreeMap<String, ContainerState>) -> Vec<Value> {
    let known = containers.iter().filter(|(name, state)| !state.is_empty() && !is_off(autoscaler, name));
    let known: Vec<_> = known.collect();
    known.iter().map(|(name, state)| state.recommendation(autoscaler, name, known.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(minutes * 60).unwrap()
    }

    fn fed(minutes: i64) -> ContainerState {
        let mut state = ContainerState::default();
        for minute in 0..=minutes {
            state.add("p", Usage { cpu_cores: 0.5, memory_bytes: 4e8, at: at(minute) }, 1.0);
        }
        state
    }

    fn milli(recommendation: &Value, which: &str, resource: &str) -> i64 {
        Quantity::parse(recommendation[which][resource].as_str().unwrap()).unwrap().milli_value()
    }

    #[test]
    fn bounds_close_in_with_time() {
        let check = |minutes: i64, upper_at_least: f64, upper_at_most: f64| {
            let found = fed(minutes).recommendation(&json!({}), "c", 1);
            let target = milli(&found, "target", "cpu") as f64;
            assert!((500.0 * SAFETY_MARGIN..500.0 * SAFETY_MARGIN * 1.11).contains(&target), "{found}");
            let ratio = milli(&found, "upperBound", "cpu") as f64 / target;
            assert!((upper_at_least..upper_at_most).contains(&ratio), "{minutes}: {ratio}");
            assert!(milli(&found, "lowerBound", "cpu") as f64 <= target, "{found}");
        };
        check(60, 20.0, 30.0);
        check(24 * 60, 1.9, 2.1);
        check(7 * 24 * 60, 1.1, 1.2);
    }

    #[test]
    fn memory_follows_peaks_and_deaths() {
        let mut state = fed(60);
        let before = milli(&state.recommendation(&json!({}), "c", 1), "target", "memory");
        state.out_of_memory("p", 4e8, at(61));
        let after = milli(&state.recommendation(&json!({}), "c", 1), "target", "memory");
        assert!(after as f64 >= before as f64 * 1.15, "{before} {after}");
        let back = ContainerState::load(&state.checkpoint());
        assert_eq!(milli(&back.recommendation(&json!({}), "c", 1), "target", "memory"), after);
    }

    #[test]
    fn small_pods_get_the_least_and_policies_win() {
        let mut state = ContainerState::default();
        state.add("p", Usage { cpu_cores: 0.0, memory_bytes: 1e6, at: at(0) }, 0.0);
        let policy = json!({ "containerName": "*", "minAllowed": { "cpu": "100m" } });
        let autoscaler = json!({ "spec": { "resourcePolicy": { "containerPolicies": [policy] } } });
        let containers = BTreeMap::from([("a".to_string(), state.clone()), ("b".to_string(), state)]);
        let found = recommendations(&autoscaler, &containers);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0]["upperBound"]["memory"], "100T");
        assert_eq!(milli(&found[0], "target", "cpu"), 100);
        assert_eq!(milli(&found[0], "uncappedTarget", "memory"), 125 * 1024 * 1024 * 1000);
        assert!(
            recommendations(&json!({}), &BTreeMap::from([("c".to_string(), ContainerState::default())])).is_empty()
        );
    }
}
