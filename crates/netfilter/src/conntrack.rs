//! UDP flows in the kernel's connection tracking: read from a dump, and named for a deletion.
//! Used by `cni` for host ports and by `proxy` for Services.
//! Invariant: a deletion always names one flow (type: `FlowName` is made from a flow alone). Without a name the kernel
//! would delete all of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::message::{NLA_F_NESTED, attributes};

const NFNL_SUBSYS_CTNETLINK: u16 = 1;
pub const IPCTNL_MSG_CT_GET: u16 = NFNL_SUBSYS_CTNETLINK << 8 | 1;
pub const IPCTNL_MSG_CT_DELETE: u16 = NFNL_SUBSYS_CTNETLINK << 8 | 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
/// Source and destination: each has one attribute for IPv4 and one for IPv6.
const CTA_IP_SRC: [u16; 2] = [1, 3];
const CTA_IP_DST: [u16; 2] = [2, 4];
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const IPPROTO_UDP: u8 = 17;

/// A tracked UDP flow.
pub struct UdpFlow<'a> {
    /// Where its first packet was sent to, before any translation.
    pub destination: SocketAddr,
    /// Who answers it.
    pub answers: SocketAddr,
    original_tuple: &'a [u8],
    body: &'a [u8],
}

/// What names one flow to the kernel. Its id and zone are in it: who has the same addresses later is another flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowName(Vec<(u16, Vec<u8>)>);

impl<'a> UdpFlow<'a> {
    /// From the attributes of a dumped flow; `None` for what is not UDP.
    pub fn read(body: &'a [u8]) -> Option<Self> {
        let original_tuple = find(body, CTA_TUPLE_ORIG)?;
        let (_, destination) = udp_tuple(original_tuple)?;
        let (answers, _) = udp_tuple(find(body, CTA_TUPLE_REPLY)?)?;
        Some(Self { destination, answers, original_tuple, body })
    }

    pub fn name(&self) -> FlowName {
        let original = (CTA_TUPLE_ORIG | NLA_F_NESTED, self.original_tuple.to_vec());
        let rest = [CTA_ID, CTA_ZONE].into_iter().filter_map(|kind| Some((kind, find(self.body, kind)?.to_vec())));
        FlowName(std::iter::once(original).chain(rest).collect())
    }
}

impl FlowName {
    /// For the message that deletes it.
    pub fn attributes(&self) -> Vec<(u16, &[u8])> {
        self.0.iter().map(|(kind, value)| (*kind, value.as_slice())).collect()
    }
}

fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Source and destination of one direction.
fn udp_tuple(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (addresses, protocol) = (find(tuple, CTA_TUPLE_IP)?, find(tuple, CTA_TUPLE_PROTO)?);
    if find(protocol, CTA_PROTO_NUM)? != [IPPROTO_UDP] {
        return None;
    }
    let end = |kinds: [u16; 2], port: u16| {
        let address = kinds.into_iter().find_map(|kind| find(addresses, kind)).and_then(address)?;
        Some(SocketAddr::new(address, u16::from_be_bytes(find(protocol, port)?.try_into().ok()?)))
    };
    Some((end(CTA_IP_SRC, CTA_PROTO_SRC_PORT)?, end(CTA_IP_DST, CTA_PROTO_DST_PORT)?))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::put_attribute;

    fn nested(held: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut text = Vec::new();
        held.iter().for_each(|(kind, value)| put_attribute(&mut text, *kind, value));
        text
    }

    fn tuple(protocol: u8, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        let port = |port: u16| port.to_be_bytes().to_vec();
        nested(&[
            (CTA_TUPLE_IP, nested(&[(1, from.0.to_vec()), (2, to.0.to_vec())])),
            (CTA_TUPLE_PROTO, nested(&[(1, vec![protocol]), (2, port(from.1)), (3, port(to.1))])),
        ])
    }

    #[test]
    fn a_udp_flow_is_read_and_named() {
        let (client, service, pod) = (([10, 0, 0, 9], 4000), ([10, 96, 0, 10], 53), ([10, 244, 0, 2], 5353));
        let flow = |protocol| {
            nested(&[
                (CTA_TUPLE_ORIG, tuple(protocol, client, service)),
                (CTA_TUPLE_REPLY, tuple(protocol, pod, client)),
                (CTA_ID, vec![1, 2, 3, 4]),
            ])
        };
        assert!(UdpFlow::read(&flow(6)).is_none(), "TCP");
        let bytes = flow(IPPROTO_UDP);
        let read = UdpFlow::read(&bytes).unwrap();
        assert_eq!((read.destination, read.answers), (SocketAddr::from(service), SocketAddr::from(pod)));
        let name = read.name();
        let kinds: Vec<u16> = name.attributes().iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [CTA_TUPLE_ORIG | NLA_F_NESTED, CTA_ID]);
        for length in 0..bytes.len() {
            assert!(UdpFlow::read(&bytes[..length]).is_none_or(|flow| !flow.name().0.is_empty()), "{length}");
        }
    }
}
