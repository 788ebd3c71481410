//! Brings the volumes of pods to what the pods name: `DesiredStateOfWorld` against `ActualStateOfWorld`, an action for
//! each difference.
//! Called by `pod_workers`, one pod at a time; volume types are in `plugins`.
//! Setting up is idempotent, so a restarted node simply does it again; a pod's directory is removed only after
//! everything below it is unmounted.

pub mod actual_state_of_world;
mod desired_state_of_world;
mod desired_state_of_world_populator;
mod driver_volumes;
mod node_expansion;
mod reconciler;
#[cfg(test)]
mod toy_plugin_tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use actual_state_of_world::ActualStateOfWorld;
use client::{Client, EventRecorder};
use desired_state_of_world::DesiredStateOfWorld;
use desired_state_of_world_populator::Uses;
use env::Env;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod, Secret, Volume};
use metrics::Metrics;
use parking_lot::Mutex;
use reconciler::{Action, reconcile};

use super::{
    certificates::{CertificateManager, CertificateSources},
    error::{SetUpError, TearDownError, VolumeError},
    file_system,
    network_disks::NetworkDisks,
    operation_metrics,
    ownership_progress::OwnershipProgress,
    plugin::{MountContext, Mounter, Spec, VolumePlugin, VolumePlugins, is_claim, is_read_only_claim, type_name},
    plugins::PLUGINS,
    selinux::Selinux,
    tokens::{TokenError, TokenKey, TokenManager},
};
use crate::{
    config::Config,
    csi::{mounter::CsiManager, volume::CsiVolume},
    files::file_work::FileWork,
    pod::pod_spec,
    runtime::container_config::{downward::NodeFacts, environment::References},
};

pub struct VolumeManager {
    client: Client,
    env: Env,
    plugins: VolumePlugins,
    node_name: String,
    pods_dir: PathBuf,
    local_storage_dir: PathBuf,
    /// Our Node object as last seen: its labels tell which volumes may be used here.
    node: Arc<Mutex<Node>>,
    tokens: TokenManager,
    certificates: CertificateManager,
    recorder: EventRecorder,
    metrics: Metrics,
    desired: Mutex<DesiredStateOfWorld>,
    actual: Mutex<ActualStateOfWorld>,
    files: FileWork,
    csi: Arc<CsiManager>,
    network_disks: NetworkDisks,
    selinux: Selinux,
}

/// What a set-up needs to know beside the pod.
pub struct MountFacts<'a> {
    pub references: &'a References,
    pub pod_ips: &'a [String],
    pub host_ips: &'a [String],
    pub node: NodeFacts,
}

/// What was fetched for a volume before it is mounted.
struct Found<'a> {
    tokens: &'a BTreeMap<TokenKey, String>,
    certificates: &'a CertificateSources,
    secret: Option<&'a BTreeMap<String, String>>,
    label: Option<&'a str>,
}

pub struct MountedVolumes {
    /// By the volumes' names.
    pub paths: BTreeMap<String, PathBuf>,
    /// When a token must be renewed.
    pub refresh_after: Option<Duration>,
    /// Those whose files the container runtime is to label; `None` where SELinux is off.
    pub relabelled: Option<BTreeSet<String>>,
}

impl VolumeManager {
    pub fn new(
        client: Client,
        env: Env,
        config: &Config,
        node: Arc<Mutex<Node>>,
        recorder: EventRecorder,
        metrics: Metrics,
        files: FileWork,
        csi: Arc<CsiManager>,
    ) -> Self {
        Self {
            certificates: CertificateManager::default(),
            tokens: TokenManager::new(client.clone(), env.clone()),
            plugins: PLUGINS,
            recorder,
            client,
            env,
            node,
            metrics,
            node_name: config.node_name.clone(),
            pods_dir: config.pods_dir(),
            local_storage_dir: config.local_storage_dir(),
            desired: Mutex::default(),
            actual: Mutex::default(),
            files,
            csi,
            network_disks: NetworkDisks::new(&config.root_dir),
            selinux: Selinux::new(config),
        }
    }

    /// The same for pods that are shown certificates.
    pub fn with_certificates(self, certificates: CertificateManager) -> Self {
        Self { certificates, ..self }
    }

    /// Where a pod's volumes are, as far as they are mounted.
    pub fn paths(&self, uid: &str) -> BTreeMap<String, PathBuf> {
        self.actual.lock().paths(uid)
    }

    /// Whether volumes of the pod are to be looked at again although nothing is to be started.
    pub fn requires_remount(&self, pod: &Pod) -> bool {
        self.plugins.requires_remount(pod) || self.actual.lock().follows_driver(pod_spec::uid(pod))
    }

    /// Whether a pod has a volume whose files are here.
    pub fn is_in_use(&self, path: &Path) -> bool {
        self.actual.lock().find_in_other_pods("", |_, used| used == path).is_some()
    }

