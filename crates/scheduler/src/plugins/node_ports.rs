//! A host port can be used once per node, protocol and address.
//! Ports in use are kept by `node_info`.

use api::placement::{HostPort, conflict};
use serde_json::Value;

use crate::{
    cluster::Cluster,
    equivalence_class::PodSignature,
    framework::{
        ClusterEvent, EnqueueExtensions, FilterPlugin, NodeFilter, Plugin, PreFilterPlugin, PreFilterResult,
        QueueingHint, SignPlugin, Status,
    },
    node_info::NodeInfo,
    pod_info::PendingPod,
};

const REASON: &str = "node(s) didn't have free ports for the requested pod ports";

pub struct NodePorts;

pub fn new(_: &Value) -> Result<Plugin, String> {
    Ok(Plugin::of(NodePorts).pre_filter().filter().enqueue_extensions().sign().build())
}

#[derive(Clone)]
struct Wanted<'a>(&'a [HostPort]);

impl PreFilterPlugin for NodePorts {
    fn pre_filter(&self, _: &Cluster, pod: &PendingPod) -> PreFilterResult {
        if pod.host_ports.is_empty() { PreFilterResult::Skip } else { PreFilterResult::AllNodes }
    }
}

impl FilterPlugin for NodePorts {
    fn node_filter<'a>(&'a self, _: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(Wanted(&pod.host_ports))
    }
}

impl EnqueueExtensions for NodePorts {
    fn queueing_hint(&self, _: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(match event {
            ClusterEvent::PodGone(gone) => conflict(&pod.host_ports, &gone.host_ports),
            ClusterEvent::Node { change, .. } => change.added,
            _ => false,
        })
    }
}

impl SignPlugin for NodePorts {
    fn sign_pod(&self, _: &Cluster, _: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.host_ports();
    }
}

impl<'a> NodeFilter<'a> for Wanted<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        if conflict(self.0, &node.used_ports) { Err(Status::unschedulable(REASON)) } else { Ok(()) }
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, check_among, node, pod};

    #[test]
    fn the_same_port_on_overlapping_addresses_conflicts() {
        let port = |port: i32, address: &str, protocol: &str| {
            let port = json!({"containerPort": 1, "hostPort": port, "hostIP": address, "protocol": protocol});
            pod(json!({"containers": [{"name": "c", "ports": [port]}]}))
        };
        let free = |wanted: PendingPod, used: PendingPod| {
            let is_free = check_among(&built(new), &wanted, &[node("n")], vec![("n", used)]).pop().unwrap();
            is_free.is_ok()
        };
        assert!(!free(port(80, "", ""), port(80, "", "TCP")));
        assert!(free(port(80, "", "UDP"), port(80, "", "TCP")));
        assert!(free(port(80, "127.0.0.1", ""), port(80, "127.0.0.2", "")));
        assert!(!free(port(80, "127.0.0.1", ""), port(80, "", "")));
        assert!(free(port(81, "", ""), port(80, "", "")));
    }
}
