//! The published schemas and discovery documents against our tables.

use std::collections::BTreeMap;

use api::{
    kinds,
    schema::{self, Field, ListType, Node, Schema},
};
use serde_json::{Value, json};

use super::{read_json, reference, report};

/// Published types that have no row of their own, because they are not structs to us.
const SCALARS: [&str; 10] = [
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
    "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    "io.k8s.apimachinery.pkg.runtime.RawExtension",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
];

#[test]
#[ignore = "needs MINKE_REFERENCE: make test-reference"]
fn every_published_type_and_field_is_in_the_table() {
    let swagger = read_json(reference("openapi-spec/swagger.json"));
    let all = schema::with_unserved();
    let served = schema::builtin();
    let mut problems = Vec::new();
    let definitions = swagger["definitions"].as_object().expect("definitions");
    for (name, spec) in definitions {
        if SCALARS.contains(&name.as_str()) || name == "io.k8s.apimachinery.pkg.version.Info" {
            continue;
        }
        let stable = name.split('.').any(|part| part == "v1" || part == "v2");
        let schema = if stable { served } else { all };
        let Some(id) = schema.by_name.get(name) else {
            problems.push(format!("{name}: missing"));
            continue;
        };
        let ours = schema.get(*id);
        if ours.atomic != (spec["x-kubernetes-map-type"] == "atomic") {
            problems.push(format!("{name}: atomic is {}", ours.atomic));
        }
        let none = serde_json::Map::new();
        let properties = spec["properties"].as_object().unwrap_or(&none);
        for (field_name, property) in properties {
            match ours.field(field_name) {
                None => problems.push(format!("{name}.{field_name}: missing")),
                Some(field) => {
                    let required = spec["required"].as_array().is_some_and(|r| r.iter().any(|n| n == field_name));
                    if let Err(problem) = check_field(schema, field, property, required) {
                        problems.push(format!("{name}.{field_name}: {problem}"));
                    }
                }
            }
        }
        for field in &ours.fields {
            if !properties.contains_key(&field.name) {
                problems.push(format!("{name}.{}: not published", field.name));
            }
        }
    }
    report(problems);
}

fn check_field(schema: &Schema, field: &Field, property: &Value, required: bool) -> Result<(), String> {
    let same = |what: &str, ours: Value, theirs: &Value| {
        if ours == *theirs { Ok(()) } else { Err(format!("{what} is {ours}, published {theirs}")) }
    };
    same("required", required.into(), &field.required.into())?;
    let list_type = match &field.node {
        Node::List(_, ListType::Set) => "set".into(),
        Node::List(_, ListType::Map(_)) => "map".into(),
        Node::List(_, ListType::Atomic) | Node::Bytes if field.wire.said_atomic => "atomic".into(),
        _ => Value::Null,
    };
    same("list type", list_type, &property["x-kubernetes-list-type"])?;
    let keys = match &field.node {
        Node::List(_, ListType::Map(keys)) => json!(keys),
        _ => Value::Null,
    };
    same("map keys", keys, &property["x-kubernetes-list-map-keys"])?;
    same("merge key", json!(field.patch_merge_key), &property["x-kubernetes-patch-merge-key"])?;
    let mut strategy = Vec::new();
    [(field.patch_merge, "merge"), (field.patch_retain_keys, "retainKeys"), (field.wire.said_replace, "replace")]
        .into_iter()
        .filter(|(is, _)| *is)
        .for_each(|(_, word)| strategy.push(word));
    let mut theirs: Vec<&str> =
        property["x-kubernetes-patch-strategy"].as_str().unwrap_or_default().split(',').collect();
    theirs.retain(|w| !w.is_empty());
    theirs.sort_unstable();
    if strategy != theirs {
        return Err(format!("patch strategy is {strategy:?}, published {theirs:?}"));
    }
    check_type(schema, field, &field.node, property)
}

