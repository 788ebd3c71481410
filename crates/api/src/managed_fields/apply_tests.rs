//! Cases of server-side apply.
//! Neighbour of `apply`.
//! Every case is data.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    Options, apply,
    fixture::{ROOT, options, owners, schema, thing},
    last_applied, track_update_with,
};

/// One write: who, how, and the spec that is applied or that replaces the object's.
enum Step {
    Apply(&'static str, Value),
    Force(&'static str, Value),
    Update(&'static str, Value),
}
use Step::{Apply, Force, Update};

fn run(steps: Vec<Step>) -> Result<Value, String> {
    let schema = schema();
    let mut live: Option<Value> = None;
    for (second, step) in steps.into_iter().enumerate() {
        let second = second as i64;
        live = Some(
            match step {
                Apply(manager, spec) => apply(&schema, ROOT, live.as_ref(), &thing(spec), options(manager, second)),
                Force(manager, spec) => {
                    let options = Options { force: true, ..options(manager, second) };
                    apply(&schema, ROOT, live.as_ref(), &thing(spec), options)
                }
                Update(manager, spec) => {
                    let mut new = live.clone().unwrap_or_else(|| thing(json!({})));
                    new["spec"] = spec;
                    track_update_with(&schema, ROOT, live.as_ref(), &mut new, &options(manager, second));
                    Ok(new)
                }
            }
            .map_err(|e| e.message.clone())?,
        );
    }
    Ok(live.unwrap())
}

/// The spec and the owners after the steps.
fn check(steps: Vec<Step>, spec: Value, expected: Value) {
    let object = run(steps).unwrap();
    assert_eq!(object.get("spec").cloned().unwrap_or(json!({})), spec);
    let found: serde_json::Map<String, Value> = owners(&object).into_iter().collect();
    assert_eq!(Value::Object(found), expected);
}

fn check_conflict(steps: Vec<Step>, message: &str) {
    assert_eq!(run(steps).unwrap_err(), message);
}

#[test]
fn an_applier_owns_what_it_says() {
    check(
        vec![Apply("a", json!({"replicas": 1, "containers": [{"name": "c", "image": "x"}], "strategy": {}}))],
        json!({"replicas": 1, "containers": [{"name": "c", "image": "x"}], "strategy": {}}),
        json!({"a Apply": {"f:spec": {
            "f:replicas": {},
            "f:strategy": {},
            "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}}},
        }}}),
    );
    check(
        vec![Apply("a", json!({"replicas": 1})), Apply("a", json!({"replicas": 2}))],
        json!({"replicas": 2}),
        json!({"a Apply": {"f:spec": {"f:replicas": {}}}}),
    );
}

#[test]
fn what_is_no_longer_said_goes() {
    check(
        vec![Apply("a", json!({"replicas": 1, "args": ["x"]})), Apply("a", json!({"args": ["x"]}))],
        json!({"args": ["x"]}),
        json!({"a Apply": {"f:spec": {"f:args": {}}}}),
    );
    // the last part of a struct takes the struct with it
    check(
        vec![Apply("a", json!({"strategy": {"type": "R"}})), Apply("a", json!({}))],
        json!({}),
        json!({"a Apply": {"f:spec": {}}}),
    );
    // an element goes with the parts that nobody owns
    check(
        vec![
            Apply("a", json!({"containers": [{"name": "c"}, {"name": "d", "image": "x"}]})),
            Apply("a", json!({"containers": [{"name": "c"}]})),
        ],
        json!({"containers": [{"name": "c"}]}),
        json!({"a Apply": {"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}}}}}}),
    );
    // what an updater owns stays
    check(
        vec![
            Apply("a", json!({"free": {"x": 1}})),
            Update("b", json!({"free": {"x": 1, "y": 2}})),
            Apply("a", json!({})),
        ],
        json!({"free": {"y": 2}}),
        json!({"a Apply": {"f:spec": {}}, "b Update": {"f:spec": {"f:free": {"f:y": {}}}}}),
    );
    // what another applier owns too stays
    check(
        vec![
            Apply("a", json!({"replicas": 1, "args": ["x"]})),
            Apply("b", json!({"replicas": 1})),
            Apply("a", json!({"args": ["x"]})),
        ],
        json!({"replicas": 1, "args": ["x"]}),
        json!({"a Apply": {"f:spec": {"f:args": {}}}, "b Apply": {"f:spec": {"f:replicas": {}}}}),
    );
}

#[test]
fn agreeing_appliers_share() {
    check(
        vec![Apply("a", json!({"replicas": 1})), Apply("b", json!({"replicas": 1}))],
        json!({"replicas": 1}),
        json!({"a Apply": {"f:spec": {"f:replicas": {}}}, "b Apply": {"f:spec": {"f:replicas": {}}}}),
    );
    check(
        vec![
            Apply("a", json!({"containers": [{"name": "c", "image": "x"}]})),
            Apply("b", json!({"containers": [{"name": "c", "env": {"A": "1"}}, {"name": "d"}]})),
        ],
        json!({"containers": [{"name": "c", "image": "x", "env": {"A": "1"}}, {"name": "d"}]}),
        json!({
            "a Apply": {"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}}}}},
            "b Apply": {"f:spec": {"f:containers": {
                "k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:env": {"f:A": {}}},
                "k:{\"name\":\"d\"}": {".": {}, "f:name": {}},
            }}},
        }),
    );
}

#[test]
fn conflicts_name_the_owner() {
    check_conflict(
        vec![Update("kubectl-client-side-apply", json!({"replicas": 1})), Apply("b", json!({"replicas": 2}))],
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using test/v1: .spec.replicas",
    );
    check_conflict(
        vec![
            Apply("a", json!({"replicas": 1, "containers": [{"name": "c", "image": "x"}]})),
            Apply("b", json!({"replicas": 2, "containers": [{"name": "c", "image": "y"}]})),
        ],
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .spec.replicas\n- .spec.containers[name=\"c\"].image",
    );
    check_conflict(
        vec![Apply("a", json!({"args": ["x"]})), Apply("b", json!({"args": ["y"]}))],
        "Apply failed with 1 conflict: conflict with \"a\": .spec.args",
    );
    let schema = schema();
    let live = run(vec![Apply("a", json!({"replicas": 1}))]).unwrap();
    let error = apply(&schema, ROOT, Some(&live), &thing(json!({"replicas": 2})), options("b", 1)).unwrap_err();
    assert_eq!(error.code, 409);
    assert_eq!(
        error.details.as_ref().unwrap()["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"a\"", "field": ".spec.replicas"}])
    );
}

#[test]
fn force_takes_over() {
    check(
        vec![Apply("a", json!({"replicas": 1, "args": ["x"]})), Force("b", json!({"replicas": 2}))],
        json!({"replicas": 2, "args": ["x"]}),
        json!({"a Apply": {"f:spec": {"f:args": {}}}, "b Apply": {"f:spec": {"f:replicas": {}}}}),
    );
    // an update takes without asking, and the applier meets it next time
    check_conflict(
        vec![
            Apply("a", json!({"replicas": 1})),
            Update("b", json!({"replicas": 2})),
            Apply("a", json!({"replicas": 1})),
        ],
        "Apply failed with 1 conflict: conflict with \"b\" using test/v1: .spec.replicas",
    );
}

#[test]
fn lists_keep_the_order_of_the_configuration() {
    let named = |names: &[&str]| json!({"containers": names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>()});
    let check = |first: &[&str], second: &[&str], result: &[&str]| {
        let object = run(vec![Apply("a", named(first)), Force("b", named(second))]).unwrap();
        assert_eq!(object["spec"], named(result), "{first:?} + {second:?}");
    };
    check(&["a", "b"], &["c"], &["a", "b", "c"]);
    check(&["a", "b"], &["b", "a"], &["b", "a"]);
    check(&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]);
    check(&["a", "b", "c"], &["a", "x", "c"], &["a", "b", "x", "c"]);
    check(&[], &["a"], &["a"]);
}

#[test]
fn an_apply_that_changes_nothing_writes_nothing() {
    let schema = schema();
    let config = thing(json!({"replicas": 1, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}));
    let first = apply(&schema, ROOT, None, &config, options("a", 0)).unwrap();
    assert_eq!(apply(&schema, ROOT, Some(&first), &config, options("a", 60)).unwrap(), first);
    let shared = apply(&schema, ROOT, Some(&first), &config, options("b", 60)).unwrap();
    assert_eq!(shared["metadata"]["managedFields"].as_array().unwrap().len(), 2);
}

#[test]
fn untracked_objects_are_owned_by_before_first_apply() {
    let schema = schema();
    let mut live = thing(json!({"replicas": 1, "args": ["x"]}));
    live["metadata"]["uid"] = json!("1");
    let object = apply(&schema, ROOT, Some(&live), &thing(json!({"replicas": 1})), options("a", 0)).unwrap();
    let found: Vec<String> = owners(&object).into_iter().map(|(who, _)| who).collect();
    assert_eq!(found, ["a Apply", "before-first-apply Update"]);
    let error = apply(&schema, ROOT, Some(&live), &thing(json!({"replicas": 2})), options("a", 0)).unwrap_err();
    assert_eq!(
        error.message,
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using test/v1: .spec.replicas"
    );
}

#[test]
fn kubectl_takes_over_from_its_client_side_self() {
    let schema = schema();
    let applied = thing(json!({"replicas": 1}));
    let mut live = applied.clone();
    live["metadata"]["annotations"] = json!({last_applied::ANNOTATION: applied.to_string()});
    track_update_with(&schema, ROOT, None, &mut live, &options("kubectl-client-side-apply", 0));
    let config = thing(json!({"replicas": 2}));
    let after = apply(&schema, ROOT, Some(&live), &config, options("kubectl", 1)).unwrap();
    assert_eq!(after["spec"]["replicas"], 2);
    assert_eq!(after["metadata"]["annotations"][last_applied::ANNOTATION], format!("{config}\n"));
    // someone changed it since: no longer ours to take
    let mut changed = live.clone();
    changed["spec"]["replicas"] = json!(7);
    track_update_with(&schema, ROOT, Some(&live), &mut changed, &options("hpa", 1));
    assert!(apply(&schema, ROOT, Some(&changed), &config, options("kubectl", 2)).is_err());
    assert!(apply(&schema, ROOT, Some(&live), &config, options("other", 1)).is_err());
}

/// A public definition has fields of OpenAPI's version 2 in there, and upstream takes it.
#[test]
fn what_may_be_a_schema_or_something_else_is_left_open() {
    let schema = crate::schema::builtin();
    let id = schema.find_kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition").unwrap();
    let definition = |field: &str| {
        let open = json!({ "type": "object", field: { "type": "string", "allowEmptyValue": true } });
        json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": "a.b" },
            "spec": { "group": "b", "scope": "Cluster", "names": { "plural": "a", "kind": "A" }, "versions": [
                { "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": open } },
            ] } })
    };
    let check =
        |field: &str| super::typed::Typed { schema }.validate(&crate::schema::Node::Struct(id), &definition(field));
    assert_eq!(check("additionalProperties"), Ok(()));
    assert!(check("not").is_err_and(|why| why.contains("not.allowEmptyValue: field not declared in schema")));
}

#[test]
fn wrong_configurations_are_refused() {
    let check = |config: Value, code: u16, message: &str| {
        let error = apply(&schema(), ROOT, None, &config, options("a", 0)).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (code, message));
    };
    let prefix = "failed to create typed patch object (/web; test/v1, Kind=Thing):";
    check(json!([]), 400, "error decoding YAML: the object to apply must be a map");
    check(json!({"apiVersion": "v2", "kind": "Thing"}), 400, "invalid object type: /v2, Kind=Thing");
    let mut managed = thing(json!({}));
    managed["metadata"]["managedFields"] = json!([]);
    check(managed, 400, "metadata.managedFields must be nil");
    check(thing(json!({"nope": 1})), 500, &format!("{prefix} .spec.nope: field not declared in schema"));
    check(
        thing(json!({"replicas": "x"})),
        500,
        &format!("{prefix} .spec.replicas: expected numeric (int or float), got string"),
    );
    check(
        thing(json!({"containers": [{"name": "a"}, {"name": "a"}]})),
        500,
        &format!("{prefix} .spec.containers: duplicate entries for key [name=\"a\"]"),
    );
    check(
        thing(json!({"owners": [{"name": "a"}]})),
        500,
        &format!(
            "{prefix} .spec.owners: element 0: associative list with keys has an element that omits all key fields \
             [\"uid\"] (and doesn't have default values for any key fields)"
        ),
    );
}

