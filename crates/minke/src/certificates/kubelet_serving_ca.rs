//! Who signs for kubelets' servers, as nodes that join learn it: from a ConfigMap that a controller publishes.
//! Used by `join`, and by `server`, which lets nodes join only once it is there.
//! Read over a connection to the API server that the node has checked.

use std::time::Duration;

use anyhow::{Context, Result};
use client::Client;
use env::Env;
use k8s_openapi::api::core::v1::ConfigMap;

const NAMESPACE: &str = "kube-public";
const NAME: &str = "kubelet-serving-ca";
const KEY: &str = "ca.crt";
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// None where the server is of before, whose cluster authority signs for kubelets too.
pub async fn fetch(client: &Client) -> Result<Option<String>> {
    let found = client.namespaced::<ConfigMap>(NAMESPACE).find(NAME).await;
    let map = match found {
        // Nobody has given us the right to look: the same.
        Err(error) if error.reason == api::Reason::Forbidden => None,
        other => other?,
    };
    Ok(map.and_then(|map| map.data?.remove(KEY)))
}

/// Waits for the controller that publishes it: a node that joined before would take another authority for the kubelets'.
pub async fn wait_until_published(client: &Client, pem: &str, env: &Env) -> Result<()> {
    let published = async {
        while fetch(client).await?.as_deref() != Some(pem) {
            env.sleep(POLL_INTERVAL).await;
        }
        Ok(())
    };
    env.timeout(PUBLISH_TIMEOUT, published).await.context("nobody published it: does a controller manager lead?")?
}