fn check_type(schema: &Schema, field: &Field, node: &Node, property: &Value) -> Result<(), String> {
    let reference = property["$ref"].as_str().or_else(|| property["allOf"][0]["$ref"].as_str());
    let reference = reference.map(|r| r.rsplit('/').next().unwrap_or(r));
    let kind = property["type"].as_str();
    let format = property["format"].as_str();
    let ends = |suffix: &str| reference.is_some_and(|r| r.ends_with(suffix));
    let fits = match node {
        Node::Boolean => kind == Some("boolean"),
        Node::Int32 => kind == Some("integer") && format == Some("int32"),
        Node::Int64 => kind == Some("integer") && format == Some("int64"),
        Node::Number => kind == Some("number"),
        Node::String => kind == Some("string") && format.is_none(),
        Node::Bytes => kind == Some("string") && format == Some("byte"),
        Node::Time => ends(".Time"),
        Node::MicroTime => ends(".MicroTime"),
        Node::Duration => ends(".Duration") || kind == Some("string"),
        Node::Quantity => ends(".Quantity"),
        Node::IntOrString => ends(".IntOrString"),
        Node::Any => ends(".RawExtension") || ends(".JSON"),
        Node::Fields => ends(".FieldsV1"),
        Node::Struct(_) if field.wire.or != api::schema::SchemaOr::Nothing => {
            reference.is_some_and(|r| r.contains("JSONSchemaPropsOr"))
        }
        Node::Struct(id) => reference == Some(schema.get(*id).name.as_str()),
        Node::List(item, _) => return check_type(schema, field, item, &property["items"]),
        Node::Map(item, _) => return check_type(schema, field, item, &property["additionalProperties"]),
    };
    if fits { Ok(()) } else { Err(format!("type is {node:?}, published {property}")) }
}

#[test]
#[ignore = "needs MINKE_REFERENCE: make test-reference"]
fn every_published_default_is_in_the_table() {
    let mut problems = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(reference("openapi-spec/v3")).expect("the v3 directory") {
        let document = read_json(entry.expect("an entry").path());
        let Some(schemas) = document["components"]["schemas"].as_object() else { continue };
        for (name, spec) in schemas {
            for (field_name, property) in spec["properties"].as_object().into_iter().flatten() {
                let default = &property["default"];
                // Zero values are what Go has anyway.
                if [Value::Null, json!(""), json!(0), json!(false), json!({})].contains(default) {
                    continue;
                }
                count += 1;
                let all = schema::with_unserved();
                let ours = all.by_name.get(name).and_then(|id| all.get(*id).field(field_name));
                if ours.and_then(|f| f.default.as_ref()) != Some(default) {
                    problems.push(format!("{name}.{field_name}: {default}"));
                }
            }
        }
    }
    assert!(count > 10, "only {count} defaults");
    report(problems);
}

#[test]
#[ignore = "needs MINKE_REFERENCE: make test-reference"]
fn every_stable_resource_of_discovery_is_in_the_table_of_kinds() {
    let mut problems = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(reference("discovery")).expect("the discovery directory") {
        let document = read_json(entry.expect("an entry").path());
        let Some(group_version) = document["groupVersion"].as_str() else { continue };
        let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
        if version != "v1" && version != "v2" {
            continue;
        }
        for resource in document["resources"].as_array().into_iter().flatten() {
            count += 1;
            if let Err(problem) = check_resource(group, version, resource) {
                problems.push(format!("{group_version} {}: {problem}", resource["name"]));
            }
        }
    }
    assert!(count > 100, "only {count} resources");
    report(problems);
}

fn check_resource(group: &str, version: &str, theirs: &Value) -> Result<(), String> {
    let name = theirs["name"].as_str().unwrap_or_default();
    let (plural, sub) = name.split_once('/').map_or((name, None), |(plural, sub)| (plural, Some(sub)));
    let ours = kinds::find(group, version, plural).ok_or("missing")?;
    let sorted = |words: &[api::Verb]| {
        let mut words = words.to_vec();
        words.sort();
        json!(words)
    };
    let words = |name: &str| theirs.get(name).cloned().unwrap_or_else(|| json!([]));
    let mut facts: BTreeMap<&str, (Value, Value)> = BTreeMap::new();
    match sub {
        None => {
            facts.insert("kind", (json!(ours.kind), theirs["kind"].clone()));
            facts.insert("singular", (json!(ours.singular), theirs["singularName"].clone()));
            facts.insert("namespaced", (json!(ours.namespaced()), theirs["namespaced"].clone()));
            facts.insert("short names", (json!(ours.short_names), words("shortNames")));
            facts.insert("categories", (json!(ours.categories), words("categories")));
            facts.insert("verbs", (sorted(&ours.verbs), words("verbs")));
        }
        Some(sub) => {
            let ours = ours.subresource(sub).ok_or("missing")?;
            facts.insert("kind", (json!(ours.kind), theirs["kind"].clone()));
            facts.insert("verbs", (sorted(&ours.verbs), words("verbs")));
            let place = |name: &str, own: &str| theirs[name].as_str().unwrap_or(own).to_string();
            facts.insert("group", (json!(ours.group), json!(place("group", group))));
            facts.insert("version", (json!(ours.version), json!(place("version", version))));
        }
    }
    match facts.into_iter().find(|(_, (ours, theirs))| ours != theirs) {
        Some((what, (ours, theirs))) => Err(format!("{what}: {ours}, published {theirs}")),
        None => Ok(()),
    }
}
