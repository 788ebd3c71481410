//! `figures`: how fast the real control plane is on this machine, with 5,000 nodes that only exist on paper.
//! Run by `tools/bench` from a release build; one row per figure, with its goal. `devices` and `autoscalers` have theirs.
//! Everything goes through the API server and the durable store, as in production; nothing here is a check.

mod autoscalers;
mod devices;

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use apiserver::{ApiServer, Config};
use client::{Client, InformerFactory, Patch};
use env::Env;
use futures::{StreamExt, stream};
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::{Lease, LeaseSpec},
    core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, MicroTime};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use devices::DEVICES_PER_NODE;

const NODES: usize = 5000;
const PODS: usize = 10_000;
const IN_FLIGHT: usize = 256;
/// How often a node says that it lives.
const BEAT: Duration = Duration::from_secs(10);
const MASTERS: &[&str] = &["system:masters"];

struct Bench {
    server: Arc<ApiServer>,
    admin: Client,
    env: Env,
    directory: PathBuf,
}

impl Drop for Bench {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

fn row(figure: &str, value: String, goal: &str) {
    println!("{figure:<44} {value:>12}   {goal}");
}

impl Bench {
    async fn start() -> Self {
        Self::with_nodes(NODES).await
    }

    async fn with_nodes(nodes: usize) -> Self {
        let env = Env::real();
        let directory = std::env::temp_dir().join(format!("minke-figures-{}", env.uuid()));
        let store = store::EmbeddedStore::open(&directory, env.clone()).expect("a store in a new directory");
        let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
        let server = ApiServer::new(Config::in_process(key), Arc::new(store), env.clone()).await.expect("a server");
        env.spawn(client::sweep_object_forms(env.clone()));
        let admin = in_process::client(&server, "admin", MASTERS);
        let bench = Self { server, admin, env, directory };
        bench.many(0..nodes, |number| bench.node(number)).await;
        bench
    }

    /// Runs `work` for all of `items`, many at once; returns the seconds it took.
    async fn many<T, F: Future<Output = ()>>(&self, items: impl IntoIterator<Item = T>, work: impl Fn(T) -> F) -> f64 {
        let began = self.env.monotonic();
        stream::iter(items).for_each_concurrent(IN_FLIGHT, work).await;
        self.seconds_since(began)
    }

    fn seconds_since(&self, began: Duration) -> f64 {
        (self.env.monotonic() - began).as_secs_f64()
    }

