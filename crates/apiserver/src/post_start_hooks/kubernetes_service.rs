//! The `kubernetes` Service and its endpoints: how pods find the API servers.
//! A row of the table beside it: made before the server is ready, and kept true from then on.
//! The endpoints are the API servers on this store that live; all of them come to the same.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use http::Method;
use serde_json::{Value, json};

use api::ApiError;
use store::{Operation, Range, Transaction, prefix_end};

use super::ControlLoop;
use crate::{
    registry::service_address,
    server::{config::Config, loopback, pipeline::ApiServer},
    storage::{self, watch_cache::store_error},
};

/// Where servers on one store say that they live, upstream's among them: an Endpoints for each address.
const SERVERS: &str = "/registry/masterleases/";
const LEASE_DURATION_SECONDS: u64 = 15;
const RENEWAL_INTERVAL: Duration = Duration::from_secs(5);

pub const WATCHES: &[&str] = &["services", "endpoints", "endpointslices"];
/// Plural names and where the objects are.
const PARTS: [(&str, &str); 3] = [
    ("services", "/api/v1/namespaces/default/services"),
    ("endpoints", "/api/v1/namespaces/default/endpoints"),
    ("endpointslices", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"),
];

#[derive(Default)]
pub struct Keeper {
    servers: Vec<SocketAddr>,
    /// When this server last said that it lives.
    renewed: Duration,
    /// The version of each part that was found, or made, as it should be.
    good: [Option<u64>; 3],
}

/// A part that is not as it should be.
struct Wrong {
    part: usize,
    found: Option<Value>,
    wanted: Value,
}

#[async_trait]
impl ControlLoop for Keeper {
    async fn prepare(&mut self, server: &Arc<ApiServer>) -> Result<(), ApiError> {
        if server.config.advertise_address.is_loopback() {
            let endpoint = server.config.advertise_address;
            tracing::warn!(%endpoint, "pods can't reach the API server: it is advertised on loopback");
        }
        self.keep(server).await
    }

    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        self.keep(server).await?;
        let shared = server.cluster.store.is_shared();
        Ok(shared.then(|| (self.renewed + RENEWAL_INTERVAL).saturating_sub(server.cluster.env.monotonic())))
    }
}

impl Keeper {
    async fn keep(&mut self, server: &Arc<ApiServer>) -> Result<(), ApiError> {
        let now = server.cluster.env.monotonic();
        let mut fresh = self.servers.is_empty() || now >= self.renewed + RENEWAL_INTERVAL;
        if fresh {
            self.look_around(server).await?;
        }
        while let Some(Wrong { part, found, wanted }) = self.next_wrong(server) {
            // Another server may have come, and have written what only seems wrong.
            if !std::mem::replace(&mut fresh, true) {
                self.look_around(server).await?;
                continue;
            }
            let put = version(&put_right(server, PARTS[part].1, found, wanted).await?);
            server.cluster.cache.wait_for(put.unwrap_or_default()).await?;
            self.good[part] = put;
            // Two servers that know different sets of servers would each write over the other without end.
            fresh = false;
        }
        Ok(())
    }

    async fn look_around(&mut self, server: &ApiServer) -> Result<(), ApiError> {
        self.renewed = server.cluster.env.monotonic();
        let servers = living(server).await?;
        if servers != self.servers {
            (self.servers, self.good) = (servers, [None; 3]);
        }
        Ok(())
    }

    fn next_wrong(&mut self, server: &ApiServer) -> Option<Wrong> {
        for (part, (plural, _)) in PARTS.into_iter().enumerate() {
            let found = server.cluster.get(plural, "default", "kubernetes");
            if self.good[part].is_some() && found.as_ref().map(|o| o.meta.resource_version) == self.good[part] {
                continue;
            }
            let Some(wanted) = wanted(plural, &server.config, &self.servers) else { continue };
            match found.map(|o| o.value()) {
                Some(found) if holds(plural, &found, &wanted) => self.good[part] = version(&found),
                found => return Some(Wrong { part, found, wanted }),
            }
        }
        None
    }
}

fn version(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok())
}

