//! Subresources that are conversations with a node: log, exec, attach, portforward, proxy.
//! Part of `registry`: finds out where to go; `streaming` goes there.
//! Only ever goes to the address the objects name.

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use http::{Method, Response, StatusCode, header};

use api::{ApiError, Reason, Verb, feature_gates::AUTHORIZE_POD_WEBSOCKET_UPGRADE_CREATE_PERMISSION, names};

use super::{Registry, not_found_path, object_meta};
use crate::{
    admission::{Attributes, Operation},
    authz::{self, Decision},
    discovery::served::Served,
    handlers::respond::Reply,
    proxy::streaming::{Target, forward},
    request::{
        body::{self, Body},
        call::Call,
    },
    transport::service_resolver,
};

/// How a conversation was asked for, as the options object that admission is shown.
fn connect_options(call: &Call, served: &Served) -> serde_json::Value {
    let kind = served.subresource(&call.info.subresource).map_or("", |options| options.kind.as_str());
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
        if split_name(&info.name).is_none() {
            let kind = served.kind.to_ascii_lowercase();
            return Err(ApiError::bad_request(format!("invalid {kind} request {:?}", info.name)));
        }
        let asks_create = || self.config.feature_gates.enabled(AUTHORIZE_POD_WEBSOCKET_UPGRADE_CREATE_PERMISSION);
        if matches!(info.subresource.as_str(), "exec" | "attach" | "portforward") && asks_create() {
            self.authorize_create(call).await?;
        }
        let object = self.connect_object(call, served).await?;
        if info.subresource != "log" {
            let mut attributes = Attributes {
                user: &call.user,
                operation: Operation::Connect,
                resource: &served.resource,
                subresource: &info.subresource,
                namespace: &info.namespace,
                name: &info.name,
                object: connect_options(call, served),
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
            ("nodes", "proxy") => self.node_target(call, &object).await?,
            ("pods", verb) => self.kubelet_target(call, &object, verb)?,
            _ => return Err(not_found_path()),
        };
        if info.subresource != "proxy" {
            return forward(call, &self.config, target, body::full(body)).await.map(Reply::Raw);
        }
        let (prefix, rest) = split_path(call);
        // Relative links of a page without a final slash would lead out of the proxy.
        if rest.is_empty() && matches!(call.method, Method::GET | Method::HEAD) && !call.wants_upgrade() {
            let query = call.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
            return redirect(&format!("{prefix}/{query}")).map(Reply::Raw);
        }
        let body = call.stream.lock().take().unwrap_or_else(body::empty);
        forward(call, &self.config, target.under(prefix.to_string()), body).await.map(Reply::Raw)
    }

    /// A browser's WebSocket can only GET, but what it opens changes the pod: reading is not permission enough.
    async fn authorize_create(&self, call: &Call) -> Result<(), ApiError> {
        if call.info.verb == Verb::Create {
            return Ok(());
        }
        let attributes = authz::Attributes { verb: Verb::Create, ..authz::Attributes::new(&call.user, &call.info) };
        match self.authorizer.authorize(&attributes).await {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(reason) | Decision::NoOpinion(reason) => {
                Err(ApiError::forbidden(&call.info.group, &call.info.resource, &call.info.name, &reason))
            }
        }
    }

    /// The object behind a name that may be `scheme:name:port`.
    async fn connect_object(&self, call: &Call, served: &Served) -> Result<serde_json::Value, ApiError> {
        let mut info = call.info.clone();
        info.name = named(call).1.to_string();
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
        let (host, port) = self.node_address(node)?;
        let target = Target::kubelet(host, port, path);
        Ok(if verb == "log" { target.of_log() } else { target })
    }

    /// Where the kubelet of a node listens.
    pub(crate) fn node_address(&self, name: &str) -> Result<(String, u16), ApiError> {
        let node = self.cluster.get("nodes", "", name).ok_or_else(|| ApiError::not_found("", "nodes", name))?;
        let node = node.value();
        let addresses = node["status"]["addresses"].as_array().cloned().unwrap_or_default();
        let preferred = &self.config.kubelet_preferred_address_types;
        let address = preferred.iter().find_map(|kind| addresses.iter().find(|a| a["type"] == kind.as_str()));
        let address = address.and_then(|a| a["address"].as_str());
        let address =
            address.ok_or_else(|| ApiError::internal(format!("no preferred addresses found for node {name}")))?;
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().unwrap_or(10250);
        Ok((address.to_string(), port as u16))
    }

    async fn node_target(&self, call: &Call, node: &serde_json::Value) -> Result<Target, ApiError> {
        let (scheme, name, port) = named(call);
        let (host, default) = self.node_address(object_meta::text(node, "name").max(name))?;
        // The address that was looked at is the one gone to: a name may mean another a moment later.
        let address = outward_address(&host).await.map_err(ApiError::bad_request)?;
        let wanted = port.parse().ok();
        let target = match wanted.is_none_or(|p| p == default) && scheme != "http" {
            true => Target::kubelet(host, default, rest(call)),
            false => Target::plain(scheme == "https", host, wanted.unwrap_or(default), rest(call)),
        };
        Ok(target.at(address))
    }

    fn service_target(&self, call: &Call) -> Result<Target, ApiError> {
        let (scheme, name, port) = named(call);
        let unavailable = |why: String| ApiError::new(Reason::ServiceUnavailable, why);
        let service = self.cluster.get("services", &call.info.namespace, name);
        // A name somewhere else is not a place to lend the server's own network position to.
        if service.is_some_and(|s| s.value()["spec"]["type"] == "ExternalName") {
            return Err(unavailable(format!("no endpoints available for service {name:?}")));
        }
        let (host, port) =
            service_resolver::resolve_pod(&self.cluster, &call.info.namespace, name, port).map_err(unavailable)?;
        Ok(Target::plain(scheme == "https", host, port, rest(call)))
    }
}

