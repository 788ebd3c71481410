//! Two API servers on one real etcd: what one writes the other serves, and etcd may go away in between.
//! Each server has its own connection and its own caches; only etcd is shared.

use std::{collections::HashSet, sync::Arc, time::Duration};

use api::{WatchEvent, WatchKind};
use env::Env;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    etcd_server::EtcdServer,
    harness::{Server, config_map, pod, server_on},
    watches::{QUOTAS, both_charged, two_quotas},
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";
/// Far beyond what any of it takes; a slow machine must not fail.
const PATIENCE: Duration = Duration::from_secs(120);

async fn server(etcd: &EtcdServer) -> Server {
    server_at(etcd, 1).await
}

async fn server_at(etcd: &EtcdServer, number: u8) -> Server {
    let store = Arc::new(etcd.connect("").await);
    server_on(store, Env::real(), |config| {
        config.advertise_address = [192, 0, 2, number].into();
        config.service_cidrs = vec!["10.7.0.0/28".parse().unwrap()];
        config.node_ports = 30000..=30011;
    })
    .await
}

type Events = futures::stream::BoxStream<'static, Result<WatchEvent, api::ApiError>>;

async fn next(events: &mut Events) -> (WatchKind, Value) {
    loop {
        let event = env::timeout(PATIENCE, events.next()).await.expect("an event").unwrap().unwrap();
        if event.kind != WatchKind::Bookmark {
            return (event.kind, event.object.value());
        }
    }
}

