//! The journey of a pod, from what a cluster records.

use futures::executor::block_on;
use jiff::tz::TimeZone;
use serde_json::json;

use super::{timeline, to_json, to_text};
use crate::object_reader::MapReader;

#[test]
fn a_pods_stations_come_in_order() {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": "shop", "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [
            { "manager": "kubectl-run", "operation": "Update", "time": "2026-01-01T00:00:00Z" },
            { "manager": "unknown", "operation": "Update", "subresource": "binding", "time": "2026-01-01T00:00:00Z" },
            { "manager": "kubelet", "operation": "Update", "subresource": "status", "time": "2026-01-01T00:00:13Z" }] },
        "spec": { "nodeName": "n1" },
        "status": { "startTime": "2026-01-01T00:00:01Z", "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:13Z" },
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
          "containerStatuses": [{ "name": "app", "restartCount": 0, "state": { "running": { "startedAt": "2026-01-01T00:00:12Z" } } }] } });
    let pulled = json!({ "reason": "Pulled", "message": "Successfully pulled image", "count": 1, "source": { "component": "kubelet" },
        "lastTimestamp": "2026-01-01T00:00:11Z", "metadata": { "namespace": "shop" },
        "involvedObject": { "name": "web", "namespace": "shop", "uid": "u" } });
    let reader = MapReader { objects: vec![("events", pulled)], ..MapReader::default() };
    let stations = block_on(timeline(&pod, &reader));
    let expected = "\
pod/web in namespace shop, 2026-01-01 UTC
  ●  00:00:00  +0s   created                by kubectl-run
  ●  00:00:00  +0s   scheduled
  ●  00:00:00  +0s   binding last written
  ●  00:00:01  +1s   seen by its kubelet    node n1
  │  10s later
  ●  00:00:11  +11s  Pulled                 kubelet: Successfully pulled image
  ●  00:00:12  +12s  container app started
  ●  00:00:13  +13s  ready
  ●  00:00:13  +13s  status last written    by kubelet
";
    assert_eq!(squeezed(&to_text(&pod, &stations, &TimeZone::UTC)), squeezed(expected));
    let json = to_json(&pod, &stations);
    assert_eq!(json["stations"][1]["what"], "scheduled");
    assert_eq!(json["stations"][1]["source"], "condition");
    assert_eq!(json["object"]["name"], "web");
}

/// Alignment is the writer's business.
fn squeezed(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn deletion_is_dated_from_when_it_was_asked_for() {
    let pod = json!({ "kind": "Pod", "metadata": { "name": "web", "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30 } });
    let stations = block_on(timeline(&pod, &MapReader::default()));
    let last = stations.last().unwrap();
    assert_eq!((last.what.as_str(), last.detail.as_str()), ("deletion asked for", "grace period of 30s"));
    assert_eq!(last.time.to_string(), "2026-01-01T00:00:30Z");
}

#[test]
fn the_first_write_is_the_creation_on_a_slow_server_too() {
    let check = |written: &str, expected: &[&str]| {
        let pod = json!({ "kind": "Pod", "metadata": { "name": "web", "creationTimestamp": "2026-01-01T00:00:01Z",
            "managedFields": [{ "manager": "kubectl-run", "operation": "Update", "time": written }] } });
        let stations = block_on(timeline(&pod, &MapReader::default()));
        assert_eq!(stations.iter().map(|station| station.what.as_str()).collect::<Vec<_>>(), expected, "{written}");
    };
    check("2026-01-01T00:00:00Z", &["created"]);
    check("2026-01-01T00:00:01Z", &["created"]);
    check("2026-01-01T00:00:02Z", &["created", "last changed"]);
}
