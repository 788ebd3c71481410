//! Cases of ownership after plain writes.
//! Neighbour of `update`.
//! Every case is data.

use serde_json::{Value, json};

use super::{
    UPDATE_MANAGERS_MAX,
    fixture::{ROOT, at, options, owners, schema, thing},
    from_scale, to_scale, track_update, track_update_with, validate,
};

/// Writes one after the other, `(manager, subresource, object)`; what everybody owns in the end.
fn check(writes: &[(&str, &str, Value)], expected: Value) -> Value {
    let schema = schema();
    let mut live: Option<Value> = None;
    for (second, (manager, subresource, object)) in writes.iter().enumerate() {
        let mut new = object.clone();
        if let (Some(live), None) = (&live, new["metadata"].get("managedFields")) {
            new["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
        }
        track_update(&schema, ROOT, live.as_ref(), &mut new, manager, "test/v1", subresource, at(second as i64));
        live = Some(new);
    }
    let live = live.unwrap();
    let found: serde_json::Map<String, Value> = owners(&live).into_iter().collect();
    assert_eq!(Value::Object(found), expected);
    live
}

#[test]
fn whoever_changes_a_field_owns_it() {
    let one = thing(json!({"replicas": 1}));
    let two = thing(json!({"replicas": 2}));
    check(&[("a", "", one.clone())], json!({"a Update": {"f:spec": {"f:replicas": {}}}}));
    check(&[("a", "", one.clone()), ("b", "", two.clone())], json!({"b Update": {"f:spec": {"f:replicas": {}}}}));
    check(&[("a", "", one.clone()), ("b", "", one.clone())], json!({"a Update": {"f:spec": {"f:replicas": {}}}}));
    check(&[("a", "", one.clone()), ("b", "", thing(json!({})))], json!({}));
    check(&[("", "", one)], json!({"unknown Update": {"f:spec": {"f:replicas": {}}}}));
}

#[test]
fn ownership_looks_as_upstream_writes_it() {
    let mut object = thing(json!({
        "containers": [{"name": "web", "image": "x", "ports": [{"containerPort": 80}], "env": {"A": "1"}}],
        "args": ["a"],
        "selector": {"matchLabels": {"a": "b"}},
        "strategy": {"type": "R", "rolling": {"maxSurge": 1}},
        "free": {"deep": {"er": [1]}},
    }));
    object["metadata"] = json!({"name": "web", "uid": "1", "labels": {"a": "b"}, "finalizers": ["x/y"]});
    object["status"] = json!({"ready": 1});
    check(
        &[("a", "", object)],
        json!({"a Update": {
            "f:metadata": {
                "f:labels": {".": {}, "f:a": {}},
                "f:finalizers": {".": {}, "v:\"x/y\"": {}},
            },
            "f:spec": {
                "f:containers": {
                    "k:{\"name\":\"web\"}": {
                        ".": {}, "f:name": {}, "f:image": {}, "f:env": {".": {}, "f:A": {}},
                        "f:ports": {
                            ".": {},
                            "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}},
                        },
                    },
                },
                "f:args": {},
                "f:selector": {},
                "f:strategy": {"f:type": {}, "f:rolling": {".": {}, "f:maxSurge": {}}},
                "f:free": {".": {}, "f:deep": {".": {}, "f:er": {}}},
            },
        }}),
    );
}

#[test]
fn subresources_have_their_own_entries() {
    let spec = thing(json!({"replicas": 1}));
    let mut status = spec.clone();
    status["status"] = json!({"ready": 1});
    let live = check(
        &[("a", "", spec.clone()), ("c", "status", status.clone())],
        json!({"a Update": {"f:spec": {"f:replicas": {}}}, "c Update/status": {"f:status": {"f:ready": {}}}}),
    );
    assert_eq!(live["metadata"]["managedFields"][1]["subresource"], "status");
    // a spec sent to the status endpoint is not written, so not owned
    status["spec"]["replicas"] = json!(5);
    check(
        &[("a", "", spec), ("c", "status", status)],
        json!({"a Update": {"f:spec": {"f:replicas": {}}}, "c Update/status": {"f:status": {"f:ready": {}}}}),
    );
}

#[test]
fn clients_may_forget_and_cannot_lie() {
    let one = thing(json!({"replicas": 1}));
    let with = |entries: Value| {
        let mut object = thing(json!({"replicas": 2}));
        object["metadata"]["managedFields"] = entries;
        object
    };
    check(&[("a", "", one.clone()), ("b", "", with(json!([])))], json!({}));
    check(&[("a", "", one.clone()), ("b", "", with(json!([{}])))], json!({}));
    // untracked objects stay so
    check(&[("a", "", one.clone()), ("b", "", with(json!([]))), ("c", "", one.clone())], json!({}));
    // unreadable entries: the live ones count
    let wrong = json!([{"manager": "evil", "operation": "Take", "apiVersion": "v1"}]);
    assert!(validate(Some(&wrong)).is_err());
    check(&[("a", "", one.clone()), ("b", "", with(wrong))], json!({"b Update": {"f:spec": {"f:replicas": {}}}}));
    // readable entries are taken
    let entry = json!([{
        "manager": "x", "operation": "Apply", "apiVersion": "test/v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:args": {}}},
    }]);
    check(
        &[("a", "", one), ("b", "", with(entry))],
        json!({"x Apply": {"f:spec": {"f:args": {}}}, "b Update": {"f:spec": {"f:replicas": {}}}}),
    );
}

