//! Webhooks by the `clientConfig` of their objects: an URL, or a Service.
//! Used by admission webhooks and by the conversion of custom resources; `webhook_client` goes there.
//! The name to verify comes from the configuration, never from the address.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use env::Env;

use super::{
    service_resolver::resolve,
    tls_config,
    webhook_client::{Endpoint, Identity, WebhookIdentities},
};
use crate::storage::cluster::Cluster;

/// A webhook ready to be asked.
pub struct WebhookClient {
    endpoint: Endpoint,
    env: Env,
}

impl WebhookClient {
    /// From a `clientConfig` with `url` or `service`, and `caBundle` unless the system's authorities vouch for it.
    /// `identities`: who we are to it.
    pub fn from_config(cluster: &Cluster, config: &Value, identities: &WebhookIdentities) -> Result<Self, String> {
        Ok(Self { endpoint: endpoint(cluster, config, identities)?, env: cluster.env.clone() })
    }

    /// Sends a document and reads one back.
    pub async fn post(&self, document: &Value, timeout: Duration) -> Result<Value, String> {
        self.endpoint.post(&self.env, timeout, document).await
    }
}

fn endpoint(cluster: &Cluster, config: &Value, identities: &WebhookIdentities) -> Result<Endpoint, String> {
    let bundle = config["caBundle"].as_str().unwrap_or_default();
    let ca_pem = BASE64_STANDARD.decode(bundle).map_err(|e| format!("caBundle is not base64: {e}"))?;
    let (url, address): (http::Uri, _) = match config["url"].as_str() {
        Some(url) => (url.parse().map_err(|e| format!("invalid URL {url:?}: {e}"))?, None),
        None => {
            let service = &config["service"];
            let text = |field: &str| service[field].as_str().unwrap_or_default();
            let (namespace, name) = (text("namespace"), text("name"));
            let port = service["port"].as_u64().unwrap_or(443);
            let address = Some(resolve(cluster, namespace, name, &port.to_string())?);
            let url = format!("https://{name}.{namespace}.svc:{port}/{}", text("path").trim_start_matches('/'));
            (url.parse().map_err(|e| format!("invalid path {:?}: {e}", text("path")))?, address)
        }
    };
    let target = format!("{}:{}", url.host().unwrap_or_default(), url.port_u16().unwrap_or(443));
    let identity = identities.of(&target);
    let tls = tls_config::client_config(Some(&ca_pem), identity.and_then(Identity::pem))?;
    let authorization = identity.and_then(|identity| identity.authorization.clone());
    Ok(Endpoint { url, address, tls: Arc::new(tls), authorization })
}
