//! How long a node took from the machine's boot until it was Ready, in upstream's stages.
//! Told by `node_status` of a node that it has just made; one that was there already has nothing to tell.
//! Each stage is told once.

use jiff::Timestamp;
use metrics::{Family, Metrics};
use parking_lot::Mutex;

static BEFORE_KUBELET: Family = Family::gauge(
    "kubelet_node_startup_pre_kubelet_duration_seconds",
    &[],
    "From the machine's boot until the kubelet began.",
);
static BEFORE_REGISTRATION: Family = Family::gauge(
    "kubelet_node_startup_pre_registration_duration_seconds",
    &[],
    "From the kubelet's start until it first tried to make its Node object.",
);
static REGISTRATION: Family = Family::gauge(
    "kubelet_node_startup_registration_duration_seconds",
    &[],
    "How long it took to make the Node object.",
);
static AFTER_REGISTRATION: Family = Family::gauge(
    "kubelet_node_startup_post_registration_duration_seconds",
    &[],
    "From the Node object's making until it was Ready.",
);
static WHOLE: Family =
    Family::gauge("kubelet_node_startup_duration_seconds", &[], "From the machine's boot until the node was Ready.");

#[derive(Debug, Clone, Copy, Default)]
struct Stages {
    attempted: Option<Timestamp>,
    registered: Option<Timestamp>,
    ready: bool,
}

pub struct NodeStartup {
    metrics: Metrics,
    booted: Option<Timestamp>,
    began: Timestamp,
    stages: Mutex<Stages>,
}

impl NodeStartup {
    pub fn new(metrics: Metrics, booted: Option<Timestamp>, began: Timestamp) -> Self {
        for family in [&BEFORE_KUBELET, &BEFORE_REGISTRATION, &REGISTRATION, &AFTER_REGISTRATION, &WHOLE] {
            metrics.set(family, &[], 0.0);
        }
        Self { metrics, booted, began, stages: Mutex::default() }
    }

    /// It is about to ask for its Node object.
    pub fn attempt(&self, now: Timestamp) {
        self.stages.lock().attempted.get_or_insert(now);
    }

    /// It has made its Node object.
    pub fn registered(&self, now: Timestamp) {
        let mut stages = self.stages.lock();
        let (Some(attempted), None) = (stages.attempted, stages.registered) else { return };
        stages.registered = Some(now);
        if let Some(booted) = self.booted {
            self.set(&BEFORE_KUBELET, booted, self.began);
        }
        self.set(&BEFORE_REGISTRATION, self.began, attempted);
        self.set(&REGISTRATION, attempted, now);
    }

    /// Its Node object says that it is Ready.
    pub fn ready(&self, now: Timestamp) {
        let mut stages = self.stages.lock();
        let (Some(registered), false) = (stages.registered, stages.ready) else { return };
        stages.ready = true;
        self.set(&AFTER_REGISTRATION, registered, now);
        if let Some(booted) = self.booted {
            self.set(&WHOLE, booted, now);
        }
    }

    fn set(&self, family: &'static Family, from: Timestamp, to: Timestamp) {
        self.metrics.set(family, &[], (to.as_millisecond() - from.as_millisecond()) as f64 / 1000.0);
    }
}

/// When the machine was booted, from the kernel's `/proc/stat`.
pub fn boot_time(stat: &str) -> Option<Timestamp> {
    Timestamp::from_second(metrics::boot_time(stat)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_of_a_new_node_is_told_once() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let check = |is_new: bool, expected: [&str; 5]| {
            let metrics = Metrics::default();
            let startup = NodeStartup::new(metrics.clone(), boot_time("cpu 1 2\nbtime 100\n"), at(130));
            startup.attempt(at(131));
            startup.attempt(at(150));
            if is_new {
                startup.registered(at(133));
                startup.registered(at(190));
            }
            startup.ready(at(137));
            startup.ready(at(199));
            let page = metrics.page();
            let names = ["pre_kubelet_", "pre_registration_", "registration_", "post_registration_", ""];
            for (name, value) in names.into_iter().zip(expected) {
                let line = format!("kubelet_node_startup_{name}duration_seconds {value}");
                assert!(page.lines().any(|found| found == line), "{line} in {page}");
            }
        };
        check(true, ["30", "1", "2", "4", "37"]);
        check(false, ["0", "0", "0", "0", "0"]);
        assert_eq!(boot_time("cpu 1\n"), None);
    }
}
