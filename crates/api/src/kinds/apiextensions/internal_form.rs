//! The form of a CustomResourceDefinition's spec that upstream validates, and so names in errors: what all versions have
//! alike stands at the top (`spec.validation`), and a webhook's parts stand beside the strategy.
//! Made for `custom_resource_definition`; the API server's check of CEL rules names the same paths.
//! Only for looking at: what is stored and shown is the form of the version.

use serde_json::Value;

use crate::{
    field::Path,
    kinds::common::access::{items, items_mut, part, set, text},
};

/// The field of a version, and its name at the top.
const SHARED: [(&str, &str); 4] = [
    ("subresources", "subresources"),
    ("schema", "validation"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

pub fn internal_spec(spec: &Value) -> Value {
    let mut out = spec.clone();
    if let Some(first) = items(spec, "versions").first() {
        set(&mut out, "version", text(first, "name").into());
        for (field, name) in SHARED {
            let value = first.get(field).cloned().unwrap_or_default();
            if is_shared(spec, field) {
                items_mut(&mut out, "versions").for_each(|version| set(version, field, Value::Null));
                set(&mut out, name, value);
            }
        }
    }
    if let Some(webhook) = part(&spec["conversion"], "webhook") {
        let conversion = &mut out["conversion"];
        set(conversion, "webhookClientConfig", webhook.get("clientConfig").cloned().unwrap_or_default());
        set(
            conversion,
            "conversionReviewVersions",
            webhook.get("conversionReviewVersions").cloned().unwrap_or_default(),
        );
    }
    out
}

/// Whether all versions have the same here; empty and absent are one.
fn is_shared(spec: &Value, field: &str) -> bool {
    let of = |version: &Value| match version.get(field) {
        Some(Value::Array(list)) if list.is_empty() => Value::Null,
        found => found.cloned().unwrap_or_default(),
    };
    let mut versions = items(spec, "versions").iter().map(of);
    let first = versions.next();
    versions.all(|other| Some(other) == first)
}

/// Where the schemas of the versions are, each place once, with the name of a version that has it.
pub fn schemas(spec: &Value) -> Vec<(Path, &Value, &str)> {
    let versions = items(spec, "versions");
    let schema = |version: &'_ Value| part(&version["schema"], "openAPIV3Schema").is_some();
    let path = Path::new("spec");
    match (is_shared(spec, "schema"), versions.first()) {
        (_, None) => Vec::new(),
        (true, Some(first)) if schema(first) => {
            let path = path.child("validation").child("openAPIV3Schema");
            vec![(path, &first["schema"]["openAPIV3Schema"], text(first, "name"))]
        }
        (true, Some(_)) => Vec::new(),
        (false, Some(_)) => {
            let with = versions.iter().enumerate().filter(|(_, version)| schema(version));
            let at = |index| path.child("versions").index(index).child("schema").child("openAPIV3Schema");
            with.map(|(i, v)| (at(i), &v["schema"]["openAPIV3Schema"], text(v, "name"))).collect()
        }
    }
}

/// Versions as errors show them: Go's names and order, everything said.
pub fn shown_versions(spec: &Value) -> String {
    let shown = |version: &Value| {
        let of = |field: &str| version.get(field).cloned().unwrap_or_default().to_string();
        let flag = |field: &str| version[field].as_bool().unwrap_or_default();
        format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":{},\
             \"Subresources\":{},\"AdditionalPrinterColumns\":{},\"SelectableFields\":{}}}",
            Value::from(text(version, "name")),
            flag("served"),
            flag("storage"),
            flag("deprecated"),
            of("deprecationWarning"),
            of("schema"),
            shown_subresources(version),
            shown_columns(version),
            of("selectableFields"),
        )
    };
    let versions: Vec<String> = items(spec, "versions").iter().map(shown).collect();
    if versions.is_empty() { "null".into() } else { format!("[{}]", versions.join(",")) }
}

fn shown_subresources(version: &Value) -> String {
    let Some(found) = part(version, "subresources") else { return "null".into() };
    let status = if part(found, "status").is_some() { "{}" } else { "null" };
    let scale = part(found, "scale").map_or("null".to_string(), |scale| {
        let of = |field: &str| Value::from(text(scale, field)).to_string();
        let selector = scale.get("labelSelectorPath").cloned().unwrap_or_default();
        format!(
            "{{\"SpecReplicasPath\":{},\"StatusReplicasPath\":{},\"LabelSelectorPath\":{selector}}}",
            of("specReplicasPath"),
            of("statusReplicasPath")
        )
    });
    format!("{{\"Status\":{status},\"Scale\":{scale}}}")
}

fn shown_columns(version: &Value) -> String {
    let shown = |column: &Value| {
        let of = |field: &str| Value::from(text(column, field)).to_string();
        format!(
            "{{\"Name\":{},\"Type\":{},\"Format\":{},\"Description\":{},\"Priority\":{},\"JSONPath\":{}}}",
            of("name"),
            of("type"),
            of("format"),
            of("description"),
            column["priority"].as_i64().unwrap_or(0),
            of("jsonPath")
        )
    };
    let columns: Vec<String> = items(version, "additionalPrinterColumns").iter().map(shown).collect();
    if columns.is_empty() { "null".into() } else { format!("[{}]", columns.join(",")) }
}

/// A CEL rule as errors show it.
pub fn shown_rule(rule: &Value) -> String {
    let of = |field: &str| Value::from(text(rule, field)).to_string();
    let pointer = |field: &str| rule.get(field).cloned().unwrap_or_default().to_string();
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        of("rule"),
        of("message"),
        of("messageExpression"),
        pointer("reason"),
        of("fieldPath"),
        pointer("optionalOldSelf")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_versions_share_stands_at_the_top() {
        let version = |name: &str, kind: &str| {
            json!({ "name": name, "served": true, "storage": name == "v1",
                "schema": { "openAPIV3Schema": { "type": kind } } })
        };
        let check = |versions: Value, paths: &[&str]| {
            let spec = json!({ "versions": versions });
            let found: Vec<String> = schemas(&spec).into_iter().map(|(path, ..)| path.to_string()).collect();
            assert_eq!(found, paths, "{spec}");
        };
        check(json!([version("v1", "object")]), &["spec.validation.openAPIV3Schema"]);
        check(json!([version("v1", "object"), version("v2", "object")]), &["spec.validation.openAPIV3Schema"]);
        check(
            json!([version("v1", "object"), version("v2", "string")]),
            &["spec.versions[0].schema.openAPIV3Schema", "spec.versions[1].schema.openAPIV3Schema"],
        );
        let spec = internal_spec(&json!({ "versions": [version("v1", "object")],
            "conversion": { "strategy": "Webhook", "webhook": { "conversionReviewVersions": ["v1"] } } }));
        assert_eq!(spec["validation"]["openAPIV3Schema"]["type"], "object");
        assert_eq!(spec["conversion"]["conversionReviewVersions"], json!(["v1"]));
        assert_eq!(
            shown_versions(&spec),
            "[{\"Name\":\"v1\",\"Served\":true,\"Storage\":true,\"Deprecated\":false,\"DeprecationWarning\":null,\
             \"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}]"
        );
    }
}
