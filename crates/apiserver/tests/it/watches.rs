//! Watches: from when, through which selectors, until when.

use std::time::Duration;

use api::WatchKind;
use futures::StreamExt;
use serde_json::json;

use crate::harness::{config_map, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

type Events = futures::stream::BoxStream<'static, Result<api::WatchEvent, api::ApiError>>;

async fn next(events: &mut Events) -> (WatchKind, String) {
    let event = tokio::time::timeout(Duration::from_secs(5), events.next()).await.expect("an event in time");
    let event = event.expect("no end").map_err(|e| e.message.clone()).unwrap();
    (event.kind, event.object.meta.name.clone())
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
