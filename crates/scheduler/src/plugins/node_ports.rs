//! A host port can be used once per node, protocol and address.
//! Ports in use are kept by `node_info`.

use std::sync::Arc;

use api::placement::{HostPort, conflict};
use serde_json::Value;

use super::table::Built;
use crate::{
    cluster::Cluster,
    framework::{ClusterEvent, Failure, Filter, Plugin, Prepared},
    node_info::NodeInfo,
    pod_info::WaitingPod,
};

const REASON: &str = "node(s) didn't have free ports for the requested pod ports";

pub struct NodePorts;

pub fn build(_: &Value) -> Built {
    Ok(Arc::new(NodePorts))
}

#[derive(Clone)]
struct Wanted<'a>(&'a [HostPort]);

impl Plugin for NodePorts {
    fn filter<'a>(&'a self, _: &'a Cluster, pod: &'a WaitingPod) -> Prepared<'a> {
        if pod.host_ports.is_empty() { Prepared::Skip } else { Prepared::Filter(Box::new(Wanted(&pod.host_ports))) }
    }

    fn helps(&self, _: &Cluster, pod: &WaitingPod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::PodGone(gone) => conflict(&pod.host_ports, &gone.host_ports),
            ClusterEvent::Node { change, .. } => change.added,
            _ => false,
        }
    }
}

impl<'a> Filter<'a> for Wanted<'a> {
    fn check(&self, node: &NodeInfo) -> Result<(), Failure> {
        if conflict(self.0, &node.used_ports) { Err(Failure::resolvable(REASON)) } else { Ok(()) }
    }

    fn fork(&self) -> Box<dyn Filter<'a> + 'a> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{check_among, node, pod};

    #[test]
    fn the_same_port_on_overlapping_addresses_conflicts() {
        let port = |port: i32, address: &str, protocol: &str| {
            let port = json!({"containerPort": 1, "hostPort": port, "hostIP": address, "protocol": protocol});
            pod(json!({"containers": [{"name": "c", "ports": [port]}]}))
        };
        let free = |wanted: WaitingPod, used: WaitingPod| {
            let is_free = check_among(&NodePorts, &wanted, &[node("n")], vec![("n", used)]).pop().unwrap();
            is_free.is_ok()
        };
        assert!(!free(port(80, "", ""), port(80, "", "TCP")));
        assert!(free(port(80, "", "UDP"), port(80, "", "TCP")));
        assert!(free(port(80, "127.0.0.1", ""), port(80, "127.0.0.2", "")));
        assert!(!free(port(80, "127.0.0.1", ""), port(80, "", "")));
        assert!(free(port(81, "", ""), port(80, "", "")));
    }
}
