//! `patches`, `patchesStrategicMerge` and `patchesJson6902`.
//! Neighbours: `api::patch` merges; here targets are found and lists put in kustomize's order.
//! A patch that finds no target is an error, unless it selects by more than a name.

use regex::Regex;
use serde_json::{Value, json};

use super::{
    Resource,
    directory::{objects, read_below},
};
use crate::{
    describe::fields::{list, members, string, truth},
    generate::source_files::SourceFiles,
    resource::yaml,
};

pub fn run(
    kustomization: &Value,
    directory: &str,
    files: &impl SourceFiles,
    resources: &mut Vec<Resource>,
) -> Result<(), String> {
    for entry in list(&kustomization["patchesStrategicMerge"]) {
        let given = string(entry);
        let bytes = if given.contains('\n') { given.as_bytes().to_vec() } else { read_below(directory, given, files)? };
        for patch in objects(&bytes)? {
            merge_by_name(&patch, resources)?;
        }
    }
    let patches = list(&kustomization["patches"]).iter().chain(list(&kustomization["patchesJson6902"]));
    for entry in patches {
        let text = match (string(&entry["patch"]), string(&entry["path"])) {
            ("", "") => return Err("must specify one of patch and path in\n".to_string()),
            ("", path) => String::from_utf8_lossy(&read_below(directory, path, files)?).into_owned(),
            (patch, "") => patch.to_string(),
            _ => return Err("patch and path can't be set at the same time".to_string()),
        };
        apply(&text, entry, resources)?;
    }
    Ok(())
}

fn apply(text: &str, entry: &Value, resources: &mut Vec<Resource>) -> Result<(), String> {
    let target = &entry["target"];
    let parsed = yaml::documents(text)
        .into_iter()
        .map(|document| yaml::read_core(document.as_bytes()))
        .collect::<Result<Vec<_>, _>>()?;
    if let [Value::Array(operations)] = parsed.as_slice() {
        if !target.is_object() {
            return Err("must specify a target for JSON patch".to_string());
        }
        let operations = Value::Array(operations.clone()).to_string();
        for resource in resources.iter_mut() {
            if selects(target, resource)? {
                let patched = api::patch::json_patch(&resource.object, operations.as_bytes())
                    .map_err(|error| error.to_string())?;
                replace(resource, patched, &entry["options"]);
            }
        }
        return Ok(());
    }
    for patch in parsed {
        if !target.is_object() {
            merge_by_name(&patch, resources)?;
            continue;
        }
        let mut at = 0;
        while at < resources.len() {
            if selects(target, &resources[at])? && !merge(&mut resources[at], &patch, &entry["options"])? {
                resources.remove(at);
                continue;
            }
            at += 1;
        }
    }
    Ok(())
}

/// A patched object keeps its name and kind unless the patch may change them.
fn replace(resource: &mut Resource, patched: Value, options: &Value) {
    let (name, kind) = (resource.object["metadata"]["name"].clone(), resource.object["kind"].clone());
    let renamed = string(&patched["metadata"]["name"]).to_string();
    resource.object = patched;
    if !truth(&options["allowKindChange"]) {
        resource.object["kind"] = kind;
    }
    resource.object["metadata"]["name"] = name;
    if truth(&options["allowNameChange"]) && !renamed.is_empty() {
        resource.rename(renamed);
    }
}

fn merge_by_name(patch: &Value, resources: &mut Vec<Resource>) -> Result<(), String> {
    let (kind, name) = (string(&patch["kind"]), string(&patch["metadata"]["name"]));
    let namespace = string(&patch["metadata"]["namespace"]);
    let group = string(&patch["apiVersion"]).split_once('/').map_or("", |(group, _)| group);
    let found = resources.iter().position(|own| {
        own.kind() == kind
            && own.group_version().0 == group
            && own.is_named(name)
            && (namespace.is_empty() || own.namespace() == namespace)
    });
    let Some(at) = found else {
        let version = string(&patch["apiVersion"]).rsplit('/').next().unwrap_or_default();
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        return Err(format!(
            "no resource matches strategic merge patch \"{kind}.{version}{group}/{name}.[noNs]\": no matches for Id {kind}.{version}{group}/{name}.[noNs]; failed to find unique target for patch {kind}.{version}{group}/{name}.[noNs]"
        ));
    };
    if !merge(&mut resources[at], patch, &Value::Null)? {
        resources.remove(at);
    }
    Ok(())
}

