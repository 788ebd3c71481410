//! A node that only pretends: binds every pod to itself, makes it ready, ends jobs' pods, lets pods go.
//! Started by the cluster of these tests.
//! Invariant: a pod whose image is `ends:CODE` ends with that exit code at once.

use client::{Client, InformerFactory, Patch};
use env::Env;
use k8s_openapi::{
    api::core::v1::{Binding, Pod},
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};

pub async fn run(client: Client, informers: InformerFactory, env: Env) {
    let mut changes = informers.informer::<Pod>().subscribe();
    let mut address = 0;
    while let Some(change) = changes.next().await {
        let Some(pod) = change.new else { continue };
        let (namespace, name) = (pod.metadata.namespace.clone().unwrap(), pod.metadata.name.clone().unwrap());
        let api = client.namespaced::<Pod>(&namespace);
        let spec = pod.spec.as_ref().unwrap();
        if pod.metadata.deletion_timestamp.is_some() {
            let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
            let _ = api.delete(&name, &options).await;
        } else if spec.node_name.is_none() {
            let binding = json!({ "metadata": { "name": name }, "target": { "kind": "Node", "name": "n" } });
            let binding: Binding = serde_json::from_value(binding).unwrap();
            let _ = api.create_subresource::<_, Value>(&name, "binding", &binding).await;
        } else if pod.status.as_ref().is_none_or(|s| s.pod_ips.is_none()) {
            address += 1;
            let now = env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let code = spec.containers[0].image.as_deref().and_then(|image| image.strip_prefix("ends:"));
            let ip = format!("10.1.0.{address}");
            let mut status = json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
                "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": now }] });
            if let Some(code) = code.and_then(|code| code.parse::<i32>().ok()) {
                status["phase"] = if code == 0 { "Succeeded" } else { "Failed" }.into();
                status["conditions"][0]["status"] = "False".into();
                status["containerStatuses"] = json!([{ "name": "c", "image": "", "imageID": "", "ready": false,
                    "restartCount": 0, "state": { "terminated": { "exitCode": code, "finishedAt": now } } }]);
            }
            let patch = Patch::Merge(json!({ "status": status }));
            if let Err(error) = api.patch_status(&name, &patch).await {
                eprintln!("the pretend node can't report {name}: {error}");
            }
        }
    }
}
