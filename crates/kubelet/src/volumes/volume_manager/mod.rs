//! Sets up the volumes of pods and takes them down: what a pod names (desired) against what is on disk (actual).
//! Called by `pod_workers`; ConfigMaps, Secrets and tokens come from `references` and `tokens`.
//! Invariant: setting up is idempotent, so a restarted node simply does it again; a pod's directory is removed only
//! after everything below it is unmounted.

pub mod atomic_writer;
pub mod claims;
mod devices;
mod file_system;
mod host_path;
pub mod payload;
pub mod tokens;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api::quantity;
use claims::{Behind, Ownership, Uses};
use client::{Client, EventRecorder};
use env::Env;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use metrics::Metrics;
use parking_lot::Mutex;
use payload::TokenKey;
use tokens::TokenManager;

use crate::{
    config::Config,
    files::{directories, file_work::FileWork},
    node::node_metrics::STORAGE_DURATION,
    pod::pod_spec,
    runtime::container_config::{
        downward::NodeFacts,
        environment::{self, References},
        resources::pod_limits,
    },
};

pub struct VolumeManager {
    client: Client,
    env: Env,
    pods_dir: PathBuf,
    /// Our Node object as last seen: its labels tell which volumes may be used here.
    node: Arc<Mutex<Node>>,
    tokens: TokenManager,
    recorder: EventRecorder,
    metrics: Metrics,
    /// What is set up, by pod UID.
    actual: Mutex<HashMap<String, BTreeMap<String, PathBuf>>>,
    /// Volumes that were given to their pod's group, by pod UID and name: that is done once for each mount.
    given_to_group: Mutex<HashSet<(String, String)>>,
    files: FileWork,
}

/// What a set-up needs to know beside the pod.
pub struct Facts<'a> {
    pub references: &'a References,
    pub pod_ips: &'a [String],
    pub host_ips: &'a [String],
    pub node: NodeFacts,
}

pub struct Mounted {
    pub paths: BTreeMap<String, PathBuf>,
    /// When a token must be renewed.
    pub refresh_after: Option<Duration>,
}

const MOUNT: &str = "MountVolume.SetUp";
const MAP: &str = "MapVolume.SetUpDevice";
const MOUNT_AFFINITY: &str = "MountVolume.NodeAffinity check";
const MAP_AFFINITY: &str = "MapVolume.NodeAffinity check";

#[derive(Debug, thiserror::Error)]
#[error("{step} failed for volume {volume:?} : {message}")]
pub struct MountError {
    step: &'static str,
    pub volume: String,
    pub message: String,
}

/// Why a volume could not be set up, and in which step if that was not the usual one.
#[derive(Debug)]
struct Failure {
    step: Option<&'static str>,
    message: String,
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { step: None, message }
    }
}

/// The reason of the Event that tells of an error.
pub fn event_reason(error: &str) -> &'static str {
    if error.starts_with("MapVolume.") { "FailedMapVolume" } else { "FailedMount" }
}

