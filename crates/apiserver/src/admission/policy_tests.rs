//! Policies and the versions, permissions and notes they deal with, against a whole server.

use std::{sync::Arc, time::Duration};

use http::Method;
use serde_json::{Value, json};

use super::tests::{
    Answer, CONFIGMAPS, Fixture, PODS, REGISTRATION, config_map, configuration, configured, fixture, pod, review,
    webhook,
};
use crate::authn::User;

fn policy(name: &str, group: &str, resource: &str, spec: Value) -> Value {
    let mut policy = json!({ "metadata": { "name": name }, "spec": { "matchConstraints": { "resourceRules": [
        { "apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": [resource] },
    ] } } });
    for (key, value) in spec.as_object().unwrap() {
        policy["spec"][key] = value.clone();
    }
    policy
}

impl Fixture {
    pub(super) async fn policy(&self, policy: Value, actions: &[&str]) {
        let name = policy["metadata"]["name"].clone();
        self.ok(Method::POST, &format!("{REGISTRATION}/validatingadmissionpolicies"), policy).await;
        let binding =
            json!({ "metadata": { "name": name }, "spec": { "policyName": name, "validationActions": actions } });
        self.ok(Method::POST, &format!("{REGISTRATION}/validatingadmissionpolicybindings"), binding).await;
    }
}

