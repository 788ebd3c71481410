//! Volumes of CSI drivers in the volume manager: their tokens, and how large they are to become.
//! `csi::mounter` talks to the drivers.
//! A claim's status says a size only after the driver has made the volume that large.

use std::{collections::BTreeMap, time::Duration};

use api::{Accessor, quantity};
use client::Patch;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::VolumeManager;
use crate::{
    csi::{mounter::MountRequest, volume::CsiVolume},
    pod::pod_spec,
    volumes::{
        error::VolumeError,
        plugin::{Spec, is_claim, is_read_only_claim},
    },
};

/// How often a driver that wants to hear of its volumes again is called.
const REPUBLISH_INTERVAL: Duration = Duration::from_secs(60);
/// How often a mounted claim is looked at for a larger size.
const EXPANSION_CHECK_INTERVAL: Duration = Duration::from_secs(10);

impl VolumeManager {
    pub(super) async fn mount_by_driver(
        &self,
        pod: &Pod,
        volume_name: &str,
        volume: CsiVolume,
        persistent: Option<&PersistentVolume>,
    ) -> Result<Option<Duration>, VolumeError> {
        let uid = pod_spec::uid(pod);
        self.csi.drivers_known().await?;
        let republishes = self.csi.requires_republish(&volume);
        let (tokens, renewal) = self.driver_tokens(pod, &volume).await?;
        let security_context = pod_spec::spec(pod).security_context.as_ref();
        let policy = security_context.and_then(|c| c.fs_group_change_policy.as_deref());
        let group = security_context.and_then(|c| c.fs_group).and_then(|group| u32::try_from(group).ok());
        let is_remount = self.actual.lock().is_mounted(uid, volume_name);
        let request = MountRequest {
            pod,
            volume,
            fs_group: group,
            only_when_root_differs: policy == Some("OnRootMismatch"),
            tokens,
            is_remount,
        };
        let path = self.csi.mount(&request).await?;
        if let Some(persistent) = persistent.filter(|_| !is_remount) {
            self.expand(pod, &request.volume, persistent, &path).await?;
        }
        let mut actual = self.actual.lock();
        actual.mark_mounted(uid, volume_name, path);
        if persistent.is_some() {
            actual.mark_expandable(uid, volume_name, self.env.monotonic());
        }
        if !republishes {
            return Ok(None);
        }
        actual.mark_republished(uid, volume_name);
        Ok(Some(renewal.map_or(REPUBLISH_INTERVAL, |renewal| renewal.min(REPUBLISH_INTERVAL))))
    }

    /// As a driver is given them: by audience, each with its end.
    async fn driver_tokens(
        &self,
        pod: &Pod,
        volume: &CsiVolume,
    ) -> Result<(Option<String>, Option<Duration>), VolumeError> {
        let wanted = self.csi.tokens_wanted(volume);
        if wanted.is_empty() {
            return Ok((None, None));
        }
        let (tokens, renewal) = self.fetch_tokens(pod, wanted.into_iter().collect()).await?;
        let shown: BTreeMap<String, Value> = tokens
            .into_iter()
            .map(|(key, token)| {
                let expires = self.tokens.expires(pod, &key).map(|end| end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
                (key.audience, json!({ "token": token, "expirationTimestamp": expires }))
            })
            .collect();
        Ok((Some(json!(shown).to_string()), renewal))
    }

    /// Looks, now and then, whether a mounted volume of a driver is to be larger. What fails is told and tried again.
    pub(super) async fn expand_mounted(&self, pod: &Pod) {
        let uid = pod_spec::uid(pod);
        let now = self.env.monotonic();
        let due = self.actual.lock().due_for_expansion(uid, now, EXPANSION_CHECK_INTERVAL);
        for (name, path) in due {
            let mut volumes = pod_spec::spec(pod).volumes.iter().flatten();
            let Some(volume) = volumes.find(|volume| volume.name == name && is_claim(volume)) else { continue };
            let Ok(persistent) = self.persistent_volume(pod, volume).await else { continue };
            let spec = Spec::Persistent { volume: &persistent, read_only: is_read_only_claim(volume) };
            let Some(csi) = CsiVolume::new(spec, pod) else { continue };
            if let Err(error) = self.expand(pod, &csi, &persistent, &path).await {
                let message = format!("NodeExpandVolume failed for volume {:?} : {error}", persistent.name());
                self.recorder.warning(&client::reference(pod), "VolumeResizeFailed", message);
            }
        }
    }

    async fn expand(
        &self,
        pod: &Pod,
        volume: &CsiVolume,
        persistent: &PersistentVolume,
        path: &std::path::Path,
    ) -> Result<(), VolumeError> {
        let reference = persistent.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let (Some(wanted), Some(reference), false) = (volume.capacity_bytes, reference, volume.read_only) else {
            return Ok(());
        };
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let api = self.client.namespaced::<PersistentVolumeClaim>(namespace);
        let name = reference.name.as_deref().unwrap_or_default();
        let claim = api.get(name).await;
        let claim = claim.map_err(|source| VolumeError::GetClaim { claim: format!("{namespace}/{name}"), source })?;
        let status = claim.status.clone().unwrap_or_default();
        let has = status.capacity.as_ref().and_then(|capacity| quantity::value(capacity.get("storage")?));
        if has.is_none_or(|has| has >= wanted) {
            return Ok(());
        }
        let Some(size) = self.csi.expand(volume, path, wanted).await? else { return Ok(()) };
        let kept = status.conditions.into_iter().flatten();
        let kept: Vec<_> =
            kept.filter(|c| !matches!(c.type_.as_str(), "Resizing" | "FileSystemResizePending")).collect();
        let capacity = persistent.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get("storage").cloned());
        let mut status = json!({ "capacity": { "storage": capacity }, "conditions": kept });
        if claim.status.as_ref().is_some_and(|status| status.allocated_resource_statuses.is_some()) {
            status["allocatedResourceStatuses"] = json!({ "storage": null });
        }
        let patch = json!({ "metadata": { "uid": claim.metadata.uid }, "status": status });
        api.patch_status(name, &Patch::Merge(patch)).await.map_err(|source| VolumeError::Csi(source.to_string()))?;
        let message = format!("MountVolume.NodeExpandVolume succeeded for volume {:?} {size}", persistent.name());
        self.recorder.normal(&client::reference(pod), "FileSystemResizeSuccessful", message.clone());
        self.recorder.normal(&client::reference(&claim), "FileSystemResizeSuccessful", message);
        Ok(())
    }
}
