//! The kernel's table of UDP flows, read at one go and ended many at a time.
//! Used by `conntrack`; a flow is read and named by `netfilter::conntrack`.

use netfilter::{
    NETFILTER_HEADER_BYTES, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetfilterSocket,
    acknowledged,
    conntrack::{FlowName, IPCTNL_MSG_CT_DELETE, IPCTNL_MSG_CT_GET, UdpFlow},
    messages, netfilter_header, put_message,
};
use nix::errno::Errno;

use crate::{
    model::Protocol,
    rules::{Family, Frontend, Target},
};

/// In one message to the kernel. Each may come back as an error, and all have to fit the socket.
const DELETIONS_PER_REQUEST_MAX: usize = 64;

/// A flow that can be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// How it was asked for.
    pub frontend: Frontend,
    /// Who answers.
    pub answers: Target,
    name: FlowName,
}

pub struct FlowTable(NetfilterSocket);

impl FlowTable {
    /// That of the network namespace of the calling thread.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self(NetfilterSocket::open()?))
    }

    /// The UDP flows that `wanted` says yes to.
    pub async fn list(
        &mut self,
        family: Family,
        wanted: impl Fn(&Frontend, &Target) -> bool,
    ) -> std::io::Result<Vec<Flow>> {
        let asked = self.0.next_sequence();
        let mut request = Vec::new();
        put_message(
            &mut request,
            IPCTNL_MSG_CT_GET,
            NLM_F_REQUEST | NLM_F_DUMP,
            asked,
            netfilter_header(family.number(), 0),
            &[],
        );
        self.0.send(&request)?;
        let mut flows = Vec::new();
        loop {
            for message in messages(self.0.receive().await?).filter(|message| message.sequence == asked) {
                match message.kind {
                    NLMSG_DONE | NLMSG_ERROR => return acknowledged(message.body).map(|()| flows),
                    _ => flows.extend(read_flow(message.body, &wanted)),
                }
            }
        }
    }

    /// Those that are gone already are no error.
    pub async fn end(&mut self, family: Family, flows: &[Flow]) -> std::io::Result<()> {
        let header = netfilter_header(family.number(), 0);
        for some in flows.chunks(DELETIONS_PER_REQUEST_MAX) {
            let mut request = Vec::new();
            let mut last = 0;
            for (index, flow) in some.iter().enumerate() {
                last = self.0.next_sequence();
                let flags = if index + 1 == some.len() { NLM_F_REQUEST | NLM_F_ACK } else { NLM_F_REQUEST };
                put_message(&mut request, IPCTNL_MSG_CT_DELETE, flags, last, header, &flow.name.attributes());
            }
            self.0.send(&request)?;
            self.wait_for(last).await?;
        }
        Ok(())
    }

    /// Waits for the answer to the last message sent; all before it were carried out before it.
    async fn wait_for(&mut self, last: u32) -> std::io::Result<()> {
        let mut result = Ok(());
        loop {
            for message in messages(self.0.receive().await?).filter(|message| message.kind == NLMSG_ERROR) {
                match acknowledged(message.body) {
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
    let flow = UdpFlow::read(body.get(NETFILTER_HEADER_BYTES..)?)?;
    let (to, from) = (flow.destination, flow.answers);
    let frontend = Frontend { ip: to.ip(), protocol: Protocol::Udp, port: to.port() };
    let answers = Target { ip: from.ip(), port: from.port() };
    wanted(&frontend, &answers).then(|| Flow { frontend, answers, name: flow.name() })
}
