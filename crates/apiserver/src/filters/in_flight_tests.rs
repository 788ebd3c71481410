//! Floods against a whole server: who is kept waiting, and who is not.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use env::Env;
use futures::StreamExt;
use http::{Method, Request};
use rcgen::KeyPair;
use serde_json::json;

use crate::{ApiServer, Config, request::body};

/// Of real time, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const ELECTIONS: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn server(change: impl FnOnce(&mut Config)) -> Arc<ApiServer> {
    let files = tempfile::tempdir().unwrap();
    let tokens = files.path().join("tokens");
    let users = "ordinary,ordinary,1\nnode,system:node:n1,2,system:nodes\nscheduler,system:kube-scheduler,3\n";
    std::fs::write(&tokens, users).unwrap();
    let mut config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
    config.authentication.token_file = Some(tokens);
    config.authorization_modes = vec!["AlwaysAllow".into()];
    config.limits.priority_and_fairness = false;
    change(&mut config);
    let env = Env::real();
    ApiServer::new(config, Arc::new(store::MemoryStore::new(env.clone())), env).await.unwrap()
}

fn request(method: Method, path: &str, token: &str, body: crate::Body) -> Request<crate::Body> {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    request.header("authorization", format!("Bearer {token}")).body(body).unwrap()
}

async fn create(server: &Arc<ApiServer>, path: &str, token: &str, name: &str) -> u16 {
    let object = json!({ "metadata": { "name": name } }).to_string();
    let sent = server.handle(request(Method::POST, path, token, body::full(object)));
    env::timeout(PATIENCE, sent).await.expect("an answer").status().as_u16()
}

/// Sends `bytes` of a body, and then nothing more.
fn stuck(server: &Arc<ApiServer>, bytes: usize) -> tokio::task::JoinHandle<u16> {
    let begun = futures::stream::iter([Ok(Bytes::from(vec![b' '; bytes]))]).chain(futures::stream::pending());
    let (server, body) = (server.clone(), body::stream(begun));
    env::spawn(
        async move { server.handle(request(Method::POST, CONFIG_MAPS, "ordinary", body)).await.status().as_u16() },
    )
}

async fn held(server: &Arc<ApiServer>, bytes: usize) {
    let wait = async {
        while server.in_flight.body_bytes.in_use() != bytes {
            tokio::task::yield_now().await;
        }
    };
    env::timeout(PATIENCE, wait).await.expect("the bytes arrive");
}

#[tokio::test]
async fn slow_bodies_take_no_place_in_flight() {
    let server = server(|config| config.limits.mutating_requests_in_flight = 4).await;
    let slow: Vec<_> = (0..20).map(|_| stuck(&server, 1)).collect();
    held(&server, 20).await;
    assert_eq!(create(&server, CONFIG_MAPS, "ordinary", "a").await, 201);
    assert!(slow.iter().all(|request| !request.is_finished()), "they wait for their own bodies");
    for request in slow {
        request.abort();
        let _ = request.await;
    }
    held(&server, 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_cut_off() {
    let server = server(|_| {}).await;
    let request = env::timeout(Duration::from_secs(24 * 3600), stuck(&server, 1));
    assert_eq!(request.await.expect("an answer").unwrap(), 504);
    assert_eq!(server.in_flight.body_bytes.in_use(), 0);
}

#[tokio::test]
async fn heartbeats_and_leader_election_are_served_in_a_flood() {
    let server = server(|_| {}).await;
    let all = server.in_flight.writes.common.available_permits() as u32;
    assert_eq!(all, 160, "a fifth of 200 is reserved");
    let _flood = server.in_flight.writes.common.try_acquire_many(all).unwrap();
    assert_eq!(create(&server, CONFIG_MAPS, "ordinary", "a").await, 429);
    assert_eq!(create(&server, ELECTIONS, "ordinary", "a").await, 429, "a Lease of somebody else's");
    assert_eq!(create(&server, "/api/v1/namespaces/default/events", "node", "e").await, 429, "no heartbeat");
    assert_eq!(create(&server, LEASES, "node", "n1").await, 201);
    assert_eq!(create(&server, "/api/v1/nodes", "node", "n1").await, 201);
    assert_eq!(create(&server, ELECTIONS, "scheduler", "kube-scheduler").await, 201);
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } }).to_string();
    let mut patch = request(Method::PATCH, "/api/v1/nodes/n1/status", "node", body::full(status));
    patch.headers_mut().insert("content-type", "application/merge-patch+json".parse().unwrap());
    assert_eq!(server.handle(patch).await.status(), 200);
    let places = server.in_flight.reads.common.available_permits() as u32;
    let _reads = server.in_flight.reads.common.try_acquire_many(places).unwrap();
    let get = |token: &str, path: &str| server.handle(request(Method::GET, path, token, body::empty()));
    assert_eq!(get("ordinary", CONFIG_MAPS).await.status(), 429);
    assert_eq!(get("node", &format!("{LEASES}/n1")).await.status(), 200);
    assert_eq!(get("ordinary", "/livez").await.status(), 200, "probes are exempt");
}

#[tokio::test]
async fn bodies_hold_so_many_bytes_together() {
    let server = server(|config| config.limits.body_bytes_in_flight = 1000).await;
    let slow = stuck(&server, 790);
    held(&server, 790).await;
    assert_eq!(create(&server, CONFIG_MAPS, "ordinary", "a").await, 429);
    assert_eq!(create(&server, LEASES, "node", "n1").await, 201, "a fifth is reserved");
    held(&server, 790).await;
    slow.abort();
    let _ = slow.await;
    held(&server, 0).await;
    assert_eq!(create(&server, CONFIG_MAPS, "ordinary", "a").await, 201);
}
