//! Figures of a running cluster's node against its bare runtime: pods up and down, one by one and many at once.
//! Run by `tools/bench` with the cluster's data directory; prints rows of `figure|value|goal`.
//! What it makes in the runtime and in the cluster it removes again.

use std::{collections::HashSet, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use client::{Client, HttpsTransport, Informer, InformerFactory, Patch, from_kubeconfig};
use cri::{RemoteRuntime, Runtime, RuntimeEvent, v1};
use env::Env;
use futures::{StreamExt, stream};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "minke.local/demo:1";
/// Where its server listens.
const PORT: u16 = 8080;
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
const SINGLE: usize = 20;
const MANY: usize = 80;
const ROUNDS: u32 = 3;
const PARALLEL: usize = 4;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let data = PathBuf::from(arguments.next().context("usage: node_figures DATA-DIRECTORY SOCKET")?);
    let socket = arguments.next().context("usage: node_figures DATA-DIRECTORY SOCKET")?;
    let figures = Figures {
        env: Env::real(),
        runtime: RemoteRuntime::new(&socket, None),
        client: Client::new(HttpsTransport::new(from_kubeconfig(&data.join("admin.kubeconfig"), "figures")?)?),
        logs: std::env::temp_dir().join(format!("minke-figures-{}", std::process::id())),
    };
    std::fs::create_dir_all(&figures.logs)?;
    let stop = CancellationToken::new();
    let informers = InformerFactory::new(figures.client.clone(), figures.env.clone(), stop.clone());
    let pods = informers.informer::<Pod>();
    pods.synced().await;
    figures.single(&pods).await?;
    figures.probed(&pods).await?;
    figures.many(&pods).await?;
    std::fs::remove_dir_all(&figures.logs)?;
    stop.cancel();
    Ok(())
}

struct Figures {
    env: Env,
    runtime: RemoteRuntime,
    client: Client,
    /// Of the bare containers.
    logs: PathBuf,
}

