//! Writes operations and schemas as one OpenAPI document, v2 or v3.
//! Called by `openapi`.
//! `dryRun` and `fieldValidation` stay inside their operations, where kubectl looks for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use super::{
    Dialect, ExtraSchemas, custom,
    descriptions::Descriptions,
    operations::{self, Answer, Body, META, Operation, Parameter, Path},
    schemas::Components,
};
use crate::{Resource, schema};

const OBJECT_TYPES: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const CUSTOM_TYPES: [&str; 2] = ["application/json", "application/yaml"];
const STREAM_TYPES: [&str; 2] = ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];

pub(super) fn build(
    dialect: Dialect,
    group_versions: &BTreeSet<(String, String)>,
    resources: &[Arc<Resource>],
    extra: &ExtraSchemas,
) -> Value {
    let descriptions = Descriptions::load();
    let everywhere: BTreeSet<_> = crate::kinds::builtin()
        .iter()
        .map(|r| (r.group.clone(), r.version.clone()))
        .chain(group_versions.iter().cloned())
        .collect();
    let served = |r: &&Arc<Resource>| group_versions.contains(&(r.group.clone(), r.version.clone()));
    let only_builtin = resources.iter().filter(served).all(|r| match super::schema_of(&r.group, &r.version, &r.kind) {
        Some(schema) => std::ptr::eq(schema, schema::builtin()),
        None => true,
    });
    let schema = if only_builtin { schema::builtin() } else { schema::with_unserved() };
    let components = Components::new(dialect, schema, &descriptions, &everywhere);
    let mut writer = Writer { dialect, components, parameters: BTreeMap::new() };
    let mut paths = Map::new();
    for (group, version) in group_versions {
        writer.path(operations::discovery(group, version), &mut paths);
    }
    for resource in resources.iter().filter(served) {
        writer.custom(resource, extra);
        operations::paths_of(resource).into_iter().for_each(|path| writer.path(path, &mut paths));
    }
    let info = json!({"title": "Kubernetes", "version": super::VERSION});
    let bearer = json!({"BearerToken": {"description": "Bearer Token authentication", "in": "header", "name": "authorization", "type": "apiKey"}});
    let Writer { components, parameters, .. } = writer;
    match dialect {
        Dialect::V3 => json!({
            "openapi": "3.0.0", "info": info, "paths": paths,
            "components": {"schemas": components.finish(), "securitySchemes": bearer},
        }),
        Dialect::V2 => json!({
            "swagger": "2.0", "info": info, "paths": paths, "definitions": components.finish(),
            "parameters": parameters, "securityDefinitions": bearer, "security": [{"BearerToken": []}],
        }),
    }
}

struct Writer<'d> {
    dialect: Dialect,
    components: Components<'d>,
    /// Of v2: query parameters that operations refer to by name.
    parameters: BTreeMap<String, Value>,
}

