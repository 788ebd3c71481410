//! Fields and resources of a pod as text, for environment variables and downwardAPI volumes.
//! Invariant: pure; an unsupported path is an error, never an empty value (tidy: `pure_files`).

use std::collections::BTreeMap;

use api::quantity;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};

use crate::pod::pod_spec;

/// What a container without a limit may use: all that the node can give.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeFacts {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
    pub ephemeral_bytes: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DownwardError {
    #[error("fieldPath {0:?} does not support subscript")]
    Subscript(String),
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    #[error("container {0} not found")]
    ContainerNotFound(String),
    #[error("a container name is required")]
    NoContainerName,
    #[error("unsupported container resource : {0}")]
    Resource(String),
}

pub fn field(pod: &Pod, path: &str, pod_ips: &[String], host_ips: &[String]) -> Result<String, DownwardError> {
    let meta = &pod.metadata;
    let status_ips = |list: &[String]| list.join(",");
    if let Some((map, key)) = subscript(path) {
        let source = match map {
            "metadata.annotations" => &meta.annotations,
            "metadata.labels" => &meta.labels,
            _ => return Err(DownwardError::Subscript(path.into())),
        };
        return Ok(source.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.annotations" => map_text(&meta.annotations),
        "metadata.labels" => map_text(&meta.labels),
        "metadata.name" => pod_spec::name(pod).into(),
        "metadata.namespace" => pod_spec::namespace(pod).into(),
        "metadata.uid" => pod_spec::uid(pod).into(),
        "spec.nodeName" => pod_spec::spec(pod).node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => pod_spec::spec(pod).service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => status_ips(host_ips),
        "status.podIP" => pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => status_ips(pod_ips),
        _ => return Err(DownwardError::FieldPath(path.into())),
    })
}

fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

/// One `key="value"` line per entry, in order.
fn map_text(map: &Option<BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map.iter().flatten().map(|(key, value)| format!("{key}={value:?}")).collect();
    lines.join("\n")
}

pub fn resource(
    pod: &Pod,
    container: Option<&Container>,
    selector: &ResourceFieldSelector,
    node: &NodeFacts,
) -> Result<String, DownwardError> {
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
    let found;
    let container = match named {
        Some(name) => {
            found = pod_spec::find_container(pod, name);
            found.as_ref().map(|(_, c)| c).ok_or_else(|| DownwardError::ContainerNotFound(name.into()))?
        }
        None => container.ok_or(DownwardError::NoContainerName)?,
    };
    let resources = container.resources.clone().unwrap_or_default();
    let unsupported = || DownwardError::Resource(selector.resource.clone());
    let (which, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let limit = resources.limits.as_ref().and_then(|l| l.get(resource));
    let request = resources.requests.as_ref().and_then(|r| r.get(resource));
    let chosen = match which {
        "limits" => limit,
        "requests" => request,
        _ => return Err(unsupported()),
    };
    let in_milli = resource == "cpu";
    let default = || match (which, resource) {
        ("requests", _) => 0,
        (_, "cpu") => node.cpu_milli,
        (_, "memory") => node.memory_bytes,
        (_, "ephemeral-storage") => node.ephemeral_bytes,
        _ => 0,
    };
    let read = |q| if in_milli { quantity::milli_value(q) } else { quantity::value(q) };
    let amount = chosen.and_then(read).unwrap_or_else(default);
    let divisor =
        selector.divisor.as_ref().and_then(read).filter(|d| *d > 0).unwrap_or(if in_milli { 1000 } else { 1 });
    Ok(((amount + divisor - 1) / divisor).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_and_resources() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "labels": {"b": "2", "a": "\"1\""},
            "annotations": {"x.y/z": "note"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {
                "limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}}}]}}))
        .unwrap();
        let check = |path: &str, expected: Result<&str, &str>| {
            let result = field(&pod, path, &["1.1.1.1".into(), "::1".into()], &["2.2.2.2".into()]);
            let result = result.map_err(|error| error.to_string());
            assert_eq!(result.as_deref().map_err(String::as_str), expected, "{path}");
        };
        check("metadata.labels", Ok("a=\"\\\"1\\\"\"\nb=\"2\""));
        check("metadata.annotations['x.y/z']", Ok("note"));
        check("metadata.labels['none']", Ok(""));
        check("status.podIPs", Ok("1.1.1.1,::1"));
        check("spec.nodeName", Ok("n"));
        check("spec.color", Err("unsupported fieldPath: spec.color"));
        let node = NodeFacts { cpu_milli: 4000, memory_bytes: 1 << 30, ephemeral_bytes: 5 };
        let check = |name: &str, divisor: Option<&str>, expected: &str| {
            let selector: ResourceFieldSelector =
                serde_json::from_value(json!({"resource": name, "containerName": "c", "divisor": divisor})).unwrap();
            assert_eq!(resource(&pod, None, &selector, &node).as_deref(), Ok(expected), "{name} {divisor:?}");
        };
        check("limits.cpu", None, "2");
        check("limits.cpu", Some("1m"), "1500");
        check("requests.cpu", None, "1");
        check("requests.memory", None, "0");
        check("limits.memory", Some("1Mi"), "64");
        check("limits.ephemeral-storage", None, "5");
    }
}
