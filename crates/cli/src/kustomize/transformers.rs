//! Namespace, name prefix and suffix, labels, annotations, replica counts and images.
//! Called for each kustomization behind its patches.
//! Each transformer sees every object once, in kustomize's order.

use regex::Regex;
use serde_json::Value;

use super::Resource;
use crate::describe::fields::{list, members, string, text, truth};

pub fn run(kustomization: &Value, resources: &mut [Resource]) -> Result<(), String> {
    let namespace = string(&kustomization["namespace"]);
    if !namespace.is_empty() {
        resources.iter_mut().for_each(|resource| set_namespace(resource, namespace));
    }
    let (prefix, suffix) = (string(&kustomization["namePrefix"]), string(&kustomization["nameSuffix"]));
    if !prefix.is_empty() || !suffix.is_empty() {
        for resource in resources.iter_mut() {
            if !["CustomResourceDefinition", "APIService", "Namespace"].contains(&resource.kind()) {
                resource.rename(format!("{prefix}{}{suffix}", resource.name()));
            }
        }
    }
    labels(kustomization, resources);
    for (key, value) in members(&kustomization["commonAnnotations"]) {
        for resource in resources.iter_mut() {
            resource.object["metadata"]["annotations"][key] = text(value).into();
            let annotate = |template: &mut Value| template["metadata"]["annotations"][key] = text(value).into();
            with_templates(&mut resource.object, annotate);
        }
    }
    for replica in list(&kustomization["replicas"]) {
        replicas(replica, resources)?;
    }
    for image in list(&kustomization["images"]).iter().chain(list(&kustomization["imageTags"])) {
        images(image, resources)?;
    }
    Ok(())
}

/// Kinds that belong to no namespace.
fn is_cluster_scoped(resource: &Resource) -> bool {
    let (group, _) = resource.group_version();
    let known = api::kinds::builtin().iter().find(|known| known.kind == resource.kind() && known.group == group);
    known.is_some_and(|known| !known.namespaced())
}

fn set_namespace(resource: &mut Resource, namespace: &str) {
    if resource.kind() == "Namespace" {
        resource.rename(namespace.to_string());
        return;
    }
    if ["RoleBinding", "ClusterRoleBinding"].contains(&resource.kind())
        && let Some(subjects) = resource.object.get_mut("subjects").and_then(Value::as_array_mut)
    {
        for subject in subjects {
            if subject["kind"] == "ServiceAccount" && subject["name"] == "default" {
                subject["namespace"] = namespace.into();
            }
        }
    }
    if !is_cluster_scoped(resource) {
        resource.object["metadata"]["namespace"] = namespace.into();
    }
}

/// Calls `change` for each pod template, and for the template of jobs around it.
fn with_templates(object: &mut Value, mut change: impl FnMut(&mut Value)) {
    let places: &[&str] = match string(&object["kind"]) {
        "Deployment" | "ReplicaSet" | "ReplicationController" | "StatefulSet" | "DaemonSet" | "Job" => {
            &["/spec/template"]
        }
        "CronJob" => &["/spec/jobTemplate", "/spec/jobTemplate/spec/template"],
        _ => &[],
    };
    for place in places {
        if let Some(template) = object.pointer_mut(place) {
            change(template);
        }
    }
}

fn labels(kustomization: &Value, resources: &mut [Resource]) {
    let groups = list(&kustomization["labels"]).iter().map(|group| {
        let selectors = truth(&group["includeSelectors"]);
        (&group["pairs"], selectors, selectors || truth(&group["includeTemplates"]))
    });
    let groups: Vec<(&Value, bool, bool)> = groups.chain([(&kustomization["commonLabels"], true, true)]).collect();
    for (pairs, selectors, in_templates) in groups {
        for (key, value) in members(pairs) {
            let value = Value::from(text(value));
            for resource in resources.iter_mut() {
                let object = &mut resource.object;
                object["metadata"]["labels"][key] = value.clone();
                if in_templates {
                    with_templates(object, |template| template["metadata"]["labels"][key] = value.clone());
                    for claim in object
                        .pointer_mut("/spec/volumeClaimTemplates")
                        .and_then(Value::as_array_mut)
                        .into_iter()
                        .flatten()
                    {
                        claim["metadata"]["labels"][key] = value.clone();
                    }
                }
                if selectors {
                    select(object, key, &value);
                }
            }
        }
    }
}

