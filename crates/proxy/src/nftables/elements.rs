//! Changes of elements, said to the kernel directly and in one batch. `nft` would first read what is there, and ends only
//! after the kernel has cleared away what was deleted: twenty milliseconds for one endpoint, where this takes one.
//! Fed by `run` with what `ruleset` says; everything but elements is `render`'s.
//! A batch is one transaction of the kernel: all of a change or nothing of it, and only in tables that are there.

use std::{collections::BTreeMap, net::IpAddr};

use netfilter::{
    NLA_F_NESTED, NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NLMSG_ERROR, NetfilterSocket, acknowledged, messages,
    netfilter_header,
    nftables::{
        NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_SUBSYS_NFTABLES, NFT_MSG_DELSETELEM, NFT_MSG_GETCHAIN,
        NFT_MSG_NEWCHAIN, NFT_MSG_NEWSETELEM, NFTA_TABLE,
    },
    put_attribute, put_message,
};

use super::render::{balancer_name, set_of};
use crate::{
    rules::{Family, Frontend, Key, Value},
    ruleset::Changes,
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
const NFT_GOTO: i32 = -4;
const NF_DROP: i32 = 0;

/// More would not fit the 64 KiB of an attribute. For so many a process is no matter.
const ELEMENTS_PER_BATCH_MAX: usize = 256;

/// Whether a change is of elements alone, and of few.
pub fn only_elements(changes: &Changes) -> bool {
    let Changes { new_affinity, new_chains, changed_chains, elements, old_chains, old_affinity, .. } = changes;
    elements.len() <= ELEMENTS_PER_BATCH_MAX
        && new_affinity.is_empty()
        && new_chains.is_empty()
        && changed_chains.is_empty()
        && old_chains.is_empty()
        && old_affinity.is_empty()
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

    /// Writes the elements of `changes`; returns when the kernel uses them.
    pub async fn apply(&mut self, changes: &Changes, table: &str) -> std::io::Result<()> {
        let lists = lists(changes);
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
        for (index, ((verb, family, set), elements)) in lists.iter().enumerate() {
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
                (NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED, elements),
            ];
            put_message(&mut batch, kind, flags, last_sequence, netfilter_header(family.number(), 0), &held);
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

    /// Looks for the chain where all begins in the IPv4 table. `nft` would read all elements first.
    pub async fn find(&mut self, table: &str) -> std::io::Result<()> {
        let number = self.0.next_sequence();
        let names = [table, "prerouting"].map(|name| [name.as_bytes(), &[0]].concat());
        let asked: [(u16, &[u8]); 2] = [(NFTA_TABLE, &names[0]), (NFTA_CHAIN_NAME, &names[1])];
        let mut question = Vec::new();
        put_message(
            &mut question,
            NFT_MSG_GETCHAIN,
            NLM_F_REQUEST,
            number,
            netfilter_header(Family::V4.number(), 0),
            &asked,
        );
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

/// In the order in which they are written: a key may go and come back with another value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Delete,
    Add,
}

/// The elements by message.
fn lists(changes: &Changes) -> BTreeMap<(Verb, Family, &'static str), Vec<u8>> {
    let mut lists = BTreeMap::new();
    for (key, (before, after)) in &changes.elements {
        let (family, set) = set_of(key);
        if before.is_some() {
            put_element(lists.entry((Verb::Delete, family, set)).or_default(), key, None);
        }
        if let Some(value) = after {
            put_element(lists.entry((Verb::Add, family, set)).or_default(), key, Some(value));
        }
    }
    lists
}

fn put_element(list: &mut Vec<u8>, key: &Key, value: Option<&Value>) {
    let mut element = Vec::new();
    put_attribute(&mut element, NFTA_SET_ELEM_KEY | NLA_F_NESTED, &attribute(NFTA_DATA_VALUE, &key_bytes(key)));
    if let Some(data) = value.and_then(data) {
        put_attribute(&mut element, NFTA_SET_ELEM_DATA | NLA_F_NESTED, &data);
    }
    put_attribute(list, NFTA_LIST_ELEM | NLA_F_NESTED, &element);
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    put_attribute(&mut text, kind, value);
    text
}

/// Each part of a key fills whole words of four bytes.
fn key_bytes(key: &Key) -> Vec<u8> {
    let frontend = |f: &Frontend| [&octets(f.ip)[..], &[f.protocol.number(), 0, 0, 0], &port_word(f.port)].concat();
    match key {
        Key::Service(f) | Key::Unserved(f) => frontend(f),
        // Made by the machine for itself, so in its own order of bytes.
        Key::Endpoint(f, index) => [frontend(f), index.to_ne_bytes().to_vec()].concat(),
        Key::ClusterIp(ip) => octets(*ip),
        Key::Hairpin(ip) => octets(*ip).repeat(2),
    }
}

fn data(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Member => None,
        Value::Balance { count, masquerade } => Some(verdict(NFT_GOTO, Some(&balancer_name(*count, *masquerade)))),
        Value::Chain(name) => Some(verdict(NFT_GOTO, Some(name))),
        Value::Target(target) => {
            Some(attribute(NFTA_DATA_VALUE, &[octets(target.ip), port_word(target.port).to_vec()].concat()))
        }
        Value::Reject => Some(verdict(NFT_GOTO, Some("refuse"))),
        Value::Drop => Some(verdict(NF_DROP, None)),
    }
}

fn verdict(code: i32, chain: Option<&str>) -> Vec<u8> {
    let mut held = attribute(NFTA_VERDICT_CODE, &code.to_be_bytes());
    if let Some(chain) = chain {
        put_attribute(&mut held, NFTA_VERDICT_CHAIN, &[chain.as_bytes(), &[0]].concat());
    }
    attribute(NFTA_DATA_VERDICT | NLA_F_NESTED, &held)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn port_word(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}
