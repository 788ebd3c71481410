//! `replacements`: a field of one object written into fields of others.
//! Neighbours: `field_paths` finds fields, `patches::selects` objects.
//! Exactly one source; a target field that does not exist is an error unless it may be created.

use serde_json::Value;

use super::{
    Resource,
    directory::read_below,
    field_paths::{change, get, parts},
    patches::selects,
};
use crate::{
    describe::fields::{list, string, strings, text, truth},
    generate::source_files::SourceFiles,
    resource::yaml,
};

pub fn run(
    kustomization: &Value,
    directory: &str,
    files: &impl SourceFiles,
    resources: &mut [Resource],
) -> Result<(), String> {
    for entry in list(&kustomization["replacements"]) {
        if string(&entry["path"]).is_empty() {
            replace(entry, resources)?;
            continue;
        }
        let read = yaml::read(&read_below(directory, string(&entry["path"]), files)?)?;
        match &read {
            Value::Array(entries) => entries.iter().try_for_each(|entry| replace(entry, resources))?,
            one => replace(one, resources)?,
        }
    }
    Ok(())
}

fn replace(replacement: &Value, resources: &mut [Resource]) -> Result<(), String> {
    let source = &replacement["source"];
    let value = match &replacement["sourceValue"] {
        Value::Null => source_value(source, resources)?,
        given => given.clone(),
    };
    for target in list(&replacement["targets"]) {
        if !target["select"].is_object() {
            return Err("target must specify resources to select".to_string());
        }
        let paths = strings(&target["fieldPaths"]);
        let paths = if paths.is_empty() { vec!["metadata.name"] } else { paths };
        for resource in resources.iter_mut() {
            if !selects(&target["select"], resource)? {
                continue;
            }
            let rejected = list(&target["reject"])
                .iter()
                .try_fold(false, |found, reject| selects(reject, resource).map(|fits| found || fits))?;
            if !rejected {
                paths.iter().try_for_each(|path| write(resource, path, &target["options"], &value))?;
            }
        }
    }
    Ok(())
}

fn source_value(source: &Value, resources: &[Resource]) -> Result<Value, String> {
    let mut found = Vec::new();
    for resource in resources {
        if selects(source, resource)? {
            found.push(resource);
        }
    }
    let [one] = found[..] else {
        let shown = format!("{}.[noVer].[noGrp]/{}.[noNs]", string(&source["kind"]), string(&source["name"]));
        return Err(match found.len() {
            0 => format!("nothing selected by {shown}:{}", string(&source["fieldPath"])),
            _ => format!("multiple matches for selector {shown}"),
        });
    };
    let path = match string(&source["fieldPath"]) {
        "" => "metadata.name",
        path => path,
    };
    let value = get(&one.object, &parts(path))
        .ok_or_else(|| format!("fieldPath `{path}` is missing for replacement source {}.{}", one.kind(), one.name()))?;
    let options = &source["options"];
    match string(&options["delimiter"]) {
        "" => Ok(value.clone()),
        delimiter => {
            let whole = text(value);
            let index = options["index"].as_i64().unwrap_or(0);
            let part = usize::try_from(index).ok().and_then(|index| whole.split(delimiter).nth(index));
            part.map(Value::from).ok_or_else(|| format!("options.index {index} is out of bounds for value {whole}"))
        }
    }
}

fn write(resource: &mut Resource, path: &str, options: &Value, value: &Value) -> Result<(), String> {
    let delimiter = string(&options["delimiter"]);
    let index = options["index"].as_i64().unwrap_or(0);
    let mut write_field = |field: &mut Value| {
        if delimiter.is_empty() {
            *field = value.clone();
            return;
        }
        let whole = text(field);
        let mut pieces: Vec<String> = whole.split(delimiter).map(str::to_string).collect();
        match usize::try_from(index) {
            Err(_) => pieces.insert(0, text(value)),
            Ok(at) if at >= pieces.len() => pieces.push(text(value)),
            Ok(at) => pieces[at] = text(value),
        }
        *field = pieces.join(delimiter).into();
    };
    let name = resource.name().to_string();
    if change(&mut resource.object, &parts(path), truth(&options["create"]), &mut write_field) {
        let renamed = resource.name().to_string();
        if renamed != name {
            resource.former_names.push(name);
        }
        return Ok(());
    }
    Err(format!("unable to find field {path:?} in replacement target"))
}
