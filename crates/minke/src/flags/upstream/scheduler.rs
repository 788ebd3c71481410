//! The flags of kube-scheduler.
//! A table of `upstream`; what acts is in `flags::Scheduler`.

use super::{
    Component,
    Form::{Duration, Text},
    Meaning::{Acts, Only},
    Row, shared,
};

#[derive(Debug, Clone)]
pub struct Scheduler;

impl Component for Scheduler {
    fn tables() -> Vec<&'static [Row]> {
        vec![
            OWN,
            shared::CLIENT_CONNECTION,
            shared::COMPONENT_PORT,
            shared::LEADER_ELECTION,
            shared::LOGS,
            shared::METRICS,
            shared::PROFILING,
            shared::VERSIONS,
        ]
    }
}

const OWN: &[Row] = &[
    ("config", Text, Acts),
    (
        "pod-max-in-unschedulable-pods-duration",
        Duration,
        Only(&["5m"], "pods that nothing has brought back are tried again after five minutes"),
    ),
    ("write-config-to", Text, Only(&[""], "/configz shows the configuration")),
];
