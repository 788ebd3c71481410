//! OpenAPI documents, v3 per group version and v2 for all: for `kubectl explain`, validation and client generators.
//! Built on demand from the table of kinds, the field table and the schemas of custom resources; `apiserver` caches them.
//! Names no kind, keeps nothing in memory between calls.

mod custom;
mod descriptions;
mod documents;
mod gnostic;
mod operations;
mod schemas;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use crate::{
    Resource, kinds,
    schema::{self, Schema},
};

/// What upstream puts into `info.version`.
const VERSION: &str = "unversioned";

/// The JSON schemas (`openAPIV3Schema`) of custom resources, by group, version and kind.
pub type ExtraSchemas = BTreeMap<(String, String, String), Value>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn prefix(self) -> &'static str {
        match self {
            Self::V2 => "#/definitions/",
            Self::V3 => "#/components/schemas/",
        }
    }
}

/// The schema that has a kind: that of what is always served, or that of feature gates too. `None` for custom resources.
fn schema_of(group: &str, version: &str, kind: &str) -> Option<&'static Schema> {
    if schema::builtin().find_kind(group, version, kind).is_some() {
        return Some(schema::builtin());
    }
    let named = |r: &Resource| r.group == group && r.version == version && (r.kind == kind || r.list_kind == kind);
    let gated = kinds::gated().iter().any(|(_, resource)| named(resource));
    let all = || Some(schema::with_unserved()).filter(|schema| schema.find_kind(group, version, kind).is_some());
    gated.then(all).flatten()
}

/// The v3 document of one group version. `resources` may hold others too; only those of the group version count.
pub fn v3(group: &str, version: &str, resources: &[Arc<Resource>], extra: &ExtraSchemas) -> Value {
    let one = BTreeSet::from([(group.to_string(), version.to_string())]);
    documents::build(Dialect::V3, &one, resources, extra)
}

/// The v2 document of all `resources`.
pub fn v2(resources: &[Arc<Resource>], extra: &ExtraSchemas) -> Value {
    let all = resources.iter().map(|r| (r.group.clone(), r.version.clone())).collect();
    documents::build(Dialect::V2, &all, resources, extra)
}

/// A v2 document as `application/com.github.proto-openapi.spec.v2.v1.0+protobuf`.
pub fn v2_protobuf(document: &Value) -> Vec<u8> {
    gnostic::encode(document)
}

/// Where a group version's document is, below `/openapi/v3/`: `api/v1`, `apis/apps/v1`.
pub fn v3_path(group: &str, version: &str) -> String {
    operations::root(group, version)[1..].to_string()
}

/// The index at `/openapi/v3`. The hash in each address changes with what the document is made of, so clients may keep
/// documents for as long as they like.
pub fn v3_index(resources: &[Arc<Resource>], extra: &ExtraSchemas) -> Value {
    let groups: BTreeSet<(&str, &str)> = resources.iter().map(|r| (r.group.as_str(), r.version.as_str())).collect();
    let mut paths = Map::new();
    for (group, version) in groups {
        let path = v3_path(group, version);
        let url = format!("/openapi/v3/{path}?hash={}", v3_hash(group, version, resources, extra));
        paths.insert(path, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// The hash of a document, from what it is made of rather than from its text.
pub fn v3_hash(group: &str, version: &str, resources: &[Arc<Resource>], extra: &ExtraSchemas) -> String {
    let mut hash = Fnv::default();
    hash.add(env!("CARGO_PKG_VERSION"));
    for r in resources.iter().filter(|r| r.group == group && r.version == version) {
        [&r.plural, &r.kind, &r.list_kind].into_iter().for_each(|text| hash.add(text));
        r.verbs.iter().for_each(|verb| hash.add(verb.as_str()));
        r.subresources.iter().for_each(|sub| hash.add(&format!("{sub:?}")));
        if let Some(schema) = extra.get(&(r.group.clone(), r.version.clone(), r.kind.clone())) {
            hash.add(&schema.to_string());
        }
    }
    format!("{:032X}", hash.0)
}

/// FNV-1a with 128 bits: no secret, only a name for a content.
struct Fnv(u128);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

#[cfg(test)]
mod tests;