#[test]
fn a_key_that_go_always_prints_has_its_zero_where_it_is_left_out() {
    let object =
        apply(&schema(), ROOT, None, &thing(json!({"containers": [{"image": "a"}]})), options("a", 0)).unwrap();
    let owned = json!({"f:spec": {"f:containers": {"k:{\"name\":\"\"}": {".": {}, "f:image": {}}}}});
    assert_eq!(owners(&object), [("a Apply".to_string(), owned)]);
}

#[test]
fn status_is_owned_only_through_its_endpoint() {
    let schema = schema();
    let mut config = thing(json!({"replicas": 1}));
    config["status"] = json!({"ready": 1});
    let mut object = apply(&schema, ROOT, None, &config, options("a", 0)).unwrap();
    assert_eq!(owners(&object), [("a Apply".to_string(), json!({"f:spec": {"f:replicas": {}}}))]);
    object["status"] = json!({});
    let status = Options { subresource: "status", ..options("c", 1) };
    let object = apply(&schema, ROOT, Some(&object), &config, status).unwrap();
    assert_eq!(owners(&object)[1], ("c Apply/status".to_string(), json!({"f:status": {"f:ready": {}}})));
}

#[test]
fn a_null_where_there_is_nothing_is_noted_with_its_time() {
    let schema = schema();
    let live = apply(&schema, ROOT, None, &thing(json!({"replicas": 1})), options("a", 0)).unwrap();
    for (spec, noted) in [(json!({"replicas": 1}), false), (json!({"replicas": 1, "free": null}), true)] {
        let object = apply(&schema, ROOT, Some(&live), &thing(spec), options("b", 1)).unwrap();
        let entries = object["metadata"]["managedFields"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["manager"] == "b").unwrap();
        assert_eq!(entry.get("time").is_some(), noted);
    }
}