impl Writer<'_> {
    fn custom(&mut self, resource: &Resource, extra: &ExtraSchemas) {
        if super::schema_of(&resource.group, &resource.version, &resource.kind).is_some() {
            return;
        }
        let key = (resource.group.clone(), resource.version.clone(), resource.kind.clone());
        let name = |kind: &str| operations::type_name(&resource.group, &resource.version, kind);
        let (object, list) = (name(&resource.kind), name(&resource.list_kind));
        custom::publish(&mut self.components, resource, &object, &list, extra.get(&key));
    }

    fn path(&mut self, path: Path, paths: &mut Map<String, Value>) {
        let mut item = Map::new();
        for operation in path.operations {
            item.insert(operation.method.into(), self.operation(operation));
        }
        if item.is_empty() {
            return;
        }
        if !path.parameters.is_empty() {
            item.insert("parameters".into(), self.parameters(&path.parameters));
        }
        paths.insert(path.path, item.into());
    }

    fn parameters(&mut self, parameters: &[Parameter]) -> Value {
        let mut sorted: Vec<&Parameter> = parameters.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        sorted.into_iter().map(|p| self.parameter(p)).collect()
    }

    fn parameter(&mut self, p: &Parameter) -> Value {
        let place = if p.in_path { "path" } else { "query" };
        let mut out = json!({"name": p.name, "in": place, "description": p.description});
        if p.in_path {
            out["required"] = true.into();
        }
        match self.dialect {
            Dialect::V3 => out["schema"] = json!({"type": p.kind, "uniqueItems": true}),
            Dialect::V2 => {
                out["type"] = p.kind.into();
                out["uniqueItems"] = true.into();
                let inline = p.in_path
                    || matches!(p.name.as_str(), "dryRun" | "fieldValidation")
                    || p.description.contains(" of Pod");
                if !inline {
                    let reference = json!({"$ref": format!("#/parameters/{}", p.name)});
                    self.parameters.entry(p.name.clone()).or_insert(out);
                    return reference;
                }
            }
        }
        out
    }

    fn operation(&mut self, operation: Operation) -> Value {
        let mut out =
            json!({"description": operation.description, "operationId": operation.id, "tags": [operation.tag]});
        let mut parameters = self.parameters(&operation.parameters);
        let custom = operation
            .about
            .as_ref()
            .is_some_and(|[group, version, kind]| super::schema_of(group, version, kind).is_none());
        let produced = produces(&operation.answer, custom);
        let mut responses = Map::new();
        for code in operation.codes {
            let word = match code {
                201 => "Created",
                202 => "Accepted",
                _ => "OK",
            };
            let schema = self.answer(&operation.answer);
            let content = match self.dialect {
                Dialect::V3 => json!({"description": word, "content": contents(&produced, &schema)}),
                Dialect::V2 => json!({"description": word, "schema": schema}),
            };
            responses.insert(code.to_string(), content);
        }
        responses.insert("401".into(), json!({"description": "Unauthorized"}));
        if let Some(body) = &operation.body {
            let (schema, consumed, required) = self.body(body);
            match self.dialect {
                Dialect::V3 => {
                    out["requestBody"] = json!({"content": contents(&consumed, &schema)});
                    if required {
                        out["requestBody"]["required"] = true.into();
                    }
                }
                Dialect::V2 => {
                    out["consumes"] = json!(consumed);
                    let mut body = json!({"name": "body", "in": "body", "schema": schema});
                    if required {
                        body["required"] = true.into();
                    }
                    if let Value::Array(all) = &mut parameters {
                        all.insert(0, body);
                    }
                }
            }
        }
        if self.dialect == Dialect::V2 {
            out["produces"] = json!(produced);
            out["schemes"] = json!(["https"]);
            if operation.body.is_none() {
                out["consumes"] = json!(["*/*"]);
            }
        }
        out["responses"] = responses.into();
        if parameters.as_array().is_some_and(|p| !p.is_empty()) {
            out["parameters"] = parameters;
        }
        if let Some([group, version, kind]) = &operation.about {
            out["x-kubernetes-action"] = operation.action.into();
            out["x-kubernetes-group-version-kind"] = json!({"group": group, "kind": kind, "version": version});
        }
        out
    }

    fn answer(&mut self, answer: &Answer) -> Value {
        match answer {
            Answer::Object(name) | Answer::List(name) => self.components.reference(name),
            Answer::Watch => self.components.reference(&format!("{META}.WatchEvent")),
            Answer::Text | Answer::Stream => json!({"type": "string"}),
        }
    }

    fn body(&mut self, body: &Body) -> (Value, Vec<&'static str>, bool) {
        match body {
            Body::Object(name) => (self.components.reference(name), vec!["*/*"], true),
            Body::DeleteOptions => (self.components.reference(&format!("{META}.DeleteOptions")), vec!["*/*"], false),
            Body::Patch { strategic } => {
                let mut types = vec!["application/json-patch+json", "application/merge-patch+json"];
                if *strategic {
                    types.push("application/strategic-merge-patch+json");
                }
                types.push("application/apply-patch+yaml");
                (self.components.reference(&format!("{META}.Patch")), types, true)
            }
        }
    }
}

fn produces(answer: &Answer, custom: bool) -> Vec<&'static str> {
    let objects: &[&'static str] = if custom { &CUSTOM_TYPES } else { &OBJECT_TYPES };
    let streams: &[&'static str] = if custom { &STREAM_TYPES[..1] } else { &STREAM_TYPES };
    match answer {
        Answer::Object(_) => objects.to_vec(),
        Answer::List(_) | Answer::Watch => [objects, streams].concat(),
        Answer::Text => ["text/plain"].iter().chain(objects).copied().collect(),
        Answer::Stream => vec!["*/*"],
    }
}

fn contents(types: &[&'static str], schema: &Value) -> Value {
    types.iter().map(|t| (t.to_string(), json!({"schema": schema}))).collect::<Map<_, _>>().into()
}
