//! Watches: from when, through which selectors, until when.

use std::time::Duration;

use api::WatchKind;
use futures::StreamExt;
use serde_json::json;

use crate::harness::{Server, config_map, pod, server, server_on};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

type Events = futures::stream::BoxStream<'static, Result<api::WatchEvent, api::ApiError>>;

async fn next(events: &mut Events) -> (WatchKind, String) {
    let event = env::timeout(Duration::from_secs(60), events.next()).await.expect("an event in time");
    let event = event.expect("no end").map_err(|e| e.message.clone()).unwrap();
    (event.kind, event.object.meta.name.clone())
}

/// Also what the ConfigMap holds as `n`.
async fn next_number(events: &mut Events) -> (WatchKind, String, String) {
    let event = env::timeout(Duration::from_secs(60), events.next()).await.expect("an event in time");
    let event = event.expect("no end").map_err(|e| e.message.clone()).unwrap();
    let number = event.object.value()["data"]["n"].as_str().unwrap_or_default().to_string();
    (event.kind, event.object.meta.name.clone(), number)
}

#[tokio::test]
async fn starts_where_asked() {
    let s = server().await;
    let first = s.create_config_map("a").await.expect(201);
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    s.create_config_map("b").await.expect(201);
    let mut all = s.watch(&format!("{MAPS}?watch=1")).await;
    assert_eq!(next(&mut all).await, (WatchKind::Added, "a".into()));
    assert_eq!(next(&mut all).await, (WatchKind::Added, "b".into()));
    let mut since = s.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    assert_eq!(next(&mut since).await, (WatchKind::Added, "b".into()));
    s.delete(&format!("{MAPS}/a"), json!(null)).await.expect(200);
    assert_eq!(next(&mut since).await, (WatchKind::Deleted, "a".into()));
    assert_eq!(next(&mut all).await, (WatchKind::Deleted, "a".into()));
    let mut streaming = s
        .watch(&format!(
            "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        ))
        .await;
    assert_eq!(next(&mut streaming).await, (WatchKind::Added, "b".into()));
    let end = streaming.next().await.unwrap().unwrap();
    assert_eq!(end.kind, WatchKind::Bookmark);
    assert_eq!(end.object.meta.annotations["k8s.io/initial-events-end"], "true");
}

#[tokio::test]
async fn selectors_turn_changes_into_comings_and_goings() {
    let s = server().await;
    let mut events = s.watch(&format!("{MAPS}?watch=1&labelSelector=l%3Dx")).await;
    s.create_config_map("a").await.expect(201);
    let label = |v: serde_json::Value| json!({ "metadata": { "labels": { "l": v } } });
    let path = format!("{MAPS}/a");
    s.patch("merge-patch", &path, label(json!("x"))).await.expect(200);
    assert_eq!(next(&mut events).await, (WatchKind::Added, "a".into()));
    s.patch("merge-patch", &path, json!({ "data": { "n": "1" } })).await.expect(200);
    assert_eq!(next(&mut events).await, (WatchKind::Modified, "a".into()));
    let left = s.patch("merge-patch", &path, label(json!(null))).await.expect(200);
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(event.kind, WatchKind::Deleted);
    assert_eq!(event.object.meta.labels["l"], "x", "shown as it was last seen");
    assert_eq!(event.object.meta.resource_version.to_string(), left["metadata"]["resourceVersion"]);
    // Nothing is heard of it until it is selected again.
    s.patch("merge-patch", &path, json!({ "data": { "n": "2" } })).await.expect(200);
    s.patch("merge-patch", &path, label(json!("x"))).await.expect(200);
    s.patch("merge-patch", &path, json!({ "data": { "n": "3" } })).await.expect(200);
    s.delete(&path, json!(null)).await.expect(200);
    for (kind, n) in [(WatchKind::Added, "2"), (WatchKind::Modified, "3"), (WatchKind::Deleted, "3")] {
        assert_eq!(next_number(&mut events).await, (kind, "a".into(), n.into()));
    }
}

#[tokio::test]
async fn old_versions_are_gone_and_time_runs_out() {
    let s = server().await;
    s.create_config_map("a").await.expect(201);
    let mut ended = s.watch(&format!("{MAPS}?watch=1&timeoutSeconds=1")).await;
    assert_eq!(next(&mut ended).await.1, "a");
    assert!(ended.next().await.is_none());
    for i in 0..9000 {
        s.patch("merge-patch", &format!("{MAPS}/a"), json!({ "data": { "n": i.to_string() } })).await.expect(200);
    }
    let mut old = s.watch(&format!("{MAPS}?watch=1&resourceVersion=2")).await;
    let error = old.next().await.unwrap().unwrap_err();
    assert_eq!((error.code, error.message.contains("too old resource version: 2 (")), (410, true));
}

#[tokio::test]
async fn the_wire_form_is_one_object_per_line() {
    let s = server().await;
    s.create_config_map("a").await.expect(201);
    let answer = s.get(&format!("{MAPS}?watch=1&timeoutSeconds=1")).await;
    let text = String::from_utf8(answer.bytes.to_vec()).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((lines[0]["type"].as_str(), lines[0]["object"]["data"]["k"].as_str()), (Some("ADDED"), Some("v")));
    let one = s.get(&format!("{MAPS}/a?watch=1&timeoutSeconds=1")).await;
    assert!(String::from_utf8_lossy(&one.bytes).contains("\"ADDED\""));
}

#[tokio::test]
async fn every_write_reaches_every_watcher_in_order() {
    let s = server().await;
    let mut watchers = Vec::new();
    for _ in 0..20 {
        watchers.push(s.watch(&format!("{MAPS}?watch=1")).await);
    }
    let writes = (0..100).map(|i| {
        let s = &s;
        async move { s.post(MAPS, config_map(&format!("m{i}"))).await.expect(201) }
    });
    futures::future::join_all(writes).await;
    for watcher in watchers {
        let seen: Vec<u64> = watcher.take(100).map(|e| e.unwrap().object.meta.resource_version).collect().await;
        assert!(seen.windows(2).all(|w| w[0] < w[1]), "{seen:?}");
    }
}

#[tokio::test]
async fn each_watcher_hears_of_what_it_selects() {
    let s = server().await;
    let watch = async |selector: &str| s.watch(&format!("{MAPS}?watch=1&labelSelector={selector}")).await;
    let (mut a, mut b, mut both) = (watch("l%3Da").await, watch("l%3Db").await, watch("l%20in%20(a,b)").await);
    let labeled = |name: &str, label: &str| {
        let mut map = config_map(name);
        map["metadata"]["labels"] = json!({ "l": label });
        map
    };
    let mut map = s.post(MAPS, labeled("first", "a")).await.expect(201);
    for n in ["1", "2"] {
        map["data"]["n"] = n.into();
        map = s.put(&format!("{MAPS}/first"), map).await.expect(200);
    }
    s.delete(&format!("{MAPS}/first"), json!(null)).await.expect(200);
    s.post(MAPS, labeled("second", "b")).await.expect(201);
    s.delete(&format!("{MAPS}/second"), json!(null)).await.expect(200);
    // What comes last shows that nothing else came before it.
    s.post(MAPS, labeled("neither", "c")).await.expect(201);
    s.post(MAPS, labeled("last-a", "a")).await.expect(201);
    s.post(MAPS, labeled("last-b", "b")).await.expect(201);
    use WatchKind::{Added, Deleted, Modified};
    let first = [(Added, "first", ""), (Modified, "first", "1"), (Modified, "first", "2"), (Deleted, "first", "2")];
    let second = [(Added, "second", ""), (Deleted, "second", "")];
    let (last_a, last_b) = ([(Added, "last-a", "")], [(Added, "last-b", "")]);
    for (events, expected) in [
        (&mut a, [&first[..], &last_a].concat()),
        (&mut b, [&second[..], &last_b].concat()),
        (&mut both, [&first[..], &second, &last_a, &last_b].concat()),
    ] {
        for (kind, name, n) in expected {
            assert_eq!(next_number(events).await, (kind, name.into(), n.into()));
        }
    }
}

#[tokio::test]
async fn a_watch_goes_on_where_another_ended() {
    let s = server().await;
    let path = format!("{MAPS}/a");
    let write = async |n: &str| s.patch("merge-patch", &path, json!({ "data": { "n": n } })).await.expect(200);
    let mut ended = s.watch(&format!("{MAPS}?watch=1")).await;
    s.create_config_map("a").await.expect(201);
    write("1").await;
    assert_eq!(next(&mut ended).await, (WatchKind::Added, "a".into()));
    let last = ended.next().await.unwrap().unwrap();
    assert_eq!(last.kind, WatchKind::Modified);
    drop(ended);
    write("2").await;
    // From what the first saw last, and from long after everything is over.
    let version = last.object.meta.resource_version;
    let mut resumed = s.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    s.delete(&path, json!(null)).await.expect(200);
    let mut late = s.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    for events in [&mut resumed, &mut late] {
        assert_eq!(next_number(events).await, (WatchKind::Modified, "a".into(), "2".into()));
        assert_eq!(next_number(events).await, (WatchKind::Deleted, "a".into(), "2".into()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_begun_at_any_moment_see_the_same_order() {
    let s = std::sync::Arc::new(server().await);
    let mut first = s.watch(&format!("{MAPS}?watch=1")).await;
    let writer = s.clone();
    let writing = env::spawn(async move {
        for i in 0..20 {
            let path = format!("{MAPS}/m{i}");
            writer.create_config_map(&format!("m{i}")).await.expect(201);
            writer.patch("merge-patch", &path, json!({ "data": { "n": "1" } })).await.expect(200);
            writer.delete(&path, json!(null)).await.expect(200);
        }
    });
    let (mut order, mut others) = (Vec::new(), Vec::new());
    while order.len() < 60 {
        let event = first.next().await.unwrap().unwrap();
        let version = event.object.meta.resource_version;
        order.push((event.kind, version));
        others.push(s.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await);
    }
    writing.await.unwrap();
    for (i, watch) in others.into_iter().enumerate() {
        let rest = &order[i + 1..];
        let seen: Vec<_> = watch
            .take(rest.len())
            .map(|event| event.unwrap())
            .map(|event| (event.kind, event.object.meta.resource_version))
            .collect()
            .await;
        assert_eq!(seen, rest);
    }
}

/// A namespace with two quotas that count pods.
pub async fn two_quotas(s: &Server) {
    for name in ["one", "two"] {
        let hard = json!({ "hard": { "pods": "10" } });
        let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": name }, "spec": hard });
        let mut quota = s.post(QUOTAS, quota).await.expect(201);
        quota["status"] = json!({ "hard": { "pods": "10" }, "used": { "pods": "0" } });
        s.put(&format!("{QUOTAS}/{name}/status"), quota).await.expect(200);
    }
}

/// The next changes of both quotas: name, use and resource version, in the order of the names.
pub async fn both_charged(events: &mut Events) -> Vec<(String, String, u64)> {
    let mut both = Vec::new();
    while both.len() < 2 {
        let event = env::timeout(Duration::from_secs(60), events.next()).await.expect("an event in time");
        let object = event.expect("no end").map_err(|e| e.message.clone()).unwrap().object;
        let used = object.value()["status"]["used"]["pods"].as_str().unwrap_or_default().to_string();
        both.push((object.meta.name.clone(), used, object.meta.resource_version));
    }
    both.sort();
    both
}

pub const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

#[tokio::test]
async fn watches_show_every_change_of_one_transaction() {
    let s = server().await;
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({ "metadata": { "name": "default" } })).await;
    two_quotas(&s).await;
    let listed = s.get(QUOTAS).await.expect(200);
    let start = listed["metadata"]["resourceVersion"].as_str().unwrap().to_string();
    let mut events = s.watch(&format!("{QUOTAS}?watch=1&resourceVersion={start}")).await;
    s.post("/api/v1/namespaces/default/pods", pod("p")).await.expect(201);
    let both = both_charged(&mut events).await;
    let uses: Vec<_> = both.iter().map(|(name, used, _)| (name.as_str(), used.as_str())).collect();
    assert_eq!(uses, [("one", "1"), ("two", "1")]);
    // A client that was cut off after the first of them goes on from there and hears of the second.
    let mut changes = both.clone();
    changes.sort_by_key(|(_, _, version)| *version);
    let mut resumed = s.watch(&format!("{QUOTAS}?watch=1&resourceVersion={}", changes[0].2)).await;
    assert_eq!(next(&mut resumed).await, (WatchKind::Modified, changes[1].0.clone()));
    let mut again = s.watch(&format!("{QUOTAS}?watch=1&resourceVersion={start}")).await;
    assert_eq!(both_charged(&mut again).await, both);
    // What was answered is what a watch shows, also for an object that was not alone in its transaction.
    let mut services = s.watch("/api/v1/services?watch=1").await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" }, "spec": { "ports": [{ "port": 80 }] },
    });
    let made = s.post("/api/v1/namespaces/default/services", service).await.expect(201);
    loop {
        let event = env::timeout(Duration::from_secs(60), services.next()).await.unwrap().unwrap().unwrap();
        if event.object.meta.name == "s" {
            assert_eq!(event.object.meta.resource_version.to_string(), made["metadata"]["resourceVersion"]);
            break;
        }
    }
    let read = s.get("/api/v1/namespaces/default/services/s").await.expect(200);
    assert_eq!(read["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn watches_show_both_addresses_of_a_dual_stack_service() {
    let env = env::Env::real();
    let store = std::sync::Arc::new(store::MemoryStore::new(env.clone()));
    let ranges = ["10.7.0.0/24", "fd00:7::/112"].map(|range| range.parse().unwrap());
    let s = server_on(store, env, |config| config.service_cidrs = ranges.to_vec()).await;
    let addresses = "/apis/networking.k8s.io/v1/ipaddresses";
    let start = s.get(addresses).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().to_string();
    let mut events = s.watch(&format!("{addresses}?watch=1&resourceVersion={start}")).await;
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
        "spec": { "ipFamilyPolicy": "RequireDualStack", "ports": [{ "port": 80 }] },
    });
    let made = s.post("/api/v1/namespaces/default/services", service).await.expect(201);
    let mut held: Vec<_> =
        made["spec"]["clusterIPs"].as_array().unwrap().iter().map(|ip| ip.as_str().unwrap()).collect();
    held.sort_unstable();
    let mut told = vec![next(&mut events).await, next(&mut events).await];
    told.sort_by(|a, b| a.1.cmp(&b.1));
    assert_eq!(told, held.iter().map(|ip| (WatchKind::Added, ip.to_string())).collect::<Vec<_>>());
}
