//! Forgets UDP connection tracking entries of host ports, which would go on to the pod that had the port before.
//! Called by `attach` after the rules changed.
//! Invariant: TCP is left alone, an open connection ends when its pod does (type: `UdpFlow` reads no other protocol).

use std::net::IpAddr;

use netfilter::{
    NLM_F_ACK, NLM_F_DUMP,
    conntrack::{FlowName, IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_GET, UdpFlow},
    request,
};
use nix::libc::{AF_INET, AF_INET6};

use crate::portmap::HostPort;

/// A kernel that does not tell of its flows keeps them; they end by themselves some time after the last packet.
pub fn forget(ports: &[HostPort]) {
    for (ipv4, family) in [(true, AF_INET as u8), (false, AF_INET6 as u8)] {
        let of_family = ports.iter().filter(|port| port.protocol == "udp" && port.pod_ip.is_ipv4() == ipv4);
        let ports: Vec<&HostPort> = of_family.collect();
        if ports.is_empty() {
            continue;
        }
        let mut flows: Vec<FlowName> = Vec::new();
        let listed = request(IPCTNL_MSG_CT_GET, NLM_F_DUMP, family, &[], |flow| flows.extend(stale(flow, &ports)));
        if listed.is_err() {
            continue;
        }
        for flow in &flows {
            // One that has ended meanwhile is as good.
            let _ = request(IPCTNL_MSG_CT_DELETE, NLM_F_ACK, family, &flow.attributes(), |_| {});
        }
    }
}

/// The name of a flow that was sent to one of the ports.
fn stale(flow: &[u8], ports: &[&HostPort]) -> Option<FlowName> {
    let flow = UdpFlow::read(flow)?;
    let sent_to = |own: &HostPort| {
        let is_at = |host_ip: IpAddr| host_ip == flow.destination.ip();
        own.host_port == flow.destination.port() && own.host_ip.is_none_or(is_at)
    };
    ports.iter().any(|own| sent_to(own)).then(|| flow.name())
}