fn specs() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        Just(json!("a")),
        Just(json!(1)),
        Just(json!(true)),
        Just(json!({})),
        Just(json!([]))
    ];
    let key = "(replicas|containers|name|image|ports|containerPort|protocol|args|free|strategy|env|metadata|managedFields|spec)";
    leaf.prop_recursive(5, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..5).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Specs that fit the schema.
fn fitting() -> impl Strategy<Value = Value> {
    let container = ("[ab]", prop::option::of("[xy]"), prop::option::of(1..3)).prop_map(|(name, image, port)| {
        let mut c = json!({"name": name});
        if let Some(image) = image {
            c["image"] = json!(image);
        }
        if let Some(port) = port {
            c["ports"] = json!([{"containerPort": port}]);
        }
        c
    });
    let containers = prop::collection::vec(container, 0..3).prop_map(|mut list| {
        list.sort_by_key(|c| c["name"].to_string());
        list.dedup_by_key(|c| c["name"].to_string());
        list
    });
    (prop::option::of(0..3), containers, prop::option::of("[xy]")).prop_map(|(replicas, containers, free)| {
        let mut spec = json!({});
        if let Some(replicas) = replicas {
            spec["replicas"] = json!(replicas);
        }
        if !containers.is_empty() {
            spec["containers"] = json!(containers);
        }
        if let Some(free) = free {
            spec["free"] = json!({free: {"deep": 1}});
        }
        spec
    })
}

