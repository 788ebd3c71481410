//! The node's part of local storage: one directory per PersistentVolume that the control plane's provisioner put here.
//! `announcement` tells the provisioner what there is; `set_up` makes a directory at its first mount (`plugins::local`);
//! `run` removes those whose PersistentVolume is deleted, and then lets go of it; `quota` holds pods to a volume's size.
//! Only directories right below the root are touched, by descriptors, and never what is mounted in them or still used.

mod quota;

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use api::{
    Accessor,
    local_storage::{FINALIZER, NODE_ANNOTATION, NODE_LABEL, NodeStorage, PROVISIONER},
    quantity,
};
use client::{Informer, InformerFactory, ListParams, Patch, WorkQueue};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use nix::{errno::Errno, sys::stat::Mode};
use serde_json::json;

use super::volume_manager::VolumeManager;
use crate::{
    Config,
    files::{disk::Disk, file_work::FileWork, remove_tree, safe_open},
    pod::pod_workers::Shared,
};

/// Pods of any user write there; nobody else can get there, because the directories above are closed.
const DIRECTORY_MODE: u32 = 0o777;

/// What the node says of its storage on its Node object; `None` where it has none.
pub fn announcement(config: &Config) -> Option<(String, String)> {
    let root = config.local_storage_dir();
    let disk = Disk::measure(&root).filter(|_| config.local_storage)?;
    let storage = NodeStorage {
        path: root.to_str()?.into(),
        capacity_bytes: i64::try_from(disk.bytes).ok()?,
        size_enforced: quota::find(&root).is_some(),
    };
    Some((NODE_ANNOTATION.into(), serde_json::to_string(&storage).ok()?))
}

/// The name and size of a volume whose directory is right below `root`.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalDirectory {
    root: PathBuf,
    name: String,
    size_bytes: Option<i64>,
}

impl LocalDirectory {
    /// `None` for what another program made, or what is elsewhere.
    pub fn new(root: &Path, volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let name = volume.name();
        let ours = volume.annotation("pv.kubernetes.io/provisioned-by") == Some(PROVISIONER);
        let one_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        let here = Path::new(&spec.local.as_ref()?.path) == root.join(name);
        let size_bytes = spec.capacity.as_ref().and_then(|c| quantity::value(c.get("storage")?));
        (ours && one_name && here).then(|| Self { root: root.into(), name: name.into(), size_bytes })
    }

    pub fn path(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// Makes the directory if it is missing, and holds it to its size where the file system can.
    pub fn set_up(&self) -> io::Result<()> {
        let root = safe_open::directory(&self.root)?;
        match nix::sys::stat::mkdirat(&root, self.name.as_str(), Mode::from_bits_truncate(0o700)) {
            Ok(()) => {
                let own = safe_open::directory_in(&root, Path::new(&self.name))?;
                std::fs::File::from(own).set_permissions(std::fs::Permissions::from_mode(DIRECTORY_MODE))?;
            }
            Err(Errno::EEXIST) => drop(safe_open::directory_in(&root, Path::new(&self.name))?),
            Err(error) => return Err(error.into()),
        }
        self.limit_size()
    }

    fn limit_size(&self) -> io::Result<()> {
        match (quota::find(&self.root), self.size_bytes) {
            (Some(quota), Some(bytes)) if self.path().is_dir() => quota.limit(&self.path(), bytes),
            _ => Ok(()),
        }
    }

    /// Removes the directory and what is in it; what is mounted there is an error.
    fn remove(&self) -> io::Result<()> {
        match safe_open::directory(&self.root) {
            Ok(root) => remove_tree::remove_in(&root, self.name.as_ref()),
            // This node never had any.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Follows the volumes of this node for as long as it runs.
pub async fn run(shared: Arc<Shared>, informers: InformerFactory) {
    if !shared.config.local_storage {
        withdraw(&shared).await;
    }
    let label = format!("{NODE_LABEL}={}", shared.config.node_name);
    let volumes = informers.informer_with::<PersistentVolume>(ListParams::labels(label));
    let queue = WorkQueue::<String>::new(shared.env.clone());
    let (mut changes, added) = (volumes.subscribe(), queue.clone());
    let feed = async move {
        while let Some(change) = changes.next().await {
            added.add(change.key);
        }
    };
    let files = FileWork::new(shared.env.clone());
    let work = async {
        while let Some(name) = queue.get().await {
            match look_at(&shared, &files, &volumes, &name).await {
                Ok(()) => queue.forget(&name),
                Err(error) => {
                    tracing::warn!(volume = name, %error, "local volume; will try again");
                    queue.add_rate_limited(name.clone());
                }
            }
            queue.done(&name);
        }
    };
    tokio::join!(feed, work);
}

/// An earlier process may have offered what this one does not.
async fn withdraw(shared: &Shared) {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { NODE_ANNOTATION: null } } }));
    if let Err(error) = shared.client.api::<Node>().patch(&shared.config.node_name, &patch).await {
        tracing::warn!(%error, "failed to say that this node offers no local storage");
    }
}

