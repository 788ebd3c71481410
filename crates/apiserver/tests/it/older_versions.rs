//! resource.k8s.io/v1beta1 and v1beta2, which `--runtime-config` turns on: drivers of before v1.34 speak them.

use std::sync::Arc;

use apiserver::config::RuntimeConfig;
use env::Env;
use serde_json::{Value, json};
use store::MemoryStore;

use crate::harness::{Server, server_on};

const GROUP: &str = "/apis/resource.k8s.io";

async fn start(runtime_config: &str) -> Server {
    let env = Env::real();
    let runtime_config = RuntimeConfig::parse(runtime_config.split(',')).unwrap();
    server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| config.runtime_config = runtime_config).await
}

fn claim(name: &str, request: Value) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "devices": { "requests": [request] } } })
}

#[tokio::test]
async fn claims_and_slices_are_the_same_in_every_version() {
    let s = start("resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true").await;
    let path = |version: &str, name: &str| format!("{GROUP}/{version}/namespaces/default/resourceclaims{name}");
    let flat = json!({ "name": "r", "deviceClassName": "gpu" });
    let made = s.post(&path("v1beta1", ""), claim("c", flat)).await.expect(201);
    let request = |claim: &Value| claim["spec"]["devices"]["requests"][0].clone();
    let expected = json!({ "name": "r", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1 });
    assert_eq!((made["apiVersion"].as_str(), request(&made)), (Some("resource.k8s.io/v1beta1"), expected));
    for version in ["v1", "v1beta2"] {
        let seen = s.get(&path(version, "/c")).await.expect(200);
        assert_eq!(seen["apiVersion"], format!("resource.k8s.io/{version}"));
        assert_eq!(request(&seen)["exactly"]["deviceClassName"], "gpu", "{seen}");
    }
    let list = s.get(&path("v1beta1", "")).await.expect(200);
    assert_eq!(list["items"][0]["spec"]["devices"]["requests"][0]["deviceClassName"], "gpu");

    let pool = json!({ "name": "n", "generation": 1, "resourceSliceCount": 1 });
    let device = json!({ "name": "d", "basic": { "attributes": { "a": { "int": 1 } } } });
    let spec = json!({ "driver": "d.example.com", "nodeName": "n", "pool": pool, "devices": [device] });
    let slice = json!({ "metadata": { "name": "s" }, "spec": spec });
    s.post(&format!("{GROUP}/v1beta1/resourceslices"), slice).await.expect(201);
    let seen = s.get(&format!("{GROUP}/v1/resourceslices/s")).await.expect(200);
    assert_eq!(seen["spec"]["devices"][0], json!({ "name": "d", "attributes": { "a": { "int": 1 } } }));
    let by_driver = format!("{GROUP}/v1beta1/resourceslices?fieldSelector=spec.driver=d.example.com");
    assert_eq!(
        s.get(&by_driver).await.expect(200)["items"][0]["spec"]["devices"][0]["basic"]["attributes"]["a"]["int"],
        1
    );
}

/// What v1 forbids can't be had through an older version.
#[tokio::test]
async fn rules_of_v1_hold_for_all() {
    let s = start("api/beta=true").await;
    let claims = format!("{GROUP}/v1beta1/namespaces/default/resourceclaims");
    let hard = json!({ "gpu.deviceclass.resource.k8s.io/devices": "2" });
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": hard }, "status": { "hard": hard,
        "used": { "gpu.deviceclass.resource.k8s.io/devices": "0" } } });
    s.post("/api/v1/namespaces/default/resourcequotas", quota.clone()).await.expect(201);
    s.put("/api/v1/namespaces/default/resourcequotas/q/status", quota).await.expect(200);
    // Admission goes by the cache, which a list waits for.
    let quotas = s.get("/api/v1/namespaces/default/resourcequotas").await.expect(200);
    assert_eq!(quotas["items"][0]["status"]["hard"], hard);
    let check = async |name: &str, more: Value, code: u16, expected: &str| {
        let mut request = json!({ "name": "r", "deviceClassName": "gpu" });
        more.as_object().unwrap().iter().for_each(|(field, value)| request[field] = value.clone());
        let answer = s.post(&claims, claim(name, request)).await.expect(code);
        assert!(answer["message"].as_str().unwrap_or_default().contains(expected), "{answer}");
    };
    check("admin", json!({ "adminAccess": true }), 422, "admin access to devices requires the").await;
    let selectors = json!([{ "cel": { "expression": "device.nothing" } }]);
    check("broken", json!({ "selectors": selectors }), 422, "undefined field 'nothing'").await;
    check("many", json!({ "count": 3 }), 403, "exceeded quota: q").await;
    check("few", json!({ "count": 2 }), 201, "").await;
}

#[tokio::test]
async fn they_are_off_unless_asked_for() {
    let s = start("").await;
    s.get(&format!("{GROUP}/v1/resourceslices")).await.expect(200);
    for version in ["v1beta1", "v1beta2"] {
        s.get(&format!("{GROUP}/{version}/resourceslices")).await.expect(404);
    }
    let group = s.get(GROUP).await.expect(200);
    assert_eq!(group["versions"].as_array().map(Vec::len), Some(1), "{group}");
}
