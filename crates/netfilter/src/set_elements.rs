//! Changes of set and map elements, said to the kernel directly and in one batch. `nft` would first read what is there,
//! and ends only after the kernel has cleared away what was deleted: twenty milliseconds for one element, where this
//! takes one.
//! Used by `proxy` and `network_policy`, which know what the keys mean.
//! A batch is one transaction of the kernel: all of a change or nothing of it, and only in tables that are there.

use std::net::IpAddr;

use crate::{
    message::{
        NLA_F_NESTED, NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NLMSG_ERROR, acknowledged, messages, netfilter_header,
        put_attribute, put_message,
    },
    nftables::{
        NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES, NFT_MSG_DELSETELEM, NFT_MSG_GETCHAIN,
        NFT_MSG_NEWCHAIN, NFT_MSG_NEWSETELEM, NFTA_TABLE,
    },
    socket::NetfilterSocket,
};

// Attributes of a chain, of a list of elements, of an element, of its data and of a verdict.
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_SET_ELEM_KEY: u16 = 1;
const NFTA_SET_ELEM_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFT_JUMP: i32 = -3;
const NFT_GOTO: i32 = -4;
const NF_DROP: i32 = 0;

/// More would not fit the 64 KiB of an attribute. For so many a process is no matter.
pub const ELEMENTS_PER_BATCH_MAX: usize = 256;

/// In the order in which they are written: a key may go and come back with another value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Delete,
    Add,
}

/// What one message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetName<'a> {
    pub verb: Verb,
    pub family: u8,
    pub set: &'a str,
}

/// The elements of one message, in the kernel's form.
#[derive(Debug, Default)]
pub struct ElementList(Vec<u8>);

impl ElementList {
    pub fn put(&mut self, key: &[u8], data: Option<&ElementData>) {
        let mut element = Vec::new();
        put_attribute(&mut element, NFTA_SET_ELEM_KEY | NLA_F_NESTED, &attribute(NFTA_DATA_VALUE, key));
        if let Some(ElementData(data)) = data {
            put_attribute(&mut element, NFTA_SET_ELEM_DATA | NLA_F_NESTED, data);
        }
        put_attribute(&mut self.0, NFTA_LIST_ELEM | NLA_F_NESTED, &element);
    }
}

/// What a map has for a key.
#[derive(Debug)]
pub struct ElementData(Vec<u8>);

impl ElementData {
    pub fn value(bytes: &[u8]) -> Self {
        Self(attribute(NFTA_DATA_VALUE, bytes))
    }

    pub fn jump(chain: &str) -> Self {
        Self::verdict(NFT_JUMP, Some(chain))
    }

    pub fn goto(chain: &str) -> Self {
        Self::verdict(NFT_GOTO, Some(chain))
    }

    pub fn drop() -> Self {
        Self::verdict(NF_DROP, None)
    }

    fn verdict(code: i32, chain: Option<&str>) -> Self {
        let mut held = attribute(NFTA_VERDICT_CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            put_attribute(&mut held, NFTA_VERDICT_CHAIN, &[chain.as_bytes(), &[0]].concat());
        }
        Self(attribute(NFTA_DATA_VERDICT | NLA_F_NESTED, &held))
    }
}

/// Part of a key: each part fills whole words of four bytes.
pub fn address_key(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

pub fn protocol_key(number: u8) -> [u8; 4] {
    [number, 0, 0, 0]
}

pub fn port_key(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

pub struct ElementWriter(NetfilterSocket);

impl ElementWriter {
    /// For the network namespace of the calling thread.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self(NetfilterSocket::open()?))
    }

    pub fn port_id(&self) -> std::io::Result<u32> {
        self.0.port_id()
    }

    /// Writes the elements in the order they come in; returns when the kernel uses them.
    pub async fn apply(
        &mut self,
        table: &str,
        lists: impl ExactSizeIterator<Item = (SetName<'_>, ElementList)>,
    ) -> std::io::Result<()> {
        let Some(last) = lists.len().checked_sub(1) else { return Ok(()) };
        let begin = self.0.next_sequence();
        let mut last_sequence = begin;
        let mut batch = Vec::new();
        put_message(
            &mut batch,
            NFNL_MSG_BATCH_BEGIN,
            NLM_F_REQUEST,
            begin,
            netfilter_header(0, NFNL_SUBSYS_NFTABLES),
            &[],
        );
        let name = [table.as_bytes(), &[0]].concat();
        for (index, (SetName { verb, family, set }, ElementList(elements))) in lists.enumerate() {
            last_sequence = self.0.next_sequence();
            let (kind, flags) = match verb {
                Verb::Delete => (NFT_MSG_DELSETELEM, NLM_F_REQUEST),
                Verb::Add => (NFT_MSG_NEWSETELEM, NLM_F_REQUEST | NLM_F_CREATE),
            };
            let flags = if index == last { flags | NLM_F_ACK } else { flags };
            let set = [set.as_bytes(), &[0]].concat();
            let held: [(u16, &[u8]); 3] = [
                (NFTA_TABLE, &name),
                (NFTA_SET_ELEM_LIST_SET, &set),
                (NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED, &elements),
            ];
            put_message(&mut batch, kind, flags, last_sequence, netfilter_header(family, 0), &held);
        }
        put_message(
            &mut batch,
            NFNL_MSG_BATCH_END,
            NLM_F_REQUEST,
            self.0.next_sequence(),
            netfilter_header(0, NFNL_SUBSYS_NFTABLES),
            &[],
        );
        self.0.send(&batch)?;
        self.answer(begin, last_sequence).await
    }

    /// Looks for the chain where all begins. `nft` would read all elements first.
    pub async fn find_chain(&mut self, family: u8, table: &str, chain: &str) -> std::io::Result<()> {
        let number = self.0.next_sequence();
        let names = [table, chain].map(|name| [name.as_bytes(), &[0]].concat());
        let asked: [(u16, &[u8]); 2] = [(NFTA_TABLE, &names[0]), (NFTA_CHAIN_NAME, &names[1])];
        let mut question = Vec::new();
        put_message(&mut question, NFT_MSG_GETCHAIN, NLM_F_REQUEST, number, netfilter_header(family, 0), &asked);
        self.0.send(&question)?;
        loop {
            let answers = messages(self.0.receive().await?);
            for answer in answers.filter(|answer| answer.sequence == number) {
                match answer.kind {
                    NFT_MSG_NEWCHAIN => return Ok(()),
                    NLMSG_ERROR => return acknowledged(answer.body),
                    _ => {}
                }
            }
        }
    }

    /// Errors name the message they are about, or the first for the batch as a whole.
    async fn answer(&mut self, begin: u32, last_sequence: u32) -> std::io::Result<()> {
        let mut result = Ok(());
        loop {
            let answers = messages(self.0.receive().await?);
            for message in answers.filter(|answer| answer.kind == NLMSG_ERROR && answer.sequence >= begin) {
                if let Err(error) = acknowledged(message.body) {
                    result = Err(error);
                    if message.sequence == begin {
                        return result;
                    }
                }
                if message.sequence == last_sequence {
                    return result;
                }
            }
        }
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    put_attribute(&mut text, kind, value);
    text
}
