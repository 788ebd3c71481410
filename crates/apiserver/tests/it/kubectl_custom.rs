//! What kubectl makes of the schemas of custom resources: it refuses, accepts and explains by them.
//! The schemas as such are in `published`.

use serde_json::{Value, json};

use crate::{
    harness::{any_object, definition},
    kubectl::{Kubectl, with_every_kubectl},
    published::{foo, waldo},
};

/// Defines a resource and waits until it is served.
fn define(kubectl: &Kubectl, group: &str, kind: &str, schema: &Value) {
    let crd = definition(group, kind, "Namespaced", &["v1"], schema);
    kubectl.ok("create -f -", &crd.to_string(), "created");
    let name = crd["metadata"]["name"].as_str().unwrap();
    kubectl.ok(&format!("wait crd/{name} --for=condition=Established --timeout=60s"), "", "condition met");
    // Established is said a moment before it is served.
    let path = format!("/apis/{group}/v1/{}", crd["spec"]["names"]["plural"].as_str().unwrap());
    while !kubectl.command(&["get", "--raw", &path], "", None).0 {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

fn object(group: &str, kind: &str, more: Value) -> String {
    let mut object = json!({ "apiVersion": format!("{group}/v1"), "kind": kind, "metadata": { "name": "test" } });
    for (field, value) in more.as_object().unwrap() {
        object[field] = value.clone();
    }
    object.to_string()
}

/// Created and applied alike.
fn is_accepted(kubectl: &Kubectl, resource: &str, object: &str) {
    for command in ["create", "apply"] {
        kubectl.ok(&format!("{command} -f -"), object, "created");
        kubectl.ok(&format!("delete {resource} test"), "", "deleted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_refuses_and_explains_by_the_schema() {
    with_every_kubectl(|kubectl| {
        let group = "foo.example.com";
        define(kubectl, group, "Foo", &foo());
        let bars = |bar: Value| object(group, "Foo", json!({ "spec": { "bars": [bar] } }));
        is_accepted(kubectl, "foos", &bars(json!({ "name": "bar", "feeling": "Great", "bazs": ["a"] })));
        for command in ["create -f -", "apply -f -"] {
            let refused = |object: &str, words: &str| kubectl.refused(command, object, words);
            refused(&bars(json!({ "name": "bar", "feeling": "Odd" })), "Unsupported value: \"Odd\"");
            refused(&object(group, "Foo", json!({ "spec": { "foo": true } })), "unknown field \"spec.foo\"");
            refused(&bars(json!({ "age": "10" })), "spec.bars[0].name: Required value");
        }
        let explained: [(&str, &[&str]); 4] = [
            (
                "foos",
                &[
                    "DESCRIPTION:",
                    "Foo CRD for Testing",
                    "FIELDS:",
                    "apiVersion\t<string>",
                    "APIVersion defines",
                    "spec\t<Object>",
                    "Specification of Foo",
                ],
            ),
            (
                "foos.metadata",
                &["Standard object's metadata", "creationTimestamp\t<string>", "CreationTimestamp is a timestamp"],
            ),
            ("foos.spec", &["Specification of Foo", "bars\t<[]Object>", "List of Bars and their specs"]),
            (
                "foos.spec.bars",
                &[
                    "bars <[]Object>",
                    "List of Bars and their specs",
                    "bazs\t<[]string>",
                    "List of Bazs",
                    "name\t<string> -required-",
                    "Name of Bar",
                ],
            ),
        ];
        for (field, words) in explained {
            let text = kubectl.ok(&format!("explain {field}"), "", "FIELDS:");
            let mut rest = text.as_str();
            for word in words {
                let at = rest.find(word).unwrap_or_else(|| panic!("{word} comes next in {field}: {text}"));
                rest = &rest[at + word.len()..];
            }
        }
        kubectl.refused("explain foos.spec.bars2", "", "field \"bars2\" does not exist");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_accepts_what_a_schema_leaves_open() {
    with_every_kubectl(|kubectl| {
        let described = |about: &str, place: &str| {
            let mut schema = waldo(&[place]);
            schema["description"] = about.into();
            schema
        };
        let nested = described("unknown fields in a nested field", "/properties/spec");
        define(kubectl, "empty.example.com", "Empty", &any_object());
        define(kubectl, "root.example.com", "Root", &described("unknown fields at the root", ""));
        define(kubectl, "nested.example.com", "Nested", &nested);
        let anything = json!({ "a": { "b": [{ "c": "d" }] } });
        is_accepted(kubectl, "emptys", &object("empty.example.com", "Empty", anything.clone()));
        is_accepted(kubectl, "roots", &object("root.example.com", "Root", anything));
        let inside = json!({ "spec": { "a": null, "b": [{ "c": "d" }] } });
        is_accepted(kubectl, "nesteds", &object("nested.example.com", "Nested", inside));
        let beside = object("nested.example.com", "Nested", json!({ "status": { "a": 1 } }));
        kubectl.refused("create -f -", &beside, "unknown field \"status.a\"");
        kubectl.ok("explain emptys", "", "<empty>");
        let text = kubectl.ok("explain roots", "", "KIND:");
        assert!(text.lines().any(|l| l.starts_with("KIND:") && l.ends_with("Root")), "{text}");
        kubectl.ok("explain nesteds", "", "unknown fields in a nested field");
    })
    .await;
}