    async fn create<K>(&self, namespace: Option<&str>, object: Value)
    where
        K: k8s_openapi::Resource + Serialize + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).expect("a valid object");
        let api = match namespace {
            Some(namespace) => self.admin.namespaced::<K>(namespace),
            None => self.admin.api::<K>(),
        };
        api.create(&object).await.expect("the server takes it");
    }

    async fn node(&self, number: usize) {
        let name = format!("node-{number}");
        let labels =
            json!({ "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": format!("zone-{}", number % 3) });
        self.create::<Node>(None, json!({ "metadata": { "name": name, "labels": labels } })).await;
        let resources = json!({ "cpu": "32", "memory": "256Gi", "pods": "110" });
        let status = json!({ "status": { "capacity": resources, "allocatable": resources, "conditions": [
            { "type": "Ready", "status": "True", "lastHeartbeatTime": self.env.now().to_string() }] } });
        self.admin.api::<Node>().patch_status(&name, &Patch::Strategic(status)).await.expect("a status");
        let taints = Patch::Merge(json!({ "spec": { "taints": null } }));
        self.admin.api::<Node>().patch(&name, &taints).await.expect("no taints");
    }

    fn component(&self, user: &str) -> (Client, InformerFactory, CancellationToken, DropGuard) {
        let (client, shutdown) = (in_process::client(&self.server, user, MASTERS), CancellationToken::new());
        let informers = InformerFactory::new(client.clone(), self.env.clone(), shutdown.clone());
        (client, informers, shutdown.clone(), shutdown.drop_guard())
    }

    fn scheduler(&self) -> DropGuard {
        let (client, informers, shutdown, guard) = self.component("system:kube-scheduler");
        let run = scheduler::run(scheduler::Config::default(), client, informers, self.env.clone(), shutdown);
        self.env.spawn(async move { run.await.map_err(|e| e.to_string()).expect("the scheduler runs") });
        guard
    }

    fn controllers(&self) -> DropGuard {
        let (client, informers, shutdown, guard) = self.component("system:kube-controller-manager");
        // Nodes on paper never renew their leases.
        let patient = Duration::from_secs(24 * 3600);
        let config = controllers::Config {
            node_monitor_grace_period: patient,
            node_startup_grace_period: patient,
            ..controllers::Config::default()
        };
        self.env.spawn(controllers::run(config, client, informers, self.env.clone(), shutdown));
        guard
    }

    async fn namespace(&self, name: &str) {
        self.create::<Namespace>(None, json!({ "metadata": { "name": name } })).await;
        let account = json!({ "metadata": { "name": "default" } });
        self.create::<k8s_openapi::api::core::v1::ServiceAccount>(Some(name), account).await;
    }

    /// Waits until `count` pods of a namespace are bound; when each was seen to be.
    async fn bound(&self, namespace: &str, count: usize) -> HashMap<String, Duration> {
        let (_, informers, _, _guard) = self.component("system:kube-scheduler");
        let mut changes = informers.informer::<Pod>().subscribe();
        let mut seen = HashMap::new();
        while seen.len() < count {
            let Some(change) = changes.next().await else { break };
            let Some(pod) = change.new else { continue };
            let is_bound = pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
            if is_bound && pod.metadata.namespace.as_deref() == Some(namespace) {
                seen.entry(pod.metadata.name.clone().unwrap_or_default()).or_insert_with(|| self.env.monotonic());
            }
        }
        seen
    }

    async fn pod(&self, namespace: &str, name: String, app: &str, more: &Value) {
        let mut pod = json!({ "metadata": { "name": name, "labels": { "app": app } }, "spec": { "containers": [
            { "name": "c", "image": "none", "resources": { "requests": { "cpu": "100m", "memory": "100Mi" } } }] } });
        for (field, value) in more.as_object().into_iter().flatten() {
            pod["spec"][field] = value.clone();
        }
        self.create::<Pod>(Some(namespace), pod).await;
    }

    /// Pods per second from the first creation to the last binding, of so many templates.
    async fn throughput(&self, namespace: &str, count: usize, templates: usize, spec: fn(&str) -> Value) -> f64 {
        self.namespace(namespace).await;
        let _scheduler = self.scheduler();
        self.env.sleep(Duration::from_secs(2)).await;
        let began = self.env.monotonic();
        let apps: Vec<(String, Value)> = (0..templates)
            .map(|n| {
                let app = format!("{namespace}-{n}");
                let spec = spec(&app);
                (app, spec)
            })
            .collect();
        let create = self.many(0..count, |n| {
            let (app, spec) = &apps[n % templates];
            self.pod(namespace, format!("p{n}"), app, spec)
        });
        let (_, _) = tokio::join!(create, self.bound(namespace, count));
        count as f64 / self.seconds_since(began)
    }

    /// The 99th percentile from creation to binding, in milliseconds, at a steady rate.
    async fn latency(&self, per_second: usize, seconds: usize) -> f64 {
        let namespace = "steady";
        self.namespace(namespace).await;
        let _scheduler = self.scheduler();
        self.env.sleep(Duration::from_secs(2)).await;
        let count = per_second * seconds;
        let created = parking_lot::Mutex::new(HashMap::new());
        let began = self.env.monotonic();
        let create = self.many(0..count, |n| {
            let (created, none) = (&created, Value::Null);
            async move {
                let due = began + Duration::from_secs_f64(n as f64 / per_second as f64);
                self.env.sleep(due.saturating_sub(self.env.monotonic())).await;
                created.lock().insert(format!("p{n}"), self.env.monotonic());
                self.pod(namespace, format!("p{n}"), namespace, &none).await;
            }
        });
        let (_, bound) = tokio::join!(create, self.bound(namespace, count));
        let created = created.into_inner();
        let mut waits: Vec<Duration> = bound.iter().map(|(name, at)| at.saturating_sub(created[name])).collect();
        waits.sort();
        waits[waits.len() * 99 / 100].as_secs_f64() * 1000.0
    }

    async fn deployment(&self, namespace: &str, name: String, replicas: usize) {
        let labels = json!({ "app": name });
        let deployment = json!({ "metadata": { "name": name }, "spec": { "replicas": replicas,
            "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": { "containers": [
                { "name": "c", "image": "none", "resources": { "requests": { "cpu": "10m" } } }] } } } });
        self.create::<Deployment>(Some(namespace), deployment).await;
    }

    async fn large_deployment(&self, replicas: usize) -> f64 {
        self.namespace("large").await;
        let (_scheduler, _controllers) = (self.scheduler(), self.controllers());
        self.env.sleep(Duration::from_secs(3)).await;
        let began = self.env.monotonic();
        self.deployment("large", "web".into(), replicas).await;
        self.bound("large", replicas).await;
        self.seconds_since(began)
    }

    /// Every deployment changed while nobody looked; seconds until all have been looked at.
    async fn restart(&self, count: usize) -> f64 {
        self.namespace("many").await;
        {
            let _controllers = self.controllers();
            self.many(0..count, |n| self.deployment("many", format!("d{n}"), 0)).await;
            self.observed(count).await;
        }
        self.many(0..count, |n| async move {
            let resize = Patch::Merge(json!({ "spec": { "revisionHistoryLimit": 3 } }));
            let api = self.admin.namespaced::<Deployment>("many");
            api.patch(&format!("d{n}"), &resize).await.expect("a change");
        })
        .await;
        let began = self.env.monotonic();
        let _controllers = self.controllers();
        self.observed(count).await;
        self.seconds_since(began)
    }

    async fn observed(&self, count: usize) {
        let (_, informers, _, _guard) = self.component("system:kube-controller-manager");
        let mut changes = informers.informer::<Deployment>().subscribe();
        let mut done = std::collections::HashSet::new();
        while done.len() < count {
            let Some(change) = changes.next().await else { return };
            let Some(new) = change.new.filter(|d| d.metadata.namespace.as_deref() == Some("many")) else { continue };
            if new.status.as_ref().and_then(|s| s.observed_generation) == new.metadata.generation {
                done.insert(change.key);
            }
        }
    }

    /// Pods with half of the volumes go and others come while nobody looks; seconds until the attachments follow.
    async fn attachments(&self, volumes: usize, nodes: usize) -> f64 {
        self.namespace("attached").await;
        self.many(0..volumes, |n| self.driver_claim(n)).await;
        let pod = |n: usize| {
            let volume = json!({ "name": "v", "persistentVolumeClaim": { "claimName": format!("c{n}") } });
            let more = json!({ "nodeName": format!("node-{}", n % nodes), "volumes": [volume] });
            async move { self.pod("attached", format!("p{n}"), "attached", &more).await }
        };
        let half = volumes / 2;
        self.many(0..half, pod).await;
        {
            let _controllers = self.controllers();
            self.attached(|name| name < half, half).await;
            self.bound_claims(volumes).await;
        }
        let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        self.many(0..half, |n| {
            let now = &now;
            async move {
                let api = self.admin.namespaced::<Pod>("attached");
                api.delete(&format!("p{n}"), now).await.expect("a pod");
            }
        })
        .await;
        self.many(half..volumes, pod).await;
        let began = self.env.monotonic();
        let _controllers = self.controllers();
        self.attached(|name| name >= half, volumes - half).await;
        self.seconds_since(began)
    }

    /// A claim and the volume of a driver that is reserved for it.
    async fn driver_claim(&self, n: usize) {
        let name = format!("c{n}");
        let reference = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "attached",
            "name": name });
        let common = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "driver" });
        let (mut volume, mut claim) = (common.clone(), common);
        volume["capacity"] = json!({ "storage": "1Gi" });
        volume["claimRef"] = reference;
        volume["csi"] = json!({ "driver": "d.example.com", "volumeHandle": format!("h{n}") });
        claim["volumeName"] = format!("v{n}").into();
        claim["resources"] = json!({ "requests": { "storage": "1Gi" } });
        self.create::<PersistentVolume>(None, json!({ "metadata": { "name": format!("v{n}") }, "spec": volume })).await;
        let claim = json!({ "metadata": { "name": name }, "spec": claim });
        self.create::<PersistentVolumeClaim>(Some("attached"), claim).await;
    }

    /// Waits until `count` volumes are to be attached, all of them those that are wanted.
    async fn attached(&self, wanted: impl Fn(usize) -> bool, count: usize) {
        let (_, informers, _, _guard) = self.component("system:kube-controller-manager");
        let mut changes = informers.informer::<VolumeAttachment>().subscribe();
        let mut there = HashMap::new();
        let is_done = |there: &HashMap<String, usize>| there.len() == count && there.values().all(|n| wanted(*n));
        while !is_done(&there) {
            let Some(change) = changes.next().await else { return };
            let number = change.new.and_then(|new| {
                let volume = new.spec.source.persistent_volume_name.clone()?;
                volume.strip_prefix('v')?.parse::<usize>().ok()
            });
            match number {
                Some(number) => there.insert(change.key, number),
                None => there.remove(&change.key),
            };
        }
    }

    async fn bound_claims(&self, count: usize) {
        let (_, informers, _, _guard) = self.component("system:kube-controller-manager");
        let mut changes = informers.informer::<PersistentVolumeClaim>().subscribe();
        let mut done = std::collections::HashSet::new();
        while done.len() < count {
            let Some(change) = changes.next().await else { return };
            if change
                .new
                .is_some_and(|claim| claim.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Bound")))
            {
                done.insert(change.key);
            }
        }
    }

    /// Share of a core and resident MiB of everything, with every node renewing its lease.
    async fn idle(&self, pods: usize) -> (f64, f64) {
        self.namespace("idle").await;
        let (_scheduler, _controllers) = (self.scheduler(), self.controllers());
        let more = Value::Null;
        self.many(0..pods, |n| {
            let more = json!({ "nodeName": format!("node-{}", n % NODES), "priority": more });
            async move { self.pod("idle", format!("i{n}"), "idle", &more).await }
        })
        .await;
        // Each node beats for itself, some at any moment.
        let beating: Vec<_> = (0..NODES)
            .map(|number| {
                let (client, env) = (self.admin.clone(), self.env.clone());
                self.env.spawn(async move {
                    env.sleep(BEAT * number as u32 / NODES as u32).await;
                    let mut known = None;
                    loop {
                        known = beat(&client, &env, number, known).await;
                        env.sleep(BEAT).await;
                    }
                })
            })
            .collect();
        self.env.sleep(Duration::from_secs(60)).await;
        let before = cpu_seconds();
        self.env.sleep(Duration::from_secs(30)).await;
        let share = (cpu_seconds() - before) / 30.0 * 100.0;
        beating.iter().for_each(|beating| beating.abort());
        (share, resident_mib())
    }
}

