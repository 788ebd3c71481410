//! Mounts volumes through their drivers: wait for the attachment, stage once per node, publish per pod. `unmounter` takes
//! them down again.
//! Called by `volumes::volume_manager`; what is on disk (`volume_data`) outlives this process.
//! Work on one volume goes one after the other; a volume that a pod still has is never unstaged.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use client::Client;
use env::Env;
use futures::future::BoxFuture;
use k8s_openapi::api::{
    core::v1::{Pod, Secret},
    storage::v1::{CSIDriver, VolumeAttachment},
};
use metrics::Metrics;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    allocatable::ExhaustedDrivers,
    driver_client::{CALL_TIMEOUT, CsiError, DriverClient},
    messages::{
        CapacityRange, NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, VolumeCapability,
        capability,
    },
    places::{Places, forget, is_mounted, link_to},
    volume::{CsiVolume, Device, SecretKey},
    volume_data::{VolumeData, directories_in},
    volume_stats::StatsCache,
};
use crate::{
    Config,
    configuration::feature_gates::CSI_VOLUME_HEALTH,
    files::{directories, file_work::FileWork},
    images::image_manager::in_flight::InFlightKeys,
    pod::pod_spec,
    volumes::{
        error::VolumeError, file_system, operation_metrics, ownership_progress::OwnershipProgress,
        selinux::mount_option, tokens::TokenKey,
    },
};

/// How long a pod waits for its volume to be attached before that is told.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);
const DRIVERS_TIMEOUT: Duration = Duration::from_secs(10);
const ATTACH_POLL_MIN: Duration = Duration::from_millis(100);
const ATTACH_POLL_MAX: Duration = Duration::from_secs(2);
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The CSIDriver objects of the cluster.
pub struct DriverObjects {
    pub find: Box<dyn Fn(&str) -> Option<Arc<CSIDriver>> + Send + Sync>,
    /// Ends when all are known: a driver without an object is another than one whose object is not known yet.
    pub synced: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

pub struct CsiManager {
    client: Client,
    pub(super) env: Env,
    metrics: Metrics,
    node_name: String,
    pub(super) root_dir: PathBuf,
    pods_dir: PathBuf,
    files: FileWork,
    driver_objects: DriverObjects,
    pub(super) call_timeout: Duration,
    pub(super) stats: StatsCache,
    pub(super) exhausted: ExhaustedDrivers,
    drivers: Mutex<HashMap<String, DriverClient>>,
    /// One at a time works on a volume.
    pub(super) turns: InFlightKeys,
    pub(super) used: Mutex<HashMap<Device, DeviceUse>>,
    /// Told when `volumes_in_use` has changed.
    pub in_use_changed: Arc<Notify>,
}

#[derive(Debug, Default)]
pub(super) struct DeviceUse {
    /// It is in node.status.volumesInUse.
    is_attachable: bool,
    /// UIDs of pods, and the volumes' names on disk.
    pub(super) users: BTreeSet<(String, String)>,
    /// With which it is mounted.
    selinux_label: Option<String>,
}

/// A volume to be mounted for a pod.
pub struct MountRequest<'a> {
    pub pod: &'a Pod,
    pub volume: CsiVolume,
    pub fs_group: Option<u32>,
    pub only_when_root_differs: bool,
    /// By audience: what the CSIDriver object asks for, as JSON.
    pub tokens: Option<String>,
    /// It is mounted already; the driver wants to hear of it again.
    pub is_remount: bool,
    /// Of giving its files to the pod's group.
    pub ownership: Arc<OwnershipProgress>,
    /// To mount it with, where it is to be.
    pub selinux_label: Option<String>,
}

impl CsiManager {
    pub fn new(
        client: Client,
        env: Env,
        config: &Config,
        driver_objects: DriverObjects,
        files: FileWork,
        metrics: Metrics,
    ) -> Self {
        let manager = Self {
            client,
            env,
            metrics,
            node_name: config.node_name.clone(),
            root_dir: config.root_dir.clone(),
            pods_dir: config.pods_dir(),
            files,
            driver_objects,
            call_timeout: CALL_TIMEOUT,
            stats: StatsCache::new(config.volume_stats_period, config.feature_gates.enabled(CSI_VOLUME_HEALTH)),
            exhausted: ExhaustedDrivers::default(),
            drivers: Mutex::default(),
            turns: InFlightKeys::default(),
            used: Mutex::default(),
            in_use_changed: Arc::default(),
        };
        if let Err(error) = manager.reconstruct() {
            tracing::warn!(%error, "failed to read which CSI volumes an earlier process mounted");
        }
        manager
    }

