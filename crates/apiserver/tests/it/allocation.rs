//! Addresses and node ports of Services, with two servers on one store.

use std::{collections::HashSet, sync::Arc};

use env::Env;
use futures::StreamExt;
use serde_json::{Value, json};
use store::{MemoryStore, Operation, Store, Transaction};

use crate::harness::{Server, server_on};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

fn service(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "type": "NodePort", "ports": [{ "port": 80 }] } })
}

/// Thirteen addresses beside the one of the server itself, and twelve ports.
async fn small(store: &Arc<MemoryStore>, env: &Env) -> Server {
    server_on(store.clone(), env.clone(), |config| {
        config.service_cidrs = vec!["10.7.0.0/28".parse().unwrap()];
        config.node_ports = 30000..=30011;
    })
    .await
}

async fn put(store: &MemoryStore, key: &str, value: Value) {
    let value = value.to_string().into();
    let operation = Operation::Put { key: key.into(), value, ttl_seconds: None };
    store.transact(Transaction { compare: vec![], operations: vec![operation] }).await.unwrap();
}

#[tokio::test]
async fn two_servers_never_hand_out_the_same() {
    let env = Env::real();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let (a, b) = (small(&store, &env).await, small(&store, &env).await);
    let made = futures::future::join_all((0..12).map(|n| {
        let server = if n % 2 == 0 { &a } else { &b };
        async move { server.post(SERVICES, service(&format!("s{n}"))).await.expect(201) }
    }))
    .await;
    let text = |v: &Value| v.to_string();
    let addresses: HashSet<String> = made.iter().map(|s| text(&s["spec"]["clusterIP"])).collect();
    let ports: HashSet<String> = made.iter().map(|s| text(&s["spec"]["ports"][0]["nodePort"])).collect();
    assert_eq!((addresses.len(), ports.len()), (12, 12));
    let full = b.post(SERVICES, service("more")).await;
    full.refused(500, "InternalError", "failed to allocate");

    let address = made[0]["spec"]["clusterIP"].as_str().unwrap();
    let object = b.get(&format!("{ADDRESSES}/{address}")).await.expect(200);
    let parent = json!({ "resource": "services", "namespace": "default", "name": "s0" });
    assert_eq!(object["spec"]["parentRef"], parent);
    let labels = json!({
        "ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
    });
    assert_eq!(object["metadata"]["labels"], labels);

    let mut same =
        json!({ "metadata": { "name": "same" }, "spec": { "ports": [{ "port": 80 }], "clusterIP": address } });
    b.post(SERVICES, same.clone()).await.refused(422, "Invalid", "provided IP is already allocated");
    let tried = b.post(&format!("{SERVICES}?dryRun=All"), same.clone()).await;
    tried.refused(422, "Invalid", "provided IP is already allocated");
    same["spec"] = service("same")["spec"].clone();
    same["spec"]["ports"][0]["nodePort"] = made[0]["spec"]["ports"][0]["nodePort"].clone();
    // Free what one more service needs, but not the port it asks for.
    a.delete(&format!("{SERVICES}/s2"), Value::Null).await.expect(200);
    b.post(SERVICES, same.clone()).await.refused(422, "Invalid", "provided port is already allocated");
    // What one server frees, the other can take, port and address alike.
    a.delete(&format!("{SERVICES}/s0"), Value::Null).await.expect(200);
    b.get(&format!("{ADDRESSES}/{address}")).await.refused(404, "NotFound", "");
    same["spec"]["clusterIP"] = address.into();
    b.post(SERVICES, same).await.expect(201);
}

