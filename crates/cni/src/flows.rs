//! Forgets UDP connection tracking entries of host ports, which would go on to the pod that had the port before.
//! Called by `attach` after the rules changed.
//! Invariant: a deletion always names one flow, and TCP is left alone: an open connection ends when its pod does.

use crate::{
    netfilter::{LIST, NESTED, ORDER, ask, attributes},
    portmap::HostPort,
};

const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const FAMILIES: [(bool, u8); 2] = [(true, nix::libc::AF_INET as u8), (false, nix::libc::AF_INET6 as u8)];

// Attributes of a flow, and of the direction in which it was asked for.
const ORIGINAL: u16 = 1;
const ID: u16 = 12;
const ZONE: u16 = 18;
const ADDRESSES: u16 = 1;
const PORTS: u16 = 2;
const UDP: u8 = 17;

type Named = Vec<(u16, Vec<u8>)>;

/// A kernel that does not tell of its flows keeps them; they end by themselves some time after the last packet.
pub fn forget(ports: &[HostPort]) {
    for (ipv4, family) in FAMILIES {
        let of_family = ports.iter().filter(|port| port.protocol == "udp" && port.pod_ip.is_ipv4() == ipv4);
        let ports: Vec<&HostPort> = of_family.collect();
        if ports.is_empty() {
            continue;
        }
        let mut flows: Vec<Named> = Vec::new();
        let listed = ask(GET, LIST, family, &[], |flow| flows.extend(stale(flow, &ports)));
        if listed.is_err() {
            continue;
        }
        for flow in &flows {
            let named: Vec<(u16, &[u8])> = flow.iter().map(|(kind, value)| (*kind, value.as_slice())).collect();
            // One that has ended meanwhile is as good.
            let _ = ask(DELETE, ORDER, family, &named, |_| {});
        }
    }
}

/// The name of a flow that came for one of the ports.
fn stale(flow: &[u8], ports: &[&HostPort]) -> Option<Named> {
    let find = |kind: u16| attributes(flow).find(|(of, _)| *of == kind).map(|(_, value)| value);
    let original = find(ORIGINAL)?;
    let inner = |within: u16, kinds: &[u16]| {
        let (_, held) = attributes(original).find(|(kind, _)| *kind == within)?;
        attributes(held).find(|(kind, _)| kinds.contains(kind)).map(|(_, value)| value)
    };
    if inner(PORTS, &[1])? != [UDP] {
        return None;
    }
    // Where it was sent to: the address is attribute 2 or, of the longer kind, 4; the port 3.
    let to = inner(ADDRESSES, &[2, 4])?;
    let port = u16::from_be_bytes(inner(PORTS, &[3])?.try_into().ok()?);
    let is_at = |host_ip: std::net::IpAddr| match host_ip {
        std::net::IpAddr::V4(ip) => ip.octets() == *to,
        std::net::IpAddr::V6(ip) => ip.octets() == *to,
    };
    let ours = ports.iter().any(|own| own.host_port == port && own.host_ip.is_none_or(is_at));
    let rest = [ID, ZONE].into_iter().filter_map(|kind| Some((kind, find(kind)?.to_vec())));
    ours.then(|| std::iter::once((ORIGINAL | NESTED, original.to_vec())).chain(rest).collect())
}