/// Merges along the schema of the kind, or as plain JSON for kinds that have none. False: the patch deletes the object.
fn merge(resource: &mut Resource, patch: &Value, options: &Value) -> Result<bool, String> {
    if patch["$patch"] == "delete" {
        return Ok(false);
    }
    let (group, version) = resource.group_version();
    let schema = api::schema::builtin();
    let mut patch = patch.clone();
    // The target's identity stands, whatever the patch was addressed to.
    if !truth(&options["allowNameChange"]) && patch["metadata"].is_object() {
        patch["metadata"]["name"] = resource.object["metadata"]["name"].clone();
    }
    if !truth(&options["allowKindChange"]) {
        patch["kind"] = resource.object["kind"].clone();
        patch["apiVersion"] = resource.object["apiVersion"].clone();
    }
    let merged = match schema.find_kind(group, version, resource.kind()) {
        Some(root) => {
            let mut merged =
                api::patch::strategic(schema, root, &resource.object, &patch).map_err(|error| error.to_string())?;
            patch_first(&mut merged, &patch, "");
            merged
        }
        None => api::patch::merge_patch(&resource.object, &patch).map_err(|error| error.to_string())?,
    };
    replace(resource, merged, options);
    Ok(true)
}

/// Elements that a patch names come before the others, in the patch's order.
fn patch_first(merged: &mut Value, patch: &Value, field: &str) {
    match (merged, patch) {
        (Value::Object(fields), Value::Object(_)) => {
            for (field, inner) in members(patch) {
                if let Some(own) = fields.get_mut(field) {
                    patch_first(own, inner, field);
                }
            }
        }
        (Value::Array(items), Value::Array(given)) => {
            let Some(key) = merge_key(field, given) else { return };
            let rank = |item: &Value| given.iter().position(|patched| patched[key] == item[key]).unwrap_or(given.len());
            items.sort_by_key(rank);
            for item in items.iter_mut() {
                if let Some(patched) = given.iter().find(|patched| patched[key] == item[key]) {
                    patch_first(item, patched, "");
                }
            }
        }
        _ => {}
    }
}

/// What identifies the elements of a list in a strategic merge.
fn merge_key(field: &str, items: &[Value]) -> Option<&'static str> {
    let keys: &[&str] = match field {
        "ports" => &["containerPort", "port"],
        "volumeMounts" => &["mountPath"],
        "volumeDevices" => &["devicePath"],
        "hostAliases" => &["ip"],
        "topologySpreadConstraints" => &["topologyKey"],
        "containers" | "initContainers" | "ephemeralContainers" | "env" | "volumes" | "imagePullSecrets" => &["name"],
        _ => return None,
    };
    keys.iter().find(|key| items.iter().all(|item| !item[**key].is_null())).copied()
}

fn anchored(pattern: &str, text: &str) -> Result<bool, String> {
    Regex::new(&format!("^(?:{pattern})$")).map(|regex| regex.is_match(text)).map_err(|error| error.to_string())
}

/// Whether a target or selector means the object; names may be regular expressions.
pub fn selects(target: &Value, resource: &Resource) -> Result<bool, String> {
    let (group, version) = resource.group_version();
    for (field, own) in [("group", group), ("version", version), ("kind", resource.kind())] {
        let wanted = string(&target[field]);
        if !wanted.is_empty() && !anchored(wanted, own)? {
            return Ok(false);
        }
    }
    let name = string(&target["name"]);
    if !name.is_empty() {
        let mut names = resource.former_names.iter().map(String::as_str).chain([resource.name()]);
        if !names.try_fold(false, |found, own| anchored(name, own).map(|fits| found || fits))? {
            return Ok(false);
        }
    }
    let namespace = string(&target["namespace"]);
    if !namespace.is_empty() && !anchored(namespace, resource.namespace())? {
        return Ok(false);
    }
    for (field, of) in [("labelSelector", "labels"), ("annotationSelector", "annotations")] {
        let selector = string(&target[field]);
        if selector.is_empty() {
            continue;
        }
        let selector = api::selectors::LabelSelector::parse(selector)?;
        let own =
            members(&resource.object["metadata"][of]).map(|(k, v)| (k.to_string(), string(v).to_string())).collect();
        if !selector.matches(&own) {
            return Ok(false);
        }
    }
    Ok(target != &json!({}))
}