#[tokio::test]
async fn a_service_that_changes_gives_back_what_it_no_longer_needs() {
    let env = Env::real();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let s = small(&store, &env).await;
    let made = s.post(SERVICES, service("a")).await.expect(201);
    let port = made["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    let key = format!("/minke/node-ports/{port}");
    assert_eq!(store.get(&key).await.unwrap().unwrap().value, "default/a");
    let patch = json!({ "spec": { "type": "ClusterIP", "ports": [{ "port": 80 }] } });
    let changed = s.patch("merge-patch", &format!("{SERVICES}/a"), patch).await.expect(200);
    assert_eq!(changed["spec"]["clusterIP"], made["spec"]["clusterIP"]);
    assert_eq!(store.get(&key).await.unwrap(), None);
    let away = json!({ "spec": { "type": "ExternalName", "externalName": "example.com", "clusterIP": null, "clusterIPs": null } });
    s.patch("merge-patch", &format!("{SERVICES}/a"), away).await.expect(200);
    let address = made["spec"]["clusterIP"].as_str().unwrap();
    s.get(&format!("{ADDRESSES}/{address}")).await.refused(404, "NotFound", "");
}

#[tokio::test]
async fn a_start_puts_right_what_was_left() {
    let env = Env::real();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let service = json!({
        "kind": "Service", "apiVersion": "v1", "metadata": { "name": "old", "namespace": "default" },
        "spec": { "type": "NodePort", "clusterIP": "10.7.0.9", "clusterIPs": ["10.7.0.9"],
            "ports": [{ "port": 80, "nodePort": 30003, "protocol": "TCP", "targetPort": 80 }] },
    });
    put(&store, "/registry/services/default/old", service).await;
    let leaked = json!({
        "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
        "metadata": { "name": "10.7.0.8", "labels": { "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io" } },
        "spec": { "parentRef": { "resource": "services", "namespace": "default", "name": "gone" } },
    });
    put(&store, "/registry/ipaddresses/10.7.0.8", leaked).await;
    put(&store, "/minke/node-ports/30004", json!("default/gone")).await;
    let s = small(&store, &env).await;
    let found = s.get(&format!("{ADDRESSES}/10.7.0.9")).await.expect(200);
    assert_eq!(found["spec"]["parentRef"]["name"], "old");
    s.get(&format!("{ADDRESSES}/10.7.0.8")).await.refused(404, "NotFound", "");
    assert!(store.get("/minke/node-ports/30003").await.unwrap().is_some());
    assert_eq!(store.get("/minke/node-ports/30004").await.unwrap(), None);
}

#[tokio::test]
async fn an_address_in_use_comes_back_when_it_is_deleted() {
    let env = Env::real();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let s = small(&store, &env).await;
    let address = "10.7.0.9";
    let mut chosen = service("a");
    chosen["spec"]["clusterIP"] = address.into();
    s.post(SERVICES, chosen).await.expect(201);
    let path = format!("{ADDRESSES}/{address}");
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap().to_string();
    let before = s.get(&path).await.expect(200);
    let mut changes = s
        .watch(&format!(
            "{ADDRESSES}?watch=1&resourceVersion={}",
            before["metadata"]["resourceVersion"].as_str().unwrap()
        ))
        .await;
    s.delete(&path, Value::Null).await.expect(200);
    for kind in [api::WatchKind::Deleted, api::WatchKind::Added] {
        assert_eq!(changes.next().await.unwrap().unwrap().kind, kind);
    }
    let after = s.get(&path).await.expect(200);
    assert_eq!(after["spec"]["parentRef"]["name"], "a");
    assert_ne!(uid(&before), uid(&after));
    // One that claims a Service which has nothing to do with it is given back.
    let foreign = json!({
        "metadata": { "name": "10.7.0.14", "labels": { "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io" } },
        "spec": { "parentRef": { "resource": "services", "namespace": "default", "name": "a" } },
    });
    s.post(ADDRESSES, foreign).await.expect(201);
    for kind in [api::WatchKind::Added, api::WatchKind::Deleted] {
        assert_eq!(changes.next().await.unwrap().unwrap().kind, kind);
    }
}

#[tokio::test]
async fn more_ranges_can_be_added() {
    let env = Env::real();
    let store = Arc::new(MemoryStore::new(env.clone()));
    let s = small(&store, &env).await;
    let mut far = service("far");
    far["spec"]["clusterIP"] = "10.8.0.3".into();
    s.post(SERVICES, far.clone()).await.refused(422, "Invalid", "does not match the current range");
    let range = json!({ "metadata": { "name": "more" }, "spec": { "cidrs": ["10.8.0.0/28"] } });
    s.post("/apis/networking.k8s.io/v1/servicecidrs", range).await.expect(201);
    s.get("/apis/networking.k8s.io/v1/servicecidrs/more").await.expect(200);
    s.post(SERVICES, far).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_together_agree_on_the_kubernetes_service() {
    for _ in 0..40 {
        let env = Env::real();
        let store = Arc::new(MemoryStore::new(env.clone()));
        let start = |number: u8| {
            let (store, env) = (store.clone(), env.clone());
            env::spawn(async move {
                server_on(store, env, |config| config.advertise_address = [192, 0, 2, number].into()).await
            })
        };
        let (a, b) = tokio::join!(start(1), start(2));
        let path = format!("{SERVICES}/kubernetes");
        let (a, b) = (a.unwrap().get(&path).await.expect(200), b.unwrap().get(&path).await.expect(200));
        assert_eq!(a["metadata"]["uid"], b["metadata"]["uid"]);
    }
}

#[tokio::test]
async fn the_kubernetes_service_is_put_back() {
    let server = crate::harness::server().await;
    let endpoints = "/api/v1/namespaces/default/endpoints/kubernetes";
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let service = format!("{SERVICES}/kubernetes");
    for path in [service.as_str(), endpoints, slice] {
        let old = server.get(path).await.expect(200);
        server.delete(path, Value::Null).await.expect(200);
        let new = server.until(path, |answer| answer.code == 200).await;
        assert_ne!(old["metadata"]["uid"], new["metadata"]["uid"], "{path}");
        for field in ["subsets", "endpoints", "ports", "addressType"] {
            assert_eq!(old[field], new[field], "{path}");
        }
        assert_eq!(old["spec"]["clusterIP"], new["spec"]["clusterIP"]);
    }
    let wrong = [
        (endpoints, json!({ "subsets": [] })),
        (slice, json!({ "endpoints": [{ "addresses": ["192.0.2.77"] }] })),
        (slice, json!({ "metadata": { "labels": { "kubernetes.io/service-name": "other" } } })),
    ];
    for (path, patch) in wrong {
        let old = server.get(path).await.expect(200);
        let bad = server.patch("merge-patch", path, patch).await.expect(200);
        assert_ne!(old["metadata"]["resourceVersion"], bad["metadata"]["resourceVersion"]);
        let said = |o: &Value| (o["subsets"].clone(), o["endpoints"].clone(), o["metadata"]["labels"].clone());
        server.until(path, |answer| said(&answer.value) == said(&old)).await;
    }
}