/// Asks until the answer has this code.
async fn until(code: u16, mut ask: impl AsyncFnMut() -> crate::harness::Answer) -> Value {
    let asking = async {
        loop {
            let answer = ask().await;
            if answer.code == code {
                return answer.value;
            }
            env::sleep(Duration::from_millis(20)).await;
        }
    };
    env::timeout(PATIENCE, asking).await.unwrap_or_else(|| panic!("never answered {code}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_see_each_others_writes_at_once() {
    let etcd = EtcdServer::start().await;
    let (a, b) = (server(&etcd).await, server(&etcd).await);
    let mut seen = b.watch(&format!("{MAPS}?watch=1&resourceVersion=0&labelSelector=app%3Dx")).await;
    for n in 0..5 {
        let mut map = config_map(&format!("m{n}"));
        map["metadata"]["labels"] = json!({ "app": "x" });
        let made = a.post(MAPS, map).await.expect(201);
        // Not a moment later: a read without a version is as new as every acknowledged write.
        let read = b.get(&format!("{MAPS}/m{n}")).await.expect(200);
        assert_eq!(read, made);
        let (kind, object) = next(&mut seen).await;
        assert_eq!((kind, object), (WatchKind::Added, made));
    }
    let listed = b.get(&format!("{MAPS}?labelSelector=app%3Dx")).await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 5);

    // What was read from one is compared by the other.
    let mut old = a.get(&format!("{MAPS}/m0")).await.expect(200);
    let mut new = old.clone();
    new["data"]["k"] = "b".into();
    b.put(&format!("{MAPS}/m0"), new).await.expect(200);
    old["data"]["k"] = "a".into();
    a.put(&format!("{MAPS}/m0"), old).await.refused(409, "Conflict", "the object has been modified");

    // A list begun at one goes on at the other, at the same moment.
    let path = format!("{MAPS}?labelSelector=app%3Dx&limit=2");
    let first = a.get(&path).await.expect(200);
    b.delete(&format!("{MAPS}/m4"), Value::Null).await.expect(200);
    let mut names = Vec::new();
    let mut page = first.clone();
    loop {
        names.extend(page["items"].as_array().unwrap().iter().map(|o| o["metadata"]["name"].clone()));
        let Some(next) = page["metadata"]["continue"].as_str().map(str::to_string) else { break };
        page = b.get(&format!("{path}&continue={next}")).await.expect(200);
        assert_eq!(page["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    }
    assert_eq!(names, ["m0", "m1", "m2", "m3", "m4"]);

    // A role written at one counts at the other.
    let account = json!({ "metadata": { "name": "reader" } });
    a.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({ "metadata": { "name": "r" }, "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["list"] }] });
    a.post(&format!("{rbac}/roles"), role).await.expect(201);
    let binding = json!({
        "metadata": { "name": "r" }, "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r" },
        "subjects": [{ "kind": "ServiceAccount", "name": "reader", "namespace": "default" }],
    });
    a.post(&format!("{rbac}/rolebindings"), binding).await.expect(201);
    let headers = [("impersonate-user", "system:serviceaccount:default:reader")];
    until(200, async || b.send("GET", "/api/v1/namespaces/default/secrets", &headers, Vec::new()).await).await;
}

/// etcd gives both changes one revision: who goes on from it hears of both again rather than of one never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_lose_no_change_that_shares_its_revision() {
    let etcd = EtcdServer::start().await;
    let (a, b) = (server(&etcd).await, server(&etcd).await);
    a.post("/api/v1/namespaces/default/serviceaccounts", json!({ "metadata": { "name": "default" } })).await;
    two_quotas(&a).await;
    let start = a.get(QUOTAS).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().to_string();
    let mut live = b.watch(&format!("{QUOTAS}?watch=1&resourceVersion={start}")).await;
    a.post("/api/v1/namespaces/default/pods", pod("p")).await.expect(201);
    let both = both_charged(&mut live).await;
    assert_eq!(both[0].2, both[1].2, "etcd's transactions are one revision");
    for server in [&a, &b] {
        let mut resumed = server.watch(&format!("{QUOTAS}?watch=1&resourceVersion={}", both[0].2)).await;
        assert_eq!(both_charged(&mut resumed).await, both);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kubernetes_service_leads_to_every_server_that_lives() {
    let etcd = EtcdServer::start().await;
    let (a, b) = (server_at(&etcd, 1).await, server_at(&etcd, 2).await);
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let leads_to = |slice: &Value| -> Vec<String> {
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        endpoints.filter_map(|e| e["addresses"][0].as_str().map(str::to_string)).collect()
    };
    for server in [&a, &b] {
        server.until(path, |answer| leads_to(&answer.value) == ["192.0.2.1", "192.0.2.2"]).await;
    }
    drop(b);
    a.until(path, |answer| leads_to(&answer.value) == ["192.0.2.1"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_and_allocations_are_shared() {
    let etcd = EtcdServer::start().await;
    let (a, b) = (server(&etcd).await, server(&etcd).await);
    let crd = json!({
        "metadata": { "name": "widgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "plural": "widgets", "kind": "Widget" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "properties": { "spec": { "type": "object", "properties": {
                    "size": { "type": "integer", "default": 3 } } } } } } }],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    a.post(definitions, crd).await.expect(201);
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let widget = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" }, "spec": {} });
    let made = until(201, async || b.post(widgets, widget.clone()).await).await;
    assert_eq!(made["spec"]["size"], 3);
    assert_eq!(until(200, async || a.get(&format!("{widgets}/w")).await).await, made);
    b.delete(&format!("{definitions}/widgets.example.com"), Value::Null).await.expect(200);
    until(404, async || a.get(widgets).await).await;
    until(404, async || b.get(widgets).await).await;

    let service = |n: usize| json!({ "metadata": { "name": format!("s{n}") }, "spec": { "type": "NodePort", "ports": [{ "port": 80 }] } });
    let made = futures::future::join_all((0..12).map(|n| {
        let server = if n % 2 == 0 { &a } else { &b };
        async move { server.post(SERVICES, service(n)).await.expect(201) }
    }))
    .await;
    let distinct =
        |field: fn(&Value) -> &Value| made.iter().map(|s| field(s).to_string()).collect::<HashSet<_>>().len();
    assert_eq!((distinct(|s| &s["spec"]["clusterIP"]), distinct(|s| &s["spec"]["ports"][0]["nodePort"])), (12, 12));
    a.post(SERVICES, service(12)).await.refused(500, "InternalError", "failed to allocate");
    // What one gave back the other hands out at once, though it may not have heard of it yet.
    for n in 0..20 {
        b.delete(&format!("{SERVICES}/s{n}"), Value::Null).await.expect(200);
        a.post(SERVICES, service(n + 12)).await.expect(201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_go_on_over_a_restart_of_etcd() {
    let mut etcd = EtcdServer::start().await;
    let (a, b) = (server(&etcd).await, server(&etcd).await);
    let mut seen = b.watch(&format!("{MAPS}?watch=1&resourceVersion=0&fieldSelector=metadata.name%3Dm")).await;
    let first = a.post(MAPS, config_map("m")).await.expect(201);
    assert_eq!(next(&mut seen).await, (WatchKind::Added, first));
    let mut written = Vec::new();
    for round in 0..3 {
        etcd.kill();
        // Nothing is acknowledged that is not there, and nothing hangs for ever.
        let path = format!("{MAPS}/m");
        let lost = a.patch("merge-patch", &path, json!({ "data": { "k": "lost" } }));
        assert!(env::timeout(PATIENCE, lost).await.expect("an answer").code >= 500);
        let health = a.get("/readyz").await;
        assert_eq!(health.code, 500);
        assert!(String::from_utf8_lossy(&health.bytes).contains("[-]etcd failed: reason withheld\n"));
        assert_eq!(a.get("/livez?exclude=etcd").await.code, 200);
        let slis = a.get("/metrics/slis").await;
        let failed = "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 0\n";
        assert!(String::from_utf8_lossy(&slis.bytes).contains(failed));
        etcd.launch();
        let patch = json!({ "data": { "k": round.to_string() } });
        let server = if round % 2 == 0 { &a } else { &b };
        written.push(until(200, async || server.patch("merge-patch", &format!("{MAPS}/m"), patch.clone()).await).await);
        let read = until(200, async || b.get(&format!("{MAPS}/m")).await).await;
        assert_eq!(read["data"]["k"], round.to_string());
    }
    // What was not acknowledged may have happened all the same, once; what was acknowledged is there, in order.
    for expected in written {
        let mut found = next(&mut seen).await;
        if found.1["data"]["k"] == "lost" {
            found = next(&mut seen).await;
        }
        assert_eq!(found, (WatchKind::Modified, expected));
    }
}
