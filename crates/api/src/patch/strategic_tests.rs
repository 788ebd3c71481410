//! Cases of `strategic`, against a small schema.
//! Neighbour of `strategic`.
//! Every case is data.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::{Field, ListType, Struct};

fn list(name: &str, element: Node, merge: bool, key: Option<&str>) -> Field {
    Field {
        name: name.into(),
        node: Node::List(Box::new(element), ListType::Atomic),
        patch_merge: merge,
        patch_merge_key: key.map(Into::into),
        ..Field::default()
    }
}

/// `Pod { args, containers by name { env by name, args }, finalizers merged, labels, strategy, volumes by name }`
fn schema() -> Schema {
    let plain = |name: &str, node: Node| Field { name: name.into(), node, ..Field::default() };
    let pod = Struct {
        name: "Pod".into(),
        fields: vec![
            list("args", Node::String, false, None),
            list("containers", Node::Struct(TypeId(1)), true, Some("name")),
            list("finalizers", Node::String, true, None),
            plain("labels", Node::Map(Box::new(Node::String), false)),
            list("loose", Node::Struct(TypeId(1)), true, None),
            plain("strategy", Node::Any),
            list("volumes", Node::Struct(TypeId(2)), true, Some("name")),
        ],
        ..Struct::default()
    };
    let container = Struct {
        name: "Container".into(),
        fields: vec![list("args", Node::String, false, None), list("env", Node::Any, true, Some("name"))],
        ..Struct::default()
    };
    let volume = Struct { name: "Volume".into(), ..Struct::default() };
    Schema { types: vec![pod, container, volume], ..Schema::default() }
}

#[test]
fn patches_merge() {
    let schema = schema();
    let check = |doc: Value, patch: Value, result: Value| {
        let found = strategic(&schema, TypeId(0), &doc, &patch);
        assert_eq!(found.map_err(|e| e.to_string()), Ok(result), "{doc} + {patch}");
    };
    // maps and scalars
    check(json!({"labels": {"a": "1"}}), json!({"labels": {"b": "2"}}), json!({"labels": {"a": "1", "b": "2"}}));
    check(json!({"labels": {"a": "1"}}), json!({"labels": {"a": null}}), json!({"labels": {}}));
    check(json!({"labels": {"a": "1"}}), json!({"labels": null}), json!({}));
    check(json!({}), json!({"labels": {"a": null, "b": "2"}}), json!({"labels": {"b": "2"}}));
    check(
        json!({"labels": {"a": "1"}}),
        json!({"labels": {"$patch": "replace", "b": "2"}}),
        json!({"labels": {"b": "2"}}),
    );
    check(json!({"labels": {"a": "1"}}), json!({"labels": {"$patch": "delete"}}), json!({"labels": {}}));
    check(json!({}), json!({"labels": {"$patch": "delete"}}), json!({}));
    // lists without a strategy are replaced
    check(json!({"args": ["a", "b"]}), json!({"args": ["c"]}), json!({"args": ["c"]}));
    check(json!({"args": ["a"]}), json!({"args": null}), json!({}));
    // primitive lists
    check(json!({"finalizers": ["a"]}), json!({"finalizers": ["b"]}), json!({"finalizers": ["b", "a"]}));
    check(json!({"finalizers": ["a", "b"]}), json!({"finalizers": ["b"]}), json!({"finalizers": ["a", "b"]}));
    check(
        json!({"finalizers": ["a", "b", "c"]}),
        json!({"$deleteFromPrimitiveList/finalizers": ["b"]}),
        json!({"finalizers": ["a", "c"]}),
    );
    check(
        json!({"finalizers": ["a", "b"]}),
        json!({"$setElementOrder/finalizers": ["b", "a"]}),
        json!({"finalizers": ["b", "a"]}),
    );
    check(
        json!({"finalizers": ["a", "b"]}),
        json!({"$setElementOrder/finalizers": ["c", "a"], "$deleteFromPrimitiveList/finalizers": ["b"], "finalizers": ["c"]}),
        json!({"finalizers": ["c", "a"]}),
    );
    // lists by key
    check(
        json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
        json!({"containers": [{"name": "a", "image": "2"}]}),
        json!({"containers": [{"name": "a", "image": "2"}, {"name": "b"}]}),
    );
    check(
        json!({"containers": [{"name": "a"}]}),
        json!({"containers": [{"name": "b", "args": null, "env": [{"name": "E", "$patch": "delete"}]}]}),
        json!({"containers": [{"name": "b", "env": []}, {"name": "a"}]}),
    );
    check(
        json!({"containers": [{"name": "a"}, {"name": "b"}]}),
        json!({"containers": [{"name": "a", "$patch": "delete"}]}),
        json!({"containers": [{"name": "b"}]}),
    );
    check(
        json!({"containers": [{"name": "a"}]}),
        json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
        json!({"containers": [{"name": "c"}]}),
    );
    check(
        json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}),
        json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}),
        json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]}]}),
    );
    // kubectl apply: order, deletion and change at once
    check(
        json!({"containers": [{"name": "a"}, {"name": "sidecar"}, {"name": "b"}, {"name": "c"}]}),
        json!({
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}, {"name": "new"}],
            "containers": [{"name": "a", "image": "2"}, {"name": "new"}, {"name": "b", "$patch": "delete"}],
        }),
        json!({"containers": [{"name": "sidecar"}, {"name": "c"}, {"name": "a", "image": "2"}, {"name": "new"}]}),
    );
    check(
        json!({}),
        json!({"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "a"}]}),
        json!({"containers": [{"name": "a"}]}),
    );
    check(json!({}), json!({"$setElementOrder/containers": [{"name": "a"}]}), json!({}));
    // retainKeys, as kubectl sends it for volumes and strategies
    check(
        json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}),
        json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
        json!({"strategy": {"type": "Recreate"}}),
    );
    check(
        json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
        json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}, "emptyDir": null}]}),
        json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
    );
    check(json!({"labels": "odd"}), json!({"labels": {"a": "1"}}), json!({"labels": {"a": "1"}}));
}