impl Fixture {
    async fn until_served(&self, path: &str) {
        while self.admin(Method::GET, path, Value::Null).await.0 == 404 {
            env::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn expressions_that_cannot_work_are_not_stored() {
    let f = fixture(&[]).await;
    let path = format!("{REGISTRATION}/validatingadmissionpolicies");
    let check = async |spec: Value, expected: &str| {
        let message = f.refused(422, &path, policy("p", "apps", "deployments", spec)).await;
        assert!(message.contains(expected), "{message}");
    };
    let validation = |expression: &str| json!({ "validations": [{ "expression": expression }] });
    check(validation("objekt.x == 1"), "undeclared reference to 'objekt'").await;
    check(validation("params.x == 1"), "undeclared reference to 'params'").await;
    check(validation("variables.x == 1"), "undefined field 'x'").await;
    check(validation("'text'"), "must evaluate to bool").await;
    let message = json!({ "validations": [{ "expression": "true", "messageExpression": "1" }] });
    check(message, "spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string").await;
    let note = json!({ "auditAnnotations": [{ "key": "k", "valueExpression": "1 + 1" }] });
    check(note, "spec.auditAnnotations[0].valueExpression").await;
}

#[tokio::test]
async fn expressions_ask_about_permissions() {
    let f = fixture(&[]).await;
    let may = "authorizer.group('').resource('secrets').namespace('default').check('get').allowed()";
    let own = "authorizer.requestResource.check('deletecollection').allowed()";
    let other = "authorizer.serviceAccount('default', 'robot').path('/metrics').check('get').allowed()";
    let spec = json!({
        "matchConditions": [{ "name": "not-admin", "expression": "request.userInfo.username != 'admin'" }],
        "variables": [{ "name": "may", "expression": may }],
        "validations": [
            { "expression": "variables.may", "message": "only those who may read secrets" },
            { "expression": own, "message": "only those who may clear everything" },
            { "expression": format!("!{other}"), "message": "robots read no metrics" },
        ],
    });
    f.policy(policy("asks", "", "configmaps", spec), &["Deny"]).await;
    let grant = async |user: &str, resource: &str, verb: &str| {
        let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        let name = format!("{user}-{verb}-{resource}");
        let role = json!({ "metadata": { "name": name },
            "rules": [{ "apiGroups": [""], "resources": [resource], "verbs": [verb] }] });
        f.ok(Method::POST, &format!("{rbac}/roles"), role).await;
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        });
        f.ok(Method::POST, &format!("{rbac}/rolebindings"), binding).await;
    };
    let alice = User::new("alice", &[]);
    let create = async |name: &str| {
        let (code, answer, _) = f.send(&alice, Method::POST, CONFIGMAPS, config_map(name)).await;
        (code, answer["message"].as_str().unwrap_or_default().to_string())
    };
    grant("alice", "configmaps", "create").await;
    let (code, message) = create("a").await;
    assert!(code == 422 && message.ends_with("only those who may read secrets"), "{message}");
    grant("alice", "secrets", "get").await;
    let (code, message) = create("a").await;
    assert!(code == 422 && message.ends_with("only those who may clear everything"), "{message}");
    grant("alice", "configmaps", "deletecollection").await;
    assert_eq!(create("a").await.0, 201);

    // Conditions of webhooks may ask, too.
    let (port, ca, asked) = webhook(Arc::new(|r| review(r, json!({ "allowed": true })))).await;
    let mut hook = configuration("v", port, &ca, "Fail", 30);
    hook["webhooks"][0]["matchConditions"][0]["expression"] =
        "!authorizer.group('').resource('nodes').check('delete').allowed()".into();
    f.ok(Method::POST, &format!("{REGISTRATION}/validatingwebhookconfigurations"), hook).await;
    assert_eq!(create("b").await.0, 201);
    assert_eq!(asked.lock().unwrap().len(), 1);
    f.ok(Method::POST, CONFIGMAPS, config_map("by-admin")).await;
    assert_eq!(asked.lock().unwrap().len(), 1, "an admin may delete nodes");
}

#[tokio::test]
async fn other_versions_of_a_resource_are_meant_too() {
    let f = fixture(&[]).await;
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = |name: &str, storage: bool| json!({ "name": name, "served": true, "storage": storage, "schema": { "openAPIV3Schema": schema } });
    let definition = json!({ "metadata": { "name": "widgets.example.com" }, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": { "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" },
        "versions": [version("v1", true), version("v2", false)],
    } });
    f.ok(Method::POST, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    f.until_served("/apis/example.com/v2/widgets").await;
    let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL3NlZW4iLCJ2YWx1ZSI6InYxIn1d"; // adds /seen: v1
    let mutate: Answer =
        Arc::new(move |r| review(r, json!({ "allowed": true, "patchType": "JSONPatch", "patch": patch })));
    let (port, ca, asked) = webhook(mutate).await;
    let (exact_port, exact_ca, exact) = webhook(Arc::new(|r| review(r, json!({ "allowed": true })))).await;
    for (name, port, ca, policy) in [("m", port, &ca, "Equivalent"), ("exact", exact_port, &exact_ca, "Exact")] {
        let mut hook = configuration(name, port, ca, "Fail", 30);
        hook["webhooks"][0]["matchPolicy"] = policy.into();
        hook["webhooks"][0]["rules"] = json!([
            { "apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["widgets"] },
        ]);
        f.ok(Method::POST, &format!("{REGISTRATION}/mutatingwebhookconfigurations"), hook).await;
    }
    let spec = json!({ "validations": [
        { "expression": "object.apiVersion == 'example.com/v1' && request.requestKind.version == 'v2'" },
    ] });
    f.policy(policy("p", "example.com", "widgets", spec), &["Deny"]).await;
    let widget = json!({ "apiVersion": "example.com/v2", "kind": "Widget", "metadata": { "name": "hook" } });
    let made = f.ok(Method::POST, "/apis/example.com/v2/namespaces/default/widgets", widget).await;
    assert_eq!((&made["apiVersion"], &made["seen"]), (&json!("example.com/v2"), &json!("v1")));
    let request = asked.lock().unwrap()[0]["request"].clone();
    assert_eq!(request["kind"]["version"], "v1");
    assert_eq!(request["resource"]["version"], "v1");
    assert_eq!(request["requestKind"]["version"], "v2");
    assert_eq!(request["object"]["apiVersion"], "example.com/v1");
    assert!(exact.lock().unwrap().is_empty());
}

#[tokio::test]
async fn pod_security_has_defaults_and_exemptions() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("admission.yaml");
    let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  \
                configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    \
                defaults: {enforce: baseline, enforce-version: v1.33}\n    exemptions: {usernames: [robot], namespaces: [kube-system]}\n";
    std::fs::write(&file, text).unwrap();
    let f = configured(|c| c.admission_control_config_file = Some(file)).await;
    let account = json!({ "metadata": { "name": "default" } });
    f.ok(Method::POST, "/api/v1/namespaces/kube-system/serviceaccounts", account).await;
    let bad = |name: &str| {
        let mut bad = pod(name, json!({}));
        bad["spec"]["hostNetwork"] = true.into();
        bad
    };
    let expected =
        "pods \"a\" is forbidden: violates PodSecurity \"baseline:v1.33\": host namespaces (hostNetwork=true)";
    assert_eq!(f.refused(403, PODS, bad("a")).await, expected);
    let mut probed = pod("probed", json!({}));
    probed["spec"]["containers"][0]["livenessProbe"] = json!({ "tcpSocket": { "host": "10.0.0.1", "port": 1 } });
    f.ok(Method::POST, PODS, probed).await;
    f.ok(Method::POST, &PODS.replace("default", "kube-system"), bad("system")).await;
    let robot = User::new("robot", &["system:masters"]);
    assert_eq!(f.send(&robot, Method::POST, PODS, bad("robots")).await.0, 201);
}

#[tokio::test]
async fn policies_decide_by_expressions() {
    let f = fixture(&[]).await;
    let policy = json!({
        "metadata": { "name": "limit" },
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" },
            "matchConstraints": { "resourceRules": [
                { "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["deployments"] },
            ] },
            "matchConditions": [{ "name": "not-exempt", "expression": "!object.metadata.name.startsWith('free-')" }],
            "variables": [{ "name": "most", "expression": "int(params.data.most)" }],
            "validations": [{
                "expression": "object.spec.replicas <= variables.most",
                "messageExpression": "'at most ' + string(variables.most) + ' replicas'",
            }],
        },
    });
    f.ok(Method::POST, CONFIGMAPS, json!({ "metadata": { "name": "params" }, "data": { "most": "2" } })).await;
    f.ok(Method::POST, &format!("{REGISTRATION}/validatingadmissionpolicies"), policy).await;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = |name: &str, replicas: i64| {
        let template = json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
        json!({
            "metadata": { "name": name },
            "spec": { "replicas": replicas, "selector": { "matchLabels": { "a": "b" } }, "template": template },
        })
    };
    f.ok(Method::POST, deployments, deployment("unbound", 5)).await;
    let binding = json!({
        "metadata": { "name": "bind" },
        "spec": {
            "policyName": "limit", "validationActions": ["Deny"],
            "paramRef": { "name": "params", "namespace": "default", "parameterNotFoundAction": "Deny" },
        },
    });
    f.ok(Method::POST, &format!("{REGISTRATION}/validatingadmissionpolicybindings"), binding).await;
    f.ok(Method::POST, deployments, deployment("two", 2)).await;
    f.ok(Method::POST, deployments, deployment("free-many", 9)).await;
    let expected = "deployments.apps \"three\" is forbidden: ValidatingAdmissionPolicy 'limit' with binding 'bind' denied \
                    request: at most 2 replicas";
    assert_eq!(f.refused(422, deployments, deployment("three", 3)).await, expected);
    f.ok(Method::DELETE, &format!("{CONFIGMAPS}/params"), Value::Null).await;
    let message = f.refused(422, deployments, deployment("one", 1)).await;
    assert!(message.contains("no params found for policy binding"), "{message}");
}

#[tokio::test]
async fn a_variable_that_fails_is_named() {
    let f = fixture(&[]).await;
    let spec = json!({
        "variables": [
            { "name": "wanted", "expression": "object.data['wanted']" },
            { "name": "twice", "expression": "variables.wanted + variables.wanted" },
        ],
        "validations": [{ "expression": "variables.twice == 'aa'" }],
    });
    f.policy(policy("checks", "", "configmaps", spec), &["Deny"]).await;
    let named = |name: &str, key: &str| json!({ "metadata": { "name": name }, "data": { key: "a" } });
    f.ok(Method::POST, CONFIGMAPS, named("right", "wanted")).await;
    let message = f.refused(422, CONFIGMAPS, named("wrong", "other")).await;
    let expected = "expression 'variables.twice == 'aa'' resulted in error: composited variable \"twice\" fails to \
                    evaluate: composited variable \"wanted\" fails to evaluate: no such key: wanted";
    assert!(message.ends_with(expected), "{message}");
}

#[tokio::test]
async fn policies_that_cost_too_much_refuse() {
    let f = fixture(&[]).await;
    // Costly by what it makes, not by how long it takes: the cost must be what ends it, also on a slow machine.
    let costly = "object.data.all(a, lists.range(10000).size() > 0)";
    let spec = json!({ "validations": [{ "expression": costly }] });
    f.policy(policy("slow", "", "configmaps", spec), &["Deny"]).await;
    let with_keys = |count: usize| {
        let data: serde_json::Map<_, _> = (0..count).map(|i| (format!("key-{i}"), json!(""))).collect();
        json!({ "metadata": { "name": format!("with-{count}") }, "data": data })
    };
    f.ok(Method::POST, CONFIGMAPS, with_keys(3)).await;
    let message = f.refused(422, CONFIGMAPS, with_keys(300)).await;
    assert!(message.ends_with("resulted in error: operation cancelled: actual cost limit exceeded"), "{message}");
}

#[tokio::test]
async fn broken_expressions_are_not_stored() {
    let f = fixture(&[]).await;
    let mut hook = configuration("v", 1, "", "Fail", 1);
    hook["webhooks"][0]["matchConditions"][0]["expression"] = "... [] bad cel".into();
    let message = f.refused(422, &format!("{REGISTRATION}/validatingwebhookconfigurations"), hook).await;
    assert!(message.contains("webhooks[0].matchConditions[0].expression: Invalid value"), "{message}");
    assert!(message.contains("compilation failed"), "{message}");

    let selectors = |source: &str| json!([{ "cel": { "expression": source } }]);
    let check = async |source: &str, expected: Option<&str>| {
        let class = json!({ "metadata": { "generateName": "c-" }, "spec": { "selectors": selectors(source) } });
        let requests = json!([
            { "name": "a", "exactly": { "deviceClassName": "c", "selectors": selectors("true") } },
            { "name": "b", "firstAvailable": [{ "name": "x", "deviceClassName": "c", "selectors": selectors(source) }] },
        ]);
        let claim = json!({ "metadata": { "generateName": "c-" }, "spec": { "devices": { "requests": requests } } });
        for (path, object, place) in [
            ("/apis/resource.k8s.io/v1/deviceclasses", class, "spec.selectors[0]"),
            (
                "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
                claim,
                "spec.devices.requests[1].firstAvailable[0].selectors[0]",
            ),
        ] {
            match expected {
                None => drop(f.ok(Method::POST, path, object).await),
                Some(words) => {
                    let message = f.refused(422, path, object).await;
                    let expected = match words.starts_with("Forbidden") {
                        true => format!("{place}.cel.expression: {words}"),
                        false => format!("{place}.cel.expression: Invalid value: {source:?}: {words}"),
                    };
                    assert!(message.contains(&expected), "{message}");
                }
            }
        }
    };
    check("device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].model == 'x'", None).await;
    check("device.capacity['gpu.example.com'].memory.compareTo(quantity('10Gi')) >= 0", None).await;
    check("device.driver ==", Some("compilation failed: ")).await;
    check("device.color == 'red'", Some("compilation failed: ")).await;
    check("device.driver", Some("must evaluate to bool or the unknown type, not string")).await;
    // What it may cost at most counts, by how many attributes a device can have.
    let loops = |depth: usize, over: &str| {
        (0..depth).rev().fold("true".to_string(), |inner, i| format!("{over}.all(x{i}, {inner})"))
    };
    check(&loops(4, "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"), None).await;
    check(&loops(7, "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"), Some("Forbidden: too complex, exceeds cost limit")).await;
    check(&loops(2, "device.attributes['a.example.com']"), None).await;
    check(&loops(5, "device.attributes"), Some("Forbidden: too complex, exceeds cost limit")).await;
}
