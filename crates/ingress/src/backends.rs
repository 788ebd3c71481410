//! Backends: a port of a Service and the endpoints behind it, which change under the routes that name it.
//! Filled by `controller` from Services and EndpointSlices, read by `proxy` for every request.
//! Invariant: a change of endpoints replaces one backend's state and touches no route (type: routes hold `Arc<Backend>`).

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use api::names;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use parking_lot::RwLock;

use crate::upstream_tls::UpstreamTls;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServicePort {
    Number(i32),
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BackendKey {
    pub namespace: String,
    pub service: String,
    pub port: ServicePort,
    /// Spoken where the Service's port does not say.
    pub protocol: Protocol,
    pub tls: Option<Arc<UpstreamTls>>,
}

impl BackendKey {
    pub fn new(namespace: &str, service: &str, port: ServicePort) -> Self {
        let (namespace, service) = (namespace.to_string(), service.to_string());
        Self { namespace, service, port, protocol: Protocol::default(), tls: None }
    }

    pub fn service_key(&self) -> String {
        format!("{}/{}", self.namespace, self.service)
    }
}

/// What an endpoint speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Protocol {
    #[default]
    Http1,
    /// Without TLS by prior knowledge, as gRPC does.
    Http2,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackendState {
    pub protocol: Protocol,
    pub endpoints: Vec<SocketAddr>,
    /// Why there can be no endpoints.
    pub problem: Option<String>,
}

#[derive(Debug)]
pub struct Backend {
    pub key: BackendKey,
    state: RwLock<Arc<BackendState>>,
    next: AtomicUsize,
}

impl Backend {
    pub fn new(key: BackendKey, state: BackendState) -> Self {
        Self { key, state: RwLock::new(Arc::new(state)), next: AtomicUsize::new(0) }
    }

    pub fn state(&self) -> Arc<BackendState> {
        self.state.read().clone()
    }

    pub fn set(&self, state: BackendState) {
        *self.state.write() = Arc::new(state);
    }

    /// Where the next request begins among its endpoints: each in its turn.
    pub fn turn(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// Every backend that some route names.
#[derive(Debug, Default)]
pub struct Backends {
    by_service: HashMap<String, Vec<Arc<Backend>>>,
}

impl Backends {
    /// The backend of `key`; a new one has the state that `resolve` gives.
    pub fn get(&mut self, key: &BackendKey, resolve: impl FnOnce() -> BackendState) -> Arc<Backend> {
        let of_service = self.by_service.entry(key.service_key()).or_default();
        if let Some(backend) = of_service.iter().find(|backend| backend.key == *key) {
            return backend.clone();
        }
        let backend = Arc::new(Backend::new(key.clone(), resolve()));
        of_service.push(backend.clone());
        backend
    }

    pub fn of_service(&self, service: &str) -> &[Arc<Backend>] {
        self.by_service.get(service).map_or(&[], Vec::as_slice)
    }

    /// Forgets those that no route names any more.
    pub fn retain_used(&mut self) {
        self.by_service.retain(|_, backends| {
            backends.retain(|backend| Arc::strong_count(backend) > 1);
            !backends.is_empty()
        });
    }
}

/// What is behind `port` of `service` now.
pub fn resolve(key: &BackendKey, service: Option<&Service>, slices: &[Arc<EndpointSlice>]) -> BackendState {
    let problem = |text: String| BackendState { problem: Some(text), ..BackendState::default() };
    let Some(spec) = service.and_then(|service| service.spec.as_ref()) else {
        return problem(format!("Service {} does not exist", key.service_key()));
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return problem(format!("Service {} is an ExternalName, which has no endpoints", key.service_key()));
    }
    let named = |port: &&k8s_openapi::api::core::v1::ServicePort| match &key.port {
        ServicePort::Number(number) => port.port == *number,
        ServicePort::Name(name) => port.name.as_deref() == Some(name),
    };
    let Some(port) = spec.ports.iter().flatten().find(named) else {
        let wanted = match &key.port {
            ServicePort::Number(number) => number.to_string(),
            ServicePort::Name(name) => format!("{name:?}"),
        };
        return problem(format!("Service {} has no port {wanted}", key.service_key()));
    };
    let family = spec.ip_families.iter().flatten().next().map(String::as_str);
    BackendState {
        protocol: protocol(port.app_protocol.as_deref()).unwrap_or(key.protocol),
        endpoints: endpoints(slices, port.name.as_deref().unwrap_or_default(), family),
        problem: None,
    }
}

fn protocol(app_protocol: Option<&str>) -> Option<Protocol> {
    match app_protocol? {
        "kubernetes.io/h2c" | "h2c" | "grpc" => Some(Protocol::Http2),
        "http" | "kubernetes.io/ws" => Some(Protocol::Http1),
        _ => None,
    }
}

/// Those that are ready; when none is, those that still serve while they end.
fn endpoints(slices: &[Arc<EndpointSlice>], port_name: &str, family: Option<&str>) -> Vec<SocketAddr> {
    let (mut ready, mut serving) = (Vec::new(), Vec::new());
    let of_family = |slice: &&Arc<EndpointSlice>| family.is_none_or(|family| slice.address_type == family);
    for slice in slices.iter().filter(of_family) {
        let mut ports = slice.ports.iter().flatten();
        let port = ports.find(|port| port.name.as_deref().unwrap_or_default() == port_name);
        let Some(port) = port.and_then(|port| u16::try_from(port.port?).ok()) else { continue };
        for endpoint in &slice.endpoints {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            let is_ready = conditions.ready.unwrap_or(true);
            let list = match is_ready {
                true => &mut ready,
                false if conditions.serving.unwrap_or(false) => &mut serving,
                false => continue,
            };
            let address = endpoint.addresses.first().and_then(|address| address.parse::<IpAddr>().ok());
            // The proxy's own machine is no endpoint: what listens there asks nobody who they are.
            let address = address.filter(|address| names::is_global_unicast(*address));
            list.extend(address.map(|address| SocketAddr::new(address, port)));
        }
    }
    let mut chosen = if ready.is_empty() { serving } else { ready };
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(value: Value) -> Arc<EndpointSlice> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn a_slice_does_not_lead_to_what_only_this_machine_reaches() {
        let service: Service =
            serde_json::from_value(json!({"metadata": {}, "spec": {"ports": [{"port": 80}]}})).unwrap();
        let hidden = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "::ffff:127.0.0.1", "224.0.0.1"];
        let endpoints: Vec<Value> =
            hidden.iter().chain(&["10.0.0.1"]).map(|address| json!({"addresses": [address]})).collect();
        let slices = [slice(json!({"addressType": "IPv4", "metadata": {}, "ports": [{"port": 5000}],
            "endpoints": endpoints}))];
        let state = resolve(&BackendKey::new("n", "s", ServicePort::Number(80)), Some(&service), &slices);
        assert_eq!(state.endpoints, ["10.0.0.1:5000".parse().unwrap()]);
    }

    #[test]
    fn endpoints_are_the_ready_ones_else_those_that_still_serve() {
        let service: Service = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "web", "port": 80}, {"name": "rpc", "port": 90, "appProtocol": "kubernetes.io/h2c"}]}}))
        .unwrap();
        let slices = |conditions: [Value; 2]| {
            let [one, two] = conditions;
            let ports = json!([{"name": "rpc", "port": 9090}, {"name": "web", "port": 8080}]);
            let endpoints =
                json!([{"addresses": ["10.0.0.2"], "conditions": one}, {"addresses": ["10.0.0.1"], "conditions": two}]);
            let six = json!([{"addresses": ["fd00::1"]}]);
            [
                slice(json!({"addressType": "IPv4", "metadata": {}, "ports": ports, "endpoints": endpoints})),
                slice(json!({"addressType": "IPv6", "metadata": {}, "ports": ports, "endpoints": six})),
            ]
        };
        let key = |port: ServicePort| BackendKey::new("n", "s", port);
        let check = |port: ServicePort, conditions: [Value; 2], expected: &[&str]| {
            let state = resolve(&key(port), Some(&service), &slices(conditions));
            let found: Vec<String> = state.endpoints.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected);
            state.protocol
        };
        let ready = || json!({"ready": true});
        let ending = || json!({"ready": false, "serving": true, "terminating": true});
        check(ServicePort::Number(80), [ready(), json!({})], &["10.0.0.1:8080", "10.0.0.2:8080"]);
        check(ServicePort::Number(80), [ready(), ending()], &["10.0.0.2:8080"]);
        check(ServicePort::Name("web".into()), [json!({"ready": false}), ending()], &["10.0.0.1:8080"]);
        let protocol = check(ServicePort::Name("rpc".into()), [ready(), ready()], &["10.0.0.1:9090", "10.0.0.2:9090"]);
        assert_eq!(protocol, Protocol::Http2);
        let problem = |port, service| resolve(&key(port), service, &[]).problem.unwrap();
        assert_eq!(problem(ServicePort::Number(81), Some(&service)), "Service n/s has no port 81");
        assert_eq!(problem(ServicePort::Number(80), None), "Service n/s does not exist");
    }
}
