//! What every cluster has from the start: system namespaces, system priority classes, the network of Services.
//! Rows of the table beside it, which are only prepared.
//! Goes through the registry like any client; what exists already is left alone.

use std::sync::Arc;

use http::Method;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate};

use api::{ApiError, Reason};

use crate::{
    authn::legacy_tokens,
    registry::timestamp,
    server::{loopback, pipeline::ApiServer},
};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

pub async fn namespaces(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    for name in NAMESPACES {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        ensure(server, "/api/v1/namespaces", namespace).await?;
    }
    Ok(())
}

pub async fn priority_classes(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let classes = [
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
    ];
    for (name, value, description) in classes {
        let class = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": { "name": name },
            "value": value, "description": description,
        });
        ensure(server, "/apis/scheduling.k8s.io/v1/priorityclasses", class).await?;
    }
    Ok(())
}

/// Since when uses of tokens in Secrets are noted.
pub async fn legacy_token_tracking(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let since = legacy_tokens::date(server.cluster.env.now());
    let tracking = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "since": since },
        "metadata": { "name": legacy_tokens::TRACKING, "namespace": "kube-system" },
    });
    ensure(server, "/api/v1/namespaces/kube-system/configmaps", tracking).await
}

/// How extension API servers know our users: the authorities of client certificates, and whom to believe about others.
pub async fn authentication(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let config = &server.config;
    let mut data = json!({ "client-ca-file": String::from_utf8_lossy(&config.client_authorities_pem()) });
    let ours = config.proxy_client.as_ref();
    let ours = ours.and_then(|c| Some((c, common_name(&c.certificate.current().certificate_pem)?)));
    if let Some((client, name)) = ours {
        // Not the authorities of all clients: one of those could take our name.
        data["requestheader-client-ca-file"] = String::from_utf8_lossy(&client.ca_pem).into();
        data["requestheader-allowed-names"] = json!([name]).to_string().into();
        data["requestheader-username-headers"] = json!(["X-Remote-User"]).to_string().into();
        data["requestheader-uid-headers"] = json!(["X-Remote-Uid"]).to_string().into();
        data["requestheader-group-headers"] = json!(["X-Remote-Group"]).to_string().into();
        data["requestheader-extra-headers-prefix"] = json!(["X-Remote-Extra-"]).to_string().into();
    }
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": { "name": "extension-apiserver-authentication", "namespace": "kube-system" },
    });
    replace(server, "/api/v1/namespaces/kube-system/configmaps", map).await
}

fn common_name(pem: &[u8]) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_string())
}

/// The networks of Services as objects, which is where clients look for them.
pub async fn service_cidr(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let path = "/apis/networking.k8s.io/v1/servicecidrs";
    let cidrs: Vec<String> = server.config.service_cidrs.iter().map(ToString::to_string).collect();
    let mut cidr = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": cidrs },
    });
    match loopback::send(server, Method::POST, path, &cidr).await {
        Err(e) if e.reason == Reason::AlreadyExists => Ok(()),
        Err(e) => Err(e),
        Ok(_) => {
            let now = timestamp(server.cluster.env.now());
            cidr["status"] = json!({ "conditions": [{
                "type": "Ready", "status": "True", "reason": "", "lastTransitionTime": now,
                "message": "Kubernetes default Service CIDR is ready",
            }] });
            loopback::send(server, Method::PUT, &format!("{path}/kubernetes/status"), &cidr).await.map(drop)
        }
    }
}

async fn ensure(server: &Arc<ApiServer>, path: &str, object: Value) -> Result<(), ApiError> {
    // Looked up first: creating again what holds an address would be refused for that address.
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if loopback::send(server, Method::GET, &format!("{path}/{name}"), &Value::Null).await.is_ok() {
        return Ok(());
    }
    match loopback::send(server, Method::POST, path, &object).await {
        Err(e) if e.reason == Reason::AlreadyExists => Ok(()),
        other => other.map(drop),
    }
}

async fn replace(server: &Arc<ApiServer>, path: &str, object: Value) -> Result<(), ApiError> {
    match loopback::send(server, Method::POST, path, &object).await {
        Err(e) if e.reason == Reason::AlreadyExists => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            loopback::send(server, Method::PUT, &format!("{path}/{name}"), &object).await.map(drop)
        }
        other => other.map(drop),
    }
}