    #[cfg(test)]
    pub fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self { call_timeout, ..self }
    }

    /// What an earlier process has mounted is in use, before any pod is looked at.
    fn reconstruct(&self) -> io::Result<()> {
        for pod in directories_in(&self.pods_dir)? {
            let Some(uid) = pod.file_name().and_then(|name| name.to_str()).map(String::from) else { continue };
            for (data, _) in self.published(&uid)? {
                // Whether its driver attaches is not known yet.
                let (name, attaches) = (data.spec_volume_id.clone(), !data.is_ephemeral());
                let label = Some(data.selinux_mount_context).filter(|label| !label.is_empty());
                let device = Device { driver: data.driver_name, handle: data.volume_handle };
                if let Err(error) = self.add_user(&device, &uid, &name, attaches, label.as_deref()) {
                    tracing::warn!(pod = uid, volume = name, %error, "a volume is mounted in two ways");
                }
            }
        }
        Ok(())
    }

    pub fn register(&self, name: &str, endpoint: &str) -> Result<DriverClient, CsiError> {
        let driver = DriverClient::new(name, endpoint, self.env.clone(), self.metrics.clone())?;
        let driver = driver.with_timeout(self.call_timeout);
        self.drivers.lock().insert(name.into(), driver.clone());
        Ok(driver)
    }

    /// Waits for the CSIDriver objects to be known.
    pub async fn drivers_known(&self) -> Result<(), VolumeError> {
        let known = self.env.timeout(DRIVERS_TIMEOUT, (self.driver_objects.synced)()).await;
        known.ok_or_else(|| VolumeError::Csi("timed out waiting for the CSIDriver objects".into()))
    }

    pub fn unregister(&self, name: &str) {
        self.drivers.lock().remove(name);
    }

    pub(super) fn driver_names(&self) -> BTreeSet<String> {
        self.drivers.lock().keys().cloned().collect()
    }

    pub(super) fn driver_object(&self, name: &str) -> Option<Arc<CSIDriver>> {
        (self.driver_objects.find)(name)
    }

    pub(super) fn driver(&self, name: &str) -> Result<DriverClient, VolumeError> {
        let found = self.drivers.lock().get(name).cloned();
        found.ok_or_else(|| VolumeError::DriverNotRegistered(name.into()))
    }

    /// The tokens that the driver of the volume wants.
    pub fn tokens_wanted(&self, volume: &CsiVolume) -> Vec<TokenKey> {
        let object = (self.driver_objects.find)(&volume.driver);
        let requests = object.and_then(|object| object.spec.token_requests.clone()).unwrap_or_default();
        let key =
            |audience: String, seconds: Option<i64>| TokenKey { audience, expiration_seconds: seconds.unwrap_or(3600) };
        requests.into_iter().map(|request| key(request.audience, request.expiration_seconds)).collect()
    }

    pub fn requires_republish(&self, volume: &CsiVolume) -> bool {
        (self.driver_objects.find)(&volume.driver).is_some_and(|object| object.spec.requires_republish == Some(true))
    }

    /// As node.status names them, sorted.
    pub fn volumes_in_use(&self) -> Vec<String> {
        let used = self.used.lock();
        let mut names: Vec<String> =
            used.iter().filter(|(_, used)| used.is_attachable).map(|(device, _)| device.unique_name()).collect();
        names.sort();
        names
    }

    /// Where the volume is. Does again, without harm, what was done already.
    pub async fn mount(&self, request: &MountRequest<'_>) -> Result<PathBuf, VolumeError> {
        let volume = &request.volume;
        let driver = self.driver(&volume.driver)?;
        let object = (self.driver_objects.find)(&volume.driver);
        if let Some(why) = volume.mode_refusal(object.as_deref()) {
            return Err(VolumeError::Csi(why));
        }
        let attaches = !volume.is_ephemeral && object.as_ref().is_none_or(|o| o.spec.attach_required != Some(false));
        let (device, uid) = (volume.device(), pod_spec::uid(request.pod));
        // Before anything is mounted, so that nobody detaches it meanwhile.
        self.add_user(&device, uid, &volume.spec_name, attaches, request.selinux_label.as_deref())
            .map_err(|_| VolumeError::SelinuxMismatch(device.unique_name()))?;
        let publish_context = if attaches { self.attached(&device).await? } else { BTreeMap::new() };
        let _turn = self.turns.enter(&device.unique_name()).await;
        let has = driver.capabilities().await?;
        let driver_group = request.fs_group.filter(|_| has.contains(&capability::VOLUME_MOUNT_GROUP));
        let stages = !volume.is_ephemeral && has.contains(&capability::STAGE_UNSTAGE_VOLUME);
        let staging = stages.then(|| self.staging_path(volume));
        let mut capability = volume.capability(&has, driver_group);
        capability.add_mount_flag(request.selinux_label.as_deref().map(mount_option));
        let label = request.selinux_label.clone().unwrap_or_default();
        let call = Call { driver: &driver, capability, publish_context, staging, label };
        if call.staging.is_some() && !request.is_remount {
            self.stage(volume, &call).await.map_err(|error| VolumeError::MountDevice(Box::new(error)))?;
        }
        let target = self.publish(request, object.as_deref(), &call).await?;
        if let Some(group) = request.fs_group.filter(|_| driver_group.is_none())
            && volume.node_sets_group(object.as_deref())
            && !request.is_remount
        {
            let (path, lazily, progress) = (target.clone(), request.only_when_root_differs, request.ownership.clone());
            let give = move || Ok(file_system::set_volume_ownership(&path, group, false, lazily, &progress)?);
            let given = self.files.run::<(), VolumeError>(format!("{uid}/{}", volume.spec_name), give);
            self.measured(&device, "volume_apply_access_control", given).await?;
        }
        Ok(target)
    }

    /// What the attacher has to say to the driver, once it has attached the volume to this node.
    async fn attached(&self, device: &Device) -> Result<BTreeMap<String, String>, VolumeError> {
        let name = device.attachment(&self.node_name);
        let api = self.client.api::<VolumeAttachment>();
        let wait = async {
            let mut backoff = env::Backoff::new(ATTACH_POLL_MIN, ATTACH_POLL_MAX);
            loop {
                // The node may not see an attachment that is not its own, so one that is missing may look forbidden.
                let found = api.get(&name).await;
                if let Ok(found) = &found
                    && let Some(status) = &found.status
                {
                    if let Some(error) = &status.attach_error {
                        self.note_attach_error(&device.driver, error);
                        return Err(VolumeError::Csi(error.message.clone().unwrap_or_default()));
                    }
                    if status.attached && found.metadata.deletion_timestamp.is_none() {
                        return Ok(status.attachment_metadata.clone().unwrap_or_default());
                    }
                }
                if let Err(error) = found
                    && !error.is_not_found()
                    && error.code != 403
                {
                    return Err(VolumeError::Csi(format!("failed to get VolumeAttachment {name}: {error}")));
                }
                self.env.sleep(backoff.next_delay()).await;
            }
        };
        self.env.timeout(ATTACH_TIMEOUT, wait).await.unwrap_or_else(|| {
            Err(VolumeError::Csi(format!(
                "timed out waiting for external-attacher of {} CSI driver to attach volume {}",
                device.driver, device.handle
            )))
        })
    }

    fn staging_path(&self, volume: &CsiVolume) -> PathBuf {
        match volume.is_block {
            true => self.block_dir().join("staging").join(&volume.spec_name),
            false => volume.device().directory(&self.root_dir).join("globalmount"),
        }
    }

    pub(super) fn block_dir(&self) -> PathBuf {
        self.root_dir.join("plugins/kubernetes.io/csi/volumeDevices")
    }

    async fn stage(&self, volume: &CsiVolume, call: &Call<'_>) -> Result<(), VolumeError> {
        let Some(path) = &call.staging else { return Ok(()) };
        let data_dir = volume.device().directory(&self.root_dir);
        directories::create(path)?;
        directories::create(&data_dir)?;
        let data = VolumeData {
            driver_name: volume.driver.clone(),
            volume_handle: volume.handle.clone(),
            spec_volume_id: if volume.is_block { volume.spec_name.clone() } else { String::new() },
            selinux_mount_context: call.label.clone(),
            ..VolumeData::default()
        };
        data.save(&data_dir)?;
        let request = NodeStageVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: call.publish_context.clone(),
            staging_target_path: text(path),
            volume_capability: Some(call.capability.clone()),
            secrets: self.secret(&volume.stage_secret, "NodeStageSecretRef").await?,
            volume_context: volume.attributes.clone(),
        };
        let staged = call.driver.stage(request).await;
        if staged.as_ref().is_err_and(CsiError::is_final) && !is_mounted(path)? {
            forget(path, &data_dir)?;
        }
        Ok(staged?)
    }

    async fn publish(
        &self,
        request: &MountRequest<'_>,
        object: Option<&CSIDriver>,
        call: &Call<'_>,
    ) -> Result<PathBuf, VolumeError> {
        let (volume, uid) = (&request.volume, pod_spec::uid(request.pod));
        let spec = object.map(|object| &object.spec);
        let mut secrets = self.secret(&volume.publish_secret, "NodePublishSecretRef").await?;
        let mut context = volume.attributes.clone();
        if spec.is_some_and(|spec| spec.pod_info_on_mount == Some(true)) {
            context.extend(volume.pod_info(request.pod));
        }
        if let Some(tokens) = &request.tokens {
            let in_secrets = spec.is_some_and(|spec| spec.service_account_token_in_secrets == Some(true));
            let place = if in_secrets { &mut secrets } else { &mut context };
            place.insert(TOKENS.into(), tokens.clone());
        }
        let places = self.places(uid, &volume.spec_name, volume.is_block);
        let target_parent = places.target.parent().unwrap_or(&places.data_dir);
        directories::create(target_parent)?;
        directories::create(&places.data_dir)?;
        let data = VolumeData {
            driver_name: volume.driver.clone(),
            volume_handle: volume.handle.clone(),
            spec_volume_id: volume.spec_name.clone(),
            node_name: self.node_name.clone(),
            attachment_id: volume.device().attachment(&self.node_name),
            volume_lifecycle_mode: volume.lifecycle_mode().into(),
            selinux_mount_context: call.label.clone(),
        };
        data.save(&places.data_dir)?;
        if let Some(link) = &places.link {
            link_to(&places.target, link)?;
        }
        let publish = NodePublishVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: call.publish_context.clone(),
            staging_target_path: call.staging.as_deref().map(text).unwrap_or_default(),
            target_path: text(&places.target),
            volume_capability: Some(call.capability.clone()),
            readonly: volume.read_only,
            secrets,
            volume_context: context,
        };
        let published = call.driver.publish(publish).await;
        // What the driver has refused is not there; of what is unclear the driver is asked again when the pod goes.
        if published.as_ref().is_err_and(CsiError::is_final) && !request.is_remount && !is_mounted(&places.target)? {
            places.forget()?;
        }
        published?;
        Ok(places.target)
    }

    async fn secret(&self, key: &Option<SecretKey>, field: &str) -> Result<BTreeMap<String, String>, VolumeError> {
        let Some((namespace, name)) = key else { return Ok(BTreeMap::new()) };
        let found = self.client.namespaced::<Secret>(namespace).get(name).await;
        let found =
            found.map_err(|error| VolumeError::Csi(format!("fetching {field} {namespace}/{name} failed: {error}")))?;
        let data = found.data.unwrap_or_default().into_iter();
        Ok(data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
    }

    /// Has the driver make the volume as large as wanted; false where the driver has nothing to do for it.
    pub async fn expand(&self, volume: &CsiVolume, path: &Path, bytes: i64) -> Result<bool, VolumeError> {
        let driver = self.driver(&volume.driver)?;
        let _turn = self.turns.enter(&volume.device().unique_name()).await;
        let has = driver.capabilities().await?;
        if !has.contains(&capability::EXPAND_VOLUME) {
            return Ok(false);
        }
        let stages = has.contains(&capability::STAGE_UNSTAGE_VOLUME);
        let request = NodeExpandVolumeRequest {
            volume_id: volume.handle.clone(),
            volume_path: text(path),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            staging_target_path: if stages { text(&self.staging_path(volume)) } else { String::new() },
            volume_capability: Some(volume.capability(&has, None)),
            secrets: self.secret(&volume.expand_secret, "NodeExpandSecretRef").await?,
        };
        let expanded = async { Ok(driver.expand(request).await?) };
        self.measured(&volume.device(), "volume_fs_resize", expanded).await?;
        Ok(true)
    }

    /// `operation` is upstream's name for the work.
    pub(super) async fn measured<T>(
        &self,
        device: &Device,
        operation: &str,
        work: impl Future<Output = Result<T, VolumeError>>,
    ) -> Result<T, VolumeError> {
        let began = self.env.monotonic();
        let done = work.await;
        let plugin = api::csi::plugin_name(&device.driver);
        operation_metrics::observe(&self.metrics, &self.env, &plugin, operation, began, done.is_ok());
        done
    }

    /// Whether the volume can be mounted with an SELinux label.
    pub fn has_selinux_mount(&self, volume: &CsiVolume) -> bool {
        (self.driver_objects.find)(&volume.driver).is_some_and(|object| object.spec.se_linux_mount == Some(true))
    }

    /// Fails where other pods have the volume with another SELinux label.
    fn add_user(
        &self,
        device: &Device,
        uid: &str,
        name: &str,
        is_attachable: bool,
        label: Option<&str>,
    ) -> io::Result<()> {
        let mut used = self.used.lock();
        let entry = used.entry(device.clone()).or_default();
        if entry.selinux_label.as_deref() != label {
            if entry.users.iter().any(|(user, _)| user != uid) {
                return Err(io::Error::other("other pods have the volume with another SELinux label"));
            }
            entry.selinux_label = label.map(String::from);
        }
        // Once its driver's object is known, that counts, and no longer the guess of a process that has just begun.
        let is_news = std::mem::replace(&mut entry.is_attachable, is_attachable) != is_attachable;
        entry.users.insert((uid.into(), name.into()));
        if is_news {
            self.in_use_changed.notify_one();
        }
        Ok(())
    }

    pub(super) fn remove_user(&self, device: &Device, uid: &str, name: &str) {
        let mut used = self.used.lock();
        if let Some(entry) = used.get_mut(device) {
            entry.users.remove(&(uid.to_string(), name.to_string()));
            if entry.users.is_empty() {
                used.remove(device);
                self.in_use_changed.notify_one();
            }
        }
    }

    fn places(&self, uid: &str, name: &str, is_block: bool) -> Places {
        if is_block {
            let block = self.block_dir();
            let link = self.pods_dir.join(uid).join("volumeDevices/kubernetes.io~csi").join(name);
            let target = block.join("publish").join(name).join(uid);
            return Places { target, data_dir: block.join(name).join("data"), link: Some(link) };
        }
        let data_dir = self.pods_dir.join(uid).join("volumes/kubernetes.io~csi").join(name);
        Places { target: data_dir.join("mount"), data_dir, link: None }
    }

    /// What drivers have mounted for a pod, as far as it is on disk.
    pub(super) fn published(&self, uid: &str) -> io::Result<Vec<(VolumeData, Places)>> {
        let pod = self.pods_dir.join(uid);
        let mut found = Vec::new();
        for (kind, is_block) in [("volumes", false), ("volumeDevices", true)] {
            for entry in directories_in(&pod.join(kind).join("kubernetes.io~csi"))? {
                let Some(name) = entry.file_name().and_then(|name| name.to_str()) else { continue };
                let places = self.places(uid, name, is_block);
                if let Some(mut data) = VolumeData::load(&places.data_dir)? {
                    data.spec_volume_id = name.into();
                    found.push((data, places));
                }
            }
        }
        Ok(found)
    }
}

/// What the calls for one volume have in common.
struct Call<'a> {
    driver: &'a DriverClient,
    capability: VolumeCapability,
    publish_context: BTreeMap<String, String>,
    staging: Option<PathBuf>,
    /// Of SELinux, empty without one.
    label: String,
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
