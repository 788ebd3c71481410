//! A node that only pretends: it registers, keeps its Lease, and says of its pods that they run.
//! Stands in for the kubelet in simulations.
//! Invariant: goes through the API like a kubelet would; knows nothing else.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api::ApiError;
use client::{Change, Client, InformerFactory, ListParams, Patch};
use env::Env;
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use serde_json::json;

const HEARTBEAT: Duration = Duration::from_secs(10);

pub struct PretendNode {
    name: String,
    client: Client,
    env: Env,
}

impl PretendNode {
    pub fn new(name: String, client: Client, env: Env) -> Arc<Self> {
        Arc::new(Self { name, client, env })
    }

    pub async fn run(self: Arc<Self>, informers: InformerFactory) {
        self.insist("register", || self.register().boxed()).await;
        let beating = self.clone();
        self.env.spawn(async move { beating.heartbeat().await });
        let own = ListParams::fields(format!("spec.nodeName={}", self.name));
        let mut pods = informers.informer_with::<Pod>(own).subscribe();
        let mut told: HashMap<String, bool> = HashMap::new();
        while let Some(Change { new, .. }) = pods.next().await {
            let Some(pod) = new else { continue };
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let leaving = pod.metadata.deletion_timestamp.is_some();
            // Once when it comes and once when it goes.
            if told.get(&uid) == Some(&leaving) {
                continue;
            }
            told.insert(uid, leaving);
            let node = self.clone();
            self.env.spawn(async move { if leaving { node.stop(&pod).await } else { node.start(&pod).await } });
        }
    }

    /// Until it works: what a kubelet does about an unreliable network.
    async fn insist<'a, T>(
        &self,
        what: &str,
        attempt: impl Fn() -> BoxFuture<'a, Result<T, ApiError>> + Send + Sync,
    ) -> Option<T> {
        for _ in 0..200 {
            match attempt().await {
                Ok(done) => return Some(done),
                Err(error) if error.is_not_found() || error.is_conflict() => return None,
                Err(_) => self.env.sleep(Duration::from_millis(200)).await,
            }
        }
        panic!("{} could not {what}", self.name)
    }

    async fn register(&self) -> Result<(), ApiError> {
        let config = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": self.name } });
        let apply = Patch::Apply { manager: "sim".into(), force: true, config };
        self.client.api::<Node>().patch(&self.name, &apply).await?;
        let resources = json!({ "cpu": "8", "memory": "16Gi", "pods": "110" });
        let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
            "lastHeartbeatTime": self.env.now().to_string(), "lastTransitionTime": self.env.now().to_string() });
        let status = json!({ "status": { "capacity": resources, "allocatable": resources, "conditions": [ready] } });
        self.client.api::<Node>().patch_status(&self.name, &Patch::Strategic(status)).await.map(drop)
    }

    async fn heartbeat(&self) {
        loop {
            let now = self.env.now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
            let config = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": self.name, "namespace": "kube-node-lease" },
                "spec": { "holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now } });
            let apply = Patch::Apply { manager: "sim".into(), force: true, config };
            // The next beat is soon enough after a failure.
            if self.client.namespaced::<Lease>("kube-node-lease").patch(&self.name, &apply).await.is_err() {
                self.env.sleep(Duration::from_secs(1)).await;
                continue;
            }
            self.env.sleep(HEARTBEAT).await;
        }
    }

    async fn start(&self, pod: &Pod) {
        self.env.sleep(Duration::from_millis(200 + self.env.random_u64() % 2000)).await;
        let now = self.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
        let conditions: Vec<_> = ["Initialized", "ContainersReady", "Ready", "PodScheduled"].map(condition).into();
        let address = format!("10.244.9.{}", 1 + self.env.random_u64() % 250);
        let status = json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "phase": "Running", "startTime": now,
            "podIP": address, "podIPs": [{ "ip": address }], "conditions": conditions } });
        let (namespace, name) = identity(pod);
        let pods = self.client.namespaced::<Pod>(&namespace);
        let status = Patch::Strategic(status);
        self.insist("report a pod", || pods.patch_status(&name, &status).boxed()).await;
    }

    async fn stop(&self, pod: &Pod) {
        self.env.sleep(Duration::from_millis(100 + self.env.random_u64() % 1000)).await;
        let (namespace, name) = identity(pod);
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
            ..DeleteOptions::default()
        };
        let pods = self.client.namespaced::<Pod>(&namespace);
        self.insist("remove a pod", || pods.delete(&name, &options).boxed()).await;
    }
}

fn identity(pod: &Pod) -> (String, String) {
    (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone().unwrap_or_default())
}
