//! `kubectl debug --copy-to`: the pod that is made in place of, or beside, the one that is debugged.
//! Used by `debug`.
//! Pure: the name of a new container is chosen by the caller.

use serde_json::{Value, json};

use super::{
    super::containers::all_names,
    profiles::{self, Keep, Style},
};
use crate::{
    failure::{Failure, Result},
    flags::Matches,
    generate::workloads::environment,
    resource::Info,
};

fn keep(matches: &Matches) -> Keep {
    Keep {
        labels: matches.bool("keep-labels"),
        annotations: matches.bool("keep-annotations"),
        liveness: matches.bool("keep-liveness"),
        readiness: matches.bool("keep-readiness"),
        startup: matches.bool("keep-startup"),
        init_containers: matches.bool("keep-init-containers"),
    }
}

fn remove(object: &mut Value, field: &str) {
    object.as_object_mut().map(|fields| fields.remove(field));
}

/// The flags of one container over what it has.
fn fill(matches: &Matches, container: &mut Value, command: &[String]) -> Result<()> {
    if !command.is_empty() {
        match matches.bool("arguments-only") {
            true => container["args"] = json!(command),
            false => {
                container["command"] = json!(command);
                remove(container, "args");
            }
        }
    }
    let env = environment(&matches.list("env")).map_err(Failure::Message)?;
    if !env.is_empty() {
        container["env"] = env.into();
    }
    for (flag, field) in [("image", "image"), ("image-pull-policy", "imagePullPolicy")] {
        if let Some(value) = matches.opt(flag).filter(|value| !value.is_empty()) {
            container[field] = value.into();
        }
    }
    for flag in ["stdin", "tty"] {
        match matches.bool(flag) {
            true => container[flag] = true.into(),
            false => remove(container, flag),
        }
    }
    Ok(())
}

/// The copy, and the container in it that is for debugging; none if only images are other ones.
pub fn copied(
    matches: &Matches,
    info: &Info,
    command: &[String],
    custom: &Value,
    new_name: impl FnOnce(&Value) -> String,
) -> Result<(Value, String)> {
    let original = &info.object;
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": matches.str("copy-to"), "namespace": info.namespace},
        "spec": original["spec"],
    });
    for field in ["annotations", "labels"] {
        if original["metadata"][field].is_object() {
            pod["metadata"][field] = original["metadata"][field].clone();
        }
    }
    remove(&mut pod["spec"], "ephemeralContainers");
    if !matches.bool("same-node") {
        remove(&mut pod["spec"], "nodeName");
    }
    if matches.changed("share-processes") {
        pod["spec"]["shareProcessNamespace"] = matches.bool("share-processes").into();
    }
    let images = super::set_images(matches);
    for one in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        let of = |name: &str| images.iter().rev().find(|(n, _)| n == name);
        if let Some((_, image)) = of(one["name"].as_str().unwrap_or_default()).or_else(|| of("*")) {
            one["image"] = image.as_str().into();
        }
    }
    let mut name = matches.str("container").to_string();
    if !all_names(&pod).contains(&name) {
        if matches.str("image").is_empty() {
            return match images.is_empty() {
                false => Ok((pod, String::new())),
                true => Err(Failure::message("you must specify image when creating new container")),
            };
        }
        if name.is_empty() {
            name = new_name(&pod);
        }
        if let Some(list) = pod["spec"]["containers"].as_array_mut() {
            list.push(json!({"name": name, "resources": {}, "terminationMessagePolicy": "File"}));
        }
    }
    if let Some(container) = profiles::container_mut(&mut pod, &name) {
        fill(matches, container, command)?;
    }
    profiles::apply(matches.str("profile"), keep(matches), &mut pod, &name, Style::PodCopy)
        .map_err(Failure::Message)?;
    if !custom.is_null() {
        let containers = pod["spec"]["containers"].as_array_mut();
        let Some(container) = containers.into_iter().flatten().find(|one| one["name"] == name.as_str()) else {
            return Err(Failure::message(format!(
                "unable to find the {name} container in the pod {}",
                matches.str("copy-to")
            )));
        };
        profiles::customize(container, custom).map_err(Failure::Message)?;
    }
    Ok((pod, name))
}
