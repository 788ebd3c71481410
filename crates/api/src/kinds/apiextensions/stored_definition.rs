//! CustomResourceDefinitions in the form that upstream keeps them in: v1beta1, whatever is served.
//! Asked by the API server where objects are read and written.
//! There and back gives the same definition.

use serde_json::{Map, Value, json};

/// What stands once above the versions in v1beta1 if all of them have it alike, and where v1 has it in each.
const SHARED: [(&str, &str); 4] = [
    ("subresources", "subresources"),
    ("validation", "schema"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

fn spec(definition: &mut Value) -> Option<&mut Map<String, Value>> {
    definition.get_mut("spec")?.as_object_mut()
}

fn versions(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn rename_column_paths(spec: &mut Map<String, Value>, from: &str, to: &str) {
    for version in versions(spec) {
        let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
        for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
            if let Some(path) = column.remove(from) {
                column.insert(to.into(), path);
            }
        }
    }
}

/// Of v1beta1; becomes v1.
pub fn from_v1beta1(definition: &mut Value) {
    let Some(spec) = spec(definition) else { return };
    let version = spec.remove("version").filter(|version| version.is_string());
    let none = spec.get("versions").and_then(Value::as_array).is_none_or(Vec::is_empty);
    if let (true, Some(version)) = (none, version) {
        spec.insert("versions".into(), json!([{ "name": version, "served": true, "storage": true }]));
    }
    for (above, within) in SHARED {
        if let Some(shared) = spec.remove(above).filter(|shared| !shared.is_null()) {
            versions(spec).for_each(|version| drop(version.insert(within.into(), shared.clone())));
        }
    }
    rename_column_paths(spec, "JSONPath", "jsonPath");
    match spec.get("preserveUnknownFields").and_then(Value::as_bool) {
        Some(false) => drop(spec.remove("preserveUnknownFields")),
        _ => drop(spec.insert("preserveUnknownFields".into(), true.into())),
    }
    let conversion = spec.entry("conversion").or_insert_with(|| json!({ "strategy": "None" }));
    if let Some(conversion) = conversion.as_object_mut() {
        let (client, reviews) =
            (conversion.remove("webhookClientConfig"), conversion.remove("conversionReviewVersions"));
        if client.is_some() || reviews.is_some() {
            let mut webhook = json!({ "conversionReviewVersions": reviews.unwrap_or(Value::Null) });
            if let Some(client) = client {
                webhook["clientConfig"] = client;
            }
            conversion.insert("webhook".into(), webhook);
        }
    }
}

/// Of v1; becomes v1beta1.
pub fn to_v1beta1(definition: &mut Value) {
    let Some(spec) = spec(definition) else { return };
    rename_column_paths(spec, "jsonPath", "JSONPath");
    let first = versions(spec).next().cloned();
    if let Some(first) = first {
        spec.insert("version".into(), first.get("name").cloned().unwrap_or_default());
        for (above, within) in SHARED {
            let shared = first.get(within);
            if versions(spec).all(|version| version.get(within) == shared) {
                versions(spec).for_each(|version| drop(version.remove(within)));
                if let Some(shared) = shared {
                    spec.insert(above.into(), shared.clone());
                }
            }
        }
    }
    spec.entry("preserveUnknownFields").or_insert(Value::Bool(false));
    if let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut)
        && let Some(Value::Object(mut webhook)) = conversion.remove("webhook")
    {
        let moved = [("clientConfig", "webhookClientConfig"), ("conversionReviewVersions", "conversionReviewVersions")];
        for (from, to) in moved {
            if let Some(value) = webhook.remove(from).filter(|value| !value.is_null()) {
                conversion.insert(to.into(), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(v1: Value, v1beta1: Value) {
        let (v1, v1beta1) = (json!({ "spec": v1 }), json!({ "spec": v1beta1 }));
        let mut there = v1.clone();
        to_v1beta1(&mut there);
        assert_eq!(there, v1beta1);
        from_v1beta1(&mut there);
        assert_eq!(there, v1);
    }

    #[test]
    fn definitions_go_there_and_back() {
        let column = |path: &str| json!([{ "name": "c", "type": "string", path: ".spec.c" }]);
        check(
            json!({ "conversion": { "strategy": "None" }, "versions": [
                { "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } },
                  "subresources": { "status": {} }, "additionalPrinterColumns": column("jsonPath") }] }),
            json!({ "conversion": { "strategy": "None" }, "preserveUnknownFields": false, "version": "v1",
                "validation": { "openAPIV3Schema": { "type": "object" } }, "subresources": { "status": {} },
                "additionalPrinterColumns": [{ "name": "c", "type": "string", "JSONPath": ".spec.c" }],
                "versions": [{ "name": "v1", "served": true, "storage": true }] }),
        );
        // What the versions do not have alike stays with each.
        check(
            json!({ "preserveUnknownFields": true, "conversion": { "strategy": "Webhook", "webhook": {
                    "conversionReviewVersions": ["v1"], "clientConfig": { "url": "https://x/" } } },
                "versions": [
                    { "name": "v2", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } } },
                    { "name": "v1", "served": true, "storage": false, "additionalPrinterColumns": column("jsonPath") }] }),
            json!({ "preserveUnknownFields": true, "version": "v2", "conversion": { "strategy": "Webhook",
                    "conversionReviewVersions": ["v1"], "webhookClientConfig": { "url": "https://x/" } },
                "versions": [
                    { "name": "v2", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } } },
                    { "name": "v1", "served": true, "storage": false, "additionalPrinterColumns": column("JSONPath") }] }),
        );
        // As the oldest servers wrote them.
        let mut old = json!({ "spec": { "version": "v1", "validation": { "openAPIV3Schema": {} } } });
        from_v1beta1(&mut old);
        assert_eq!(
            old["spec"],
            json!({ "preserveUnknownFields": true, "conversion": { "strategy": "None" }, "versions": [
            { "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {} } }] })
        );
        for mut odd in [json!(null), json!({ "spec": 3 }), json!({ "spec": { "versions": [1], "conversion": [] } })] {
            from_v1beta1(&mut odd);
            to_v1beta1(&mut odd);
        }
    }
}