/// Adds a label to what an object selects.
fn select(object: &mut Value, key: &str, value: &Value) {
    let kind = string(&object["kind"]).to_string();
    let Some(spec) = object.get_mut("spec") else { return };
    match kind.as_str() {
        "Service" if spec["selector"].is_object() || spec["type"] != "ExternalName" => {
            spec["selector"][key] = value.clone()
        }
        "ReplicationController" => spec["selector"][key] = value.clone(),
        "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet" => {
            spec["selector"]["matchLabels"][key] = value.clone()
        }
        "Job" if spec["selector"]["matchLabels"].is_object() => spec["selector"]["matchLabels"][key] = value.clone(),
        "CronJob" if spec["jobTemplate"]["spec"]["selector"]["matchLabels"].is_object() => {
            spec["jobTemplate"]["spec"]["selector"]["matchLabels"][key] = value.clone();
        }
        "PodDisruptionBudget" if spec["selector"]["matchLabels"].is_object() => {
            spec["selector"]["matchLabels"][key] = value.clone()
        }
        "NetworkPolicy" if spec["podSelector"]["matchLabels"].is_object() => {
            spec["podSelector"]["matchLabels"][key] = value.clone()
        }
        _ => {}
    }
}

fn replicas(replica: &Value, resources: &mut [Resource]) -> Result<(), String> {
    let name = string(&replica["name"]);
    let mut found = false;
    for resource in resources.iter_mut() {
        let counted = ["Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"].contains(&resource.kind());
        if counted && resource.is_named(name) {
            resource.object["spec"]["replicas"] = replica["count"].clone();
            found = true;
        }
    }
    if found {
        return Ok(());
    }
    Err(format!(
        "resource with name {name} does not match a config with the following GVK [Deployment.[noVer].[noGrp] ReplicationController.[noVer].[noGrp] ReplicaSet.[noVer].[noGrp] StatefulSet.[noVer].[noGrp]]"
    ))
}

fn images(image: &Value, resources: &mut [Resource]) -> Result<(), String> {
    let name = string(&image["name"]);
    let pattern = format!("^{name}(:[a-zA-Z0-9_.{{}}-]*)?(@sha256:[a-zA-Z0-9_.{{}}-]*)?$");
    let matches = Regex::new(&pattern).map_err(|error| error.to_string())?;
    for resource in resources.iter_mut() {
        containers(&mut resource.object, &mut |container| {
            let Some(given) = container["image"].as_str().filter(|given| matches.is_match(given)) else { return };
            container["image"] = renamed(given, image).into();
        });
    }
    Ok(())
}

fn renamed(given: &str, image: &Value) -> String {
    let (rest, mut digest) = match given.split_once('@') {
        Some((rest, digest)) => (rest, format!("@{digest}")),
        None => (given, String::new()),
    };
    let (mut name, mut tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name.to_string(), format!(":{tag}")),
        _ => (rest.to_string(), String::new()),
    };
    if !string(&image["newName"]).is_empty() {
        name = string(&image["newName"]).to_string();
    }
    match (text(&image["newTag"]).as_str(), string(&image["digest"])) {
        ("", "") => {}
        (new_tag, "") => (tag, digest) = (format!(":{new_tag}"), String::new()),
        ("", new_digest) => (tag, digest) = (String::new(), format!("@{new_digest}")),
        (new_tag, new_digest) => (tag, digest) = (format!(":{new_tag}"), format!("@{new_digest}")),
    }
    if !string(&image["tagSuffix"]).is_empty() {
        tag.push_str(string(&image["tagSuffix"]));
    }
    format!("{name}{tag}{digest}")
}

/// Every container of an object, wherever its kind keeps them.
fn containers(value: &mut Value, change: &mut impl FnMut(&mut Value)) {
    match value {
        Value::Object(fields) => {
            for (field, inner) in fields.iter_mut() {
                if field == "containers" || field == "initContainers" {
                    inner.as_array_mut().into_iter().flatten().for_each(&mut *change);
                } else {
                    containers(inner, change);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| containers(item, change)),
        _ => {}
    }
}
