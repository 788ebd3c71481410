//! Why a pod is not scheduled, asked as a user would: `kubectl get --raw /debug/scheduling/NAMESPACE/POD`.

use std::{sync::Arc, time::Duration};

use apiserver::{ApiServer, Config};
use bytes::Bytes;
use client::{InformerFactory, Patch};
use env::Env;
use http::Request;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

#[tokio::test(start_paused = true)]
async fn the_verdict_on_each_node_can_be_asked_for() {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let server = ApiServer::new(Config::in_process(key), store, env.clone()).await.unwrap();
    let (admin, never) = (in_process::client(&server, "admin", &["system:masters"]), CancellationToken::new());
    let config = scheduler::Config::default();
    let verdicts = config.diagnoses.clone();
    server.debug.add("scheduling", Arc::new(move |pod| verdicts.get(pod).map(|verdict| verdict.report())));
    let informers = InformerFactory::new(admin.clone(), env.clone(), never.clone());
    let run = scheduler::run(config, admin.clone(), informers, env.clone(), never);
    env.spawn(async move { run.await.map_err(|e| e.to_string()).unwrap() });

    for (name, cordoned) in [("small", false), ("closed", true)] {
        let node = json!({ "metadata": { "name": name }, "spec": { "unschedulable": cordoned } });
        admin.api::<Node>().create(&serde_json::from_value(node).unwrap()).await.unwrap();
        let status = json!({ "status": { "allocatable": { "cpu": "1", "memory": "1Gi", "pods": "10" } } });
        admin.api::<Node>().patch_status(name, &Patch::Merge(status)).await.unwrap();
        let taints = Patch::Merge(json!({ "spec": { "taints": null } }));
        admin.api::<Node>().patch(name, &taints).await.unwrap();
    }
    let account = json!({ "metadata": { "name": "default" } });
    let accounts = admin.namespaced::<ServiceAccount>("default");
    accounts.create(&serde_json::from_value(account).unwrap()).await.unwrap();
    let pod = json!({ "metadata": { "name": "big" }, "spec": { "containers": [
        { "name": "c", "image": "none", "resources": { "requests": { "cpu": "4" } } }] } });
    admin.namespaced::<Pod>("default").create(&serde_json::from_value(pod).unwrap()).await.unwrap();
    env.sleep(Duration::from_secs(5)).await;

    let ask = async |pod: &str| {
        let request = Request::get(format!("/debug/scheduling/{pod}")).body(Bytes::new()).unwrap();
        admin.request(request).await.map(|body| serde_json::from_slice::<Value>(&body).unwrap())
    };
    let verdict = ask("default/big").await.unwrap();
    assert!(verdict["message"].as_str().unwrap().starts_with("0/2 nodes are available: "), "{verdict:#}");
    assert_eq!(verdict["nodes"]["small"]["plugin"], "NodeResourcesFit");
    assert_eq!(verdict["nodes"]["small"]["reasons"], json!(["Insufficient cpu"]));
    assert_eq!(verdict["nodes"]["closed"]["plugin"], "NodeUnschedulable");
    assert!(ask("default/unknown").await.unwrap_err().is_not_found());
}
