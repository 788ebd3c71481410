//! Subresources that are conversations with a node: log, exec, attach, portforward, proxy.
//! Part of `registry`: finds out where to go; `streaming` goes there.
//! Invariant: only ever goes to the address the objects name.

use std::sync::Arc;

use bytes::Bytes;

use api::{ApiError, Reason};

use super::{Registry, not_found_path, object_meta};
use crate::{
    admission::{Attributes, Operation},
    call::Call,
    respond::Reply,
    served::Served,
    streaming::{Target, forward},
    webhook,
};

/// How a conversation was asked for, as the options object that admission is shown.
fn connect_options(call: &Call) -> serde_json::Value {
    let kind = match (call.info.resource.as_str(), call.info.subresource.as_str()) {
        ("pods", "exec") => "PodExecOptions",
        ("pods", "attach") => "PodAttachOptions",
        ("pods", "portforward") => "PodPortForwardOptions",
        ("pods", _) => "PodProxyOptions",
        ("services", _) => "ServiceProxyOptions",
        _ => "NodeProxyOptions",
    };
    let mut options = serde_json::json!({ "apiVersion": "v1", "kind": kind });
    match kind {
        "PodExecOptions" | "PodAttachOptions" => {
            for flag in ["stdin", "stdout", "stderr", "tty"] {
                if call.query.flag(flag) {
                    options[flag] = true.into();
                }
            }
            if let Some(container) = call.query.text("container") {
                options["container"] = container.into();
            }
            let command: Vec<&str> = call.query.all("command").collect();
            if !command.is_empty() {
                options["command"] = command.into();
            }
        }
        "PodPortForwardOptions" => {
            let ports: Vec<u16> = call.query.all("ports").filter_map(|p| p.parse().ok()).collect();
            options["ports"] = ports.into();
        }
        _ => options["path"] = format!("/{}", call.info.parts.get(3..).unwrap_or_default().join("/")).into(),
    }
    options
}

impl Registry {
    pub(super) async fn connect(&self, call: &Call, served: &Arc<Served>, body: Bytes) -> Result<Reply, ApiError> {
        let info = &call.info;
        let object = self.connect_object(call, served).await?;
        if info.subresource != "log" {
            let mut attributes = Attributes {
                user: &call.user,
                operation: Operation::Connect,
                resource: &served.resource,
                subresource: &info.subresource,
                namespace: &info.namespace,
                name: &info.name,
                object: connect_options(call),
                old: serde_json::Value::Null,
                dry_run: false,
                options: serde_json::Value::Null,
                warnings: Vec::new(),
            };
            self.admission.admit(&mut attributes).await?;
            self.admission.validate(&mut attributes).await?;
        }
        let target = match (served.plural.as_str(), info.subresource.as_str()) {
            ("pods", "proxy") => pod_target(call, &object)?,
            ("services", "proxy") => self.service_target(call)?,
            ("nodes", "proxy") => self.node_target(call, &object)?,
            ("pods", verb) => self.kubelet_target(call, &object, verb)?,
            _ => return Err(not_found_path()),
        };
        forward(call, &self.config, target, body).await.map(Reply::Raw)
    }

    /// The object behind a name that may be `scheme:name:port`.
    async fn connect_object(&self, call: &Call, served: &Served) -> Result<serde_json::Value, ApiError> {
        let mut info = call.info.clone();
        info.name = split_name(&call.info.name).1.to_string();
        let named = call.with_info(info);
        Ok(self.get_object(&named, served).await?.value())
    }

    fn kubelet_target(&self, call: &Call, pod: &serde_json::Value, verb: &str) -> Result<Target, ApiError> {
        let info = &call.info;
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if node.is_empty() {
            return Err(ApiError::bad_request(format!("pod {} does not have a host assigned", info.name)));
        }
        let place = format!("{}/{}", info.namespace, info.name);
        let path = match verb {
            "portforward" => format!("/portForward/{place}"),
            _ => {
                let container = container(call, pod)?;
                let root = if verb == "log" { "containerLogs" } else { verb };
                format!("/{root}/{place}/{container}")
            }
        };
        let query = kubelet_query(call, verb);
        let path = if query.is_empty() { path } else { format!("{path}?{query}") };
        self.node_address(node).map(|(host, port)| Target::kubelet(host, port, path))
    }

    /// Where the kubelet of a node listens.
    fn node_address(&self, name: &str) -> Result<(String, u16), ApiError> {
        let node = self.cluster.get("nodes", "", name).ok_or_else(|| ApiError::not_found("", "nodes", name))?;
        let node = node.value();
        let addresses = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
        let preferred = ["InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP"];
        let address = preferred.iter().find_map(|kind| addresses.iter().find(|a| a["type"] == *kind));
        let address = address.and_then(|a| a["address"].as_str());
        let address =
            address.ok_or_else(|| ApiError::internal(format!("no preferred addresses found for node {name}")))?;
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().unwrap_or(10250);
        Ok((address.to_string(), port as u16))
    }

