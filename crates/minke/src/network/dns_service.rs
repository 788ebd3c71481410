//! A node's part of cluster DNS: it answers on its bridge, behind the addresses of the Service, and says so on its Node.
//! Started by `agent` once the node has its pod range; the controllers' `cluster_dns` makes Service and EndpointSlices.
//! An ordinary Service and EndpointSlices, so that a foreign DNS can take its place.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ::client::{Client, InformerFactory, Patch};
use anyhow::{Context, Result};
use api::cluster_dns::{NODE_ANNOTATION, PORT};
use env::Env;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::network::retry_with_events::RetryWithEvents;

const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Without a bridge of our own the node's address is used, where port 53 may be somebody else's.
pub const PORT_ON_NODE: u16 = 10053;

pub struct Params {
    pub node_name: String,
    /// Where to answer.
    pub listen: Vec<SocketAddr>,
    /// The addresses of the Service.
    pub addresses: Vec<IpAddr>,
    pub domain: String,
    /// 0 shows no metrics.
    pub metrics_port: u16,
    pub client: Client,
    pub informers: InformerFactory,
    pub env: Env,
    pub shutdown: CancellationToken,
}

/// Runs until shutdown; what fails is tried again.
pub async fn run(params: Params) {
    let trying = RetryWithEvents::new(params.client.clone(), &params.node_name, &params.env, &params.shutdown);
    let port = params.listen.first().map_or(PORT, SocketAddr::port);
    let advice = format!(
        "pods of this node have no cluster DNS until this works; `ss -lntup 'sport = :{port}'` shows who listens on that port"
    );
    trying.until_done("FailedToServeDNS", &advice, || Box::pin(serve_or_retract(&params))).await;
}

/// Says once that another DNS is in charge.
pub async fn leave_to_others(params: Params) {
    let trying = RetryWithEvents::new(params.client.clone(), &params.node_name, &params.env, &params.shutdown);
    let advice = "pods of this node may be sent to a DNS that is not there until this works";
    let attempt = || Box::pin(announce(&params.client, &params.node_name, &[])) as BoxFuture<'_, _>;
    trying.until_done("FailedToLeaveDNS", advice, attempt).await;
}

/// Where nobody answers, nobody shall be sent.
async fn serve_or_retract(params: &Params) -> Result<()> {
    let served = serve(params).await;
    if served.is_err()
        && let Err(error) = announce(&params.client, &params.node_name, &[]).await
    {
        tracing::warn!(%error, "failed to take back where this node answers DNS");
    }
    served
}

async fn serve(params: &Params) -> Result<()> {
    let mut config = dns::DnsConfig::new(params.listen.clone(), &params.domain);
    config.also_here = params.addresses.clone();
    config.metrics = match (params.metrics_port, config.listen.first()) {
        (0, _) | (_, None) => None,
        (port, Some(address)) => Some(SocketAddr::new(address.ip(), port)),
    };
    let started = dns::start(config, params.informers.clone(), params.env.clone(), params.shutdown.clone());
    let serving = started.await.context("cluster DNS did not start")?;
    let announced = announce(&params.client, &params.node_name, &params.listen).await;
    announced.context("failed to publish this node's DNS")?;
    tokio::select! {
        () = serving => Ok(()),
        never = keep_announced(params) => match never {},
    }
}

/// A Node that was deleted and registers again says nothing of us.
async fn keep_announced(params: &Params) -> Infallible {
    let mut changes = params.informers.informer::<Node>().subscribe();
    while let Some(change) = changes.next().await {
        let Some(node) = change.new.filter(|_| change.key == params.node_name) else { continue };
        if announced(&node) == Some(&announcement(&params.listen)) {
            continue;
        }
        while let Err(error) = announce(&params.client, &params.node_name, &params.listen).await {
            tracing::warn!(error = format!("{error:#}"), "failed to say where this node answers DNS; will try again");
            params.env.sleep(RETRY_INTERVAL).await;
        }
    }
    // The process is stopping.
    std::future::pending().await
}

