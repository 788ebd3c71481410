//! The API servers that a node knows of: those it was told, and from then on the endpoints of the `kubernetes` Service.
//! Used by `join`; kept in the data directory, so that an agent that starts again finds a server that is left.
//! Those that it was told always stay: the cluster may know itself by other addresses than the node does.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Result, bail};
use client::{Client, InformerFactory, ListParams, ServerList};
use env::Env;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio_util::sync::CancellationToken;

use crate::certificates::pki::write_private;

const SERVICE: &str = "kubernetes";
const NAMESPACE: &str = "default";

/// Those of `--server`.
pub fn told(flag: &str) -> Result<Vec<String>> {
    let told = flag.split(',').map(|url| url.trim().trim_end_matches('/')).filter(|url| !url.is_empty());
    let urls: Vec<String> = told.map(str::to_string).collect();
    if let Some(url) = urls.iter().find(|url| !url.starts_with("https://")) {
        bail!("--server {url} is not https");
    }
    if urls.is_empty() {
        bail!("--server is empty: give it as https://HOST:PORT");
    }
    Ok(urls)
}

/// Those that we were told, then those of last time.
pub fn known(told: &[String], kept: &Path) -> Vec<String> {
    // Never written, or by somebody else: those that we were told are enough.
    let kept = fs::read_to_string(kept).unwrap_or_default();
    with_told(told, kept.lines().filter(|url| url.starts_with("https://")).map(str::to_string))
}

/// Who reached the cluster under a name that it does not know itself by goes on doing so.
fn with_told(told: &[String], others: impl Iterator<Item = String>) -> Vec<String> {
    let others = others.filter(|url| !told.contains(url));
    told.iter().cloned().chain(others).collect()
}

/// As long as the process runs.
pub fn follow(client: Client, servers: Arc<ServerList>, told: Vec<String>, kept: PathBuf, env: &Env) {
    let informers = InformerFactory::new(client, env.clone(), CancellationToken::new());
    let slices =
        informers.informer_with::<EndpointSlice>(ListParams::labels(format!("kubernetes.io/service-name={SERVICE}")));
    let mut changes = slices.subscribe();
    env.spawn(async move {
        while changes.next().await.is_some() {
            let found = urls(&slices.list());
            let urls = with_told(&told, found.into_iter());
            if urls == servers.urls() {
                continue;
            }
            servers.replace(&urls);
            let text: String = urls.iter().flat_map(|url| [url, "\n"]).collect();
            let path = kept.clone();
            let written = env::spawn_blocking(move || write_private(&path, &text)).await;
            if let Err(error) = written.map_err(anyhow::Error::from).flatten() {
                tracing::warn!(error = format!("{error:#}"), "the list of API servers is not kept for the next start");
            }
        }
    });
}

fn urls(slices: &[Arc<EndpointSlice>]) -> Vec<String> {
    let mut urls = Vec::new();
    for slice in slices.iter().filter(|slice| slice.metadata.namespace.as_deref() == Some(NAMESPACE)) {
        let ports = slice.ports.iter().flatten().filter(|port| port.name.as_deref() == Some("https"));
        for port in ports.filter_map(|port| port.port) {
            for endpoint in &slice.endpoints {
                let is_ready = endpoint.conditions.as_ref().is_none_or(|conditions| conditions.ready != Some(false));
                for address in endpoint.addresses.iter().filter(|_| is_ready) {
                    let host = if address.contains(':') { format!("[{address}]") } else { address.clone() };
                    urls.push(format!("https://{host}:{port}"));
                }
            }
        }
    }
    urls.sort();
    urls.dedup();
    urls
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::certificates::pki::{Leaf, Pki};

    #[test]
    fn endpoints_of_the_kubernetes_service_are_the_servers() {
        let slice = |namespace: &str, addresses: &[&str], ready: bool| -> Arc<EndpointSlice> {
            let endpoint = json!({ "addresses": addresses, "conditions": { "ready": ready } });
            let slice = json!({ "metadata": { "namespace": namespace }, "addressType": "IPv4", "endpoints": [endpoint],
                "ports": [{ "name": "https", "port": 6443 }] });
            Arc::new(serde_json::from_value(slice).unwrap())
        };
        let found = urls(&[
            slice("default", &["192.0.2.2", "192.0.2.1"], true),
            slice("default", &["192.0.2.3"], false),
            slice("elsewhere", &["192.0.2.4"], true),
            slice("default", &["2001:db8::1"], true),
        ]);
        assert_eq!(found, ["https://192.0.2.1:6443", "https://192.0.2.2:6443", "https://[2001:db8::1]:6443"]);
    }

    #[test]
    fn those_that_were_told_come_before_those_of_last_time() {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path().join("servers");
        let known = |flag: &str| told(flag).map(|told| known(&told, &kept));
        assert_eq!(known("https://a:1/, https://b:1").unwrap(), ["https://a:1", "https://b:1"]);
        fs::write(&kept, "https://b:1\nhttps://c:1\nrubbish\n").unwrap();
        assert_eq!(known("https://a:1").unwrap(), ["https://a:1", "https://b:1", "https://c:1"]);
        for wrong in ["", ",", "http://a:1"] {
            assert!(known(wrong).unwrap_err().to_string().contains("--server"), "{wrong}");
        }
    }

    /// Answers every request with `status` until it is dropped; then nobody listens there.
    async fn serve(pki: &Arc<Pki>, status: u16) -> (String, tokio_util::task::AbortOnDropHandle<()>) {
        let addresses = vec![[127, 0, 0, 1].into()];
        let leaf = Leaf { name: "s".into(), common_name: "s".into(), addresses, server: true, ..Leaf::default() };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(pki.rotating(leaf).unwrap()));
        let tls = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let serving = env::spawn(async move {
            // One connection at a time, so that all end with this task.
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(stream) = tls.accept(stream).await else { continue };
                let service = hyper::service::service_fn(move |_| async move {
                    http::Response::builder().status(status).body(http_body_util::Full::new(bytes::Bytes::new()))
                });
                let builder = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
                let _: Result<(), _> = builder.serve_connection(hyper_util::rt::TokioIo::new(stream), service).await;
            }
        });
        (url, tokio_util::task::AbortOnDropHandle::new(serving))
    }

    #[tokio::test]
    async fn another_server_is_asked_when_one_is_gone_or_can_not_serve() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Env::real()).unwrap();
        let ca = client::certificates(pki.ca_pem().as_bytes()).unwrap();
        let (one, first) = serve(&pki, 200).await;
        let (two, _second) = serve(&pki, 503).await;
        let (three, _third) = serve(&pki, 201).await;
        let identity = client::Identity::default();
        let user_agent = "test".into();
        let config = client::HttpsConfig { server: one.clone(), ca, identity, user_agent, ..Default::default() };
        let transport = client::HttpsTransport::new(config).unwrap();
        transport.servers().replace(&[one, two, three.clone()]);
        let ask = async || {
            let request = http::Request::get("/version").body(bytes::Bytes::new()).unwrap();
            client::Transport::send(&transport, request).await.map(|response| response.status().as_u16())
        };
        assert_eq!(ask().await.unwrap(), 200);
        drop(first);
        // The connection breaks or was never made; in the end the server that says so itself answers, then the last.
        let mut answers = Vec::new();
        while answers.last() != Some(&201) {
            answers.extend(ask().await.ok());
        }
        assert_eq!(answers, [503, 201]);
        assert_eq!(transport.servers().urls().len(), 3);
        assert_eq!(&*transport.servers().current(), three);
        assert_eq!(ask().await.unwrap(), 201, "it stays");
    }
}