fn pod_target(call: &Call, pod: &serde_json::Value) -> Result<Target, ApiError> {
    let (scheme, _, port) = named(call);
    let address = pod_address(pod)?;
    Ok(Target::plain(scheme == "https", address.to_string(), pod_port(pod, port, scheme)?, rest(call)))
}

const NOT_ALLOWED: &str = "address not allowed";

/// Where the pod is. What only this machine reaches is not a pod.
fn pod_address(pod: &serde_json::Value) -> Result<IpAddr, ApiError> {
    let address = pod["status"]["podIP"].as_str().and_then(names::parse_ip);
    let address = address.filter(|address| names::is_global_unicast(*address));
    address.ok_or_else(|| ApiError::bad_request(NOT_ALLOWED))
}

/// An address of a node's `host` that is not this machine's own: none may be.
async fn outward_address(host: &str) -> Result<IpAddr, String> {
    let found: Vec<IpAddr> = match names::parse_ip(host) {
        Some(address) => vec![address],
        None => tokio::net::lookup_host((host, 0)).await.map_err(|e| e.to_string())?.map(|a| a.ip()).collect(),
    };
    match found.first() {
        None => Err("no addresses for hostname".into()),
        Some(first) if found.iter().all(|address| names::is_global_unicast(*address)) => Ok(*first),
        Some(_) => Err(NOT_ALLOWED.into()),
    }
}

/// A port by number or name; the first one declared where none is asked for.
fn pod_port(pod: &serde_json::Value, wanted: &str, scheme: &str) -> Result<u16, ApiError> {
    let lists = ["initContainers", "containers"].into_iter().filter_map(|l| pod["spec"][l].as_array());
    let mut ports = lists.flatten().flat_map(|c| c["ports"].as_array().into_iter().flatten());
    let number = |port: &serde_json::Value| port["containerPort"].as_u64().and_then(|n| u16::try_from(n).ok());
    match (wanted, wanted.parse::<u16>()) {
        ("", _) => {
            let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
            let first = containers.filter_map(|c| c["ports"].as_array()?.first()).find_map(number);
            Ok(first.unwrap_or(if scheme == "https" { 443 } else { 80 }))
        }
        (_, Ok(port)) => Ok(port),
        (name, Err(_)) => ports.find(|p| p["name"] == name).and_then(number).ok_or_else(|| {
            let pod = object_meta::text(pod, "name");
            ApiError::new(Reason::ServiceUnavailable, format!("no port {name:?} found for pod {pod:?}"))
        }),
    }
}

