//! `configMapGenerator` and `secretGenerator`.
//! Neighbours: `generate::config` reads literals, files and env files the same way.
//! A generated name gets a hash unless it says otherwise.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::{Resource, directory::read_below};
use crate::{
    describe::fields::{list, members, string, strings, text, truth},
    generate::source_files::{SourceFiles, env_file},
};

pub fn run(
    kustomization: &Value,
    directory: &str,
    files: &impl SourceFiles,
    resources: &mut Vec<Resource>,
) -> Result<(), String> {
    for (field, kind) in [("configMapGenerator", "ConfigMap"), ("secretGenerator", "Secret")] {
        for generator in list(&kustomization[field]) {
            let made = generate(generator, &kustomization["generatorOptions"], kind, directory, files)?;
            merge(made, string(&generator["behavior"]), resources)?;
        }
    }
    Ok(())
}

fn pairs(generator: &Value, directory: &str, files: &impl SourceFiles) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut pairs = Vec::new();
    let env_files = strings(&generator["envs"]).into_iter().chain(generator["env"].as_str());
    for path in env_files {
        let bytes = read_below(directory, path, files)?;
        pairs.extend(env_file(&bytes, |key| std::env::var(key).ok())?.into_iter().map(|(k, v)| (k, v.into_bytes())));
    }
    for source in strings(&generator["files"]) {
        let (key, path) = match source.split_once('=') {
            Some((key, path)) => (key, path),
            None => (source.rsplit('/').next().unwrap_or(source), source),
        };
        pairs.push((key.to_string(), read_below(directory, path, files)?));
    }
    for literal in strings(&generator["literals"]) {
        let Some((key, value)) = literal.split_once('=') else {
            return Err(format!("invalid literal source {literal}, expected key=value"));
        };
        let unquoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
        pairs.push((key.to_string(), unquoted.unwrap_or(value).as_bytes().to_vec()));
    }
    Ok(pairs)
}

fn generate(
    generator: &Value,
    shared: &Value,
    kind: &str,
    directory: &str,
    files: &impl SourceFiles,
) -> Result<Resource, String> {
    let name = string(&generator["name"]);
    if name.is_empty() {
        return Err("missing name in generator".to_string());
    }
    let (mut data, mut binary) = (Map::new(), Map::new());
    for (key, bytes) in pairs(generator, directory, files)? {
        if data.contains_key(&key) || binary.contains_key(&key) {
            return Err(format!("configmap {name} illegally repeats the key `{key}`"));
        }
        match (kind, String::from_utf8(bytes)) {
            ("Secret", Ok(text)) => drop(data.insert(key, STANDARD.encode(text).into())),
            ("Secret", Err(error)) => drop(data.insert(key, STANDARD.encode(error.as_bytes()).into())),
            (_, Ok(text)) => drop(data.insert(key, text.into())),
            (_, Err(error)) => drop(binary.insert(key, STANDARD.encode(error.as_bytes()).into())),
        }
    }
    let mut object = json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name } });
    if !data.is_empty() {
        object["data"] = data.into();
    }
    if !binary.is_empty() {
        object["binaryData"] = binary.into();
    }
    if kind == "Secret" {
        let given = string(&generator["type"]);
        object["type"] = if given.is_empty() { "Opaque" } else { given }.into();
    }
    if !string(&generator["namespace"]).is_empty() {
        object["metadata"]["namespace"] = generator["namespace"].clone();
    }
    for options in [shared, &generator["options"]] {
        for field in ["labels", "annotations"] {
            for (key, value) in members(&options[field]) {
                object["metadata"][field][key] = text(value).into();
            }
        }
        if truth(&options["immutable"]) {
            object["immutable"] = true.into();
        }
    }
    let keeps_name = |options: &Value| truth(&options["disableNameSuffixHash"]);
    let mut resource = Resource::new(object);
    resource.needs_hash = !keeps_name(shared) && !keeps_name(&generator["options"]);
    Ok(resource)
}

fn merge(made: Resource, behavior: &str, resources: &mut Vec<Resource>) -> Result<(), String> {
    let existing = resources.iter_mut().find(|own| own.kind() == made.kind() && own.is_named(made.name()));
    match (behavior, existing) {
        ("merge" | "replace", None) => {
            Err(format!("id {}.v1/{}.[noNs] does not exist; cannot merge or replace", made.kind(), made.name()))
        }
        ("" | "unspecified" | "create", Some(_)) => {
            Err(format!("id {}.v1/{}.[noNs] exists; behavior must be merge or replace", made.kind(), made.name()))
        }
        ("" | "unspecified" | "create", None) => {
            resources.push(made);
            Ok(())
        }
        ("merge" | "replace", Some(existing)) => {
            for field in ["data", "binaryData"] {
                if behavior == "replace"
                    && let Some(fields) = existing.object.as_object_mut()
                {
                    fields.remove(field);
                }
                for (key, value) in members(&made.object[field]) {
                    existing.object[field][key] = value.clone();
                }
            }
            for field in ["labels", "annotations"] {
                for (key, value) in members(&made.object["metadata"][field]) {
                    existing.object["metadata"][field][key] = value.clone();
                }
            }
            Ok(())
        }
        (other, _) => Err(format!("unknown behavior: {other}")),
    }
}
