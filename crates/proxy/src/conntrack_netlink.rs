//! The kernel's table of UDP flows, read at one go and ended many at a time.
//! Used by `conntrack`; the messages are put together with `netlink`.
//! Invariant: a deletion always names one flow. Without a name the kernel would take it for all of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::errno::Errno;

use crate::{
    model::Protocol,
    netlink::{
        ACKNOWLEDGE, Conversation, ERROR, NESTED, NETFILTER_HEADER, REQUEST, attributes, code, messages,
        netfilter_header, put_message,
    },
    rules::{Family, Frontend, Target},
};

const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const DONE: u16 = 3;
const DUMP: u16 = 0x300;

// Attributes of a flow, of a direction of it, of its addresses and of its ports.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const ADDRESSES: u16 = 1;
const PORTS: u16 = 2;
const UDP: u8 = 17;

/// In one message to the kernel. Each may come back as an error, and all have to fit the socket.
const AT_ONCE: usize = 64;

/// A flow that can be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// How it was asked for.
    pub frontend: Frontend,
    /// Who answers.
    pub answers: Target,
    original: Vec<u8>,
    /// Its id and its zone: who has the same addresses later is another flow.
    rest: Vec<(u16, Vec<u8>)>,
}

pub struct FlowTable(Conversation);

impl FlowTable {
    /// That of the network namespace of the calling thread.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self(Conversation::open()?))
    }

    /// The UDP flows that `wanted` says yes to.
    pub async fn list(
        &mut self,
        family: Family,
        wanted: impl Fn(&Frontend, &Target) -> bool,
    ) -> std::io::Result<Vec<Flow>> {
        let asked = self.0.number();
        let mut request = Vec::new();
        put_message(&mut request, GET, REQUEST | DUMP, asked, netfilter_header(family.number(), 0), &[]);
        self.0.send(&request)?;
        let mut flows = Vec::new();
        loop {
            for message in messages(self.0.receive().await?).filter(|message| message.sequence == asked) {
                match message.kind {
                    DONE | ERROR => return code(message.body).map(|()| flows),
                    _ => flows.extend(read_flow(message.body, &wanted)),
                }
            }
        }
    }

    /// Those that are gone already are no error.
    pub async fn end(&mut self, family: Family, flows: &[Flow]) -> std::io::Result<()> {
        let header = netfilter_header(family.number(), 0);
        for some in flows.chunks(AT_ONCE) {
            let mut request = Vec::new();
            let mut last = 0;
            for (index, flow) in some.iter().enumerate() {
                last = self.0.number();
                let flags = if index + 1 == some.len() { REQUEST | ACKNOWLEDGE } else { REQUEST };
                let mut named: Vec<(u16, &[u8])> = vec![(ORIGINAL | NESTED, &flow.original)];
                named.extend(flow.rest.iter().map(|(kind, value)| (*kind, value.as_slice())));
                put_message(&mut request, DELETE, flags, last, header, &named);
            }
            self.0.send(&request)?;
            self.acknowledged(last).await?;
        }
        Ok(())
    }

    /// Waits for the answer to the last message sent; all before it were carried out before it.
    async fn acknowledged(&mut self, last: u32) -> std::io::Result<()> {
        let mut result = Ok(());
        loop {
            for message in messages(self.0.receive().await?).filter(|message| message.kind == ERROR) {
                match code(message.body) {
                    Err(error) if error.raw_os_error() != Some(Errno::ENOENT as i32) => result = Err(error),
                    _ => {}
                }
                if message.sequence == last {
                    return result;
                }
            }
        }
    }
}

fn read_flow(body: &[u8], wanted: impl Fn(&Frontend, &Target) -> bool) -> Option<Flow> {
    let held = body.get(NETFILTER_HEADER..)?;
    let find = |kind: u16| attributes(held).find(|(of, _)| *of == kind).map(|(_, value)| value);
    let original = find(ORIGINAL)?;
    let asked = direction(original)?;
    let answered = direction(find(REPLY)?)?;
    let frontend = Frontend { ip: asked.to.ip, protocol: Protocol::Udp, port: asked.to.port };
    wanted(&frontend, &answered.from).then(|| Flow {
        frontend,
        answers: answered.from,
        original: original.to_vec(),
        rest: [ID, ZONE].iter().filter_map(|kind| Some((*kind, find(*kind)?.to_vec()))).collect(),
    })
}

struct Direction {
    from: Target,
    to: Target,
}

/// `None` for what is not UDP.
fn direction(tuple: &[u8]) -> Option<Direction> {
    let find = |within: &'static [u16], kinds: &[u16]| -> Option<&[u8]> {
        let inner = attributes(tuple).find(|(kind, _)| within.contains(kind))?.1;
        attributes(inner).find(|(kind, _)| kinds.contains(kind)).map(|(_, value)| value)
    };
    if find(&[PORTS], &[1])? != [UDP] {
        return None;
    }
    let target = |ip: &[u16], port: u16| {
        Some(Target {
            ip: address(find(&[ADDRESSES], ip)?)?,
            port: u16::from_be_bytes(find(&[PORTS], &[port])?.try_into().ok()?),
        })
    };
    Some(Direction { from: target(&[1, 3], 2)?, to: target(&[2, 4], 3)? })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}
