//! The container runtime of a node: our own containerd with our network plugin, or one that was already there.
//! Started by `up` and `commands` before the node itself (`agent`).
//! A runtime that is somebody else's is only talked to.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use cri::containerd::{Containerd, ContainerdConfig};
use env::Env;

use crate::{cluster::instance::Instance, commands::images, flags, network::pod_network};

/// The container runtime: our own containerd, or one that was already there.
pub struct Runtime {
    endpoint: PathBuf,
    /// Dropping it would end the supervision.
    _containerd: Option<Containerd>,
}

impl Runtime {
    pub async fn start(flags: &flags::Node, instance: &Instance, env: &Env) -> Result<Self> {
        if let Some(endpoint) = &flags.container_runtime_endpoint {
            let endpoint = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
            anyhow::ensure!(
                endpoint.exists(),
                "there is no runtime at {}: start it, or leave out --container-runtime-endpoint",
                endpoint.display()
            );
            return Ok(Self { endpoint, _containerd: None });
        }
        install_plugin(&instance.cni_bin())?;
        pod_network::forget_other_kind(flags, instance)?;
        let mut config = ContainerdConfig::new(instance.containerd_root(), instance.containerd_state(), images::PAUSE);
        config.cni_bin_dir = instance.cni_bin();
        config.cni_conf_dir = instance.cni_conf();
        config.registry_config_dir = instance.data.join("registries");
        config.systemd_cgroup = flags.configuration()?.get("cgroupDriver").is_some_and(|driver| driver == "systemd");
        let containerd = Containerd::start(config, env.clone()).await.context("containerd did not start")?;
        let endpoint = containerd.socket();
        images::import_own(&endpoint, images::PAUSE, images::pause_archive()?).await?;
        Ok(Self { endpoint, _containerd: Some(containerd) })
    }

    pub fn is_ours(&self) -> bool {
        self._containerd.is_some()
    }

    pub fn endpoint(&self) -> &Path {
        &self.endpoint
    }
}

/// Our plugin is this very binary, called under another name.
fn install_plugin(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    let binary = std::env::current_exe()?;
    for name in cni::PLUGIN_NAMES {
        let link = directory.join(name);
        if std::fs::read_link(&link).is_ok_and(|target| target == binary) {
            continue;
        }
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link)?;
        }
        symlink(&binary, &link).with_context(|| format!("failed to install the network plugin {}", link.display()))?;
    }
    // Foreign configurations may name the standard plugins: Debian puts them here.
    for entry in std::fs::read_dir("/usr/lib/cni").into_iter().flatten().flatten() {
        let link = directory.join(entry.file_name());
        if link.symlink_metadata().is_err() {
            symlink(entry.path(), &link)?;
        }
    }
    Ok(())
}