proptest! {
    #[test]
    fn never_panics(a in specs(), b in specs()) {
        let schema = schema();
        let mut live = thing(a.clone());
        track_update_with(&schema, ROOT, None, &mut live, &options("a", 0));
        let force = Options { force: true, ..options("b", 1) };
        let _ = apply(&schema, ROOT, Some(&live), &thing(b.clone()), force);
        let _ = apply(&schema, ROOT, Some(&thing(a.clone())), &thing(b.clone()), force);
        let _ = apply(&schema, ROOT, Some(&a), &b, force);
        let mut new = b;
        track_update_with(&schema, ROOT, Some(&a), &mut new, &options("a", 2));
    }

    #[test]
    fn the_last_of_a_lone_applier_is_what_is(first in fitting(), second in fitting()) {
        let object = run(vec![Apply("a", first), Apply("a", second.clone())]).unwrap();
        prop_assert_eq!(object.get("spec").cloned().unwrap_or(json!({})), second);
    }

    #[test]
    fn force_always_gives_what_was_asked(first in fitting(), second in fitting()) {
        let after = run(vec![Apply("a", first), Force("b", second.clone())]).unwrap();
        let again = apply(&schema(), ROOT, Some(&after), &thing(second), options("b", 9)).unwrap();
        prop_assert_eq!(again, after);
    }
}
