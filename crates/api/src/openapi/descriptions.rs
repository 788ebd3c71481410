//! The descriptions of types and fields, unpacked while a document is built and dropped after it.
//! Made by `build.rs` from the `k8s-openapi` dependency; read by `schemas`.
//! A type without description is not an error.

use std::{collections::HashMap, io::Read};

static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.deflate"));

pub(super) struct Descriptions {
    text: String,
    /// Where each type's lines are.
    types: HashMap<String, (usize, usize)>,
}

impl Descriptions {
    pub(super) fn load() -> Self {
        let mut text = String::new();
        flate2::read::DeflateDecoder::new(PACKED).read_to_string(&mut text).expect("build.rs packed it");
        let mut types = HashMap::new();
        let mut starts: Vec<usize> = text.match_indices('@').map(|(at, _)| at).collect();
        starts.retain(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n');
        for (i, start) in starts.iter().enumerate() {
            let end = starts.get(i + 1).copied().unwrap_or(text.len());
            let line = text[*start + 1..end].lines().next().unwrap_or_default();
            let name = line.split('\t').next().unwrap_or_default();
            types.insert(name.to_string(), (*start + 1, end));
        }
        Self { text, types }
    }

    pub(super) fn of_type(&self, name: &str) -> Option<String> {
        let line = self.lines(name)?.next()?;
        line.split_once('\t').map(|(_, text)| unescape(text))
    }

    pub(super) fn of_field(&self, name: &str, field: &str) -> Option<String> {
        let mut lines = self.lines(name)?.skip(1);
        lines.find_map(|line| line.strip_prefix(field)?.strip_prefix('\t')).map(unescape)
    }

    fn lines(&self, name: &str) -> Option<std::str::Lines<'_>> {
        self.types.get(name).map(|(start, end)| self.text[*start..*end].lines())
    }
}

/// The escapes of a Rust string literal.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, c == '\\') {
            (c, false) => out.push(c),
            _ => match rest.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some('u') => {
                    let hex: String = rest.by_ref().skip(1).take_while(|c| *c != '}').collect();
                    out.extend(u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32));
                }
                Some(other) => out.push(other),
                None => {}
            },
        }
    }
    out
}
