//! Answers of upstream's v1.35 API server to single requests, as data: found by sending both servers the same requests.
//! Neighbours: `writes` and `field_validation`, which follow one object through several.
//! A row is a request and what upstream answers; whatever else the answer says is not compared.

use serde_json::{Value, json};

use crate::harness::{DEFINITIONS, Server, config_map, server};

const CRDS: &str = DEFINITIONS;
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

async fn check(s: &Server, method: &str, path: &str, body: Value, code: u16, message: &str) {
    let answer = match method {
        "POST" => s.post(path, body).await,
        "PUT" => s.put(path, body).await,
        other => panic!("no row for {other}"),
    };
    let text = answer.value["message"].as_str().unwrap_or_default().to_string();
    assert_eq!((answer.code, text.contains(message)), (code, true), "{method} {path}: {text}");
}

fn deployment(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" },
        "spec": { "selector": { "matchLabels": { "a": "b" } }, "template": {
            "metadata": { "labels": { "a": "b" } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        } },
    });
    change(&mut object);
    object
}

fn definition(change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.example.com" },
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": { "plural": "widgets", "kind": "Widget" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "x": { "type": "string" } } } } }],
        },
    });
    change(&mut object);
    object
}

#[tokio::test]
async fn refusals_are_upstreams() {
    let s = server().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    s.create_config_map("taken").await.expect(201);
    let mut other_version = config_map("a");
    other_version["apiVersion"] = "Bad".into();
    let mut other_kind = config_map("a");
    other_kind["kind"] = "Pod".into();
    let pod = |change: fn(&mut Value)| deployment(|d| change(&mut d["spec"]["template"]["spec"]));
    let long = "a".repeat(300);
    let paths = (format!("{DEPLOYMENTS}?dryRun=All"), format!("{maps}?dryRun=All"));
    let (dry, dry_maps) = (paths.0.as_str(), paths.1.as_str());
    for (path, body, code, message) in [
        (
            maps,
            other_version,
            400,
            "ConfigMap in version \"Bad\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for \
             version \"Bad\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
        ),
        (maps, other_kind, 400, "Pod in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Pod) to"),
        (dry_maps, config_map("taken"), 409, "configmaps \"taken\" already exists"),
        (maps, config_map(&long), 422, "must be no more than 253 characters"),
        (dry, deployment(|d| d["metadata"]["labels"] = json!({ "a": long })), 422, "must be no more than 63 bytes"),
        (
            dry,
            deployment(|d| d["spec"]["strategy"] = json!({ "type": "X" })),
            422,
            "spec.strategy: Unsupported value: {\"Type\":\"X\",\"RollingUpdate\":null}: supported values: \
             \"Recreate\", \"RollingUpdate\"",
        ),
        (
            dry,
            pod(|spec| spec["dnsPolicy"] = "X".into()),
            422,
            "supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\"",
        ),
        (
            dry,
            pod(|spec| spec["containers"][0]["terminationMessagePolicy"] = "X".into()),
            422,
            "supported values: \"File\", \"FallbackToLogsOnError\"",
        ),
        (
            dry,
            pod(|spec| spec["tolerations"] = json!([{ "operator": "Exists", "effect": "X" }])),
            422,
            "supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        ),
        (
            CRDS,
            definition(|d| d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["x"] = json!({})),
            422,
            "spec.validation.openAPIV3Schema.properties[x].type: Required value: must not be empty for specified \
             object fields",
        ),
        (
            CRDS,
            definition(|d| d["spec"]["versions"][0]["storage"] = false.into()),
            422,
            "spec.versions: Invalid value: [{\"Name\":\"v1\",\"Served\":true,\"Storage\":false,",
        ),
        (
            CRDS,
            definition(|d| d["spec"]["conversion"] = json!({ "strategy": "Webhook" })),
            422,
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
        ),
        (
            CRDS,
            definition(|d| {
                d["spec"]["group"] = "x.k8s.io".into();
                d["metadata"]["name"] = "widgets.x.k8s.io".into();
            }),
            422,
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval",
        ),
    ] {
        check(&s, "POST", path, body, code, message).await;
    }
}

#[tokio::test]
async fn what_is_taken_as_upstream_takes_it() {
    let s = server().await;
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "reader", "namespace": "default" } });
    let stored = s.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await.expect(201);
    assert_eq!(stored["metadata"].get("namespace"), None, "a cluster-scoped object has no namespace");
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "l", "resourceVersion": "5" } });
    s.put("/apis/coordination.k8s.io/v1/namespaces/default/leases/l", lease).await.expect(201);
    // Nil and empty are one to the generation, and no owner is told of what Go leaves out.
    s.post(DEPLOYMENTS, deployment(|_| {})).await.expect(201);
    let same = deployment(|d| {
        d["spec"]["template"]["spec"]["volumes"] = json!([]);
        d["spec"]["minReadySeconds"] = 0.into();
        d["metadata"]["annotations"] = json!({});
    });
    let stored = s.put(&format!("{DEPLOYMENTS}/web"), same).await.expect(200);
    assert_eq!(stored["metadata"]["generation"], 1);
    let owned = stored["metadata"]["managedFields"].to_string();
    assert!(!owned.contains("f:minReadySeconds") && !owned.contains("f:volumes"), "{owned}");
}

#[tokio::test]
async fn definitions_are_marked_before_they_go() {
    let s = server().await;
    s.post(CRDS, definition(|_| {})).await.expect(201);
    let established = s
        .until(&format!("{CRDS}/widgets.example.com"), |answer| {
            answer.value["status"]["conditions"].to_string().contains("InitialNamesAccepted")
        })
        .await;
    assert_eq!(established["status"]["conditions"][0]["type"], "NamesAccepted");
    let marked = s.delete(&format!("{CRDS}/widgets.example.com"), Value::Null).await.expect(200);
    let metadata = &marked["metadata"];
    assert_eq!((&metadata["generation"], metadata.get("deletionGracePeriodSeconds")), (&json!(1), None));
    assert_eq!(marked["status"]["conditions"][2]["reason"], "InstanceDeletionPending");
    s.until(&format!("{CRDS}/widgets.example.com"), |answer| answer.code == 404).await;
}
