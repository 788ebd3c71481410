//! From one CustomResourceDefinition to the resources it makes served.
//! Used by `controller`.
//! Invariant: pure; the same definition always gives the same resources (tidy: `pure_files`).

use std::sync::Arc;

use serde_json::Value;

use api::{Resource, Scope, Verb, kinds::Subresource};

use super::{
    behavior::CustomBehavior,
    check::{Check, anything},
    rules::Rules,
    structural,
};
use crate::{
    discovery::{
        priority,
        served::{Served, StorageVersion},
    },
    handlers::codec::SchemaRef,
    json_fields::{text, texts},
    registry::custom::{Conversion, Custom, PrinterColumn, ScalePaths},
    storage,
};

/// Every served version of a definition, by the names that were accepted.
pub fn resources(definition: &Value) -> Vec<Arc<Served>> {
    let spec = &definition["spec"];
    let versions = spec["versions"].as_array().cloned().unwrap_or_default();
    let Some(stored) = versions.iter().find(|v| v["storage"] == true) else { return Vec::new() };
    let storage_version = StorageVersion { group: text(spec, "group").into(), version: text(stored, "name").into() };
    let served = versions.iter().filter(|v| v["served"] == true);
    served.map(|v| Arc::new(version(definition, v, &storage_version))).collect()
}

fn version(definition: &Value, version: &Value, storage_version: &StorageVersion) -> Served {
    let spec = &definition["spec"];
    let names = &definition["status"]["acceptedNames"];
    let (group, name, kind) = (text(spec, "group"), text(version, "name"), text(names, "kind"));
    let openapi = version["schema"]["openAPIV3Schema"].clone();
    let (schema, root) = structural::build(group, name, kind, &with_preserve(spec, &openapi));
    let subresources = subresources(version, group, name, kind);
    let behavior = CustomBehavior {
        check: if openapi.is_object() { Check::compile(&openapi) } else { anything() },
        rules: Rules::compile(&openapi),
        scale: version["subresources"]["scale"].is_object().then(|| scale_paths(version)),
        status: subresources.iter().any(|s| s.name == "status"),
        selectable: selectable(version),
        deprecation: (version["deprecated"] == true).then(|| deprecation(spec, version)),
    };
    let resource = Resource {
        singular: text(names, "singular").into(),
        list_kind: text(names, "listKind").into(),
        short_names: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        subresources,
        behavior: Arc::new(behavior),
        ..Resource::custom(group, name, kind, text(names, "plural"), Scope::parse(text(spec, "scope")))
    };
    Served {
        prefix: storage::prefix(&resource),
        resource: Arc::new(resource),
        schema: Some((SchemaRef::Custom(Arc::new(schema)), root)),
        storage_version: storage_version.clone(),
        custom: Some(Arc::new(custom(spec, version, openapi))),
    }
}

/// The warning of a deprecated version: its own, or one that names a version to use instead. Served versions that are not
/// deprecated and come before it in the order of versions are such.
fn deprecation(spec: &Value, version: &Value) -> String {
    if let Some(own) = version["deprecationWarning"].as_str() {
        return own.to_string();
    }
    let (group, name, kind) = (text(spec, "group"), text(version, "name"), text(&spec["names"], "kind"));
    let versions = spec["versions"].as_array().into_iter().flatten();
    let usable = versions.filter(|other| other["served"] == true && other["deprecated"] != true);
    let best = usable.map(|other| text(other, "name")).min_by_key(|other| priority(other));
    match best.filter(|best| priority(best) < priority(name)) {
        Some(best) => format!("{group}/{name} {kind} is deprecated; use {group}/{best} {kind}"),
        None => format!("{group}/{name} {kind} is deprecated"),
    }
}

/// The old switch that keeps every unknown field.
fn with_preserve(spec: &Value, openapi: &Value) -> Value {
    let mut schema = openapi.clone();
    if spec["preserveUnknownFields"] == true || !schema.is_object() {
        schema["x-kubernetes-preserve-unknown-fields"] = true.into();
    }
    schema
}

fn subresources(version: &Value, group: &str, name: &str, kind: &str) -> Vec<Subresource> {
    let verbs = vec![Verb::Get, Verb::Patch, Verb::Update];
    let declared = &version["subresources"];
    let mut found = Vec::new();
    if declared["status"].is_object() {
        found.push(Subresource {
            name: "status".into(),
            group: group.into(),
            version: name.into(),
            kind: kind.into(),
            verbs: verbs.clone(),
        });
    }
    if declared["scale"].is_object() {
        found.push(Subresource {
            name: "scale".into(),
            group: "autoscaling".into(),
            version: "v1".into(),
            kind: "Scale".into(),
            verbs,
        });
    }
    found
}

fn selectable(version: &Value) -> Vec<String> {
    let fields = version["selectableFields"].as_array().into_iter().flatten();
    fields.map(|f| text(f, "jsonPath").trim_start_matches('.').to_string()).collect()
}

fn scale_paths(version: &Value) -> ScalePaths {
    let scale = &version["subresources"]["scale"];
    ScalePaths {
        spec_replicas: text(scale, "specReplicasPath").into(),
        status_replicas: text(scale, "statusReplicasPath").into(),
        label_selector: scale["labelSelectorPath"].as_str().map(str::to_string),
    }
}

fn custom(spec: &Value, version: &Value, openapi: Value) -> Custom {
    let column = |c: &Value| PrinterColumn {
        name: text(c, "name").into(),
        kind: text(c, "type").into(),
        format: text(c, "format").into(),
        description: text(c, "description").into(),
        priority: c["priority"].as_i64().unwrap_or(0),
        path: text(c, "jsonPath").into(),
    };
    let mut columns: Vec<PrinterColumn> =
        version["additionalPrinterColumns"].as_array().into_iter().flatten().map(column).collect();
    if columns.is_empty() {
        columns.push(PrinterColumn {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description: "CreationTimestamp is a timestamp representing the server time when this object was created."
                .into(),
            priority: 0,
            path: ".metadata.creationTimestamp".into(),
        });
    }
    let conversion = &spec["conversion"];
    Custom {
        columns,
        scale: scale_paths(version),
        has_defaults: structural::has_defaults(&openapi),
        openapi,
        conversion: match text(conversion, "strategy") {
            "Webhook" => Conversion::Webhook(conversion["webhook"].clone()),
            _ => Conversion::None,
        },
    }
}
