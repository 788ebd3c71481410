//! The container runtime of a node: our own containerd with our network plugin, or one that was already there.
//! Started by `up` and `commands` before the node itself (`agent`).
//! A runtime that is somebody else's is only talked to.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cri::containerd::{Containerd, ContainerdConfig};
use env::Env;

use crate::{
    cluster::instance::Instance,
    commands::images,
    flags::{self, Choice},
    network::{cni_directories, pod_network},
};

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
            if flags.cni == Choice::Minke {
                cni_directories::install_plugins(&cni_directories::bin_dir(flags, instance), instance)?;
            }
            return Ok(Self { endpoint, _containerd: None });
        }
        cni_directories::install_plugins(&cni_directories::bin_dir(flags, instance), instance)?;
        pod_network::forget_other_kind(flags, instance)?;
        let mut config = ContainerdConfig::new(instance.containerd_root(), instance.containerd_state(), images::PAUSE);
        config.cni_bin_dir = cni_directories::bin_dir(flags, instance);
        config.cni_conf_dir = cni_directories::conf_dir(flags, instance);
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
