//! What upstream's v1.35 API server makes of objects beside what is asked: owners, generations, families, labels.
//! Found by sending both servers the same requests. Neighbours: `upstream_answers`, `upstream_refusals`.

use serde_json::{Value, json};

use crate::harness::{Server, definition, server};

const DEFAULT: &str = "namespaces/default";

/// Made by openssl for CN=x.
const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlISE1HNENBUUF3RERFS01BZ0dBMVVFQXd3QmVEQlpNQk1HQnlx\
    R1NNNDlBZ0VHQ0NxR1NNNDlBd0VIQTBJQQpCSzJ3Nk1Ram9NeE5JNG5NTEJWRFBWejJmZi9rak1Gc3J5diszaEtoZkNGK3BmQXRS\
    Z04wNDl6VDEwSjJpTlBlCmUyU3BBRmx5UlFZU0VZREYyZ0NhSmI2Z0FEQUtCZ2dxaGtqT1BRUURBZ05KQURCR0FpRUE5bHM4K2lW\
    YXd3RnoKNHNvVWhwK21jVTI3MjBiWk45blpXSndGMkFScndXa0NJUUREK3I2RHR4bWRuZGRGTStzYWI5bkZhTVlIOFAwWgo0Q0Zx\
    akExNGRCaW04UT09Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=";

async fn made(s: &Server, path: &str, object: Value) -> Value {
    s.post(path, object).await.expect(201)
}

#[tokio::test]
async fn owners_own_what_go_read_before_anything_was_dropped() {
    let s = server().await;
    let slice = json!({ "metadata": { "name": "e" }, "addressType": "IPv4", "endpoints": [] });
    let stored = made(&s, &format!("/apis/discovery.k8s.io/v1/{DEFAULT}/endpointslices"), slice).await;
    assert_eq!(stored["metadata"]["managedFields"][0]["fieldsV1"]["f:endpoints"], json!({}));
    assert_eq!(stored["endpoints"], Value::Null);
    let request = json!({ "metadata": { "name": "c" }, "spec": {
        "request": REQUEST, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"],
    } });
    let stored = made(&s, "/apis/certificates.k8s.io/v1/certificatesigningrequests", request).await;
    assert_eq!(stored["metadata"].get("managedFields"), None, "what never changes is nobody's");
    let conditions = "autoscaling.alpha.kubernetes.io/conditions";
    let scaler = json!({
        "metadata": { "name": "h", "annotations": { conditions: "[{\"type\":\"ScalingActive\",\"status\":\"True\"}]" } },
        "spec": { "maxReplicas": 2, "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" } },
    });
    let stored = made(&s, &format!("/apis/autoscaling/v1/{DEFAULT}/horizontalpodautoscalers"), scaler).await;
    let owned = &stored["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:annotations"];
    assert_eq!(owned[format!("f:{conditions}")], json!({}), "{stored}");
    assert_eq!(stored["metadata"].get("annotations"), None, "the status of a new one is empty");
}

