//! MutatingAdmissionPolicies against a whole server.

use http::Method;
use serde_json::{Value, json};

use super::tests::{CONFIGMAPS, Fixture, PODS, config_map, fixture, pod};

const API: &str = "/apis/admissionregistration.k8s.io/v1beta1";

/// A policy about `resource` with its binding.
async fn policy(f: &Fixture, name: &str, resource: &str, mutations: Value, more: Value) {
    let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource] });
    let mut spec = json!({ "matchConstraints": { "resourceRules": [rule] }, "mutations": mutations,
        "reinvocationPolicy": "Never" });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let object = json!({ "metadata": { "name": name }, "spec": spec });
    f.ok(Method::POST, &format!("{API}/mutatingadmissionpolicies"), object).await;
}

async fn bind(f: &Fixture, name: &str, more: Value) {
    let mut spec = json!({ "policyName": name });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let binding = json!({ "metadata": { "name": name }, "spec": spec });
    f.ok(Method::POST, &format!("{API}/mutatingadmissionpolicybindings"), binding).await;
}

fn apply(expression: &str) -> Value {
    json!([{ "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": expression } }])
}

fn patch(expression: &str) -> Value {
    json!([{ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } }])
}

#[tokio::test]
async fn policies_apply_and_patch_what_is_created() {
    let f = fixture(&["MutatingAdmissionPolicy"]).await;
    let sidecar = "Object{spec: Object.spec{initContainers: [Object.spec.initContainers{name: 'side-proxy', \
        image: 'proxy:1', restartPolicy: 'Always'}]}}";
    let conditions = json!([{ "name": "once", "expression": "!has(object.spec.initContainers)" }]);
    let once = json!({ "matchConditions": conditions });
    policy(&f, "sidecar", "pods", apply(sidecar), once).await;
    f.ok(Method::POST, PODS, pod("before", json!({}))).await;
    bind(&f, "sidecar", json!({})).await;
    let made = f.ok(Method::POST, PODS, pod("a", json!({}))).await;
    assert_eq!(made["spec"]["initContainers"][0]["name"], "side-proxy");
    assert_eq!(made["spec"]["initContainers"][0]["imagePullPolicy"], "IfNotPresent", "it is completed");
    assert_eq!(made["spec"]["containers"].as_array().map(Vec::len), Some(1));
    let before = f.ok(Method::GET, &format!("{PODS}/before"), Value::Null).await;
    assert_eq!(before["spec"].get("initContainers"), None, "a policy without a binding changes nothing");

    let labels = "[JSONPatch{op: 'add', path: '/metadata/labels', value: {'a': 'b'}}, \
        JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('x.io/y'), value: params.data.value}]";
    let params = json!({ "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" } });
    f.ok(Method::POST, CONFIGMAPS, json!({ "metadata": { "name": "params" }, "data": { "value": "from-params" } }))
        .await;
    policy(&f, "labels", "secrets", patch(labels), params).await;
    bind(&f, "labels", json!({ "paramRef": { "name": "params", "parameterNotFoundAction": "Deny" } })).await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let made = f.ok(Method::POST, secrets, json!({ "metadata": { "name": "s" } })).await;
    assert_eq!(made["metadata"]["labels"], json!({ "a": "b", "x.io/y": "from-params" }));
    f.ok(Method::DELETE, &format!("{CONFIGMAPS}/params"), Value::Null).await;
    let words = f.refused(422, secrets, json!({ "metadata": { "name": "t" } })).await;
    assert!(words.contains("policy 'labels' with binding 'labels' denied request: "), "{words}");
    assert!(words.contains("no params found for policy binding"), "{words}");
}

#[tokio::test]
async fn policies_see_what_others_changed_if_they_want() {
    let f = fixture(&["MutatingAdmissionPolicy"]).await;
    // By name the first; it sees what the second did only when it is asked again.
    let count = "Object{data: Object.data{seen: string(size(object.data))}}";
    policy(&f, "a-counts", "configmaps", apply(count), json!({ "reinvocationPolicy": "IfNeeded" })).await;
    policy(&f, "b-adds", "configmaps", apply("Object{data: Object.data{more: 'x'}}"), json!({})).await;
    policy(&f, "c-fails", "configmaps", apply("Object{data: object.none}"), json!({ "failurePolicy": "Ignore" })).await;
    for name in ["a-counts", "b-adds", "c-fails"] {
        bind(&f, name, json!({})).await;
    }
    let made = f.ok(Method::POST, CONFIGMAPS, config_map("one")).await;
    assert_eq!(made["data"], json!({ "a": "b", "more": "x", "seen": "3" }));
    let broken = json!({ "failurePolicy": "Fail" });
    policy(&f, "d-breaks", "configmaps", patch("[JSONPatch{op: 'remove', path: '/none'}]"), broken).await;
    bind(&f, "d-breaks", json!({})).await;
    let words = f.refused(422, CONFIGMAPS, config_map("two")).await;
    assert!(words.contains("policy 'd-breaks' with binding 'd-breaks' denied request: JSON Patch: "), "{words}");
}

#[tokio::test]
async fn the_kinds_are_served_only_where_the_plugin_is_on() {
    let off = fixture(&[]).await;
    let (code, ..) = off.admin(Method::GET, &format!("{API}/mutatingadmissionpolicies"), Value::Null).await;
    assert_eq!(code, 404);
    let on = fixture(&["MutatingAdmissionPolicy"]).await;
    let resources = on.ok(Method::GET, API, Value::Null).await;
    let names: Vec<_> =
        resources["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"]);
}
