//! Table tests of the owner graph.
//! Beside `graph`, which it tests.
//! Each case is a list of objects and the verdict on one of them.

use api::{Meta, kinds};

use super::*;

/// `name`, owners (`!` before one that this blocks), finalizers, deleting.
struct Given(&'static str, &'static [&'static str], &'static [&'static str], bool);

fn meta(given: &Given) -> Meta {
    let owner = |text: &&str| OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: text.trim_start_matches('!').into(),
        uid: text.trim_start_matches('!').into(),
        controller: None,
        block_owner_deletion: Some(text.starts_with('!')),
    };
    Meta {
        name: given.0.into(),
        namespace: Some("d".into()),
        uid: given.0.into(),
        owner_references: given.1.iter().map(owner).collect(),
        finalizers: given.2.iter().map(|f| f.to_string()).collect(),
        deletion_timestamp: given.3.then(|| "2026-01-01T00:00:00Z".to_string()),
        ..Meta::default()
    }
}

fn graph(given: &[Given], gone: &[&str]) -> Graph {
    let mut graph = Graph::default();
    let resource = kinds::find("", "v1", "configmaps").unwrap();
    for object in given {
        graph.put(resource, &meta(object));
    }
    for uid in gone {
        graph.remove(uid);
        graph.not_found(uid);
    }
    graph
}

#[test]
fn verdicts() {
    let check = |given: &[Given], gone: &[&str], about: &str, expected: Verdict| {
        assert_eq!(graph(given, gone).decide(about), expected);
    };
    let uids = |uids: &[&str]| uids.iter().map(|u| u.to_string()).collect::<Vec<_>>();
    let delete = |policy| Verdict::Delete { policy, unblock: false };
    check(&[Given("a", &[], &[], false)], &[], "a", Verdict::Nothing);
    check(&[Given("a", &[], &[], false), Given("b", &["a"], &[], false)], &[], "b", Verdict::Nothing);
    check(&[Given("b", &["a"], &[], false)], &["a"], "b", delete("Background"));
    check(&[Given("b", &["a"], &[ORPHAN], false)], &["a"], "b", delete("Orphan"));
    check(
        &[Given("a", &[], &[], false), Given("b", &["a", "gone"], &[], false)],
        &["gone"],
        "b",
        Verdict::DropOwners(uids(&["gone"])),
    );
    // Foreground: the owner waits for those that block it, and only for those.
    check(
        &[Given("a", &[], &[FOREGROUND], true), Given("b", &["!a"], &[], false), Given("c", &["a"], &[], false)],
        &[],
        "a",
        Verdict::Wake(uids(&["b"])),
    );
    check(&[Given("a", &[], &[FOREGROUND], true), Given("b", &["!a"], &[], false)], &[], "b", delete("Background"));
    check(
        &[Given("a", &[], &[FOREGROUND], true), Given("c", &["a"], &[], false)],
        &[],
        "a",
        Verdict::RemoveFinalizer(FOREGROUND),
    );
    check(
        &[Given("a", &[], &[FOREGROUND], true), Given("b", &["!a"], &[], false), Given("c", &["!b"], &[], false)],
        &[],
        "b",
        delete("Foreground"),
    );
    // A second owner that stays keeps the object.
    check(
        &[
            Given("a", &[], &[FOREGROUND], true),
            Given("other", &[], &[], false),
            Given("b", &["!a", "other"], &[], false),
        ],
        &[],
        "b",
        Verdict::DropOwners(uids(&["a"])),
    );
    check(&[Given("a", &[], &[ORPHAN], true), Given("b", &["a"], &[], false)], &[], "a", Verdict::Orphan(uids(&["b"])));
    // Owners that loop, one of them waiting: the other stops blocking.
    check(
        &[Given("a", &["!b"], &[FOREGROUND], true), Given("b", &["!a"], &[], false)],
        &[],
        "b",
        Verdict::Delete { policy: "Foreground", unblock: true },
    );
    assert!(matches!(graph(&[Given("b", &["a"], &[], false)], &[]).decide("b"), Verdict::Verify { .. }));
}

#[test]
fn who_is_looked_at() {
    let mut graph = graph(&[Given("a", &[], &[], false), Given("b", &["a"], &[], false)], &[]);
    assert_eq!(graph.remove("a"), ["b"]);
    assert_eq!(graph.remove("b"), ["a"]);
    let resource = kinds::find("", "v1", "configmaps").unwrap();
    let object = meta(&Given("c", &["a"], &[], false));
    assert_eq!(graph.put(resource, &object), ["c"]);
    assert!(graph.put(resource, &object).is_empty(), "a change that does not matter here");
}