#[tokio::test]
async fn a_job_without_labels_shares_those_of_its_template() {
    let s = server().await;
    let path = format!("/apis/batch/v1/{DEFAULT}/jobs");
    let job = |labels: Value| {
        json!({
            "metadata": { "generateName": "j-", "labels": labels },
            "spec": { "template": { "metadata": { "labels": { "app": "x" } }, "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }],
            } } },
        })
    };
    let shared = made(&s, &path, job(Value::Null)).await;
    assert_eq!(shared["metadata"]["labels"], shared["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(shared["metadata"]["labels"]["controller-uid"], shared["metadata"]["uid"]);
    let own = made(&s, &path, job(json!({ "app": "x" }))).await;
    assert_eq!(own["metadata"]["labels"], json!({ "app": "x" }));
}

#[tokio::test]
async fn a_priority_class_stays_of_the_first_generation() {
    let s = server().await;
    let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = |description: &str| json!({ "metadata": { "name": "c" }, "value": 5, "description": description });
    made(&s, path, class("one")).await;
    let changed = s.put(&format!("{path}/c"), class("two")).await.expect(200);
    assert_eq!((&changed["metadata"]["generation"], &changed["description"]), (&json!(1), &json!("two")));
}

#[tokio::test]
async fn a_headless_service_that_selects_nothing_is_of_both_families() {
    let s = server().await;
    let path = format!("/api/v1/{DEFAULT}/services?dryRun=All");
    let service = |spec: Value| json!({ "metadata": { "name": "s" }, "spec": spec });
    let ports = json!([{ "port": 1 }]);
    for (spec, families, policy) in [
        (json!({ "clusterIP": "None", "ports": ports }), json!(["IPv4", "IPv6"]), "RequireDualStack"),
        (
            json!({ "clusterIP": "None", "ports": ports, "ipFamilies": ["IPv6"] }),
            json!(["IPv6", "IPv4"]),
            "RequireDualStack",
        ),
        (
            json!({ "clusterIP": "None", "ports": ports, "ipFamilyPolicy": "SingleStack" }),
            json!(["IPv4"]),
            "SingleStack",
        ),
        (json!({ "clusterIP": "None", "ports": ports, "selector": { "a": "b" } }), json!(["IPv4"]), "SingleStack"),
    ] {
        let found = made(&s, &path, service(spec.clone())).await;
        assert_eq!(
            (&found["spec"]["ipFamilies"], &found["spec"]["ipFamilyPolicy"]),
            (&families, &json!(policy)),
            "{spec}"
        );
        assert_eq!(found["spec"]["clusterIPs"], json!(["None"]));
    }
}

#[tokio::test]
async fn what_public_manifests_hold_is_taken() {
    let s = server().await;
    // Contour's definition: in Go's classes an opening bracket is a letter.
    let pattern = r#"^[^()<>@,;:\\"\/[\]?={} \t\x7f\x00]+$"#;
    let widgets = definition(
        "example.com",
        "Widget",
        "Namespaced",
        &["v1"],
        &json!({ "type": "object",
        "properties": { "name": { "type": "string", "pattern": pattern } } }),
    );
    let path = s.define(&widgets).await;
    let named = |name: &str| json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "generateName": "w-" }, "name": name });
    s.post(&path, named("cookie")).await.expect(201);
    s.post(&path, named("coo[kie")).await.refused(422, "Invalid", "name in body should match");
    // JobSet's definition: a field is called as a keyword of the language.
    let claims = definition(
        "sets.example.com",
        "Set",
        "Namespaced",
        &["v1"],
        &json!({ "type": "object", "properties": { "templates": {
            "type": "array",
            "maxItems": 9,
            "items": { "type": "object", "properties": { "namespace": { "type": "string", "maxLength": 9 } } },
            "x-kubernetes-validations": [{ "rule": "self.all(t, !has(t.namespace) || size(t.namespace) == 0)" }],
        } } }),
    );
    let path = s.define(&claims).await;
    let set = |namespace: &str| {
        json!({ "apiVersion": "sets.example.com/v1", "kind": "Set",
        "metadata": { "generateName": "s-" }, "templates": [{ "namespace": namespace }] })
    };
    s.post(&path, set("")).await.expect(201);
    s.post(&path, set("x")).await.refused(422, "Invalid", "failed rule");
    // Of the examples of dynamic resource allocation: to compare quantities costs one.
    let expression = "device.attributes[\"driver.example.com\"].type == \"gpu\" &&\n\
                      device.capacity[\"driver.example.com\"].memory == quantity(\"64Gi\")";
    let claim = json!({ "metadata": { "name": "c" }, "spec": { "devices": { "requests": [{ "name": "r", "exactly": {
        "deviceClassName": "c", "selectors": [{ "cel": { "expression": expression } }],
    } }] } } });
    made(&s, &format!("/apis/resource.k8s.io/v1/{DEFAULT}/resourceclaims"), claim).await;
}

#[tokio::test]
async fn what_is_made_of_odd_but_legal_requests() {
    let s = server().await;
    // The group of metrics is for whoever installs a server of them.
    let metrics = json!({
        "metadata": { "name": "v1beta1.metrics.k8s.io" },
        "spec": {
            "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": { "name": "metrics-server", "namespace": "kube-system" }, "insecureSkipTLSVerify": true,
        },
    });
    made(&s, "/apis/apiregistration.k8s.io/v1/apiservices", metrics).await;
    let range = json!({ "metadata": {}, "spec": { "limits": [] } });
    let range = made(&s, &format!("/api/v1/{DEFAULT}/limitranges"), range).await;
    assert_eq!(range["metadata"]["name"], range["metadata"]["uid"]);
    // A version of what is not there is shown where nothing is stored.
    let lease = json!({ "metadata": { "name": "l", "resourceVersion": "7" } });
    let path = format!("/apis/coordination.k8s.io/v1/{DEFAULT}/leases/l?dryRun=All");
    assert_eq!(s.put(&path, lease).await.expect(201)["metadata"]["resourceVersion"], "7");
    // A table without objects has rows that say so.
    let maps = format!("/api/v1/{DEFAULT}/configmaps?includeObject=None");
    s.create_config_map("m").await.expect(201);
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = s.send("GET", &maps, &accept, Vec::new()).await.expect(200);
    assert_eq!(table["rows"][0].get("object"), Some(&Value::Null));
    // A collection is shown as it was listed.
    let pods = format!("/api/v1/{DEFAULT}/configmaps?dryRun=All");
    let gone = s.delete(&pods, Value::Null).await.expect(200);
    assert_eq!(gone["items"][0]["metadata"].get("deletionTimestamp"), None);
    // Keys of owners need no quotes.
    let yaml =
        s.send("GET", &format!("/api/v1/{DEFAULT}/configmaps/m"), &[("accept", "application/yaml")], Vec::new()).await;
    let text = String::from_utf8_lossy(&yaml.bytes).into_owned();
    assert!(text.contains("\n    fieldsV1:\n      f:data:\n") && text.starts_with("apiVersion: v1\ndata:\n"), "{text}");
    // An element whose key is null is one without a name, which is then told.
    let deployment = json!({ "metadata": { "name": "d" }, "spec": {
        "selector": { "matchLabels": { "a": "b" } }, "template": { "metadata": { "labels": { "a": "b" } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] } },
    } });
    let path = format!("/apis/apps/v1/{DEFAULT}/deployments");
    made(&s, &path, deployment).await;
    let patch = json!({ "spec": { "template": { "spec": { "containers": [{ "name": null }] } } } });
    s.patch("strategic-merge-patch", &format!("{path}/d"), patch).await.refused(
        422,
        "Invalid",
        "[spec.template.spec.containers[0].name: Required value, spec.template.spec.containers[0].image: Required value]",
    );
}