#[test]
fn wrong_patches_are_refused() {
    let schema = schema();
    let check = |patch: Value, code: u16, message: &str| {
        let doc = json!({"containers": [{"name": "a"}], "finalizers": ["a"], "loose": [{"x": 1}]});
        let error = strategic(&schema, TypeId(0), &doc, &patch).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (code, message), "{patch}");
    };
    check(json!([]), 400, "json: cannot unmarshal []interface {} into Go value of type map[string]interface {}");
    check(
        json!({"labels": {"$patch": "x"}, "$patch": "x"}),
        500,
        "unknown patch type: x in map: map[$patch:x labels:map[$patch:x]]",
    );
    check(json!({"$retainKeys": "x"}), 400, BAD_RETAIN_KEYS);
    check(json!({"$retainKeys": ["labels"], "finalizers": ["b"]}), 400, BAD_RETAIN_KEYS);
    check(json!({"$setElementOrder": []}), 400, BAD_SET_ORDER);
    check(json!({"$deleteFromPrimitiveList": []}), 400, BAD_PRIMITIVE_LIST);
    check(json!({"containers": [{"image": "x"}]}), 500, "map: map[image:x] does not contain declared merge key: name");
    check(json!({"loose": [{"x": 2}]}), 500, "cannot merge lists without merge key for Container");
    check(
        json!({"$setElementOrder/finalizers": ["a", "b"], "finalizers": ["c"]}),
        500,
        "The order in patch list:\n[c]\n doesn't match $setElementOrder list:\n[a b]\n",
    );
    check(json!({"finalizers": ["a", 1]}), 500, "list element types are not identical: [[a] [a 1]]");
    check(
        json!({"containers": [{"name": "a", "$patch": "merge"}]}),
        500,
        "merging lists cannot yet be specified in the patch",
    );
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        Just(json!("a")),
        Just(json!("replace")),
        Just(json!("delete")),
        any::<i8>().prop_map(Value::from)
    ];
    let key = "(containers|name|env|args|finalizers|labels|\\$patch|\\$retainKeys|\\$setElementOrder/containers|\\$deleteFromPrimitiveList/finalizers|\\$setElementOrder/finalizers)";
    leaf.prop_recursive(4, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn never_panics(doc in values(), patch in values()) {
        let _ = strategic(&schema(), TypeId(0), &doc, &patch);
    }
}