/// The ConfigMaps and Secrets that a pod names anywhere.
pub fn referenced(pod: &Pod) -> (Vec<String>, Vec<String>) {
    let (mut config_maps, mut secrets): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for volume in pod_spec::spec(pod).volumes.iter().flatten() {
        config_maps.extend(volume.config_map.as_ref().map(|c| c.name.clone()));
        secrets.extend(volume.secret.as_ref().and_then(|s| s.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            config_maps.extend(source.config_map.as_ref().map(|c| c.name.clone()));
            secrets.extend(source.secret.as_ref().map(|s| s.name.clone()));
        }
    }
    let ephemeral = pod_spec::ephemeral_containers(pod);
    for container in pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod)).chain(&ephemeral) {
        let (maps, own_secrets) = environment::referenced(container);
        config_maps.extend(maps.into_iter().map(String::from));
        secrets.extend(own_secrets.into_iter().map(String::from));
    }
    for list in [&mut config_maps, &mut secrets] {
        list.sort();
        list.dedup();
        list.retain(|name| !name.is_empty());
    }
    (config_maps, secrets)
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
    ) -> Self {
        Self {
            tokens: TokenManager::new(client.clone(), env.clone()),
            recorder,
            client,
            env,
            node,
            metrics,
            pods_dir: config.pods_dir(),
            actual: Mutex::default(),
            given_to_group: Mutex::default(),
            files,
        }
    }

    fn volume_dir(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.pods_dir.join(uid).join("volumes").join(format!("kubernetes.io~{plugin}")).join(name)
    }

    /// Where a pod's volumes are, as far as they are set up.
    pub fn paths(&self, uid: &str) -> BTreeMap<String, PathBuf> {
        self.actual.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Sets up, or refreshes, every volume of the pod.
    pub async fn set_up(&self, pod: &Pod, facts: &Facts<'_>) -> Result<Mounted, MountError> {
        let mut mounted = Mounted { paths: BTreeMap::new(), refresh_after: None };
        // Images are mounted by the runtime itself.
        for volume in pod_spec::spec(pod).volumes.iter().flatten().filter(|volume| volume.image.is_none()) {
            let began = self.env.monotonic();
            let result = self.set_up_one(pod, volume, facts).await;
            let status = if result.is_ok() { "success" } else { "fail-unknown" };
            let took = (self.env.monotonic() - began).as_secs_f64();
            let labels = [&plugin_name(volume), "volume_mount", status, "false"];
            self.metrics.observe(&STORAGE_DURATION, &labels, took);
            let usual = if Uses::of(pod, &volume.name).device { MAP } else { MOUNT };
            let (path, refresh) = result.map_err(|failure| MountError {
                step: failure.step.unwrap_or(usual),
                volume: volume.name.clone(),
                message: failure.message,
            })?;
            mounted.paths.insert(volume.name.clone(), path);
            mounted.refresh_after = [mounted.refresh_after, refresh].into_iter().flatten().min();
        }
        self.actual.lock().insert(pod_spec::uid(pod).to_string(), mounted.paths.clone());
        Ok(mounted)
    }

    async fn set_up_one(
        &self,
        pod: &Pod,
        volume: &Volume,
        facts: &Facts<'_>,
    ) -> Result<(PathBuf, Option<Duration>), Failure> {
        let uid = pod_spec::uid(pod);
        let group = fs_group(pod);
        let name = &volume.name;
        if let Some(source) = &volume.empty_dir {
            let path = self.volume_dir(uid, "empty-dir", name);
            let medium = match source.medium.as_deref().unwrap_or_default() {
                "" => Medium::Disk,
                "Memory" => Medium::Memory(memory_size(source, pod, facts.node.memory_bytes)),
                huge if huge.starts_with("HugePages") => Medium::HugePages(page_size(huge, pod)?),
                other => return Err(format!("unknown storage medium {other:?}").into()),
            };
            let place = path.clone();
            self.work(uid, name, move || empty_dir(&place, &medium, group).map_err(|e| e.to_string())).await?;
            return Ok((path, None));
        }
        if let Some(source) = &volume.host_path {
            let path = PathBuf::from(&source.path);
            let (place, kind) = (path.clone(), source.type_.clone().unwrap_or_default());
            self.work(uid, name, move || host_path::check(&place, &kind)).await?;
            return Ok((path, None));
        }
        if let Some(source) = &volume.persistent_volume_claim {
            return self.claim(pod, name, &source.claim_name, false).await.map(|path| (path, None));
        }
        if let Some(source) = &volume.ephemeral {
            if source.volume_claim_template.is_none() {
                return Err("ephemeral volume without a claim template".to_string().into());
            }
            let claim = format!("{}-{name}", pod_spec::name(pod));
            return self.claim(pod, name, &claim, true).await.map(|path| (path, None));
        }
        let mode = |mode: Option<i32>| mode.unwrap_or(payload::DEFAULT_MODE) as u32;
        let context = |default_mode, tokens| payload::Context {
            pod,
            references: facts.references,
            pod_ips: facts.pod_ips,
            host_ips: facts.host_ips,
            node: &facts.node,
            tokens,
            default_mode,
        };
        let no_tokens = BTreeMap::new();
        let (plugin, in_memory, content, refresh) = if let Some(source) = &volume.config_map {
            let context = context(mode(source.default_mode), &no_tokens);
            let optional = source.optional.unwrap_or(false);
            ("configmap", false, payload::config_map(&context, &source.name, source.items.as_ref(), optional)?, None)
        } else if let Some(source) = &volume.secret {
            let context = context(mode(source.default_mode), &no_tokens);
            let optional = source.optional.unwrap_or(false);
            let secret = source.secret_name.as_deref().unwrap_or_default();
            ("secret", true, payload::secret(&context, secret, source.items.as_ref(), optional)?, None)
        } else if let Some(source) = &volume.downward_api {
            let context = context(mode(source.default_mode), &no_tokens);
            let items = source.items.as_deref().unwrap_or_default();
            ("downward-api", true, payload::downward_api(&context, items)?, None)
        } else if let Some(source) = &volume.projected {
            let sources = source.sources.as_deref().unwrap_or_default();
            let (tokens, refresh) = self.fetch_tokens(pod, sources).await?;
            let content = payload::projected(&context(mode(source.default_mode), &tokens), sources)?;
            ("projected", true, content, refresh)
        } else {
            return Err(format!("no volume plugin matched name: {}", volume_kind(volume)).into());
        };
        let path = self.volume_dir(uid, plugin, name);
        let stamp =
            format!("{}.{}", self.env.now().strftime("%Y_%m_%d_%H_%M_%S"), self.env.random_u64() % 10_000_000_000);
        let place = path.clone();
        let write = move || write_volume(&place, &content, group, in_memory, &stamp).map_err(|e| e.to_string());
        self.work(uid, name, write).await?;
        Ok((path, refresh))
    }

    /// Work on a volume's files, on a thread that may hang.
    async fn work<T: Send + 'static>(
        &self,
        uid: &str,
        volume: &str,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.files.run(format!("{uid}/{volume}"), work).await
    }

    async fn fetch_tokens(
        &self,
        pod: &Pod,
        sources: &[k8s_openapi::api::core::v1::VolumeProjection],
    ) -> Result<(BTreeMap<TokenKey, String>, Option<Duration>), String> {
        let mut tokens = BTreeMap::new();
        let mut refresh: Option<Duration> = None;
        for projection in sources.iter().filter_map(|source| source.service_account_token.as_ref()) {
            let key = TokenKey::of(projection);
            let (token, renew_in) = self.tokens.get(pod, &key).await?;
            refresh = Some(refresh.map_or(renew_in, |r| r.min(renew_in)));
            tokens.insert(key, token);
        }
        Ok((tokens, refresh))
    }

    /// The host directory behind a claim, for the kinds of volume that live on the node. One that is the pod's `own` was
    /// made from a template.
    async fn claim(&self, pod: &Pod, volume_in_pod: &str, name: &str, own: bool) -> Result<PathBuf, Failure> {
        let namespace = pod_spec::namespace(pod);
        let claim = self
            .client
            .namespaced::<PersistentVolumeClaim>(namespace)
            .get(name)
            .await
            .map_err(|error| format!("error fetching PVC {namespace}/{name}: {error}"))?;
        if own {
            claims::check_owner(&claim, pod)?;
        }
        // A pod that has it goes on.
        let has = |paths: &BTreeMap<String, PathBuf>| paths.contains_key(volume_in_pod);
        if claim.metadata.deletion_timestamp.is_some() && !self.actual.lock().get(pod_spec::uid(pod)).is_some_and(has) {
            return Err(format!("error processing PVC {namespace}/{name}: PVC is being deleted").into());
        }
        let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let volume_name = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).unwrap_or_default();
        if !bound || volume_name.is_empty() {
            return Err(format!("PVC {namespace}/{name} is not bound").into());
        }
        let volume = self
            .client
            .api::<PersistentVolume>()
            .get(&volume_name)
            .await
            .map_err(|error| format!("error fetching PV {volume_name}: {error}"))?;
        let owner = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()).and_then(|r| r.uid.clone());
        if owner != claim.metadata.uid {
            return Err(format!("PV {volume_name} is not bound to PVC {namespace}/{name}").into());
        }
        let uses = Uses::of(pod, volume_in_pod);
        self.check_node(&volume, uses)?;
        let behind = Behind::of(volume, volume_in_pod, uses)?;
        let context = pod_spec::spec(pod).security_context.as_ref();
        let policy = context.and_then(|c| c.fs_group_change_policy.as_deref());
        let key = (pod_spec::uid(pod).to_string(), volume_in_pod.to_string());
        let given = self.given_to_group.lock().contains(&key);
        let ownership = Ownership {
            group: fs_group(pod).filter(|_| !given),
            read_only: claims::is_read_only(pod, volume_in_pod),
            only_when_root_differs: policy == Some("OnRootMismatch"),
        };
        let target = self.volume_dir(pod_spec::uid(pod), "local-volume", &volume_name);
        let used = ownership.group.and_then(|_| self.used_by_another(pod, volume_in_pod, &behind, &target));
        let prepare = move || {
            let owner = used.map(|place| claims::owning_group(&place)).transpose()?;
            Ok((behind.prepare(ownership, &target)?, owner))
        };
        let (path, owner) = self.work(pod_spec::uid(pod), volume_in_pod, prepare).await?;
        self.given_to_group.lock().insert(key);
        if let (Some(wanted), Some(owner)) = (ownership.group, owner)
            && wanted != owner
        {
            let message = format!(
                "The requested fsGroup is {wanted}, but the volume {volume_name} has GID {owner}. The volume may not \
                 be shareable."
            );
            self.recorder.warning(&client::reference(pod), "AlreadyMountedVolume", message);
        }
        Ok(path)
    }

    /// Where another pod has what this one is to have, if this one has not got it yet.
    fn used_by_another(&self, pod: &Pod, volume_in_pod: &str, behind: &Behind, target: &Path) -> Option<PathBuf> {
        let (own, actual) = (pod_spec::uid(pod), self.actual.lock());
        if !behind.has_local_files() || actual.get(own).is_some_and(|paths| paths.contains_key(volume_in_pod)) {
            return None;
        }
        // A device is mounted for each pod of its own, below its directory.
        let below =
            |uid: &str| target.strip_prefix(self.pods_dir.join(own)).map(|rest| self.pods_dir.join(uid).join(rest));
        let same = |uid: &str, path: &PathBuf| *path == behind.path || below(uid).is_ok_and(|place| *path == place);
        let others = actual.iter().filter(|(uid, _)| *uid != own);
        others.flat_map(|(uid, paths)| paths.values().filter(move |path| same(uid, path))).next().cloned()
    }

    fn check_node(&self, volume: &PersistentVolume, uses: Uses) -> Result<(), Failure> {
        let node = self.node.lock().metadata.clone();
        let step = Some(if uses.device { MAP_AFFINITY } else { MOUNT_AFFINITY });
        claims::check_node_affinity(volume, &node.name.unwrap_or_default(), &node.labels.unwrap_or_default())
            .map_err(|message| Failure { step, message })
    }

    /// Unmounts and removes everything the pod has on disk.
    pub async fn tear_down(&self, uid: &str) -> Result<(), String> {
        self.actual.lock().remove(uid);
        self.given_to_group.lock().retain(|(owner, _)| owner != uid);
        self.tokens.forget(uid);
        let directory = self.pods_dir.join(uid);
        // However long it takes: nothing but this pod's end waits for it.
        match env::spawn_blocking(move || file_system::remove(&directory)).await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        }
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

fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod_spec::spec(pod).security_context.as_ref().and_then(|c| c.fs_group)?;
    u32::try_from(group).ok()
}

/// How large an emptyDir in memory may become: as it says, but no more than its pod or all pods may use.
fn memory_size(source: &EmptyDirVolumeSource, pod: &Pod, allocatable: i64) -> Option<i64> {
    let own = source.size_limit.as_ref().and_then(quantity::value);
    let limits = [own, pod_limits(pod).memory_bytes, Some(allocatable)];
    limits.into_iter().flatten().filter(|bytes| *bytes > 0).min()
}

/// Where an emptyDir keeps its files.
#[derive(Debug)]
enum Medium {
    Disk,
    /// With the most it may hold.
    Memory(Option<i64>),
    /// Of this size ("2Mi").
    HugePages(String),
}

/// The size of the pages behind a medium of huge pages: the one it names, or the only one that the pod asks for.
fn page_size(medium: &str, pod: &Pod) -> Result<String, String> {
    let own = pod_spec::spec(pod).resources.iter();
    let all = pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod));
    let requests = own.chain(all.filter_map(|c| c.resources.as_ref())).flat_map(|r| r.requests.iter().flatten());
    let mut sizes: Vec<&str> = requests.filter_map(|(name, _)| name.strip_prefix("hugepages-")).collect();
    if let Some(wanted) = medium.strip_prefix("HugePages-") {
        sizes.retain(|size| *size == wanted);
    }
    sizes.sort_unstable();
    sizes.dedup();
    match sizes.as_slice() {
        [size] => Ok(size.to_string()),
        [] => Err(format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )),
        _ => Err(format!("medium: {medium} can't be used if container requests multiple huge page sizes")),
    }
}

