//! `set image|env|resources|selector|serviceaccount|subject`: changes to an object that has a pod template.
//! Neighbours: the verbs send the difference as a patch, or print the object with `--local`.
//! A change that finds nothing to change says so.

use serde_json::{Value, json};

use super::{policy::label_selector, rbac::Subjects, resource_list};
use crate::{describe::fields::list, template::go_format::quote};

/// The pod spec of an object.
pub fn pod_spec(object: &mut Value) -> Result<&mut Value, String> {
    let kind = object["kind"].as_str().unwrap_or_default().to_string();
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let version = version.rsplit('/').next().unwrap_or_default().to_string();
    let place = match kind.as_str() {
        "Pod" => "/spec",
        "CronJob" => "/spec/jobTemplate/spec/template/spec",
        _ => "/spec/template/spec",
    };
    let spec = object.pointer_mut(place).filter(|spec| spec.is_object());
    spec.ok_or_else(|| format!("the object is not a pod or does not have a pod template: *{version}.{kind}"))
}

/// Whether a container's name fits `*`, a name, or a name with wildcards.
fn fits(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((before, after)) => {
            name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
        }
    }
}

pub fn containers<'a>(spec: &'a mut Value, pattern: &str, with_init: bool) -> Vec<&'a mut Value> {
    let Some(fields) = spec.as_object_mut() else { return Vec::new() };
    let mut found = Vec::new();
    for (field, value) in fields.iter_mut() {
        if (field == "containers" || (with_init && field == "initContainers"))
            && let Some(listed) = value.as_array_mut()
        {
            found.extend(listed.iter_mut().filter(|one| fits(one["name"].as_str().unwrap_or_default(), pattern)));
        }
    }
    found
}

/// `container=image` pairs; `*` is every container. Names that no container has are returned, and keep no other from it.
pub fn image(object: &mut Value, pairs: &[(String, String)]) -> Result<Vec<String>, String> {
    let spec = pod_spec(object)?;
    let mut absent = Vec::new();
    for (name, image) in pairs {
        let found = containers(spec, name, true);
        if found.is_empty() {
            absent.push(name.clone());
        }
        for container in found {
            container["image"] = image.as_str().into();
        }
    }
    Ok(absent)
}

/// What `set env` was told: variables to set, and names to take away.
#[derive(Default)]
pub struct Environment {
    pub set: Vec<Value>,
    pub remove: Vec<String>,
    pub overwrite: bool,
}

impl Environment {
    /// `NAME=value` sets, `NAME-` takes away.
    pub fn parse(words: &[String], overwrite: bool) -> Result<Self, String> {
        let mut environment = Self { overwrite, ..Self::default() };
        for word in words {
            match (word.split_once('='), word.strip_suffix('-')) {
                (Some((name, value)), _) if !name.is_empty() => {
                    environment.set.push(json!({ "name": name, "value": value }));
                }
                (None, Some(name)) if !name.is_empty() => environment.remove.push(name.to_string()),
                _ => return Err(format!("unknown environment variable: {word}")),
            }
        }
        for variable in &environment.set {
            let name = variable["name"].as_str().unwrap_or_default();
            if environment.remove.iter().any(|removed| removed == name) {
                return Err(format!(
                    "can not both modify and remove the following environment variable in the same command: {}",
                    quote(name)
                ));
            }
        }
        Ok(environment)
    }

    pub fn apply(&self, object: &mut Value, pattern: &str) -> Result<(), String> {
        let spec = pod_spec(object)?;
        let found = containers(spec, pattern, true);
        if found.is_empty() {
            return Err(format!("unable to find container named {}", quote(pattern)));
        }
        for container in found {
            let mut kept: Vec<Value> = list(&container["env"]).to_vec();
            kept.retain(|own| !self.remove.iter().any(|removed| own["name"] == removed.as_str()));
            for variable in &self.set {
                match kept.iter_mut().find(|own| own["name"] == variable["name"]) {
                    Some(_) if !self.overwrite => {
                        let name = variable["name"].as_str().unwrap_or_default();
                        return Err(format!("{} already has a value, and --overwrite is false", quote(name)));
                    }
                    Some(own) => *own = variable.clone(),
                    None => kept.push(variable.clone()),
                }
            }
            match (kept.is_empty(), container.as_object_mut()) {
                (true, Some(fields)) => drop(fields.remove("env")),
                (false, _) => container["env"] = kept.into(),
                _ => {}
            }
        }
        Ok(())
    }
}

pub fn resources(object: &mut Value, pattern: &str, limits: &str, requests: &str) -> Result<(), String> {
    if limits.is_empty() && requests.is_empty() {
        return Err("you must specify an update to requests or limits (in the form of --requests/--limits)".to_string());
    }
    let given = [("limits", resource_list(limits)?), ("requests", resource_list(requests)?)];
    let spec = pod_spec(object)?;
    for container in containers(spec, pattern, true) {
        for (field, amounts) in &given {
            for (resource, amount) in amounts.iter().flat_map(|list| list.as_object()).flatten() {
                container["resources"][*field][resource] = amount.clone();
            }
        }
    }
    Ok(())
}

pub fn service_account(object: &mut Value, name: &str) -> Result<(), String> {
    let spec = pod_spec(object)?;
    spec["serviceAccountName"] = name.into();
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("serviceAccount");
    }
    Ok(())
}

/// A Service selects by equality only.
pub fn selector(object: &mut Value, text: &str) -> Result<(), String> {
    let selector = label_selector(text)?;
    if object["kind"] != "Service" {
        return Err("setting a selector is only supported for Services".to_string());
    }
    if selector["matchExpressions"].is_array() {
        return Err(format!(
            "match expression {} not supported on this object",
            list(&selector["matchExpressions"]).len()
        ));
    }
    object["spec"]["selector"] = selector["matchLabels"].clone();
    Ok(())
}

/// Adds subjects to a binding; those it has stay once.
pub fn subject(object: &mut Value, subjects: &Subjects) -> Result<bool, String> {
    let added = subjects.to_values()?;
    if added.is_empty() {
        return Err("you must specify at least one value of user, group or serviceaccount".to_string());
    }
    let mut all: Vec<Value> = list(&object["subjects"]).to_vec();
    let before = all.len();
    for subject in added {
        let same = |own: &Value| {
            own["kind"] == subject["kind"] && own["name"] == subject["name"] && own["namespace"] == subject["namespace"]
        };
        if !all.iter().any(same) {
            all.push(subject);
        }
    }
    let changed = all.len() > before;
    object["subjects"] = all.into();
    Ok(changed)
}
