//! Objects from flags: what `create`, `run`, `expose`, `autoscale` and `set` make or change.
//! Called by the verbs of those names, which parse flags, talk to the server and print.
//! No requests; files are read only through `SourceFiles`; what upstream refuses is refused with its words.

pub mod config;
pub mod environment_list;
pub mod expose;
pub mod ingress;
pub mod name_hash;
pub mod policy;
pub mod rbac;
pub mod service;
pub mod set;
pub mod source_files;
#[cfg(test)]
mod tests;
pub mod workloads;

use serde_json::{Map, Value, json};

/// `metadata` with a name, and a namespace only where the command line gave one.
fn metadata(name: &str, namespace: Option<&str>) -> Value {
    let mut metadata = Map::new();
    metadata.insert("name".to_string(), name.into());
    if let Some(namespace) = namespace {
        metadata.insert("namespace".to_string(), namespace.into());
    }
    Value::Object(metadata)
}

/// A number where the text is one, as `intstr.Parse` has it.
pub fn int_or_string(text: &str) -> Value {
    text.parse::<i32>().map_or_else(|_| Value::from(text), Value::from)
}

/// `key=value` pairs, separated by commas.
pub fn labels(spec: &str) -> Result<Map<String, Value>, String> {
    if spec.is_empty() {
        return Err("no label spec passed".to_string());
    }
    spec.split(',')
        .map(|pair| {
            let mut parts = pair.split('=');
            let (Some(key), Some(value), None) = (parts.next(), parts.next(), parts.next()) else {
                return Err(format!("unexpected label spec: {pair}"));
            };
            if key.is_empty() {
                return Err("unexpected empty label key".to_string());
            }
            Ok((key.to_string(), Value::from(value)))
        })
        .collect()
}

/// `cpu=1,memory=1Gi` as a list of quantities.
pub fn resource_list(spec: &str) -> Result<Option<Value>, String> {
    if spec.is_empty() {
        return Ok(None);
    }
    let mut list = Map::new();
    for statement in spec.split(',') {
        let parts: Vec<&str> = statement.split('=').collect();
        let [name, amount] = parts[..] else {
            return Err(format!("Invalid argument syntax {statement}, expected <resource>=<value>"));
        };
        let quantity = api::quantity::Quantity::parse(amount).map_err(|error| error.to_string())?;
        list.insert(name.to_string(), quantity.canonical().into());
    }
    Ok(Some(Value::Object(list)))
}

/// The container that `run` and `create job` make.
fn container(name: &str, image: &str) -> Value {
    json!({ "name": name, "image": image, "resources": {} })
}
