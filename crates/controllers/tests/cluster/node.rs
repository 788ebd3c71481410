//! Nodes that only pretend: bind every pod, make it ready, end jobs' pods, let pods go.
//! Started by the cluster of these tests.
//! A pod whose image is `ends:CODE` ends with that exit code at once; one of `stuck:…` never gets ready, and one of
//! `held:…` never goes. Pods with ResourceClaims are left to the scheduler.

use client::{Client, InformerFactory, Patch};
use env::Env;
use k8s_openapi::{
    api::core::v1::{Binding, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};

/// The node that a daemon's pod is meant for; all others go to `n`.
fn meant_for(spec: &PodSpec) -> String {
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let fields = required.iter().flat_map(|r| &r.node_selector_terms).flat_map(|t| t.match_fields.iter().flatten());
    fields.into_iter().find_map(|f| f.values.as_ref()?.first().cloned()).unwrap_or_else(|| "n".into())
}

pub async fn run(client: Client, informers: InformerFactory, env: Env) {
    let mut changes = informers.informer::<Pod>().subscribe();
    let mut address = 0;
    while let Some(change) = changes.next().await {
        let Some(pod) = change.new else { continue };
        let (namespace, name) = (pod.metadata.namespace.clone().unwrap(), pod.metadata.name.clone().unwrap());
        let api = client.namespaced::<Pod>(&namespace);
        let spec = pod.spec.as_ref().unwrap();
        let image = spec.containers[0].image.clone().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() && image.starts_with("held:") {
            continue;
        } else if pod.metadata.deletion_timestamp.is_some() {
            // As a kubelet does: what was stopped before its end has failed.
            if phase == "Running" && spec.restart_policy.as_deref() == Some("Never") {
                let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
                let _ = api.patch_status(&name, &failed).await;
            }
            let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
            let _ = api.delete(&name, &options).await;
        } else if spec.node_name.is_none() && spec.resource_claims.is_none() {
            let target = json!({ "kind": "Node", "name": meant_for(spec) });
            let binding: Binding =
                serde_json::from_value(json!({ "metadata": { "name": name }, "target": target })).unwrap();
            let _ = api.create_subresource::<_, Value>(&name, "binding", &binding).await;
        } else if spec.node_name.is_some() && pod.status.as_ref().is_none_or(|s| s.pod_ips.is_none()) {
            address += 1;
            let now = env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let code = image.strip_prefix("ends:").and_then(|code| code.parse::<i32>().ok());
            let ip = format!("10.1.0.{address}");
            let ready = if image.starts_with("stuck:") { "False" } else { "True" };
            let mut status = json!({ "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }],
                "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": now }] });
            if let Some(code) = code {
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
