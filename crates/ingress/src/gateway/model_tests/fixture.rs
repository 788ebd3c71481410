//! Gateways, routes and requests that the tests of `model` are made of, and how their outcome is shown.
//! Part of `model_tests`.

use super::*;

pub fn metadata(key: &str, created: u32) -> Value {
    let (namespace, name) = key.split_once('/').expect("a key");
    json!({ "namespace": namespace, "name": name, "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z") })
}

pub fn read<K: serde::de::DeserializeOwned>(key: &str, created: u32, spec: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(json!({ "metadata": metadata(key, created), "spec": spec })).expect("an object"))
}

pub fn class() -> Arc<GatewayClass> {
    read("/minke", 0, json!({ "controllerName": "minke.io/gateway" }))
}

pub fn gateway(key: &str, created: u32, listeners: Value) -> Arc<Gateway> {
    read(key, created, json!({ "gatewayClassName": "minke", "listeners": listeners }))
}

pub fn http_listener(name: &str, hostname: Option<&str>) -> Value {
    let mut listener = json!({ "name": name, "port": 80, "protocol": "HTTP" });
    if let Some(hostname) = hostname {
        listener["hostname"] = hostname.into();
    }
    listener
}

pub fn one_gateway() -> GatewaySnapshot {
    GatewaySnapshot {
        classes: vec![class()],
        gateways: vec![gateway("n/g", 1, json!([http_listener("http", None)]))],
        ..GatewaySnapshot::default()
    }
}

pub fn backend(name: &str) -> Value {
    json!([{ "name": name, "port": 8080 }])
}

/// One rule that leads to a Service.
pub fn rule(one: Value, service: &str) -> Value {
    json!({ "matches": [one], "backendRefs": backend(service) })
}

pub fn http_route(key: &str, created: u32, spec: Value) -> Arc<HttpRoute> {
    let mut spec = spec;
    if spec.get("parentRefs").is_none() {
        spec["parentRefs"] = json!([{ "name": "g", "namespace": "n" }]);
    }
    read(key, created, spec)
}

pub fn built(snapshot: &GatewaySnapshot) -> Built {
    build(snapshot, &["10.0.0.1".parse().unwrap()], &mut World::default())
}

/// `METHOD host/path?query name=value…`, answered with the Service it goes to.
pub fn goes_to(built: &Built, port: u16, request: &str) -> Option<String> {
    let mut words = request.split(' ');
    let (method, target) = (words.next().unwrap().parse::<Method>().unwrap(), words.next().unwrap());
    let mut headers = HeaderMap::new();
    for (name, value) in words.filter_map(|word| word.split_once('=')) {
        headers.append(HeaderName::try_from(name).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    let (host, rest) = target.split_at(target.find('/').unwrap());
    let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
    let table = PortTable { gateway: built.ports.get(&port)?.clone(), ..PortTable::default() };
    let budget = &PatternBudget::default();
    let route = table.find(host, path, &RequestHead { method: &method, headers: &headers, query, budget })?;
    let destination = route.destinations.pick();
    Some(destination.and_then(|d| Some(d.backend.as_ref()?.key.service.clone())).unwrap_or("500".into()))
}

#[track_caller]
pub fn check(built: &Built, requests: &[(&str, Option<&str>)]) {
    for (request, expected) in requests {
        assert_eq!(goes_to(built, 80, request).as_deref(), *expected, "{request}");
    }
}

pub fn show(conditions: &[DesiredCondition]) -> String {
    let one = |c: &DesiredCondition| format!("{}={}/{}", c.kind, if c.status { "T" } else { "F" }, c.reason);
    conditions.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The conditions of a route's parents.
pub fn parents(built: &Built, kind: &'static str, key: &str) -> Vec<String> {
    built.statuses.routes[&(kind, key.to_string())].iter().map(|parent| show(&parent.conditions)).collect()
}

pub const FINE: &str = "Accepted=T/Accepted ResolvedRefs=T/ResolvedRefs";
