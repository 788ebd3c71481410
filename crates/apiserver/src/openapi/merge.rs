//! Extension servers' part of `/openapi/v2`: cut out of their own document, then merged into ours.
//! Fetched by `aggregator`; merged by `openapi`.
//! Nothing of ours is replaced; a definition that differs from ours of the same name gets another name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Where paths and definitions refer to.
const SECTIONS: [&str; 2] = ["definitions", "parameters"];
/// Which kinds a definition is of. Those that are of many, as DeleteOptions, are of other ones at other servers.
const KINDS: &str = "x-kubernetes-group-version-kind";

/// The paths of one group version and what they refer to. `None`: the document is none.
pub fn part(document: &Value, group: &str, version: &str) -> Option<Value> {
    let prefix = format!("/apis/{group}/{version}/");
    let paths = document["paths"].as_object()?;
    let paths: Map<String, Value> =
        paths.iter().filter(|(path, _)| path.starts_with(&prefix)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let mut wanted = BTreeSet::new();
    paths.values().for_each(|path| references(path, &mut wanted));
    let mut found = SECTIONS.map(|_| Map::new());
    while let Some(reference) = wanted.pop_first() {
        let Some((section, name)) = split(&reference) else { continue };
        let Some(definition) = document[SECTIONS[section]].get(name) else { continue };
        if found[section].insert(name.to_string(), definition.clone()).is_none() {
            references(definition, &mut wanted);
        }
    }
    let mut part = Map::from_iter([("paths".to_string(), paths.into())]);
    part.extend(SECTIONS.into_iter().zip(found).map(|(section, all)| (section.to_string(), all.into())));
    Some(part.into())
}

/// Adds a part to a document.
pub fn merge(document: &mut Value, mut part: Value) {
    let mut renamed = BTreeMap::new();
    for section in SECTIONS {
        for (name, definition) in part[section].as_object().into_iter().flatten() {
            if document[section].get(name).is_some_and(|own| !alike(own, definition)) {
                let taken = |name: &String| {
                    [&*document, &part].iter().any(|d| d[section].get(name).is_some_and(|own| !alike(own, definition)))
                };
                let free = (2..).map(|n| format!("{name}_v{n}")).find(|name| !taken(name));
                renamed.insert(format!("#/{section}/{name}"), free.unwrap_or_default());
            }
        }
    }
    rename(&mut part, &renamed);
    for (path, item) in take(&mut part, "paths") {
        add(document, "paths", path, item);
    }
    for section in SECTIONS {
        for (name, definition) in take(&mut part, section) {
            let name = renamed.get(&format!("#/{section}/{name}")).cloned().unwrap_or(name);
            match document[section].get_mut(&name) {
                Some(own) => add_kinds(own, &definition[KINDS]),
                None => add(document, section, name, definition),
            }
        }
    }
}

fn alike(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return a == b };
    let rest = |(name, _): &(&String, &Value)| *name != KINDS;
    a.iter().filter(rest).eq(b.iter().filter(rest))
}

fn add_kinds(own: &mut Value, others: &Value) {
    let others = others.as_array().into_iter().flatten();
    if let Some(kinds) = own.get_mut(KINDS).and_then(Value::as_array_mut) {
        others.for_each(|other| {
            if !kinds.contains(other) {
                kinds.push(other.clone())
            }
        });
    }
}

fn take(part: &mut Value, field: &str) -> Map<String, Value> {
    match part[field].take() {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn add(document: &mut Value, section: &str, name: String, value: Value) {
    if let Some(all) = document[section].as_object_mut() {
        all.entry(name).or_insert(value);
    }
}

/// The section and the name in it of `#/definitions/name`.
fn split(reference: &str) -> Option<(usize, &str)> {
    let (section, name) = reference.strip_prefix("#/")?.split_once('/')?;
    Some((SECTIONS.iter().position(|s| *s == section)?, name))
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                found.insert(reference.to_string());
            }
            map.values().for_each(|inner| references(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
        _ => {}
    }
}

fn rename(value: &mut Value, renamed: &BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref")
                && let Some(name) = renamed.get(reference)
                && let Some((section, _)) = split(reference)
            {
                *reference = format!("#/{}/{name}", SECTIONS[section]);
            }
            map.values_mut().for_each(|inner| rename(inner, renamed));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| rename(inner, renamed)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_part_comes_with_what_it_refers_to_and_replaces_nothing() {
        let extension = json!({
            "swagger": "2.0",
            "paths": {
                "/apis/g/v1/things": { "get": {
                    "parameters": [{ "$ref": "#/parameters/p" }],
                    "responses": { "200": { "schema": { "$ref": "#/definitions/Thing" } } },
                } },
                "/apis/g/v1beta1/things": { "get": { "schema": { "$ref": "#/definitions/Unused" } } },
            },
            "parameters": { "p": { "name": "p", "in": "query" }, "q": {} },
            "definitions": {
                "Thing": { "properties": {
                    "meta": { "$ref": "#/definitions/Meta" }, "same": { "$ref": "#/definitions/Same" },
                    "next": { "$ref": "#/definitions/Thing" }, "lost": { "$ref": "#/definitions/Lost" },
                } },
                "Meta": { "type": "object", "description": "theirs" },
                "Same": { "type": "string", "x-kubernetes-group-version-kind": [{ "kind": "B" }] },
                "Unused": {},
            },
        });
        let part = part(&extension, "g", "v1").unwrap();
        let names = |section: &str| -> Vec<String> { part[section].as_object().unwrap().keys().cloned().collect() };
        assert_eq!(names("paths"), ["/apis/g/v1/things"]);
        assert_eq!(
            (names("parameters"), names("definitions")),
            (vec!["p".into()], ["Meta", "Same", "Thing"].map(String::from).to_vec())
        );

        let mut own = json!({
            "paths": { "/api/v1/": {} },
            "parameters": {},
            "definitions": {
                "Meta": { "type": "object", "description": "ours" }, "Meta_v2": { "description": "a third" },
                "Same": { "type": "string", "x-kubernetes-group-version-kind": [{ "kind": "A" }] },
            },
        });
        merge(&mut own, part);
        assert_eq!(own["definitions"]["Meta"]["description"], "ours");
        assert_eq!(own["definitions"]["Meta_v3"]["description"], "theirs");
        assert_eq!(own["definitions"]["Thing"]["properties"]["meta"]["$ref"], "#/definitions/Meta_v3");
        assert_eq!(own["definitions"]["Thing"]["properties"]["same"]["$ref"], "#/definitions/Same");
        assert_eq!(own["definitions"]["Same"][KINDS], json!([{ "kind": "A" }, { "kind": "B" }]));
        assert_eq!(own["definitions"].as_object().unwrap().len(), 5);
        assert!(own["paths"]["/apis/g/v1/things"].is_object() && own["parameters"]["p"].is_object());
        for broken in [json!(null), json!([]), json!({ "paths": 1 })] {
            assert_eq!(super::part(&broken, "g", "v1"), None, "{broken}");
        }
    }
}