/// `name`, `name:port` or `scheme:name:port`.
fn split_name(text: &str) -> Option<(&str, &str, &str)> {
    let parts: Vec<&str> = text.split(':').collect();
    let (scheme, name, port) = match parts[..] {
        [name] => ("", name, ""),
        [name, port] => ("", name, port),
        [scheme @ ("" | "http" | "https"), name, port] => (scheme, name, port),
        _ => return None,
    };
    (!name.is_empty()).then_some((scheme, name, port))
}

fn named(call: &Call) -> (&str, &str, &str) {
    split_name(&call.info.name).unwrap_or(("", &call.info.name, ""))
}

/// The path up to the subresource and what follows it, undecoded.
fn split_path(call: &Call) -> (&str, &str) {
    let path = call.uri.path();
    let info = &call.info;
    let version = if info.prefix == "api" { 2 } else { 3 };
    let scope = if info.namespace.is_empty() || info.resource == "namespaces" { 0 } else { 2 };
    // Resource, name and subresource.
    let mut left = version + scope + 3;
    let mut inside = false;
    for (at, byte) in path.bytes().enumerate() {
        match byte {
            b'/' if std::mem::take(&mut inside) => {
                left -= 1;
                if left == 0 {
                    return path.split_at(at);
                }
            }
            b'/' => {}
            _ => inside = true,
        }
    }
    (path, "")
}

/// What is asked of the server behind the proxy.
fn rest(call: &Call) -> String {
    let path = Some(split_path(call).1).filter(|p| !p.is_empty()).unwrap_or("/");
    match call.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_string(),
    }
}

fn redirect(place: &str) -> Result<Response<Body>, ApiError> {
    let place = place.parse().map_err(|_| ApiError::bad_request("invalid proxy path"))?;
    let mut response = Response::new(body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response.headers_mut().insert(header::LOCATION, place);
    Ok(response)
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
    use super::*;

    #[test]
    fn names_may_carry_scheme_and_port() {
        for (text, expected) in [
            ("web", Some(("", "web", ""))),
            ("web:http", Some(("", "web", "http"))),
            ("http:80", Some(("", "http", "80"))),
            ("https:web:8443", Some(("https", "web", "8443"))),
            ("https:web:", Some(("https", "web", ""))),
            ("ftp:web:1", None),
            (":80", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(split_name(text), expected, "{text}");
        }
    }

    #[test]
    fn pods_are_reached_by_port() {
        let pod = serde_json::json!({
            "metadata": { "name": "p" },
            "spec": { "containers": [{}, { "ports": [{ "containerPort": 81, "name": "a" }, { "containerPort": 82, "name": "b" }] }] },
        });
        for (wanted, expected) in [("", Some(81)), ("9000", Some(9000)), ("b", Some(82)), ("c", None)] {
            assert_eq!(pod_port(&pod, wanted, "").ok(), expected, "{wanted}");
        }
        assert_eq!(pod_port(&serde_json::json!({}), "", "https").ok(), Some(443));
    }

    #[test]
    fn only_addresses_of_pods_are_gone_to() {
        for (address, allowed) in [
            ("10.1.2.3", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("::1", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
            ("0.0.0.0", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("::ffff:10.1.2.3", true),
            ("localhost", false),
            ("", false),
        ] {
            let pod = serde_json::json!({ "status": { "podIP": address } });
            assert_eq!(pod_address(&pod).is_ok(), allowed, "{address}");
        }
    }
}