fn empty_dir(path: &Path, medium: &Medium, group: Option<u32>) -> io::Result<()> {
    let fresh = !path.exists();
    directories::create(path)?;
    let mounts_now = !matches!(medium, Medium::Disk) && !file_system::is_mount_point(path);
    match medium {
        Medium::Memory(size) if mounts_now => file_system::mount_tmpfs(path, *size)?,
        Medium::HugePages(size) if mounts_now => file_system::mount_hugetlbfs(path, size)?,
        _ => {}
    }
    if fresh || mounts_now {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
        if let Some(group) = group {
            file_system::give_to_group(path, group, false, false)?;
        }
    }
    Ok(())
}

fn write_volume(
    path: &Path,
    content: &atomic_writer::Payload,
    group: Option<u32>,
    in_memory: bool,
    stamp: &str,
) -> io::Result<()> {
    directories::create(path)?;
    // Secrets, and what a pod is told of itself, never touch the disk.
    if in_memory {
        file_system::mount_tmpfs(path, None)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(if group.is_some() { 0o2777 } else { 0o777 }))?;
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group))?;
    }
    atomic_writer::write(path, content, group, stamp).map(drop)
}

/// As upstream's metrics name the kind of a volume.
pub fn plugin_name(volume: &Volume) -> String {
    let kind = match volume_kind(volume).as_str() {
        "emptyDir" => "empty-dir".to_string(),
        "hostPath" => "host-path".to_string(),
        "downwardAPI" => "downward-api".to_string(),
        "persistentVolumeClaim" | "ephemeral" => "local-volume".to_string(),
        other => other.to_lowercase(),
    };
    format!("kubernetes.io/{kind}")
}

