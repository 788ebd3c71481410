//! Volumes of CSI drivers in the volume manager: their tokens, and what their drivers say of them.
//! `csi::mounter` talks to the drivers; `node_expansion` makes the volumes larger.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{VolumeManager, node_expansion::Expandable};
use crate::{
    csi::{mounter::MountRequest, volume::CsiVolume, volume_stats::DriverStats},
    pod::pod_spec,
    volumes::{error::VolumeError, file_system, plugin::Spec},
};

/// How often a driver that wants to hear of its volumes again is called.
const REPUBLISH_INTERVAL: Duration = Duration::from_secs(60);

impl VolumeManager {
    pub(super) async fn mount_by_driver(
        &self,
        pod: &Pod,
        volume_name: &str,
        volume: CsiVolume,
        spec: Spec<'_>,
    ) -> Result<Option<Duration>, VolumeError> {
        let (uid, persistent) = (pod_spec::uid(pod), spec.persistent());
        self.csi.drivers_known().await?;
        let has_label = self.csi.has_selinux_mount(&volume);
        let selinux_label = self.selinux.mount_label(pod, volume_name, spec, has_label)?;
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
            ownership: Arc::default(),
            selinux_label,
        };
        let path = self.telling_ownership(pod, &request.ownership, Box::pin(self.csi.mount(&request))).await?;
        if let Some(persistent) = persistent.filter(|_| !is_remount) {
            Box::pin(self.expand(pod, Expandable::Driver(&request.volume), persistent, &path, None)).await?;
        }
        let label_files = self.selinux.is_enabled() && request.selinux_label.is_none() && !request.volume.read_only;
        let label_files = label_files && file_system::has_labels(&path)?;
        let mut actual = self.actual.lock();
        if label_files {
            actual.mark_relabelled(uid, volume_name);
        }
        actual.mark_mounted(uid, volume_name, path);
        if persistent.is_some() {
            actual.mark_expandable(uid, volume_name, self.env.monotonic());
            if let Some(bytes) = request.volume.capacity_bytes.filter(|_| !is_remount) {
                actual.mark_size(uid, volume_name, bytes);
            }
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

    /// What drivers say of the volumes of these pods. Pods hear of those that are not well.
    pub async fn driver_stats(&self, pods: &[Arc<Pod>]) -> DriverStats {
        let uids: Vec<String> = pods.iter().map(|pod| pod_spec::uid(pod).to_string()).collect();
        let stats = self.csi.volume_stats(&uids).await;
        for pod in pods {
            for (name, path) in self.paths(pod_spec::uid(pod)) {
                let Some(Some(found)) = stats.get(&path) else { continue };
                if let Some(condition) = found.condition.as_ref().filter(|c| found.is_new && c.abnormal) {
                    let message = format!("Volume {name}: {}", condition.message);
                    self.recorder.warning(&client::reference(&**pod), "VolumeConditionAbnormal", message);
                }
            }
        }
        stats
    }
}
