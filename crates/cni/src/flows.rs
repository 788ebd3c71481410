//! Forgets UDP connection tracking entries of host ports, which would go on to the pod that had the port before.
//! Called by `attach` after the rules changed.
//! Invariant: TCP is left alone; an open connection ends when its pod does.

use std::process::{Command, Stdio};

use crate::portmap::HostPort;

pub fn forget(ports: &[HostPort]) {
    for port in ports.iter().filter(|port| port.protocol == "udp") {
        let mut command = Command::new("conntrack");
        command.args(["-D", "-p", "udp", "-f", if port.pod_ip.is_ipv4() { "ipv4" } else { "ipv6" }]);
        command.args(["--orig-port-dst", &port.host_port.to_string()]);
        if let Some(ip) = port.host_ip {
            command.args(["--orig-dst", &ip.to_string()]);
        }
        // It exits with 1 when there was no such flow, which is the usual case. Where there is no conntrack the service
        // proxy says so, and the flows end by themselves some time after the last packet.
        let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