/// The name of the field that says what kind of volume it is.
fn volume_kind(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let fields = value.as_object().into_iter().flatten().map(|(key, _)| key.clone());
    fields.filter(|key| key != "name").collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_by_the_volume_the_pod_and_the_node() {
        let check = |size: Option<&str>, limit: Option<&str>, expected: i64| {
            let source = EmptyDirVolumeSource {
                medium: Some("Memory".into()),
                size_limit: size.map(|size| k8s_openapi::apimachinery::pkg::api::resource::Quantity(size.into())),
            };
            let limits = limit.map_or(serde_json::json!({}), |limit| serde_json::json!({"memory": limit}));
            let container = serde_json::json!({"name": "a", "resources": {"limits": limits}});
            let pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [container]}})).unwrap();
            assert_eq!(memory_size(&source, &pod, 1 << 30), Some(expected), "{size:?} {limit:?}");
        };
        check(None, None, 1 << 30);
        check(Some("10Mi"), None, 10 << 20);
        check(Some("10Mi"), Some("5Mi"), 5 << 20);
        check(Some("10Mi"), Some("50Mi"), 10 << 20);
        check(None, Some("50Mi"), 50 << 20);
        check(Some("0"), None, 1 << 30);
        check(Some("4Gi"), Some("2Gi"), 1 << 30);
    }

    #[test]
    fn huge_pages_are_of_the_size_that_the_pod_asks_for() {
        let check = |medium: &str, asked: &[&str], expected: Result<&str, &str>| {
            let requests: BTreeMap<String, &str> =
                asked.iter().map(|size| (format!("hugepages-{size}"), "1Gi")).collect();
            let container = serde_json::json!({"name": "a", "resources": {"requests": requests}});
            let pod = serde_json::from_value(serde_json::json!({"spec": {"containers": [container]}})).unwrap();
            match (page_size(medium, &pod), expected) {
                (Ok(size), Ok(expected)) => assert_eq!(size, expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (found, expected) => panic!("{medium} {asked:?}: {found:?} instead of {expected:?}"),
            }
        };
        check("HugePages", &["2Mi"], Ok("2Mi"));
        check("HugePages", &["2Mi", "1Gi"], Err("multiple huge page sizes"));
        check("HugePages-1Gi", &["2Mi", "1Gi"], Ok("1Gi"));
        check("HugePages-1Gi", &["2Mi"], Err("no resource request for huge pages"));
        check("HugePages", &[], Err("no resource request for huge pages"));
    }
}
