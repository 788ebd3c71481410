//! The order of fields in discovery documents, which is Go's: shell scripts search them as text.
//! Used by `discovery` for JSON; other forms have no order that anybody could see.
//! Knows the names of discovery's own fields only; any other comes last.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq},
};
use serde_json::Value;

use crate::{
    handlers::{
        negotiate::Output,
        respond::{bytes_response, json_bytes},
    },
    request::body::Body,
};

/// One order fits all types of discovery: no two have a pair of fields the other way round.
const ORDER: [&str; 40] = [
    "apiVersion",
    "metadata",
    "items",
    "groupVersion",
    "name",
    "singularName",
    "namespaced",
    "resource",
    "subresource",
    "responseKind",
    "scope",
    "singularResource",
    "group",
    "version",
    "kind",
    "verbs",
    "shortNames",
    "categories",
    "subresources",
    "storageVersionHash",
    "resources",
    "versions",
    "preferredVersion",
    "freshness",
    "clientCIDR",
    "serverAddress",
    "serverAddressByClientCIDRs",
    "major",
    "minor",
    "emulationMajor",
    "emulationMinor",
    "minCompatibilityMajor",
    "minCompatibilityMinor",
    "gitVersion",
    "gitCommit",
    "gitTreeState",
    "buildDate",
    "goVersion",
    "compiler",
    "platform",
];

/// A value whose objects are printed in `ORDER`. Only the outermost one has its kind first.
struct Ordered<'a>(&'a Value, bool);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(fields) => {
                let rank = |name: &str| match self.1 && name == "kind" {
                    true => 0,
                    false => ORDER.iter().position(|known| *known == name).map_or(usize::MAX, |at| at + 1),
                };
                let mut sorted: Vec<_> = fields.iter().collect();
                sorted.sort_by_key(|(name, _)| rank(name));
                let mut map = serializer.serialize_map(Some(sorted.len()))?;
                for (name, value) in sorted {
                    map.serialize_entry(name, &Ordered(value, false))?;
                }
                map.end()
            }
            Value::Array(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(&Ordered(item, false)))?;
                list.end()
            }
            other => other.serialize(serializer),
        }
    }
}

pub(super) fn text(value: &Value) -> Bytes {
    json_bytes(&Ordered(value, true), false)
}

pub fn response(value: &Value, output: Output) -> Response<Body> {
    bytes_response(StatusCode::OK, json_bytes(&Ordered(value, true), output.pretty), output.media)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn fields_are_in_gos_order() {
        for (value, expected) in [
            (
                json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1", "resources": [{
                    "categories": ["all"], "kind": "Deployment", "name": "deployments", "namespaced": true,
                    "shortNames": ["deploy"], "singularName": "deployment", "storageVersionHash": "x", "verbs": ["get"],
                }] }),
                r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[{"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":["get"],"shortNames":["deploy"],"categories":["all"],"storageVersionHash":"x"}]}"#,
            ),
            (
                json!({ "kind": "APIGroup", "apiVersion": "v1", "name": "apps",
                    "preferredVersion": { "version": "v1", "groupVersion": "apps/v1" },
                    "versions": [{ "version": "v1", "groupVersion": "apps/v1" }] }),
                r#"{"kind":"APIGroup","apiVersion":"v1","name":"apps","versions":[{"groupVersion":"apps/v1","version":"v1"}],"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}"#,
            ),
            (
                json!({ "resource": "pods", "verbs": [], "scope": "Namespaced", "singularResource": "pod",
                    "responseKind": { "group": "", "kind": "Pod", "version": "" } }),
                r#"{"resource":"pods","responseKind":{"group":"","version":"","kind":"Pod"},"scope":"Namespaced","singularResource":"pod","verbs":[]}"#,
            ),
        ] {
            assert_eq!(String::from_utf8_lossy(&super::text(&value)).trim_end(), expected);
        }
    }
}