    /// Mounts, or brings up to date, every volume of the pod.
    pub fn set_up<'a>(
        &'a self,
        pod: &'a Pod,
        facts: &'a MountFacts<'a>,
    ) -> BoxFuture<'a, Result<MountedVolumes, SetUpError>> {
        Box::pin(async move {
            let uid = pod_spec::uid(pod);
            self.desired.lock().add_pod(pod, self.plugins);
            let actions = reconcile(uid, &self.desired.lock(), &self.actual.lock());
            let volumes = || pod_spec::spec(pod).volumes.iter().flatten();
            let mut refresh_after: Option<Duration> = None;
            self.expand_mounted(pod).await;
            for action in actions {
                let Action::Mount(name) = action else { continue };
                let Some(volume) = volumes().find(|volume| volume.name == name) else { continue };
                let refresh = self.mount_measured(pod, volume, facts).await?;
                refresh_after = [refresh_after, refresh].into_iter().flatten().min();
            }
            let look_again = self.actual.lock().look_again_after(uid);
            let refresh_after = [refresh_after, look_again].into_iter().flatten().min();
            let relabelled = self.selinux.is_enabled().then(|| self.actual.lock().relabelled(uid));
            Ok(MountedVolumes { paths: self.paths(uid), refresh_after, relabelled })
        })
    }

    fn mount_measured<'a>(
        &'a self,
        pod: &'a Pod,
        volume: &'a Volume,
        facts: &'a MountFacts<'a>,
    ) -> BoxFuture<'a, Result<Option<Duration>, SetUpError>> {
        Box::pin(async move {
            let device = Uses::find(pod, &volume.name).device;
            let failed = |name: &str, source: VolumeError| SetUpError::Mount { volume: name.into(), device, source };
            let persistent = match is_claim(volume) {
                true => Some(self.persistent_volume(pod, volume).await.map_err(|source| failed(&volume.name, source))?),
                false => None,
            };
            let spec = match &persistent {
                Some(found) => Spec::Persistent { volume: found, read_only: is_read_only_claim(volume) },
                None => Spec::Inline(volume),
            };
            let began = self.env.monotonic();
            let result = self.mount(pod, volume, spec, facts).await;
            let operation = if device { "map_volume" } else { "volume_mount" };
            self.observe(&self.plugins.metric_name_of(spec, volume), operation, began, result.is_ok());
            let name = persistent.as_ref().and_then(|found| found.metadata.name.as_deref()).unwrap_or(&volume.name);
            result.map_err(|source| failed(name, source))
        })
    }

    /// `operation` is upstream's name for it.
    fn observe(&self, plugin: &str, operation: &str, began: Duration, is_ok: bool) {
        operation_metrics::observe(&self.metrics, &self.env, plugin, operation, began, is_ok);
    }

    /// When the volume must be set up again because a token of it ends.
    async fn mount(
        &self,
        pod: &Pod,
        volume: &Volume,
        spec: Spec<'_>,
        facts: &MountFacts<'_>,
    ) -> Result<Option<Duration>, VolumeError> {
        if let Some(persistent) = spec.persistent() {
            let node = self.node.lock().metadata.clone();
            desired_state_of_world_populator::check_node_affinity(persistent, &node)?;
        }
        if let Some(csi) = CsiVolume::new(spec, pod) {
            // Apart: with an expansion in the middle its futures filled a thread's stack in debug builds.
            return Box::pin(self.mount_by_driver(pod, &volume.name, csi, spec)).await;
        }
        let plugin = self.plugins.find(spec).ok_or_else(|| no_plugin(spec))?;
        let (tokens, refresh_after) = self.fetch_tokens(pod, plugin.tokens(volume)).await?;
        let certificates = self.certificates.sources(pod, volume).await?;
        let label = self.selinux.mount_label(pod, &volume.name, spec, plugin.has_selinux_mount())?;
        let secret = match plugin.secret(spec, pod) {
            Some((namespace, name)) => Some(self.secret(&namespace, &name).await?),
            None => None,
        };
        let found =
            Found { tokens: &tokens, certificates: &certificates, secret: secret.as_ref(), label: label.as_deref() };
        let (mounter, progress) = self.new_mounter(plugin, spec, pod, &volume.name, facts, &found)?;
        let uid = pod_spec::uid(pod);
        let mounted = self.files.run(format!("{uid}/{}", volume.name), mounter);
        let done = self.telling_ownership(pod, &progress, mounted).await?;
        if let Some(expandable) = self.expandable_here(spec)
            && let Some(persistent) = spec.persistent()
        {
            Box::pin(self.expand(pod, expandable, persistent, &done.path, None)).await?;
            self.actual.lock().mark_expandable(uid, &volume.name, self.env.monotonic());
        }
        {
            let mut actual = self.actual.lock();
            if plugin.is_relabelled() && label.is_none() && !is_read_only_claim(volume) {
                actual.mark_relabelled(uid, &volume.name);
            }
            actual.mark_mounted(uid, &volume.name, done.path);
        }
        if let Some(warning) = done.warning {
            self.recorder.warning(&client::reference(pod), warning.reason, warning.message);
        }
        Ok(refresh_after)
    }

    /// Tells the pod while it takes long to give a volume's files to its group.
    async fn telling_ownership<T>(&self, pod: &Pod, progress: &OwnershipProgress, work: impl Future<Output = T>) -> T {
        let about = client::reference(pod);
        let tell = |message| self.recorder.warning(&about, "VolumePermissionChangeInProgress", message);
        progress.told_while(&self.env, pod_spec::uid(pod), tell, work).await
    }

    async fn persistent_volume(&self, pod: &Pod, volume: &Volume) -> Result<PersistentVolume, VolumeError> {
        desired_state_of_world_populator::persistent_volume(&self.client, pod, volume).await
    }

    fn new_mounter(
        &self,
        plugin: &dyn VolumePlugin,
        spec: Spec,
        pod: &Pod,
        volume_name: &str,
        facts: &MountFacts,
        found: &Found,
    ) -> Result<(Mounter, Arc<OwnershipProgress>), VolumeError> {
        let ownership = Arc::default();
        let time = self.env.now().strftime("%Y_%m_%d_%H_%M_%S");
        let context = MountContext {
            pod,
            volume_name,
            references: facts.references,
            pod_ips: facts.pod_ips,
            host_ips: facts.host_ips,
            node: &facts.node,
            tokens: found.tokens,
            certificates: found.certificates,
            pods_dir: &self.pods_dir,
            local_storage_dir: &self.local_storage_dir,
            actual: &self.actual.lock(),
            ownership: &ownership,
            timestamp: &format!("{time}.{}", self.env.random_u64() % 10_000_000_000),
            selinux_label: found.label,
            secret: found.secret,
            network_disks: &self.network_disks,
        };
        let mounter = plugin.new_mounter(spec, &context)?;
        Ok((mounter, ownership))
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<BTreeMap<String, String>, VolumeError> {
        let found = self.client.namespaced::<Secret>(namespace).get(name).await;
        let key = format!("{namespace}/{name}");
        let data = found.map_err(|source| VolumeError::GetSecret { key, source })?.data.unwrap_or_default();
        Ok(data.into_iter().map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
    }

    async fn fetch_tokens(
        &self,
        pod: &Pod,
        keys: HashSet<TokenKey>,
    ) -> Result<(BTreeMap<TokenKey, String>, Option<Duration>), TokenError> {
        let mut tokens = BTreeMap::new();
        let mut refresh_after: Option<Duration> = None;
        for key in keys {
            let (token, renew_in) = self.tokens.get(pod, &key).await?;
            refresh_after = Some(refresh_after.map_or(renew_in, |soonest| soonest.min(renew_in)));
            tokens.insert(key, token);
        }
        Ok((tokens, refresh_after))
    }

    /// Unmounts and removes everything the pod has on disk.
    pub async fn tear_down(&self, uid: &str) -> Result<(), TearDownError> {
        self.desired.lock().remove_pod(uid);
        let actions = reconcile(uid, &self.desired.lock(), &self.actual.lock());
        if actions.contains(&Action::UnmountAll) {
            self.unmount_all(uid).await?;
        }
        Ok(())
    }

    async fn unmount_all(&self, uid: &str) -> Result<(), TearDownError> {
        // What a driver has mounted it takes down itself, before anything is removed.
        self.csi.unmount_pod(uid).await?;
        self.actual.lock().mark_pod_unmounted(uid);
        self.tokens.forget(uid);
        self.certificates.forget(uid);
        let directory = self.pods_dir.join(uid);
        // However long it takes: nothing but this pod's end waits for it.
        env::spawn_blocking(move || file_system::remove(&directory)).await??;
        // Disks are let go when nothing of the pod has them mounted any more.
        let (disks, uid) = (self.network_disks.clone(), uid.to_string());
        Ok(env::spawn_blocking(move || disks.release(&uid)).await??)
    }

    /// UIDs of the pods that have a directory.
    pub async fn pods_on_disk(&self) -> Vec<String> {
        let directory = self.pods_dir.clone();
        let list = move || -> Vec<String> {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        };
        env::spawn_blocking(list).await.unwrap_or_default()
    }
}

fn no_plugin(spec: Spec) -> VolumeError {
    match spec {
        Spec::Inline(volume) => VolumeError::NoPluginMatched(type_name(volume)),
        Spec::Persistent { volume, .. } => {
            VolumeError::UnsupportedPersistentVolume(volume.metadata.name.clone().unwrap_or_default())
        }
    }
}
