//! Why a volume could not be mounted or unmounted, in upstream's words, and the reason of the Event that says so.
//! Made by `plugins` and `volume_manager`; told by `pod::pod_workers`.

use std::{io, path::PathBuf};

use api::ApiError;

use super::{
    certificates::{pod_certificates::CertificateError, trust_bundles::TrustBundleError},
    devices::{DeviceError, GrowError},
    network_disks::DiskError,
    payload::ObjectKind,
    referenced_objects::ReferenceError,
    tokens::TokenError,
};
use crate::{
    csi::driver_client::CsiError, files::file_work::FileWorkError, runtime::container_config::downward::DownwardError,
};

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("no volume plugin matched name: {0}")]
    NoPluginMatched(String),
    #[error("PV {0} has a source that this node does not support")]
    UnsupportedPersistentVolume(String),
    #[error("volume {0} is mounted by the container runtime")]
    MountedByRuntime(String),
    /// Upstream's words where the gate ClusterTrustBundleProjection is off.
    #[error("ClusterTrustBundle projection is not supported in static kubelet mode")]
    TrustBundlesUnsupported,
    #[error("podCertificate projection needs the feature gate PodCertificateRequest on this node")]
    PodCertificatesUnsupported,

    #[error("unknown storage medium {0:?}")]
    UnknownMedium(String),
    #[error("medium {0}: hugePages storage requested, but there is no resource request for huge pages")]
    NoHugePageRequest(String),
    #[error("medium: {0} can't be used if container requests multiple huge page sizes")]
    ManyHugePageSizes(String),

    #[error("hostPath type check failed: {} is not {expected}", .path.display())]
    HostPathType { path: PathBuf, expected: &'static str },
    #[error("{0:?} is an invalid hostPath type")]
    InvalidHostPathType(String),
    #[error("PV {name} at {path:?} is a hostPath, which has no device for a pod")]
    HostPathBlock { name: String, path: String },

    #[error("{kind} {name:?} not found")]
    ObjectNotFound { kind: ObjectKind, name: String },
    #[error("{}: {key}", key_not_found(.kind))]
    KeyNotFound { kind: ObjectKind, key: String },
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    TrustBundle(#[from] TrustBundleError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),

    #[error("ephemeral volume without a claim template")]
    NoClaimTemplate,
    #[error("error fetching PVC {claim}: {source}")]
    GetClaim { claim: String, source: ApiError },
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { claim: String, pod: String },
    #[error("error processing PVC {0}: PVC is being deleted")]
    ClaimDeleted(String),
    #[error("PVC {0} is not bound")]
    ClaimNotBound(String),
    #[error("error fetching PV {name}: {source}")]
    GetPersistentVolume { name: String, source: ApiError },
    #[error("PV {name} is not bound to PVC {claim}")]
    NotBoundToClaim { name: String, claim: String },
    #[error("no matching NodeSelectorTerms")]
    NodeAffinity,
    #[error("volume {0} has volumeMode Block, but is specified in volumeMounts")]
    BlockMounted(String),
    #[error("volume {0} has volumeMode Filesystem, but is specified in volumeDevices")]
    FilesystemAsDevice(String),

    #[error("path {0:?} does not exist")]
    PathNotFound(PathBuf),
    #[error("path {0:?} is not a block device")]
    NotBlockDevice(PathBuf),
    #[error("only directory and block device are supported")]
    NeitherDirectoryNorDevice,
    #[error("failed to check fsGroup for {} ({source})", .path.display())]
    CheckFsGroup { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Grow(#[from] GrowError),

    #[error("multiple SELinux labels found: {labels}")]
    ManySelinuxLabels { volume: String, labels: String },
    #[error(
        "waiting for unmount of volume {0:?}, because it is already mounted to a different pod with a different SELinux label"
    )]
    SelinuxMismatch(String),
    #[error(transparent)]
    NetworkDisk(DiskError),
    #[error("couldn't get secret {key} error: {source}")]
    GetSecret { key: String, source: ApiError },

    #[error("kubernetes.io/csi: driver name {0} not found in the list of registered CSI drivers")]
    DriverNotRegistered(String),
    /// Staging failed.
    #[error("{0}")]
    MountDevice(Box<VolumeError>),
    #[error("{0}")]
    Expand(String),
    #[error("kubernetes.io/csi: {0}")]
    Csi(String),
    #[error(transparent)]
    CsiCall(#[from] CsiError),

    #[error(transparent)]
    FileWork(#[from] FileWorkError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Upstream's words for each kind.
fn key_not_found(kind: &ObjectKind) -> &'static str {
    match kind {
        ObjectKind::ConfigMap => "configmap references non-existent config key",
        ObjectKind::Secret => "references non-existent secret key",
    }
}

/// A pod can't have one of its volumes.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    #[error(transparent)]
    References(#[from] ReferenceError),
    #[error("{} for volume {volume:?} : {source}", failed_step(.device, .source))]
    Mount {
        volume: String,
        /// Containers want it as a device.
        device: bool,
        source: VolumeError,
    },
}

impl SetUpError {
    pub fn event_reason(&self) -> &'static str {
        match self {
            Self::Mount { device: true, .. } => "FailedMapVolume",
            Self::Mount { device: false, .. } | Self::References(_) => "FailedMount",
        }
    }
}

/// Upstream's words for the operation that failed.
fn failed_step(device: &bool, error: &VolumeError) -> &'static str {
    match (device, error) {
        (true, VolumeError::NodeAffinity) => "MapVolume.NodeAffinity check failed",
        (true, VolumeError::Expand(_)) => "MapVolume.MarkVolumeAsMounted failed while expanding volume",
        (true, _) => "MapVolume.SetUpDevice failed",
        (false, VolumeError::NodeAffinity) => "MountVolume.NodeAffinity check failed",
        (false, VolumeError::MountDevice(_)) => "MountVolume.MountDevice failed",
        (false, VolumeError::Expand(_)) => "MountVolume.Setup failed while expanding volume",
        (false, _) => "MountVolume.SetUp failed",
    }
}

/// A pod's directory can't be unmounted or removed.
#[derive(Debug, thiserror::Error)]
pub enum TearDownError {
    #[error("UnmountVolume.TearDown failed for a volume of a CSI driver: {0}")]
    Csi(#[from] VolumeError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

impl TearDownError {
    pub fn event_reason(&self) -> &'static str {
        "FailedUnMount"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_names_the_operation_that_failed() {
        let check = |device: bool, source: VolumeError, reason: &str, message: &str| {
            let error = SetUpError::Mount { volume: "v".into(), device, source };
            assert_eq!((error.event_reason(), error.to_string().as_str()), (reason, message));
        };
        let medium = || VolumeError::UnknownMedium("x".into());
        let said = "unknown storage medium \"x\"";
        check(false, medium(), "FailedMount", &format!("MountVolume.SetUp failed for volume \"v\" : {said}"));
        check(true, medium(), "FailedMapVolume", &format!("MapVolume.SetUpDevice failed for volume \"v\" : {said}"));
        let affinity = "NodeAffinity check failed for volume \"v\" : no matching NodeSelectorTerms";
        check(false, VolumeError::NodeAffinity, "FailedMount", &format!("MountVolume.{affinity}"));
        check(true, VolumeError::NodeAffinity, "FailedMapVolume", &format!("MapVolume.{affinity}"));
        let staging = || VolumeError::MountDevice(Box::new(medium()));
        check(false, staging(), "FailedMount", &format!("MountVolume.MountDevice failed for volume \"v\" : {said}"));
        check(true, staging(), "FailedMapVolume", &format!("MapVolume.SetUpDevice failed for volume \"v\" : {said}"));
        let expansion = "MountVolume.Setup failed while expanding volume for volume \"v\" : no";
        check(false, VolumeError::Expand("no".into()), "FailedMount", expansion);
    }
}
