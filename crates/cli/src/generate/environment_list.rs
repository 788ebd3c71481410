//! What `set env --list` prints, with `--resolve` also the values that variables refer to.
//! Neighbours: the verb fetches the objects that `references` names and hands them to `list_environment`.
//! Asks nobody.

use std::collections::{BTreeMap, BTreeSet};

use api::quantity::Quantity;
use serde_json::Value;

use super::set::{containers, pod_spec};
use crate::{
    describe::fields::{list, string},
    template::go_format::quote,
};

/// Resource and name, with the object or why there is none.
pub type Sources = BTreeMap<(&'static str, String), Result<Value, String>>;

/// The text, and what could not be looked up.
#[derive(Debug, Default, PartialEq)]
pub struct Listed {
    pub text: String,
    pub complaints: Vec<String>,
}

/// ConfigMaps and Secrets that the variables of the containers refer to.
pub fn references(object: &mut Value, pattern: &str) -> Result<BTreeSet<(&'static str, String)>, String> {
    let mut found = BTreeSet::new();
    for container in containers(pod_spec(object)?, pattern, true) {
        for variable in list(&container["env"]) {
            let from = &variable["valueFrom"];
            for (field, resource) in [("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")] {
                if from[field].is_object() {
                    found.insert((resource, string(&from[field]["name"]).to_string()));
                }
            }
        }
    }
    Ok(found)
}

/// `shown` is how the object is called; without `sources` references are only named.
pub fn list_environment(
    object: &mut Value,
    shown: &str,
    pattern: &str,
    sources: Option<&Sources>,
) -> Result<Listed, String> {
    let whole = object.clone();
    let mut listed = Listed::default();
    for container in containers(pod_spec(object)?, pattern, true) {
        listed.text.push_str(&format!("# {shown}, container {}\n", string(&container["name"])));
        let mut unresolved: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for variable in list(&container["env"]) {
            let (name, from) = (string(&variable["name"]), &variable["valueFrom"]);
            let value = match (from.is_null(), sources) {
                (true, _) => Some(string(&variable["value"]).to_string()),
                (false, None) => None,
                (false, Some(sources)) => match resolve(from, &whole, container, sources) {
                    Ok(value) => Some(value),
                    Err(why) => {
                        unresolved.entry(why).or_default().push(name);
                        None
                    }
                },
            };
            listed.text.push_str(&match value {
                Some(value) => format!("{name}={value}\n"),
                None => format!("# {name} from {}\n", reference_text(from)),
            });
        }
        let mut complaints: Vec<String> = unresolved
            .into_iter()
            .map(|(why, mut names)| {
                names.sort_unstable();
                format!("error retrieving reference for {}: {why}", names.join(", "))
            })
            .collect();
        complaints.sort();
        listed.complaints.extend(complaints);
    }
    Ok(listed)
}

fn reference_text(from: &Value) -> String {
    let key = |field: &str| format!("{}, key {}", string(&from[field]["name"]), string(&from[field]["key"]));
    if from["configMapKeyRef"].is_object() {
        return format!("configmap {}", key("configMapKeyRef"));
    }
    if from["secretKeyRef"].is_object() {
        return format!("secret {}", key("secretKeyRef"));
    }
    if from["fieldRef"].is_object() {
        return format!("field path {}", string(&from["fieldRef"]["fieldPath"]));
    }
    let field = &from["resourceFieldRef"];
    if field.is_object() {
        let container = match string(&field["containerName"]) {
            "" => String::new(),
            name => format!("{name}/"),
        };
        return format!("resource field {container}{}", string(&field["resource"]));
    }
    "invalid valueFrom".to_string()
}

fn resolve(from: &Value, object: &Value, container: &Value, sources: &Sources) -> Result<String, String> {
    let keyed = |resource: &'static str, field: &str| -> Result<(Value, String, String), String> {
        let (name, key) = (string(&from[field]["name"]).to_string(), string(&from[field]["key"]).to_string());
        let source = sources.get(&(resource, name.clone())).cloned();
        let source = source.unwrap_or_else(|| Err(format!("{resource} {} not found", quote(&name))))?;
        Ok((source["data"][&key].clone(), key, name))
    };
    if from["secretKeyRef"].is_object() {
        let (value, key, name) = keyed("secrets", "secretKeyRef")?;
        let encoded = value.as_str().ok_or_else(|| format!("key {key} not found in secret {name}"))?;
        let bytes = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, encoded);
        return bytes.map(|b| String::from_utf8_lossy(&b).into_owned()).map_err(|e| format!("secret {name}: {e}"));
    }
    if from["configMapKeyRef"].is_object() {
        let (value, key, name) = keyed("configmaps", "configMapKeyRef")?;
        return value.as_str().map(str::to_string).ok_or_else(|| format!("key {key} not found in config map {name}"));
    }
    if from["fieldRef"].is_object() {
        return field_text(object, string(&from["fieldRef"]["fieldPath"]));
    }
    match from["resourceFieldRef"].is_object() {
        true => resource_text(&from["resourceFieldRef"], container),
        false => Err("invalid valueFrom".to_string()),
    }
}

