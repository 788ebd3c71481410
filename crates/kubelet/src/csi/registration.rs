//! Takes in CSI drivers that register, and lets go of those that leave.
//! One of the handlers of the plugin watcher; feeds `mounter` with drivers and `csi_node` with what they say of the node.
//! A driver that does not say what node it is on is not taken in.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use client::Client;
use env::Env;
use node_plugins::registration::{PluginHandler, messages::PluginInfo, plugin_watcher::REGISTRATION_TIMEOUT};

use super::{
    csi_node::{self, CsiNodeError},
    driver_client::CsiError,
    mounter::CsiManager,
};

#[derive(Debug, thiserror::Error)]
enum InstallError {
    #[error(transparent)]
    Driver(#[from] CsiError),
    #[error(transparent)]
    CsiNode(#[from] CsiNodeError),
}

pub struct CsiPluginHandler {
    pub client: Client,
    pub env: Env,
    pub node_name: String,
    pub csi: Arc<CsiManager>,
}

impl CsiPluginHandler {
    /// Makes the CSINode object: a node without drivers has one, too.
    pub async fn ensure_csi_node(self: Arc<Self>) {
        let mut backoff = env::Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        while let Err(error) = csi_node::ensure(&self.client, &self.node_name).await {
            tracing::warn!(%error, "failed to make the CSINode object; will try again");
            self.env.sleep(backoff.next_delay()).await;
        }
    }

    async fn install(&self, name: &str, endpoint: &str) -> Result<(), InstallError> {
        let driver = self.csi.register(name, endpoint)?;
        let node = driver.with_timeout(REGISTRATION_TIMEOUT).node_info().await?;
        Ok(csi_node::install(&self.client, &self.node_name, name, &node).await?)
    }
}

#[async_trait]
impl PluginHandler for CsiPluginHandler {
    fn validate(&self, info: &PluginInfo) -> Result<(), String> {
        check(info)
    }

    async fn register(&self, info: &PluginInfo, endpoint: &str) -> Result<(), String> {
        let installed = self.install(&info.name, endpoint).await;
        installed.map_err(|error| {
            self.csi.unregister(&info.name);
            error.to_string()
        })
    }

    async fn registered(&self, name: &str) {
        if let Err(error) = self.csi.unstage_unused(name).await {
            tracing::warn!(driver = name, %error, "failed to unstage volumes that no pod has");
        }
    }

    async fn deregister(&self, name: &str, _endpoint: &str, is_last: bool) -> Result<(), String> {
        if !is_last {
            return Ok(());
        }
        self.csi.unregister(name);
        csi_node::uninstall(&self.client, &self.node_name, name).await.map_err(|error| error.to_string())
    }
}

/// Why a driver can't be used here.
fn check(info: &PluginInfo) -> Result<(), String> {
    let named = info.name.len() <= 63
        && !info.name.is_empty()
        && info.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
        && !info.name.starts_with(['.', '-']);
    if !named {
        return Err(format!("invalid CSI driver name {:?}", info.name));
    }
    let versions = &info.supported_versions;
    let is_first = |version: &String| version.trim_start_matches('v').split('.').next() == Some("1");
    match versions.iter().any(is_first) {
        true => Ok(()),
        false => Err(format!(
            "validation failed for CSI Driver {} at endpoint {}: none of the CSI versions reported by this driver are \
             supported",
            info.name, info.endpoint
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drivers_of_the_first_version_are_known() {
        let test = |name: &str, version: &str, expected: Option<&str>| {
            let info = PluginInfo {
                kind: "CSIPlugin".into(),
                name: name.into(),
                endpoint: "/e".into(),
                supported_versions: vec![version.into()],
            };
            match (check(&info), expected) {
                (Ok(()), None) => {}
                (Err(why), Some(part)) => assert!(why.contains(part), "{why}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        };
        test("d.example.com", "1.0.0", None);
        test("d.example.com", "v1.2", None);
        test("d.example.com", "0.3.0", Some("none of the CSI versions"));
        test("../../etc", "1.0.0", Some("invalid CSI driver name"));
        test("", "1.0.0", Some("invalid CSI driver name"));
    }
}