fn announced(node: &Node) -> Option<&String> {
    node.metadata.annotations.as_ref()?.get(NODE_ANNOTATION)
}

fn announcement(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Says on our own Node where we answer; nowhere, when another DNS is in charge.
pub async fn announce(client: &Client, node_name: &str, addresses: &[SocketAddr]) -> Result<()> {
    let value = if addresses.is_empty() { Value::Null } else { announcement(addresses).into() };
    let patch = json!({ "metadata": { "annotations": { NODE_ANNOTATION: value } } });
    client.api::<Node>().patch(node_name, &Patch::Merge(patch)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::ApiServer;
    use client::ListParams;
    use k8s_openapi::{api::core::v1::Event, apimachinery::pkg::apis::meta::v1::DeleteOptions};
    use tokio::net::{TcpListener, UdpSocket};

    use super::*;

    /// How long a busy machine may take for what must happen.
    const TEST_TIMEOUT: Duration = Duration::from_secs(120);

    async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let end = env::instant_now() + TEST_TIMEOUT;
        loop {
            if let Some(found) = look().await {
                return found;
            }
            assert!(env::instant_now() < end, "{what}");
            env::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_told_withdrawn_and_tried_again() {
        let (env, shutdown) = (Env::real(), CancellationToken::new());
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let api = ApiServer::new(apiserver::Config::in_process(key), store, env.clone()).await.unwrap();
        let client = in_process::client(&api, "admin", &[crate::control_plane::server::MASTERS]);
        let node = |metadata: Value| serde_json::from_value::<Node>(json!({ "metadata": metadata })).unwrap();
        let former = node(json!({ "name": "n", "annotations": { NODE_ANNOTATION: "192.0.2.1:53" } }));
        client.api::<Node>().create(&former).await.unwrap();
        let annotation = async || {
            let node = client.api::<Node>().get("n").await.unwrap();
            node.metadata.annotations.unwrap_or_default().get(NODE_ANNOTATION).cloned()
        };

        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = other.local_addr().unwrap();
        let running = env::spawn(run(Params {
            node_name: "n".into(),
            listen: vec![address],
            addresses: vec![],
            domain: "cluster.local".into(),
            metrics_port: 0,
            client: client.clone(),
            informers: InformerFactory::new(client.clone(), env.clone(), shutdown.clone()),
            env,
            shutdown: shutdown.clone(),
        }));
        let event = eventually("an Event", async || {
            let events = client.namespaced::<Event>("default").list(&ListParams::default()).await.unwrap();
            events.items.into_iter().find(|event| event.reason.as_deref() == Some("FailedToServeDNS"))
        })
        .await;
        let message = event.message.unwrap();
        assert!(message.contains("ddress already in use") && message.contains("`ss "), "{message}");
        assert_eq!((event.type_.as_deref(), event.involved_object.name.as_deref()), (Some("Warning"), Some("n")));
        eventually("the withdrawal", async || annotation().await.is_none().then_some(())).await;

        drop(other);
        eventually("the announcement", async || annotation().await.filter(|said| *said == address.to_string())).await;
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        // A question for the cluster's SOA.
        let question = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07cluster\x05local\x00\x00\x06\x00\x01";
        socket.send_to(question, address).await.unwrap();
        let mut answer = [0; 512];
        let length = env::timeout(TEST_TIMEOUT, socket.recv(&mut answer)).await.unwrap().unwrap();
        assert_eq!(answer[..2], [0, 7]);
        assert!(length > question.len(), "{:?}", &answer[..length]);

        client.api::<Node>().delete("n", &DeleteOptions::default()).await.unwrap();
        client.api::<Node>().create(&node(json!({ "name": "n" }))).await.unwrap();
        eventually("said again", async || annotation().await.filter(|said| *said == address.to_string())).await;
        shutdown.cancel();
        running.await.unwrap();
    }
}