fn field_text(object: &Value, path: &str) -> Result<String, String> {
    let metadata = &object["metadata"];
    if let Some((field, key)) = path.strip_suffix("']").and_then(|rest| rest.split_once("['")) {
        return match field {
            "metadata.annotations" | "metadata.labels" => {
                Ok(string(&metadata[field.trim_start_matches("metadata.")][key]).to_string())
            }
            _ => Err(format!("fieldPath {} does not support subscript", quote(path))),
        };
    }
    match path {
        "metadata.annotations" | "metadata.labels" => {
            let map = metadata[path.trim_start_matches("metadata.")].as_object();
            let lines: Vec<String> =
                map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quote(string(value)))).collect();
            Ok(lines.join("\n"))
        }
        "metadata.name" | "metadata.namespace" | "metadata.uid" => {
            Ok(string(&metadata[path.trim_start_matches("metadata.")]).to_string())
        }
        _ => Err(format!("unsupported fieldPath: {path}")),
    }
}

fn resource_text(field: &Value, container: &Value) -> Result<String, String> {
    let named = string(&field["resource"]);
    let (kind, resource) = named.split_once('.').unwrap_or_default();
    let known = ["cpu", "memory", "ephemeral-storage"].contains(&resource) || resource.starts_with("hugepages-");
    if !["limits", "requests"].contains(&kind) || !known {
        return Err(format!("Unsupported container resource : {named}"));
    }
    let amount = Quantity::from_value(&container["resources"][kind][resource]);
    let divisor = Quantity::from_value(&field["divisor"]).filter(|divisor| !divisor.is_zero());
    let number = |quantity: &Quantity| if resource == "cpu" { quantity.milli_value() } else { quantity.value() };
    let divisor = divisor.as_ref().map_or(if resource == "cpu" { 1000 } else { 1 }, number).max(1);
    let amount = amount.as_ref().map_or(0, number).max(0);
    Ok((amount / divisor + i64::from(amount % divisor != 0)).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_are_listed_with_what_they_refer_to() {
        let variables = [
            json!({"name": "A", "value": "1"}),
            json!({"name": "B", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "b"}}}),
            json!({"name": "C", "valueFrom": {"secretKeyRef": {"name": "creds", "key": "c"}}}),
            json!({"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}}),
            json!({"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}),
            json!({"name": "F", "valueFrom": {"secretKeyRef": {"name": "gone", "key": "x"}}}),
            json!({"name": "G", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}),
            json!({"name": "H", "valueFrom": {"resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}}}),
        ];
        let container =
            json!({"name": "c", "env": variables, "resources": {"limits": {"cpu": "1500m", "memory": "3Mi"}}});
        let mut object = json!({
            "kind": "Pod",
            "metadata": {"name": "web", "labels": {"app": "shop"}},
            "spec": {"containers": [container]},
        });
        let wanted = BTreeSet::from([
            ("configmaps", "settings".to_string()),
            ("secrets", "creds".to_string()),
            ("secrets", "gone".to_string()),
        ]);
        assert_eq!(references(&mut object, "*"), Ok(wanted));
        let named = list_environment(&mut object, "Pod web", "*", None).unwrap();
        let text = "# Pod web, container c\nA=1\n# B from configmap settings, key b\n# C from secret creds, key c\n# D from field path metadata.labels['app']\n# E from resource field limits.cpu\n# F from secret gone, key x\n# G from field path status.podIP\n# H from resource field c/limits.memory\n";
        assert_eq!(named, Listed { text: text.to_string(), complaints: vec![] });
        let sources = Sources::from([
            (("configmaps", "settings".to_string()), Ok(json!({"data": {"b": "two"}}))),
            (("secrets", "creds".to_string()), Ok(json!({"data": {"c": "aGk="}}))),
            (("secrets", "gone".to_string()), Err("secrets \"gone\" not found".to_string())),
        ]);
        let resolved = list_environment(&mut object, "Pod web", "*", Some(&sources)).unwrap();
        let text = "# Pod web, container c\nA=1\nB=two\nC=hi\nD=shop\nE=2\n# F from secret gone, key x\n# G from field path status.podIP\nH=3\n";
        let complaints = vec![
            "error retrieving reference for F: secrets \"gone\" not found".to_string(),
            "error retrieving reference for G: unsupported fieldPath: status.podIP".to_string(),
        ];
        assert_eq!(resolved, Listed { text: text.to_string(), complaints });
    }
}