fn row(figure: &str, value: String, goal: &str) {
    println!("{figure}|{value}|{goal}");
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

fn milliseconds(duration: Duration) -> String {
    format!("{} ms", duration.as_millis())
}

fn ratio(ours: Duration, bare: Duration) -> String {
    format!("{:.2}x", ours.as_secs_f64() / bare.as_secs_f64())
}

impl Figures {
    /// One pod after the other.
    async fn single(&self, pods: &Informer<Pod>) -> Result<()> {
        // Taken in turns, so that both see the same machine.
        let (mut bare, mut ours, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let mut calls: [Vec<Duration>; 3] = Default::default();
        for number in 0..SINGLE {
            let (sandbox, took) = self.bare_up(&format!("bare-{number}")).await?;
            bare.push(took.iter().sum());
            calls.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
            self.bare_down(&sandbox).await?;
            let name = format!("figure-{number}");
            ours.push(self.pod_up(pods, &name).await?);
            gone.push(self.pod_down(pods, &name).await?);
        }
        let (bare50, bare99) = (percentile(&bare, 50), percentile(&bare, 99));
        row("bare runtime: sandbox, create, start, p50", milliseconds(bare50), "");
        row("bare runtime, p99", milliseconds(bare99), "");
        let [sandbox, create, start] = calls.map(|times| percentile(&times, 50).as_millis());
        row("  of it sandbox, create, start, p50", format!("{sandbox}, {create}, {start} ms"), "");
        let (p50, p99) = (percentile(&ours, 50), percentile(&ours, 99));
        row("create to Running, p50", milliseconds(p50), "");
        row("  against the bare runtime", ratio(p50, bare50), "<= 1.25x");
        row("create to Running, p99", milliseconds(p99), "");
        row("  against the bare runtime's p99", ratio(p99, bare99), "<= 2x");
        row("process ended to pod gone, p50", milliseconds(percentile(&gone, 50)), "<= 300 ms");
        row("process ended to pod gone, p99", milliseconds(percentile(&gone, 99)), "");
        Ok(())
    }

    async fn bare_up(&self, name: &str) -> Result<(String, [Duration; 3])> {
        let metadata = Some(v1::PodSandboxMetadata {
            name: name.into(),
            uid: name.into(),
            namespace: "figures".into(),
            attempt: 0,
        });
        let sandbox_config = v1::PodSandboxConfig {
            metadata,
            hostname: name.into(),
            log_directory: self.logs.to_string_lossy().into_owned(),
            linux: Some(v1::LinuxPodSandboxConfig::default()),
            ..Default::default()
        };
        let began = self.env.monotonic();
        let sandbox = self.runtime.run_pod_sandbox(sandbox_config.clone(), "").await?;
        let ran = self.env.monotonic();
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
            linux: Some(v1::LinuxContainerConfig::default()),
            log_path: format!("{name}.log"),
            ..Default::default()
        };
        let container = self.runtime.create_container(&sandbox, config, sandbox_config).await?;
        let created = self.env.monotonic();
        self.runtime.start_container(&container).await?;
        Ok((sandbox, [ran - began, created - ran, self.env.monotonic() - created]))
    }

    async fn bare_down(&self, sandbox: &str) -> Result<()> {
        let filter = v1::ContainerFilter { pod_sandbox_id: sandbox.into(), ..Default::default() };
        for container in self.runtime.list_containers(Some(filter)).await? {
            self.runtime.stop_container(&container.id, 5).await?;
            self.runtime.remove_container(&container.id).await?;
        }
        self.runtime.stop_pod_sandbox(sandbox).await?;
        self.runtime.remove_pod_sandbox(sandbox).await?;
        Ok(())
    }

    async fn pod_up(&self, pods: &Informer<Pod>, name: &str) -> Result<Duration> {
        let began = self.env.monotonic();
        self.pod_until(pods, name, json!({ "name": "main", "image": IMAGE }), is_running).await?;
        Ok(self.env.monotonic() - began)
    }

    /// Makes a pod and waits until it is as it should be.
    async fn pod_until(
        &self,
        pods: &Informer<Pod>,
        name: &str,
        container: Value,
        done: fn(&Pod) -> bool,
    ) -> Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "terminationGracePeriodSeconds": 5, "containers": [container] },
        }))?;
        let mut changes = pods.subscribe();
        self.client.namespaced::<Pod>("default").create(&pod).await?;
        while let Some(change) = changes.next().await {
            if change.new.is_some_and(|pod| pod.metadata.name.as_deref() == Some(name) && done(&pod)) {
                break;
            }
        }
        Ok(())
    }

    /// Pods with a readiness probe every 10 s, one after the other: how long they answer before they are Ready.
    async fn probed(&self, pods: &Informer<Pod>) -> Result<()> {
        let probe = json!({ "httpGet": { "port": PORT }, "periodSeconds": 10 });
        let mut late = Vec::new();
        for number in 0..SINGLE {
            let name = format!("probed-{number}");
            let container = json!({ "name": "main", "image": IMAGE, "readinessProbe": probe });
            let ready = async {
                self.pod_until(pods, &name, container, is_ready).await?;
                anyhow::Ok(self.env.monotonic())
            };
            let (answers, ready) = tokio::try_join!(self.answers(&name), ready)?;
            late.push(ready.saturating_sub(answers));
            self.pod_down(pods, &name).await?;
        }
        row("probe can succeed to Ready, p50", milliseconds(percentile(&late, 50)), "");
        row("probe can succeed to Ready, p99", milliseconds(percentile(&late, 99)), "<= 100 ms");
        Ok(())
    }

    /// When the pod's server first takes a connection, asked of it alone.
    async fn answers(&self, name: &str) -> Result<Duration> {
        let named = [("io.kubernetes.pod.name".to_string(), name.to_string())].into();
        let filter = v1::PodSandboxFilter { label_selector: named, ..Default::default() };
        let address = loop {
            if let Some(sandbox) = self.runtime.list_pod_sandboxes(Some(filter.clone())).await?.first() {
                let status = self.runtime.pod_sandbox_status(&sandbox.id, false).await?.status;
                let ip = status.and_then(|status| status.network).map(|network| network.ip).unwrap_or_default();
                if !ip.is_empty() {
                    break ip;
                }
            }
            self.env.sleep(LOOK_INTERVAL).await;
        };
        while tokio::net::TcpStream::connect((address.as_str(), PORT)).await.is_err() {
            self.env.sleep(LOOK_INTERVAL).await;
        }
        Ok(self.env.monotonic())
    }

    /// From the end of the container's process to the end of the object.
    async fn pod_down(&self, pods: &Informer<Pod>, name: &str) -> Result<Duration> {
        let mut changes = pods.subscribe();
        let mut events = self.runtime.events().await?;
        let env = self.env.clone();
        let exit = env::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                if matches!(event, RuntimeEvent::Exited { .. }) {
                    return env.monotonic();
                }
            }
            env.monotonic()
        });
        self.client.namespaced::<Pod>("default").delete(name, &DeleteOptions::default()).await?;
        while let Some(change) = changes.next().await {
            let ours = change.old.is_some_and(|pod| pod.metadata.name.as_deref() == Some(name));
            if ours && change.new.is_none() {
                break;
            }
        }
        let gone = self.env.monotonic();
        let exited = self.env.timeout(Duration::from_secs(1), exit).await.context("no exit was seen")??;
        Ok(gone.saturating_sub(exited))
    }

    /// Eighty at once.
    async fn many(&self, pods: &Informer<Pod>) -> Result<()> {
        // In turns again: bare up and down, ours up and down.
        let mut took = [Duration::ZERO; 4];
        for round in 0..ROUNDS {
            let (up, down) = self.bare_many(round).await?;
            let ours = (self.scale(pods, MANY).await?, self.scale(pods, 0).await?);
            took.iter_mut().zip([up, down, ours.0, ours.1]).for_each(|(sum, part)| *sum += part / ROUNDS);
        }
        let api = self.client.namespaced::<Deployment>("default");
        api.delete("figures", &DeleteOptions::default()).await?;
        let [bare_up, bare_down, up, down] = took;
        let seconds = |d: Duration| format!("{:.1} s", d.as_secs_f64());
        row("80 bare pods up, 4 at a time, mean of 3", seconds(bare_up), "");
        row("80 pods of a Deployment Running", seconds(up), "");
        row("  against the bare runtime", ratio(up, bare_up), "<= 1.2x");
        row("80 bare pods down, 4 at a time, mean of 3", seconds(bare_down), "");
        row("80 pods gone", seconds(down), "");
        row("  against the bare runtime", ratio(down, bare_down), "<= 1.2x");
        Ok(())
    }

    async fn bare_many(&self, round: u32) -> Result<(Duration, Duration)> {
        let began = self.env.monotonic();
        let made: Vec<Result<String>> = stream::iter(0..MANY)
            .map(|number| async move { Ok(self.bare_up(&format!("bare-{round}-{number}")).await?.0) })
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        let up = self.env.monotonic() - began;
        let made = made.into_iter().collect::<Result<Vec<_>>>()?;
        let began = self.env.monotonic();
        let removed: Vec<Result<()>> = stream::iter(&made)
            .map(|sandbox| async move { self.bare_down(sandbox).await })
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        removed.into_iter().collect::<Result<()>>()?;
        Ok((up, self.env.monotonic() - began))
    }

    async fn scale(&self, pods: &Informer<Pod>, replicas: usize) -> Result<Duration> {
        let labels = json!({ "app": "figures" });
        let deployment: Value = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "figures", "namespace": "default" },
            "spec": { "replicas": replicas, "selector": { "matchLabels": labels }, "template": {
                "metadata": { "labels": labels },
                "spec": { "terminationGracePeriodSeconds": 5, "containers": [{ "name": "main", "image": IMAGE }] },
            } },
        });
        let mut changes = pods.subscribe();
        let began = self.env.monotonic();
        let patch = Patch::Apply { manager: "figures".into(), force: true, config: deployment };
        self.client.namespaced::<Deployment>("default").patch("figures", &patch).await?;
        let ours = |pod: &Arc<Pod>| pod.metadata.labels.iter().flatten().any(|(k, v)| k == "app" && v == "figures");
        let (mut running, mut present) = (HashSet::new(), HashSet::new());
        for pod in pods.list().iter().filter(|pod| ours(pod)) {
            present.insert(pod.metadata.uid.clone());
        }
        loop {
            let done = match replicas {
                0 => present.is_empty(),
                wanted => running.len() >= wanted,
            };
            if done {
                return Ok(self.env.monotonic() - began);
            }
            let change = changes.next().await.context("the watch ended")?;
            match (change.old, change.new) {
                (_, Some(pod)) if ours(&pod) => {
                    present.insert(pod.metadata.uid.clone());
                    if is_running(&pod) {
                        running.insert(pod.metadata.uid.clone());
                    }
                }
                (Some(pod), None) if ours(&pod) => {
                    present.remove(&pod.metadata.uid);
                }
                _ => {}
            }
        }
    }
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