/// The servers on this store, this one among them.
async fn living(server: &ApiServer) -> Result<Vec<SocketAddr>, ApiError> {
    let (store, config) = (&server.cluster.store, &server.config);
    let own = SocketAddr::new(config.advertise_address, config.port);
    if !store.is_shared() {
        return Ok(vec![own]);
    }
    let range = Range { start: SERVERS.into(), end: prefix_end(SERVERS), limit: 0, revision: None };
    let found = store.range(range).await.map_err(store_error)?.records;
    let leases: Vec<Value> = found.iter().filter_map(|record| storage::bookkeeping_value(&record.value)).collect();
    let mut servers: Vec<SocketAddr> = leases.iter().filter_map(|lease| leased(lease, own.port())).collect();
    // An address has one lease. Of several servers behind it, the one of the lowest port keeps it.
    if !servers.iter().any(|other| other.ip() == own.ip() && other.port() < own.port()) {
        let put = Operation::Put {
            key: format!("{SERVERS}{}", own.ip()),
            value: storage::encode(&lease(own)),
            ttl_seconds: Some(LEASE_DURATION_SECONDS),
        };
        store.transact(Transaction { compare: Vec::new(), operations: vec![put] }).await.map_err(store_error)?;
        servers.retain(|other| other.ip() != own.ip());
        servers.push(own);
    }
    servers.sort();
    Ok(servers)
}

/// What upstream's servers read of it is the address; they all have one port.
fn lease(server: SocketAddr) -> Value {
    let subset = json!({ "addresses": [{ "ip": server.ip().to_string() }], "ports": [{ "port": server.port() }] });
    json!({ "kind": "Endpoints", "apiVersion": "v1", "metadata": {}, "subsets": [subset] })
}

/// `port` is that of a server that did not say.
fn leased(lease: &Value, port: u16) -> Option<SocketAddr> {
    let subset = &lease["subsets"][0];
    let ip: IpAddr = subset["addresses"][0]["ip"].as_str()?.parse().ok()?;
    let own = subset["ports"][0]["port"].as_u64().and_then(|port| u16::try_from(port).ok());
    Some(SocketAddr::new(ip, own.unwrap_or(port)))
}

/// Those of the first one's port and family: all endpoints have one port. Pods can't reach a loopback address.
fn addresses(servers: &[SocketAddr]) -> (u16, Vec<IpAddr>) {
    let mut reachable = servers.iter().filter(|server| !server.ip().is_loopback()).peekable();
    let Some(first) = reachable.peek().copied() else { return (0, Vec::new()) };
    let alike = |server: &&SocketAddr| server.port() == first.port() && server.is_ipv4() == first.is_ipv4();
    (first.port(), reachable.filter(alike).map(|server| server.ip()).collect())
}

fn wanted(plural: &str, config: &Config, servers: &[SocketAddr]) -> Option<Value> {
    let (port, addresses) = addresses(servers);
    let ports = json!([{ "name": "https", "port": port, "protocol": "TCP" }]);
    let metadata = |labels: Value| json!({ "name": "kubernetes", "namespace": "default", "labels": labels });
    match plural {
        "services" => {
            let address = service_address(config.service_cidrs.first()?, 1).to_string();
            Some(json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": metadata(json!({ "component": "apiserver", "provider": "kubernetes" })),
                "spec": {
                    "type": "ClusterIP", "clusterIP": address, "sessionAffinity": "None",
                    "ports": [{ "name": "https", "protocol": "TCP", "port": 443, "targetPort": config.port }],
                },
            }))
        }
        _ if addresses.is_empty() => None,
        "endpoints" => {
            let addresses: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip.to_string() })).collect();
            Some(json!({
                "apiVersion": "v1", "kind": "Endpoints",
                "metadata": metadata(json!({ "endpointslice.kubernetes.io/skip-mirror": "true" })),
                "subsets": [{ "addresses": addresses, "ports": ports }],
            }))
        }
        _ => {
            let endpoint = |ip: &IpAddr| json!({ "addresses": [ip.to_string()], "conditions": { "ready": true } });
            Some(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": metadata(json!({ "kubernetes.io/service-name": "kubernetes" })),
                "addressType": if addresses[0].is_ipv4() { "IPv4" } else { "IPv6" },
                "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
                "ports": ports,
            }))
        }
    }
}