    fn node_target(&self, call: &Call, node: &serde_json::Value) -> Result<Target, ApiError> {
        let (scheme, name, port) = split_name(&call.info.name);
        let (host, default) = self.node_address(object_meta::text(node, "name").max(name))?;
        let wanted = port.parse().ok();
        match wanted.is_none_or(|p| p == default) && scheme != "http" {
            true => Ok(Target::kubelet(host, default, rest(call))),
            false => Ok(Target::plain(scheme == "https", host, wanted.unwrap_or(default), rest(call))),
        }
    }

    fn service_target(&self, call: &Call) -> Result<Target, ApiError> {
        let (scheme, name, port) = split_name(&call.info.name);
        let (host, port) = webhook::resolve(&self.cluster, &call.info.namespace, name, port)
            .map_err(|e| ApiError::new(Reason::ServiceUnavailable, e))?;
        Ok(Target::plain(scheme == "https", host, port, rest(call)))
    }
}

fn pod_target(call: &Call, pod: &serde_json::Value) -> Result<Target, ApiError> {
    let (scheme, name, port) = split_name(&call.info.name);
    let address = pod["status"]["podIP"].as_str().unwrap_or_default();
    if address.is_empty() {
        return Err(ApiError::bad_request(format!("address not allowed: pod {name} has no IP yet")));
    }
    let default = pod["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|c| c["ports"].as_array().into_iter().flatten())
        .find_map(|p| p["containerPort"].as_u64())
        .unwrap_or(80);
    let port = port.parse().unwrap_or(default as u16);
    Ok(Target::plain(scheme == "https", address.to_string(), port, rest(call)))
}

/// `[scheme:]name[:port]`.
fn split_name(text: &str) -> (&str, &str, &str) {
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [scheme @ ("http" | "https"), name, port] => (scheme, name, port),
        ["", name, port] => ("", name, port),
        [scheme @ ("http" | "https"), name] => (scheme, name, ""),
        [name, port] => ("", name, port),
        _ => ("", text, ""),
    }
}

/// What follows `/proxy` in the request, undecoded, with its query.
fn rest(call: &Call) -> String {
    let path = call.uri.path();
    let marker = "/proxy";
    let rest = path.find(&format!("{marker}/")).map(|at| &path[at + marker.len()..]).unwrap_or("/");
    match call.uri.query() {
        Some(query) => format!("{rest}?{query}"),
        None => rest.to_string(),
    }
}

/// The container that was named, or the only one there is, or the annotated default.
fn container(call: &Call, pod: &serde_json::Value) -> Result<String, ApiError> {
    let name = object_meta::text(pod, "name");
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let names = |list: &str| -> Vec<String> {
        let items = pod["spec"][list].as_array().into_iter().flatten();
        items.filter_map(|c| c["name"].as_str().map(str::to_string)).collect()
    };
    if let Some(asked) = call.query.text("container") {
        return match lists.iter().any(|l| names(l).iter().any(|n| n == asked)) {
            true => Ok(asked.to_string()),
            false => Err(ApiError::bad_request(format!("container {asked} is not valid for pod {name}"))),
        };
    }
    let main = names("containers");
    if let [only] = main.as_slice() {
        return Ok(only.clone());
    }
    let default = pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str();
    if let Some(default) = default.filter(|d| main.iter().any(|n| n == d)) {
        return Ok(default.to_string());
    }
    let init = names("initContainers");
    let mut text = format!("a container name must be specified for pod {name}, choose one of: [{}]", main.join(" "));
    if !init.is_empty() {
        text.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
    }
    Err(ApiError::bad_request(text))
}

/// The query in the kubelet's words.
fn kubelet_query(call: &Call, verb: &str) -> String {
    let encode = |t: &str| percent_encoding::utf8_percent_encode(t, percent_encoding::NON_ALPHANUMERIC).to_string();
    let mut pairs: Vec<String> = Vec::new();
    let renamed: &[(&str, &str)] = match verb {
        "log" => &[
            ("follow", "follow"),
            ("previous", "previous"),
            ("timestamps", "timestamps"),
            ("sinceSeconds", "sinceSeconds"),
            ("sinceTime", "sinceTime"),
            ("tailLines", "tailLines"),
            ("limitBytes", "limitBytes"),
            ("stream", "stream"),
        ],
        "portforward" => &[("ports", "port")],
        _ => &[("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty"), ("command", "command")],
    };
    for (ours, theirs) in renamed {
        for value in call.query.all(ours) {
            let value = match (verb, *ours) {
                ("exec" | "attach", "stdin" | "stdout" | "stderr" | "tty") => {
                    // As Go reads booleans: the Python client says `True`.
                    if !call.query.flag(ours) {
                        continue;
                    }
                    "1".to_string()
                }
                _ => encode(value),
            };
            pairs.push(format!("{theirs}={value}"));
        }
    }
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_may_carry_scheme_and_port() {
        for (text, expected) in [
            ("web", ("", "web", "")),
            ("web:http", ("", "web", "http")),
            ("https:web:8443", ("https", "web", "8443")),
            ("https:web:", ("https", "web", "")),
        ] {
            assert_eq!(super::split_name(text), expected, "{text}");
        }
    }
}
