//! A pod with scheduling gates is not tried until all of them are gone.
//! Neighbour of `queue`, where gated pods wait for a change of their spec.

use serde_json::Value;

use crate::{
    cluster::Cluster,
    framework::{Plugin, PreEnqueuePlugin, Status},
    pod_info::PendingPod,
};

pub struct SchedulingGates;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(SchedulingGates).pre_enqueue().build())
}

impl PreEnqueuePlugin for SchedulingGates {
    fn pre_enqueue(&self, _: &Cluster, pod: &PendingPod) -> Result<(), Status> {
        let gates: Vec<&str> = pod.scheduling_gates().iter().map(|gate| gate.name.as_str()).collect();
        if gates.is_empty() {
            return Ok(());
        }
        Err(Status::unresolvable(format!("waiting for scheduling gates: [{}]", gates.join(" "))))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::pod;

    #[test]
    fn every_gate_holds_the_pod_back() {
        let check = |gates: Value, wanted: Result<(), &str>| {
            let found = SchedulingGates.pre_enqueue(&Cluster::default(), &pod(json!({"schedulingGates": gates})));
            assert_eq!(found.map_err(|status| status.message()), wanted.map_err(str::to_string));
        };
        check(json!(null), Ok(()));
        check(json!([]), Ok(()));
        check(json!([{"name": "a"}, {"name": "b"}]), Err("waiting for scheduling gates: [a b]"));
    }
}