/// Whether `found` says what matters. A Service that exists is left to those who may change it, as upstream does.
fn holds(plural: &str, found: &Value, wanted: &Value) -> bool {
    let labels = wanted["metadata"]["labels"].as_object();
    plural == "services"
        || ["subsets", "addressType", "endpoints", "ports"].iter().all(|field| found[field] == wanted[field])
            && labels.into_iter().flatten().all(|(name, value)| found["metadata"]["labels"][name] == *value)
}

async fn put_right(
    server: &Arc<ApiServer>,
    path: &str,
    found: Option<Value>,
    wanted: Value,
) -> Result<Value, ApiError> {
    let own = format!("{path}/kubernetes");
    match found {
        // The family of a slice stays what it is.
        Some(found) if found["addressType"] != wanted["addressType"] => {
            loopback::send(server, Method::DELETE, &own, &Value::Null).await?;
        }
        Some(_) => return loopback::send(server, Method::PUT, &own, &wanted).await,
        None => {}
    }
    let refused = match loopback::send(server, Method::POST, path, &wanted).await {
        Ok(created) => return Ok(created),
        Err(refused) => refused,
    };
    // Another server was faster, or this one knew an old state. What is refused then is whichever is looked at first:
    // the name, or the Service's address.
    let Ok(there) = loopback::send(server, Method::GET, &own, &Value::Null).await else { return Err(refused) };
    match holds(if wanted["kind"] == "Service" { "services" } else { "" }, &there, &wanted) {
        true => Ok(there),
        false => loopback::send(server, Method::PUT, &own, &wanted).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_servers_come_to_the_same_endpoints() {
        let check = |servers: &[&str], port: u16, expected: &[&str]| {
            let servers: Vec<SocketAddr> = servers.iter().map(|s| s.parse().unwrap()).collect();
            let expected: Vec<IpAddr> = expected.iter().map(|s| s.parse().unwrap()).collect();
            assert_eq!(addresses(&servers), (port, expected), "{servers:?}");
        };
        check(&["192.0.2.1:6443"], 6443, &["192.0.2.1"]);
        check(&["192.0.2.1:6443", "192.0.2.2:6443"], 6443, &["192.0.2.1", "192.0.2.2"]);
        check(&["127.0.0.1:6443", "192.0.2.2:6443"], 6443, &["192.0.2.2"]);
        check(&["127.0.0.1:6443"], 0, &[]);
        check(&["192.0.2.1:6443", "192.0.2.1:7443", "[2001:db8::1]:6443"], 6443, &["192.0.2.1"]);
    }

    /// As a server sees it that is slower than another: it knows of the address, and not yet of the Service.
    #[tokio::test]
    async fn what_another_server_made_is_taken_and_another_service_at_its_address_is_told() {
        let env = env::Env::real();
        let config = || Config::in_process(rcgen::KeyPair::generate().unwrap().serialize_pem());
        let store = || Arc::new(store::MemoryStore::new(env.clone()));
        let server = ApiServer::new(config(), store(), env.clone()).await.unwrap();
        let (_, path) = PARTS[0];
        let made = loopback::send(&server, Method::GET, &format!("{path}/kubernetes"), &Value::Null).await.unwrap();
        let wanted = wanted("services", &server.config, &[]).unwrap();
        let refused = loopback::send(&server, Method::POST, path, &wanted).await.unwrap_err();
        assert!(refused.message.contains("provided IP is already allocated"), "{}", refused.message);
        let taken = put_right(&server, path, None, wanted.clone()).await.unwrap();
        assert_eq!(taken["metadata"]["uid"], made["metadata"]["uid"]);

        let mut other = made;
        other["metadata"] = json!({ "name": "other", "namespace": "default", "uid": "u" });
        let (key, value) = (storage::builtin_key("services", "default/other"), storage::encode(&other));
        let operations = vec![Operation::Put { key, value, ttl_seconds: None }];
        let held = store();
        store::Store::transact(&*held, Transaction { compare: Vec::new(), operations }).await.unwrap();
        let refused = ApiServer::new(config(), held, env.clone()).await.err().unwrap();
        assert!(refused.message.contains("provided IP is already allocated"), "{}", refused.message);
    }
}
