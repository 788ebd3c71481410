//! Changes of elements, said to the kernel directly and in one batch. `nft` would first read what is there, and ends only
//! after the kernel has cleared away what was deleted: twenty milliseconds for one endpoint, where this takes one.
//! Fed by `run` with what `ruleset` says; everything but elements is `render`'s.
//! Invariant: all of a change or nothing of it, and only in tables that are there.

use std::{collections::BTreeMap, net::IpAddr};

use crate::{
    netlink::{
        ACKNOWLEDGE, Conversation, ERROR, NESTED, REQUEST, code, messages, netfilter_header, put_attribute, put_message,
    },
    render::{balancer_name, set_of},
    rules::{Family, Frontend, Key, Value},
    ruleset::Changes,
};

const NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_CHAIN: u16 = NFTABLES << 8 | 3;
const GET_CHAIN: u16 = NFTABLES << 8 | 4;
const NEW_ELEMENTS: u16 = NFTABLES << 8 | 12;
const DELETE_ELEMENTS: u16 = NFTABLES << 8 | 14;
const CREATE: u16 = 0x400;

// Attributes of a chain, of a list of elements, of an element, of its data and of a verdict.
const TABLE: u16 = 1;
const CHAIN: u16 = 3;
const SET: u16 = 2;
const ELEMENTS: u16 = 3;
const ELEMENT: u16 = 1;
const KEY: u16 = 1;
const DATA: u16 = 2;
const PLAIN: u16 = 1;
const VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
const GOTO: i32 = -4;
const DROP: i32 = 0;

/// More would not fit the 64 KiB of an attribute. For so many a process is no matter.
const MOST: usize = 256;

/// Whether a change is of elements alone, and of few.
pub fn is_enough(changes: &Changes) -> bool {
    let Changes { new_affinity, new_chains, changed_chains, elements, old_chains, old_affinity, .. } = changes;
    elements.len() <= MOST
        && new_affinity.is_empty()
        && new_chains.is_empty()
        && changed_chains.is_empty()
        && old_chains.is_empty()
        && old_affinity.is_empty()
}

pub struct ElementWriter(Conversation);

impl ElementWriter {
    /// For the network namespace of the calling thread.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self(Conversation::open()?))
    }

    pub fn port_id(&self) -> std::io::Result<u32> {
        self.0.port_id()
    }

    /// Writes the elements of `changes`; returns when the kernel uses them.
    pub async fn apply(&mut self, changes: &Changes, table: &str) -> std::io::Result<()> {
        let lists = lists(changes);
        let Some(last) = lists.len().checked_sub(1) else { return Ok(()) };
        let begin = self.0.number();
        let mut acknowledged = begin;
        let mut batch = Vec::new();
        put_message(&mut batch, BATCH_BEGIN, REQUEST, begin, netfilter_header(0, NFTABLES), &[]);
        let name = [table.as_bytes(), &[0]].concat();
        for (index, ((verb, family, set), elements)) in lists.iter().enumerate() {
            acknowledged = self.0.number();
            let (kind, flags) = match verb {
                Verb::Delete => (DELETE_ELEMENTS, REQUEST),
                Verb::Add => (NEW_ELEMENTS, REQUEST | CREATE),
            };
            let flags = if index == last { flags | ACKNOWLEDGE } else { flags };
            let set = [set.as_bytes(), &[0]].concat();
            let held: [(u16, &[u8]); 3] = [(TABLE, &name), (SET, &set), (ELEMENTS | NESTED, elements)];
            put_message(&mut batch, kind, flags, acknowledged, netfilter_header(family.number(), 0), &held);
        }
        put_message(&mut batch, BATCH_END, REQUEST, self.0.number(), netfilter_header(0, NFTABLES), &[]);
        self.0.send(&batch)?;
        self.answer(begin, acknowledged).await
    }

    /// Looks for the chain where all begins in the IPv4 table. `nft` would read all elements first.
    pub async fn find(&mut self, table: &str) -> std::io::Result<()> {
        let number = self.0.number();
        let names = [table, "prerouting"].map(|name| [name.as_bytes(), &[0]].concat());
        let asked: [(u16, &[u8]); 2] = [(TABLE, &names[0]), (CHAIN, &names[1])];
        let mut question = Vec::new();
        put_message(&mut question, GET_CHAIN, REQUEST, number, netfilter_header(Family::V4.number(), 0), &asked);
        self.0.send(&question)?;
        loop {
            let answers = messages(self.0.receive().await?);
            for answer in answers.filter(|answer| answer.sequence == number) {
                match answer.kind {
                    NEW_CHAIN => return Ok(()),
                    ERROR => return code(answer.body),
                    _ => {}
                }
            }
        }
    }

    /// Errors name the message they are about, or the first for the batch as a whole.
    async fn answer(&mut self, begin: u32, acknowledged: u32) -> std::io::Result<()> {
        let mut result = Ok(());
        loop {
            let answers = messages(self.0.receive().await?);
            for message in answers.filter(|answer| answer.kind == ERROR && answer.sequence >= begin) {
                if let Err(error) = code(message.body) {
                    result = Err(error);
                    if message.sequence == begin {
                        return result;
                    }
                }
                if message.sequence == acknowledged {
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
    put_attribute(&mut element, KEY | NESTED, &attribute(PLAIN, &key_bytes(key)));
    if let Some(data) = value.and_then(data) {
        put_attribute(&mut element, DATA | NESTED, &data);
    }
    put_attribute(list, ELEMENT | NESTED, &element);
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
        Value::Balance { count, masquerade } => Some(verdict(GOTO, Some(&balancer_name(*count, *masquerade)))),
        Value::Chain(name) => Some(verdict(GOTO, Some(name))),
        Value::Target(target) => Some(attribute(PLAIN, &[octets(target.ip), port_word(target.port).to_vec()].concat())),
        Value::Reject => Some(verdict(GOTO, Some("refuse"))),
        Value::Drop => Some(verdict(DROP, None)),
    }
}

fn verdict(code: i32, chain: Option<&str>) -> Vec<u8> {
    let mut held = attribute(VERDICT_CODE, &code.to_be_bytes());
    if let Some(chain) = chain {
        put_attribute(&mut held, VERDICT_CHAIN, &[chain.as_bytes(), &[0]].concat());
    }
    attribute(VERDICT | NESTED, &held)
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
