//! The demo that `make up` shows: a Deployment of three replicas behind a Service.
//! Applied by `up --demo` through the API, like anything of a user's.
//! Uses nothing that a user could not.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use client::{Client, InformerFactory, ListParams, Patch};
use env::Env;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::commands::{images, report::Reporter};

const NAMESPACE: &str = "default";
const NAME: &str = "demo";
const REPLICAS: i32 = 3;
const PORT: u16 = 80;

pub fn deployment() -> Value {
    let labels = json!({ "app": NAME });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": NAME, "namespace": NAMESPACE },
        "spec": {
            "replicas": REPLICAS,
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [{
                "name": NAME, "image": images::DEMO, "ports": [{ "containerPort": 8080 }],
                "readinessProbe": { "httpGet": { "port": 8080 }, "periodSeconds": 1 },
                "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
            }] } },
        },
    })
}

pub fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": NAME, "namespace": NAMESPACE },
        "spec": { "selector": { "app": NAME }, "ports": [{ "port": PORT, "targetPort": 8080 }] },
    })
}

/// Applies the demo, waits until all replicas are available and the Service answers.
pub async fn run(client: &Client, env: &Env, shutdown: &CancellationToken, report: &Reporter) -> Result<()> {
    let apply = |config| Patch::Apply { manager: "minke-demo".into(), force: true, config };
    client.namespaced::<Deployment>(NAMESPACE).patch(NAME, &apply(deployment())).await?;
    let service = client.namespaced::<Service>(NAMESPACE).patch(NAME, &apply(service())).await?;
    let address = service.spec.and_then(|s| s.cluster_ip).context("the demo Service has no address")?;
    available(client, env, shutdown).await?;
    report.step(&format!("Deployment {NAME} has {REPLICAS} replicas running"));
    let address = SocketAddr::new(address.parse()?, PORT);
    let answer = get(address, env).await.with_context(|| format!("Service {NAME} at {address} does not answer"))?;
    report.step(&format!("Service {NAME} says \"{}\"", answer.trim()));
    Ok(())
}

async fn available(client: &Client, env: &Env, shutdown: &CancellationToken) -> Result<()> {
    let stop = shutdown.child_token();
    let _guard = stop.clone().drop_guard();
    let informers = InformerFactory::new(client.clone(), env.clone(), stop);
    let mut changes =
        informers.informer_with::<Deployment>(ListParams::fields(format!("metadata.name={NAME}"))).subscribe();
    let done = |d: &Deployment| {
        let status = d.status.clone().unwrap_or_default();
        d.metadata.namespace.as_deref() == Some(NAMESPACE)
            && status.observed_generation >= d.metadata.generation
            && status.available_replicas == Some(REPLICAS)
            && status.updated_replicas == Some(REPLICAS)
    };
    while let Some(change) = changes.next().await {
        if change.new.is_some_and(|d| done(&d)) {
            return Ok(());
        }
    }
    anyhow::bail!("stopped while waiting for the demo Deployment")
}

/// The rules for a new endpoint follow its readiness within milliseconds; a refused connection is tried again.
async fn get(address: SocketAddr, env: &Env) -> Result<String> {
    let mut delay = std::time::Duration::from_millis(5);
    loop {
        match attempt(address).await {
            Ok(answer) => return Ok(answer),
            Err(error) if delay.as_secs() >= 5 => return Err(error.into()),
            Err(_) => env.sleep(delay).await,
        }
        delay *= 2;
    }
}

async fn attempt(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_string()),
        _ => Err(std::io::Error::other(format!("unexpected answer {answer:?}"))),
    }
}