#[derive(Debug, thiserror::Error)]
enum LocalVolumeError {
    #[error("volume {0} is still used by a pod of this node")]
    InUse(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    FileWork(#[from] crate::files::file_work::FileWorkError),
    #[error(transparent)]
    Api(#[from] api::ApiError),
}

async fn look_at(
    shared: &Shared,
    files: &FileWork,
    volumes: &Informer<PersistentVolume>,
    name: &str,
) -> Result<(), LocalVolumeError> {
    let Some(volume) = volumes.get(name) else { return Ok(()) };
    let directory = LocalDirectory::new(&shared.config.local_storage_dir(), &volume);
    match (next_step(&volume), directory) {
        (Step::Nothing, _) => Ok(()),
        (Step::LimitSize, Some(directory)) => {
            files.run(name.to_string(), move || directory.limit_size().map_err(LocalVolumeError::from)).await
        }
        (Step::LimitSize, None) => Ok(()),
        (Step::Remove, Some(directory)) => {
            remove(&shared.volumes, files, directory).await?;
            let about = client::reference(&*volume);
            shared.recorder.normal(&about, "VolumeDeleted", format!("Removed the directory of volume {name}"));
            let_go(shared, &volume).await
        }
        // Kept by its policy, or not a directory of this node's storage.
        (Step::Remove, None) | (Step::LetGo, _) => let_go(shared, &volume).await,
    }
}

#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    LimitSize,
    /// The directory goes, then the finalizer.
    Remove,
    /// The finalizer goes; the directory stays.
    LetGo,
}

fn next_step(volume: &PersistentVolume) -> Step {
    if volume.metadata.deletion_timestamp.is_none() {
        return Step::LimitSize;
    }
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let has = |finalizer: &str| volume.finalizers().iter().any(|held| held == finalizer);
    // As long as a claim has it, it is only marked.
    if !has(FINALIZER) || phase == Some("Bound") || has("kubernetes.io/pv-protection") {
        return Step::Nothing;
    }
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    if policy == Some("Delete") { Step::Remove } else { Step::LetGo }
}

async fn remove(volumes: &VolumeManager, files: &FileWork, directory: LocalDirectory) -> Result<(), LocalVolumeError> {
    if volumes.is_in_use(&directory.path()) {
        return Err(LocalVolumeError::InUse(directory.name));
    }
    files.run(directory.name.clone(), move || directory.remove().map_err(LocalVolumeError::from)).await
}

async fn let_go(shared: &Shared, volume: &PersistentVolume) -> Result<(), LocalVolumeError> {
    let kept: Vec<&String> = volume.finalizers().iter().filter(|finalizer| *finalizer != FINALIZER).collect();
    let meta = json!({ "uid": volume.uid(), "resourceVersion": volume.metadata.resource_version, "finalizers": kept });
    let patch = Patch::Merge(json!({ "metadata": meta }));
    match shared.client.api::<PersistentVolume>().patch(volume.name(), &patch).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use serde_json::Value;

    use super::*;

    fn volume(name: &str, path: &Path, by: &str) -> PersistentVolume {
        let meta = json!({ "name": name, "annotations": { "pv.kubernetes.io/provisioned-by": by } });
        let spec = json!({ "local": { "path": path }, "capacity": { "storage": "1Mi" } });
        serde_json::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
    }

    #[test]
    fn only_directories_right_below_the_root_are_ours() {
        let root = Path::new("/root-of-volumes");
        let check = |name: &str, path: &str, by: &str, expected: bool| {
            assert_eq!(
                LocalDirectory::new(root, &volume(name, path.as_ref(), by)).is_some(),
                expected,
                "{name} {path}"
            );
        };
        check("pvc-1", "/root-of-volumes/pvc-1", PROVISIONER, true);
        check("pvc-1", "/root-of-volumes/pvc-1", "example.com/other", false);
        check("pvc-1", "/root-of-volumes/pvc-2", PROVISIONER, false);
        check("pvc-1", "/elsewhere/pvc-1", PROVISIONER, false);
        check("..", "/root-of-volumes/..", PROVISIONER, false);
        check("a/b", "/root-of-volumes/a/b", PROVISIONER, false);
    }

    #[test]
    fn a_directory_is_made_kept_and_removed_with_what_is_in_it_and_nothing_else() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("volumes")).unwrap();
        std::fs::write(root.join("outside"), "kept").unwrap();
        let root_of_volumes = root.join("volumes");
        let path = root_of_volumes.join("pvc-1");
        let directory = LocalDirectory::new(&root_of_volumes, &volume("pvc-1", &path, PROVISIONER)).unwrap();
        directory.set_up().unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, DIRECTORY_MODE);
        std::fs::create_dir(path.join("d")).unwrap();
        std::fs::write(path.join("d/file"), "data").unwrap();
        std::os::unix::fs::symlink(root.join("outside"), path.join("link")).unwrap();
        directory.set_up().unwrap();
        assert_eq!(std::fs::read_to_string(path.join("d/file")).unwrap(), "data");
        directory.remove().unwrap();
        assert!(!path.exists());
        assert_eq!(std::fs::read_to_string(root.join("outside")).unwrap(), "kept");
        directory.remove().unwrap();
        // A link in place of the directory is refused, and removed as a link.
        std::fs::create_dir(root.join("host")).unwrap();
        std::os::unix::fs::symlink(root.join("host"), &path).unwrap();
        assert!(directory.set_up().is_err());
        directory.remove().unwrap();
        assert!(root.join("host").is_dir());
    }

    #[test]
    fn data_goes_only_when_nobody_has_the_volume_and_its_policy_says_so() {
        let check = |deleted: bool, finalizers: Value, phase: &str, policy: &str, expected: Step| {
            let time = deleted.then_some("2026-01-01T00:00:00Z");
            let volume = json!({ "metadata": { "name": "v", "deletionTimestamp": time, "finalizers": finalizers },
                "spec": { "persistentVolumeReclaimPolicy": policy }, "status": { "phase": phase } });
            let found = next_step(&serde_json::from_value(volume).unwrap());
            assert_eq!(found, expected, "{deleted} {finalizers} {phase} {policy}");
        };
        let ours = || json!([FINALIZER]);
        check(false, ours(), "Bound", "Delete", Step::LimitSize);
        check(false, ours(), "Released", "Delete", Step::LimitSize);
        check(true, ours(), "Released", "Delete", Step::Remove);
        check(true, ours(), "Released", "Retain", Step::LetGo);
        check(true, ours(), "Bound", "Delete", Step::Nothing);
        check(true, json!([FINALIZER, "kubernetes.io/pv-protection"]), "Released", "Delete", Step::Nothing);
        check(true, json!([]), "Released", "Delete", Step::Nothing);
    }
}
