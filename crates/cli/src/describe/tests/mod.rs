//! Every description against what kubectl 1.35 prints for the same objects (`objects.json`, `expected.txt`).

use futures::executor::block_on;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::{Context, describe};
use crate::object_reader::MapReader;

/// When kubectl printed what is expected, in UTC.
const PRINTED_AT: &str = "2026-11-18T03:39:06Z";

fn context() -> Context {
    Context { now: PRINTED_AT.parse().unwrap(), zone: TimeZone::UTC }
}

fn cluster() -> MapReader {
    let rows: Vec<(String, Value)> = serde_json::from_str(include_str!("objects.json")).unwrap();
    let objects = rows.into_iter().map(|(plural, object)| (&*Box::leak(plural.into_boxed_str()), object)).collect();
    MapReader { objects, ..MapReader::default() }
}

#[test]
fn descriptions_are_kubectls() {
    let cluster = cluster();
    let mut count = 0;
    for part in include_str!("expected.txt").split("=== ").skip(1) {
        let (head, expected) = part.split_once('\n').unwrap();
        let (kind, name) = head.split_once(' ').unwrap();
        let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
        let object = cluster.objects.iter().map(|(_, object)| object).find(is_it).unwrap();
        let described = block_on(describe(object, &cluster, &context(), true)).unwrap();
        for (ours, theirs) in described.lines().zip(expected.lines()) {
            assert_eq!(ours, theirs, "{head}");
        }
        assert_eq!(described, expected, "{head}");
        count += 1;
    }
    assert!(count > 30, "{count} objects are described");
}

#[test]
fn events_can_be_left_out() {
    let cluster = cluster();
    let (_, pod) = &cluster.objects[0];
    let described = block_on(describe(pod, &cluster, &context(), false)).unwrap();
    assert!(!described.contains("Events:"));
}