#[test]
fn unreadable_entries_are_told_in_upstreams_words() {
    let check = |entry: Value, message: &str| assert_eq!(validate(Some(&json!([entry]))).unwrap_err(), message);
    check(json!({}), "operation must be `Apply` or `Update`");
    check(json!({"operation": "Update"}), "apiVersion must not be empty");
    check(json!({"operation": "Update", "apiVersion": "v1"}), "missing fieldsType in managed fields entry 0");
    check(
        json!({"operation": "Update", "apiVersion": "v1", "fieldsType": "X"}),
        "invalid fieldsType \"X\" in managed fields entry 0",
    );
}

#[test]
fn the_oldest_updates_are_merged() {
    let schema = schema();
    let mut live = thing(json!({"free": {}}));
    track_update(&schema, ROOT, None, &mut live, "m0", "test/v1", "", at(0));
    for i in 1..20i64 {
        let mut new = live.clone();
        new["spec"]["free"][format!("k{i}")] = json!(i);
        track_update_with(&schema, ROOT, Some(&live), &mut new, &options(&format!("m{i}"), i));
        live = new;
    }
    let owners = owners(&live);
    assert_eq!(owners.len(), UPDATE_MANAGERS_MAX);
    assert_eq!(owners[0].0, "ancient-changes Update");
    assert_eq!(owners[9].0, "m19 Update");
    assert_eq!(owners[0].1["f:spec"]["f:free"]["f:k10"], json!({}));
}

#[test]
fn a_manager_keeps_its_time_when_nothing_changes() {
    let mut live = thing(json!({"replicas": 1}));
    let schema = schema();
    track_update(&schema, ROOT, None, &mut live, "a", "test/v1", "", at(0));
    let mut new = live.clone();
    track_update(&schema, ROOT, Some(&live), &mut new, "a", "test/v1", "", at(60));
    assert_eq!(new, live);
    assert_eq!(live["metadata"]["managedFields"][0]["time"], "2023-11-14T22:13:20Z");
}

#[test]
fn scale_moves_only_the_replicas() {
    let mut live = thing(json!({"replicas": 1, "args": ["x"]}));
    track_update(&schema(), ROOT, None, &mut live, "a", "test/v1", "", at(0));
    let parent = live["metadata"].get("managedFields");
    let scale = to_scale(parent, "spec.replicas").encode();
    assert_eq!(scale[0]["apiVersion"], "autoscaling/v1");
    assert_eq!(scale[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(&from_scale(parent, Some(&scale), "test/v1", "spec.replicas").encode(), parent.unwrap());
    let taken = json!([{
        "manager": "hpa", "operation": "Update", "apiVersion": "autoscaling/v1", "fieldsType": "FieldsV1",
        "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}},
    }]);
    let after = from_scale(parent, Some(&taken), "test/v1", "spec.replicas").encode();
    let object = json!({"metadata": {"managedFields": after}});
    let found: serde_json::Map<String, Value> = owners(&object).into_iter().collect();
    assert_eq!(
        Value::Object(found),
        json!({"a Update": {"f:spec": {"f:args": {}}}, "hpa Update/scale": {"f:spec": {"f:replicas": {}}}})
    );
}
