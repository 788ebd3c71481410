//! While this node announces addresses of load balancers, its Lease is renewed twice a second, so that the
//! service-lb-controller hears within two seconds that it is gone.
//! Run by `layer2`; the kubelet renews the same Lease every ten seconds, and reads it again when we have written it.
//! A node that announces nothing writes nothing.

use std::time::Duration;

use client::{Client, Patch};
use env::Env;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use serde_json::json;
use tokio::sync::watch;

/// Says that the Lease is renewed this often; the controllers know it too.
const ANNOTATION: &str = "minke.io/layer2-heartbeat";
const LEASE_NAMESPACE: &str = "kube-node-lease";
const INTERVAL: Duration = Duration::from_millis(500);
/// A write that hangs must not keep the next one.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Until the sender of `announces` is gone.
pub async fn beat(client: Client, node: String, mut announces: watch::Receiver<bool>, env: Env) {
    let leases = client.namespaced::<Lease>(LEASE_NAMESPACE);
    let write = async |body: serde_json::Value| {
        let patch = Patch::Merge(body);
        match env.timeout(WRITE_TIMEOUT, leases.patch(&node, &patch)).await {
            Some(Err(error)) => tracing::debug!(%error, "failed to tell that this node announces addresses"),
            None => tracing::debug!("telling that this node announces addresses takes long"),
            Some(Ok(_)) => {}
        }
    };
    loop {
        if announces.wait_for(|announces| *announces).await.is_err() {
            return;
        }
        while *announces.borrow_and_update() {
            let spec = json!({ "renewTime": MicroTime(env.now()) });
            write(json!({ "metadata": { "annotations": { ANNOTATION: "500ms" } }, "spec": spec })).await;
            // Whether it still does is looked at after each of them.
            let _ = env.timeout(INTERVAL, announces.changed()).await;
            if announces.has_changed().is_err() {
                break;
            }
        }
        write(json!({ "metadata": { "annotations": { ANNOTATION: null } } })).await;
        if announces.has_changed().is_err() {
            return;
        }
    }
}
