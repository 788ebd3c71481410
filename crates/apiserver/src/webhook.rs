//! Calls to webhooks: an URL or a Service, TLS by a given authority, one JSON document each way.
//! Used by conversion of custom resources, admission webhooks, and whoever else asks someone outside.
//! Invariant: always over verified TLS; always with a deadline and a size limit.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::cluster::Cluster;

const ANSWER_BYTES: usize = 8 << 20;

/// Where a webhook is and how it is trusted.
#[derive(Debug)]
pub struct Client {
    /// Where to connect to.
    host: String,
    port: u16,
    /// The name its certificate must have.
    server_name: String,
    path: String,
    roots: Vec<CertificateDer<'static>>,
}

impl Client {
    /// From a `clientConfig` with `url` or `service`, and `caBundle`.
    pub fn from_config(cluster: &Cluster, config: &Value) -> Result<Self, String> {
        let roots = match config["caBundle"].as_str().filter(|b| !b.is_empty()) {
            Some(bundle) => {
                let pem = BASE64_STANDARD.decode(bundle).map_err(|e| format!("caBundle is not base64: {e}"))?;
                let roots = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
                roots.map_err(|e| format!("unable to load root certificates: {e}"))?
            }
            None => Vec::new(),
        };
        if let Some(url) = config["url"].as_str() {
            let uri: Uri = url.parse().map_err(|e| format!("invalid URL {url:?}: {e}"))?;
            let host = uri.host().ok_or("the URL has no host")?.trim_matches(['[', ']']).to_string();
            let path = uri.path_and_query().map_or("/".to_string(), ToString::to_string);
            return Ok(Self { server_name: host.clone(), host, port: uri.port_u16().unwrap_or(443), path, roots });
        }
        let service = &config["service"];
        let text = |field: &str| service[field].as_str().unwrap_or_default();
        let (namespace, name) = (text("namespace"), text("name"));
        let port = service["port"].as_u64().unwrap_or(443);
        let (host, port) = resolve(cluster, namespace, name, port)?;
        let path = service["path"].as_str().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_string() } else { format!("/{path}") };
        Ok(Self { host, port, server_name: format!("{name}.{namespace}.svc"), path, roots })
    }

    /// Sends a document and reads one back.
    pub async fn post(&self, document: &Value, timeout: Duration) -> Result<Value, String> {
        match tokio::time::timeout(timeout, self.exchange(document)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!(
                "Post \"https://{}:{}{}\": context deadline exceeded",
                self.server_name, self.port, self.path
            )),
        }
    }

    async fn exchange(&self, document: &Value) -> Result<Value, String> {
        let place = format!("{}:{}", self.host, self.port);
        let failed = |e: &dyn std::fmt::Display| {
            format!("Post \"https://{}:{}{}\": {e}", self.server_name, self.port, self.path)
        };
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|e| failed(&format!("dial tcp {place}: {e}")))?;
        let name = ServerName::try_from(self.server_name.clone()).map_err(|e| failed(&e))?;
        let stream = TlsConnector::from(Arc::new(self.tls()?)).connect(name, stream).await.map_err(|e| failed(&e))?;
        let handshake = hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(|e| failed(&e))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(Method::POST)
            .uri(&self.path)
            .header(header::HOST, &self.server_name)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(document.to_string().into()))
            .map_err(|e| failed(&e))?;
        let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
        let status = response.status();
        let bytes =
            Limited::new(response.into_body(), ANSWER_BYTES).collect().await.map_err(|e| failed(&e))?.to_bytes();
        if !status.is_success() {
            return Err(format!(
                "the server responded with the status code {} but did not return more information",
                status.as_u16()
            ));
        }
        serde_json::from_slice(&bytes).map_err(|e| format!("expected a JSON answer: {e}"))
    }

    fn tls(&self) -> Result<ClientConfig, String> {
        let mut roots = RootCertStore::empty();
        for root in &self.roots {
            roots.add(root.clone()).map_err(|e| format!("unable to load root certificates: {e}"))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| e.to_string())?;
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

/// A ready endpoint of a Service's port, which works before any proxy has programmed the Service's own address.
pub fn resolve(cluster: &Cluster, namespace: &str, name: &str, port: u64) -> Result<(String, u16), String> {
    let service = cluster.get("services", namespace, name);
    let service = service.ok_or_else(|| format!("service {name:?} not found"))?.value();
    if service["spec"]["type"] == "ExternalName" {
        let host = service["spec"]["externalName"].as_str().unwrap_or_default();
        return Ok((host.to_string(), port as u16));
    }
    let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let wanted = ports.iter().find(|p| p["port"] == port);
    let wanted = wanted.ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
    let port_name = wanted["name"].as_str().unwrap_or_default();
    let mut found: Vec<(String, u16)> = Vec::new();
    for slice in cluster.list("endpointslices", namespace) {
        if slice.meta.labels.get("kubernetes.io/service-name").is_none_or(|n| n != name) {
            continue;
        }
        let slice = slice.value();
        let ports = slice["ports"].as_array().cloned().unwrap_or_default();
        let number = ports.iter().find(|p| p["name"].as_str().unwrap_or_default() == port_name);
        let Some(number) = number.and_then(|p| p["port"].as_u64()) else { continue };
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if endpoint["conditions"]["ready"] != false {
                found.extend(endpoint["addresses"][0].as_str().map(|a| (a.to_string(), number as u16)));
            }
        }
    }
    if found.is_empty() {
        return Err(format!("no endpoints available for service {name:?}"));
    }
    Ok(found.swap_remove(cluster.env.random_u64() as usize % found.len()))
}
