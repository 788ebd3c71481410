//! Puts a node together and runs it: `checks` refuses what this machine can't do, `own_process` gives the kubelet its
//! limits, `dependencies` builds the parts, `loops` starts them, `listeners` serves.
//! Called by the crate's `run`.

mod checks;
mod dependencies;
mod listeners;
pub mod lock_file;
mod loops;
mod own_process;

use std::sync::Arc;

use client::{Client, EventRecorder, InformerFactory};
use cri::{Runtime, v1};
use env::Env;
use jiff::Timestamp;
use metrics::Metrics;
use resource_managers::machine_topology::SysfsFiles;
use tokio_util::sync::CancellationToken;

use crate::{
    CgroupDriver, Config, Error,
    files::directories,
    node::{
        node_metrics::{CRI_LOSING_SUPPORT, FEATURE_ENABLED},
        node_status::{Machine, default_address},
        pod_metrics,
    },
    resources::resource_managers::sysfs,
    runtime::metered_runtime::MeteredRuntime,
};

/// From this version on upstream's kubelet takes only runtimes that tell their configuration.
const RUNTIME_CONFIG_REQUIRED: &str = "1.36.0";

/// What every part of a node is made from.
struct Foundation {
    config: Arc<Config>,
    client: Client,
    /// For the node's own status and signs of life, which wait for nothing.
    heartbeat_client: Client,
    env: Env,
    runtime: Arc<dyn Runtime>,
    runtime_version: cri::v1::VersionResponse,
    machine: Machine,
    sysfs: SysfsFiles,
    recorder: EventRecorder,
    metrics: Metrics,
    began: Timestamp,
}

/// The runtime and we must put containers into groups in the same way: what it says holds.
async fn follow_runtime(config: &mut Config, runtime: &dyn Runtime, metrics: &Metrics) {
    let driver = match runtime.runtime_config().await {
        Ok(answer) => match answer.linux.map(|linux| linux.cgroup_driver()) {
            Some(v1::CgroupDriver::Systemd) => CgroupDriver::Systemd,
            Some(v1::CgroupDriver::Cgroupfs) => CgroupDriver::Cgroupfs,
            None => return,
        },
        Err(error) => {
            if matches!(error, cri::Error::Unimplemented(_)) {
                metrics.set(&CRI_LOSING_SUPPORT, &[RUNTIME_CONFIG_REQUIRED], 1.0);
            }
            return tracing::debug!(%error, "the runtime does not tell its configuration");
        }
    };
    if driver != config.cgroup_driver {
        tracing::info!(?driver, "the cgroup driver is the runtime's");
        config.cgroup_driver = driver;
    }
}

pub async fn run(
    mut config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    runtime: Arc<dyn Runtime>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let (metrics, began) = (Metrics::default(), env.now());
    pod_metrics::begin(&metrics);
    let _lock = match &config.lock_file {
        None => None,
        Some(lock) => {
            let failed = |error| Error::Config(format!("unable to acquire file lock on {:?}: {error}", lock.path));
            Some(lock_file::acquire(lock, &env, &shutdown).await.map_err(failed)?)
        }
    };
    own_process::apply(&config)?;
    for (name, stage, on) in config.feature_gates.all() {
        metrics.set(&FEATURE_ENABLED, &[name, stage.label()], f64::from(u8::from(on)));
    }
    let runtime: Arc<dyn Runtime> = Arc::new(MeteredRuntime::new(runtime, metrics.clone(), env.clone()));
    directories::prepare(&mut config)
        .map_err(|(path, source)| Error::Directory { path: path.display().to_string(), source })?;
    if config.node_ips.is_empty() {
        config.node_ips = default_address().into_iter().collect();
    }
    if config.node_ips.is_empty() {
        return Err(Error::NoAddress);
    }
    let runtime_version = runtime
        .version()
        .await
        .map_err(|source| Error::Runtime { endpoint: config.runtime_endpoint.display().to_string(), source })?;
    follow_runtime(&mut config, &*runtime, &metrics).await;
    let listener = listeners::bind(&config).await?;
    let foundation = Foundation {
        machine: Machine::probe(&config.root_dir),
        sysfs: env::spawn_blocking(sysfs::read).await.unwrap_or_default(),
        recorder: EventRecorder::new(
            client.limited(config.event_rate, &env),
            env.clone(),
            "kubelet",
            &config.node_name,
        ),
        client: client.limited(config.request_rate, &env),
        heartbeat_client: client,
        config: Arc::new(config),
        env,
        runtime,
        runtime_version,
        metrics,
        began,
    };
    let node = foundation.build(&informers, listener)?;
    node.run(&informers, shutdown).await;
    Ok(())
}