/// As kubelets do it: the Lease of the last answer, with a new time. Returns that of this answer.
async fn beat(client: &Client, env: &Env, number: usize, known: Option<Lease>) -> Option<Lease> {
    let name = format!("node-{number}");
    let leases = client.namespaced::<Lease>("kube-node-lease");
    let mut lease = known.unwrap_or_default();
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(name.clone()),
        lease_duration_seconds: Some(40),
        renew_time: Some(MicroTime(env.now())),
        ..LeaseSpec::default()
    });
    if lease.metadata.name.is_some() {
        return leases.replace(&name, &lease).await.ok();
    }
    lease.metadata.name = Some(name.clone());
    match leases.create(&lease).await {
        Ok(lease) => Some(lease),
        Err(_) => leases.get(&name).await.ok(),
    }
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks: f64 = after.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<f64>().ok()).sum();
    ticks / 100.0
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

type Rate = (&'static str, usize, fn(&str) -> Value, f64);

/// Name, templates, what is in their specs, and kube-scheduler's own threshold in pods per second.
const RATES: &[Rate] = &[
    ("plain", 1, |_| json!({}), 270.0),
    (
        "spread",
        1,
        |app| {
            json!({ "topologySpreadConstraints": [{ "maxSkew": 5, "whenUnsatisfiable": "DoNotSchedule",
                "topologyKey": "topology.kubernetes.io/zone", "labelSelector": { "matchLabels": { "app": app } } }] })
        },
        85.0,
    ),
    // Of each template one pod fits on a node.
    (
        "anti-affinity",
        3,
        |app| {
            json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
                { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": app } } }] } } })
        },
        60.0,
    ),
];

fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| o == name);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        for (name, templates, spec, upstream) in RATES {
            if wanted(name) {
                let rate = Bench::start().await.throughput(name, PODS, *templates, *spec).await;
                let figure = format!("{PODS} {name} pods on {NODES} nodes");
                row(&figure, format!("{rate:.0} pods/s"), &format!("{:.1}x of {upstream} (>= 5x)", rate / upstream));
            }
        }
        if wanted("claims") {
            let (nodes, claims) = (100, 1000);
            let rate = Bench::with_nodes(nodes).await.claims(nodes, claims).await;
            let figure = format!("{claims} claims for {DEVICES_PER_NODE} devices on each of {nodes} nodes");
            row(&figure, format!("{rate:.0} claims/s"), "kube-scheduler was not measured so");
        }
        if wanted("device-memory") {
            let mib = Bench::start().await.device_memory().await;
            row(&format!("{} devices: memory", NODES * DEVICES_PER_NODE), format!("{mib:.0} MiB"), "< 100 MiB");
        }
        if wanted("autoscalers") {
            let (count, bench) = (1000, Bench::with_nodes(0).await);
            let (seconds, share) = bench.autoscalers(count).await;
            row(&format!("{count} autoscalers looked at"), format!("{seconds:.2} s"), "< 1 s");
            row(&format!("{count} autoscalers: CPU"), format!("{share:.1} %"), "< 5 %");
        }
        if wanted("latency") {
            let wait = Bench::start().await.latency(200, 20).await;
            row("p99 create to bound at 200 pods/s", format!("{wait:.0} ms"), "< 100 ms");
        }
        if wanted("deployment") {
            let seconds = Bench::start().await.large_deployment(5000).await;
            row("a Deployment of 5000 replicas bound", format!("{seconds:.1} s"), "< 15 s");
        }
        if wanted("restart") {
            let seconds = Bench::start().await.restart(1000).await;
            row("1000 Deployments looked at after a restart", format!("{seconds:.1} s"), "< 2 s");
        }
        if wanted("attachments") {
            let seconds = Bench::start().await.attachments(1000, 500).await;
            row("1000 volumes on 500 nodes after a restart", format!("{seconds:.1} s"), "< 3 s");
        }
        if wanted("idle") {
            let (share, mib) = Bench::start().await.idle(50_000).await;
            row("5000 beating nodes, 50000 pods: idle CPU", format!("{share:.1} %"), "< 15 %");
            row("5000 beating nodes, 50000 pods: memory", format!("{mib:.0} MiB"), "< 600 MiB");
        }
    });
}
