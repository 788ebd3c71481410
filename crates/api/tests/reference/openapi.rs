//! Our OpenAPI documents against the published ones: paths, operations, parameters, schemas.

use std::collections::{BTreeMap, BTreeSet};

use api::{kinds, openapi};
use serde_json::Value;

use super::{read_json, reference, report};

#[test]
#[ignore = "needs MINKE_REFERENCE: make test-reference"]
fn every_stable_group_version_is_published_alike() {
    let mut problems = Vec::new();
    let groups: BTreeSet<_> = kinds::builtin().iter().map(|r| (r.group.clone(), r.version.clone())).collect();
    for (group, version) in groups {
        let ours = openapi::v3(&group, &version, kinds::builtin(), &BTreeMap::new());
        let file = format!("openapi-spec/v3/{}_openapi.json", openapi::v3_path(&group, &version).replace('/', "__"));
        let theirs = read_json(reference(&file));
        let mut found = Vec::new();
        paths(&ours["paths"], &theirs["paths"], &mut found);
        schemas(&ours["components"]["schemas"], &theirs["components"]["schemas"], &mut found);
        problems.extend(found.into_iter().map(|p| format!("{group}/{version} {p}")));
    }
    report(problems);
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn names(parameters: &Value) -> BTreeSet<String> {
    let all = parameters.as_array().into_iter().flatten();
    all.map(|p| format!("{} {}", p["in"].as_str().unwrap_or_default(), p["name"].as_str().unwrap_or_default()))
        .collect()
}

fn paths(ours: &Value, theirs: &Value, problems: &mut Vec<String>) {
    for (path, item) in entries(theirs) {
        for (method, operation) in entries(item).filter(|(m, _)| *m != "parameters") {
            let own = &ours[path][method];
            for word in ["operationId", "x-kubernetes-action", "x-kubernetes-group-version-kind", "tags"] {
                if own[word] != operation[word] {
                    problems.push(format!("{method} {path}: {word} {}, published {}", own[word], operation[word]));
                }
            }
            let all = |item: &Value, operation: &Value| -> BTreeSet<String> {
                names(&item["parameters"]).union(&names(&operation["parameters"])).cloned().collect()
            };
            let missing: Vec<_> = all(item, operation).difference(&all(&ours[path], own)).cloned().collect();
            if !missing.is_empty() {
                problems.push(format!("{method} {path}: no parameter {missing:?}"));
            }
            let answer = |o: &Value| o["responses"]["200"]["content"]["application/json"]["schema"].clone();
            if answer(own) != answer(operation) {
                problems.push(format!("{method} {path}: answers {}, published {}", answer(own), answer(operation)));
            }
        }
    }
    for (path, item) in entries(ours) {
        for (method, _) in entries(item) {
            if theirs[path].get(method).is_none() {
                problems.push(format!("{method} {path}: not published"));
            }
        }
    }
}

fn schemas(ours: &Value, theirs: &Value, problems: &mut Vec<String>) {
    for (name, schema) in entries(theirs) {
        match ours.get(name) {
            None => problems.push(format!("{name}: missing")),
            Some(own) => compare(name, own, schema, problems),
        }
    }
    for (name, _) in entries(ours) {
        if theirs.get(name).is_none() {
            problems.push(format!("{name}: not published"));
        }
    }
}

/// Unions are not in our table, and DeleteOptions lists what is served, which is less than upstream can serve.
const LEFT_OUT: [&str; 2] = ["x-kubernetes-unions", "x-kubernetes-group-version-kind"];

fn compare(at: &str, ours: &Value, theirs: &Value, problems: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                if LEFT_OUT.contains(&key.as_str()) {
                    continue;
                }
                let here = format!("{at}.{key}");
                match (a.get(key), b.get(key)) {
                    (Some(Value::String(_)), Some(Value::String(_))) if key == "description" => {}
                    (Some(Value::String(_)), None) if key == "description" => {}
                    (Some(Value::Array(x)), Some(Value::Array(y))) if key == "required" => {
                        // Theirs are in the order of the Go struct, which nobody relies on.
                        let sorted = |a: &[Value]| a.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
                        if sorted(x) != sorted(y) {
                            problems.push(format!("{here}: {x:?}, published {y:?}"));
                        }
                    }
                    (Some(x), Some(y)) => compare(&here, x, y, problems),
                    (x, y) => problems.push(format!("{here}: {x:?}, published {y:?}").chars().take(200).collect()),
                }
            }
        }
        (a, b) if a != b => problems.push(format!("{at}: {a}, published {b}").chars().take(200).collect()),
        _ => {}
    }
}
