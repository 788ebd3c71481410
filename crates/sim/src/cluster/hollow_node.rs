//! A node that only pretends: it registers, keeps its Lease, admits pods that fit, and says of them what their images
//! tell it to: `good:N` runs, `bad:N` never gets ready, `ends:CODE` ends.
//! Stands in for the kubelet in simulations; one task per pod, as there.
//! Goes through the API like a kubelet would, under a node's user; knows nothing else.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use api::ApiError;
use client::{Client, Informer, InformerFactory, ListParams, Patch};
use env::{Backoff, Env};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::facts::{self, MILLI_CPU, NODE_PODS};

const HEARTBEAT: Duration = Duration::from_secs(10);

pub struct HollowNode {
    name: String,
    zone: String,
    client: Client,
    env: Env,
    addresses: Arc<AtomicU64>,
    /// Milli-CPU of the pods that were admitted, by uid.
    admitted: Mutex<HashMap<String, i64>>,
}

impl HollowNode {
    pub fn new(name: String, zone: String, client: Client, env: Env, addresses: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self { name, zone, client, env, addresses, admitted: Mutex::default() })
    }

    pub async fn run(self: Arc<Self>) {
        let informers = InformerFactory::new(self.client.clone(), self.env.clone(), CancellationToken::new());
        // Deleted in the same moment: `heartbeat` sees that.
        self.insist(|| self.register().boxed()).await.ok();
        let me = informers.informer_with::<Node>(ListParams::fields(format!("metadata.name={}", self.name)));
        let (node, changes) = (self.clone(), me.subscribe());
        self.env.spawn(async move { node.stay_ready(changes).await });
        let node = self.clone();
        self.env.spawn(async move { node.heartbeat(me).await });
        let own = ListParams::fields(format!("spec.nodeName={}", self.name));
        let mut pods = informers.informer_with::<Pod>(own).subscribe();
        let mut workers: HashMap<String, watch::Sender<Arc<Pod>>> = HashMap::new();
        while let Some(change) = pods.next().await {
            let old = change
                .old
                .as_ref()
                .filter(|old| change.new.as_ref().is_none_or(|new| facts::uid(&**new) != facts::uid(&***old)));
            if let Some(gone) = old {
                workers.remove(facts::uid(&**gone));
                self.admitted.lock().remove(facts::uid(&**gone));
            }
            let Some(pod) = change.new else { continue };
            match workers.get(facts::uid(&*pod)) {
                Some(worker) if !worker.is_closed() => drop(worker.send_replace(pod)),
                // Also where the last one is done and a restored backup has brought its pod back.
                _ => {
                    let (sender, receiver) = watch::channel(pod.clone());
                    workers.insert(facts::uid(&*pod).to_string(), sender);
                    let node = self.clone();
                    self.env.spawn(async move { node.work(receiver).await });
                }
            }
        }
    }

    /// Until it works, or is settled otherwise: what a kubelet does about an unreliable network.
    async fn insist<'a, T>(
        &self,
        attempt: impl Fn() -> BoxFuture<'a, Result<T, ApiError>> + Send + Sync,
    ) -> Result<T, ApiError> {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        loop {
            match attempt().await {
                Err(error) if !error.is_not_found() && !error.is_conflict() && error.code != 422 => {
                    self.env.sleep(backoff.next_delay()).await;
                }
                settled => return settled,
            }
        }
    }

    async fn register(&self) -> Result<(), ApiError> {
        let labels = json!({ "kubernetes.io/hostname": self.name, "topology.kubernetes.io/zone": self.zone });
        let config = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": self.name, "labels": labels } });
        let apply = Patch::Apply { manager: "sim".into(), force: true, config };
        self.client.api::<Node>().patch(&self.name, &apply).await?;
        self.report_ready().await
    }

    async fn report_ready(&self) -> Result<(), ApiError> {
        let resources = json!({ "cpu": format!("{MILLI_CPU}m"), "memory": "16Gi", "pods": NODE_PODS.to_string() });
        let now = self.now();
        let ready = json!({ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": now });
        let status = json!({ "status": { "capacity": resources, "allocatable": resources, "conditions": [ready] } });
        self.client.api::<Node>().patch_status(&self.name, &Patch::Strategic(status)).await.map(drop)
    }

    fn now(&self) -> String {
        self.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// Says so again whenever somebody says otherwise; comes back when it was deleted.
    async fn stay_ready(&self, mut changes: client::Subscription<Node>) {
        while let Some(change) = changes.next().await {
            let outcome = match change.new {
                None => self.insist(|| self.register().boxed()).await,
                Some(node) if !facts::node_ready(&node) => self.insist(|| self.report_ready().boxed()).await,
                Some(_) => Ok(()),
            };
            // Deleted meanwhile: that change is on its way.
            outcome.ok();
        }
    }

    /// Registers again where the deletion itself was never seen: it came before the first look.
    async fn heartbeat(&self, me: Informer<Node>) {
        loop {
            let now = self.env.now().strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string();
            let config = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": self.name, "namespace": "kube-node-lease" },
                "spec": { "holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now } });
            let apply = Patch::Apply { manager: "sim".into(), force: true, config };
            let beaten = self.client.namespaced::<Lease>("kube-node-lease").patch(&self.name, &apply).await;
            self.env.sleep(if beaten.is_ok() { HEARTBEAT } else { Duration::from_secs(1) }).await;
            if me.get(&self.name).is_none() {
                self.insist(|| self.register().boxed()).await.ok();
            }
        }
    }

    fn admit(&self, pod: &Pod) -> bool {
        let mut admitted = self.admitted.lock();
        let used: i64 = admitted.values().sum();
        let fits = used + facts::milli_cpu(pod) <= MILLI_CPU && admitted.len() < NODE_PODS;
        if fits {
            admitted.insert(facts::uid(pod).to_string(), facts::milli_cpu(pod));
        }
        fits
    }

    /// One pod from its arrival to its end.
    async fn work(&self, mut changes: watch::Receiver<Arc<Pod>>) {
        let pod = changes.borrow_and_update().clone();
        if facts::finished(&pod) {
            return self.wait_for_deletion(changes).await;
        }
        let mut life = if self.admit(&pod) { Life::of(&pod) } else { Life::Refused };
        let address = match pod.status.as_ref().and_then(|s| s.pod_ip.clone()) {
            Some(address) => address,
            None => {
                let number = self.addresses.fetch_add(1, Ordering::Relaxed);
                format!("10.244.{}.{}", number / 250 % 250, 1 + number % 250)
            }
        };
        let mut step = self.after(200, 2000);
        loop {
            let pod = changes.borrow_and_update().clone();
            if pod.metadata.deletion_timestamp.is_some() {
                return self.stop(&pod).await;
            }
            if !life.is_told_by(&pod) {
                let status = life.status(&pod, &address, &self.now());
                let (namespace, name) = facts::identity(&*pod);
                let pods = self.client.namespaced::<Pod>(&namespace);
                let patch = Patch::Strategic(json!({ "metadata": { "uid": facts::uid(&*pod) }, "status": status }));
                if self.insist(|| pods.patch_status(&name, &patch).boxed()).await.is_err() {
                    return;
                }
            }
            if life.is_over() {
                // It is told again when somebody forgets it, as a restored backup does.
                self.admitted.lock().remove(facts::uid(&*pod));
            }
            tokio::select! {
                biased;
                changed = changes.changed() => if changed.is_err() { return },
                () = &mut step, if life.goes_on() => {
                    life = life.next();
                    step = self.after(500, 8000);
                }
            }
        }
    }

    fn after(&self, least: u64, spread: u64) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        let (env, wait) = (self.env.clone(), Duration::from_millis(least + self.env.random_u64() % spread));
        Box::pin(async move { env.sleep(wait).await })
    }

    async fn wait_for_deletion(&self, mut changes: watch::Receiver<Arc<Pod>>) {
        loop {
            let pod = changes.borrow_and_update().clone();
            if pod.metadata.deletion_timestamp.is_some() {
                return self.stop(&pod).await;
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn stop(&self, pod: &Pod) {
        self.after(100, 1000).await;
        let (namespace, name) = facts::identity(pod);
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: pod.metadata.uid.clone(), resource_version: None }),
            ..DeleteOptions::default()
        };
        let pods = self.client.namespaced::<Pod>(&namespace);
        self.insist(|| pods.delete(&name, &options).boxed()).await.ok();
    }
}

/// What a pod's containers are up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// There is no room for it here.
    Refused,
    Starting(Fate),
    Running(Fate),
    Ended(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Ready,
    NeverReady,
    Ends(i32),
}

impl Life {
    fn of(pod: &Pod) -> Self {
        let image = facts::image(pod);
        let fate = match image.split_once(':').unwrap_or((&image, "")) {
            ("bad", _) => Fate::NeverReady,
            ("ends", code) => Fate::Ends(code.parse().unwrap_or(0)),
            _ => Fate::Ready,
        };
        // Containers outlive the kubelet.
        if facts::phase(pod) == "Running" { Self::Running(fate) } else { Self::Starting(fate) }
    }

    fn next(self) -> Self {
        match self {
            Self::Starting(fate) => Self::Running(fate),
            Self::Running(Fate::Ends(code)) => Self::Ended(code),
            other => other,
        }
    }

    fn goes_on(self) -> bool {
        self.next() != self
    }

    fn is_over(self) -> bool {
        matches!(self, Self::Refused | Self::Ended(_))
    }

    fn phase(self) -> &'static str {
        match self {
            Self::Starting(_) => "Pending",
            Self::Running(_) => "Running",
            Self::Ended(0) => "Succeeded",
            Self::Refused | Self::Ended(_) => "Failed",
        }
    }

    fn ready(self) -> bool {
        matches!(self, Self::Running(Fate::Ready | Fate::Ends(_)))
    }

    fn is_told_by(self, pod: &Pod) -> bool {
        facts::phase(pod) == self.phase() && facts::ready(pod) == self.ready()
    }

    fn status(self, pod: &Pod, address: &str, now: &str) -> Value {
        let ready = if self.ready() { "True" } else { "False" };
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "lastTransitionTime": now });
        let mut status = json!({
            "phase": self.phase(), "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [condition("Initialized", "True"), condition("ContainersReady", ready), condition("Ready", ready)],
        });
        if pod.status.as_ref().is_none_or(|s| s.start_time.is_none()) {
            status["startTime"] = now.into();
        }
        match self {
            Self::Refused => status["reason"] = "OutOfcpu".into(),
            Self::Ended(code) => {
                status["containerStatuses"] = json!([{ "name": "c", "image": "", "imageID": "", "ready": false,
                    "restartCount": 0, "state": { "terminated": { "exitCode": code, "finishedAt": now } } }]);
            }
            _ => {}
        }
        status
    }
}
