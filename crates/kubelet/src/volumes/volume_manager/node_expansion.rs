//! Makes volumes larger on this node, when the claim's controller or an administrator has made them larger elsewhere.
//! `plan` is the core; `csi::mounter` talks to the driver, `plugins` grow what is the node's own. Called while mounting
//! and now and then afterwards.
//! A claim's status says a size only after the volume is that large.

use std::{path::Path, time::Duration};

use api::{Accessor, ApiError, quantity};
use client::Patch;
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use serde_json::{Value, json};
use tonic::Code;

use super::VolumeManager;
use crate::{
    csi::volume::CsiVolume,
    pod::pod_spec,
    volumes::{
        error::VolumeError,
        plugin::{Expander, Spec, is_claim, is_read_only_claim},
    },
};

/// How often a mounted claim is looked at for a larger size.
const EXPANSION_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
const RESIZE_CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];

/// Who makes a volume larger here.
pub(super) enum Expandable<'a> {
    Driver(&'a CsiVolume),
    /// The node, for a volume of its own.
    Plugin {
        expander: Expander,
        /// Upstream's name for the plugin.
        plugin: String,
        read_only: bool,
    },
}

impl Expandable<'_> {
    fn is_read_only(&self) -> bool {
        match self {
            Self::Driver(volume) => volume.read_only,
            Self::Plugin { read_only, .. } => *read_only,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Expansion {
    size: Quantity,
    bytes: i64,
    /// The claim has its size from another node that was faster.
    is_reported: bool,
    /// The controller says how far it is, and wants to hear the same of the node.
    is_tracked: bool,
}

/// What is to be done so that the volume has its claim's size here. `known_bytes` is what it has, as far as is known.
fn plan(claim: &PersistentVolumeClaim, volume: &PersistentVolume, known_bytes: Option<i64>) -> Option<Expansion> {
    let status = claim.status.clone().unwrap_or_default();
    let storage = |amounts: Option<&std::collections::BTreeMap<String, Quantity>>| amounts?.get("storage").cloned();
    let size = storage(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))?;
    let bytes = quantity::value(&size)?;
    let has = storage(status.capacity.as_ref()).and_then(|size| quantity::value(&size))?;
    let state = status.allocated_resource_statuses.as_ref().and_then(|states| states.get("storage"));
    if has >= bytes && state.is_none() {
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
        let is_shared = modes.iter().any(|mode| mode == "ReadWriteMany");
        let is_wanted = is_shared && claim.annotation(NOT_REQUIRED).is_none();
        return (is_wanted && known_bytes.is_some_and(|known| known < bytes)).then_some(Expansion {
            size,
            bytes,
            is_reported: true,
            is_tracked: true,
        });
    }
    match (state.map(String::as_str), status.allocated_resources.as_ref()) {
        (Some("NodeResizePending" | "NodeResizeInProgress"), allocated) => {
            let size = storage(allocated).unwrap_or(size);
            let bytes = quantity::value(&size)?;
            Some(Expansion { size, bytes, is_reported: false, is_tracked: true })
        }
        // A resizer from before there were states.
        (None, None) if has < bytes => Some(Expansion { size, bytes, is_reported: false, is_tracked: false }),
        _ => None,
    }
}

/// Whether the controller is to try another size: the driver never will have this one, or it has refused it before and the
/// claim wants another by now.
fn is_infeasible(code: Code, claim: &PersistentVolumeClaim, bytes: i64) -> bool {
    if matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound) {
        return true;
    }
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let wanted = requests.and_then(|requests| quantity::value(requests.get("storage")?));
    let mut conditions = claim.status.iter().flat_map(|status| status.conditions.iter().flatten());
    wanted != Some(bytes) && conditions.any(|condition| condition.type_ == "NodeResizeError")
}

/// The conditions without those of resizes, or with the one that says why a resize failed.
fn conditions(claim: &PersistentVolumeClaim, failure: Option<(&str, Value)>) -> Vec<Value> {
    let known = claim.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_kept = |condition: &&PersistentVolumeClaimCondition| match failure {
        Some(_) => condition.type_ != "NodeResizeError",
        None => !RESIZE_CONDITIONS.contains(&condition.type_.as_str()),
    };
    let mut kept: Vec<Value> = known.into_iter().flatten().filter(is_kept).map(|condition| json!(condition)).collect();
    if let Some((why, now)) = failure {
        kept.push(json!({ "type": "NodeResizeError", "status": "True", "lastTransitionTime": now,
            "message": format!("failed to expand pvc with {why}") }));
    }
    kept
}

impl VolumeManager {
    /// Looks, now and then, whether a mounted volume is to be larger. What fails is told and tried again.
    pub(super) async fn expand_mounted(&self, pod: &Pod) {
        let uid = pod_spec::uid(pod);
        let now = self.env.monotonic();
        let due = self.actual.lock().due_for_expansion(uid, now, EXPANSION_CHECK_INTERVAL);
        for (name, path) in due {
            let mut volumes = pod_spec::spec(pod).volumes.iter().flatten();
            let Some(volume) = volumes.find(|volume| volume.name == name && is_claim(volume)) else { continue };
            let Ok(persistent) = self.persistent_volume(pod, volume).await else { continue };
            let spec = Spec::Persistent { volume: &persistent, read_only: is_read_only_claim(volume) };
            let csi = CsiVolume::new(spec, pod);
            let driver = csi.as_ref().map(Expandable::Driver);
            let Some(expandable) = driver.or_else(|| self.expandable_here(spec)) else { continue };
            let known = self.actual.lock().size_bytes(uid, &name);
            let expanded = Box::pin(self.expand(pod, expandable, &persistent, &path, known)).await;
            match expanded {
                Ok(Some(bytes)) => self.actual.lock().mark_size(uid, &name, bytes),
                Ok(None) => {}
                Err(error) => {
                    let volume = persistent.name();
                    let message = format!("NodeExpandVolume.NodeExpandVolume failed for volume {volume:?} : {error}");
                    self.recorder.warning(&client::reference(pod), "VolumeResizeFailed", message);
                }
            }
        }
    }

    /// A volume that the node itself can make larger.
    pub(super) fn expandable_here(&self, spec: Spec<'_>) -> Option<Expandable<'static>> {
        let Spec::Persistent { volume, read_only } = spec else { return None };
        let plugin = self.plugins.find(spec)?;
        let expander = plugin.new_expander(volume, &self.local_storage_dir)?;
        Some(Expandable::Plugin { expander, plugin: format!("kubernetes.io/{}", plugin.name()), read_only })
    }

    /// The size that the volume has now, where that has changed.
    pub(super) async fn expand(
        &self,
        pod: &Pod,
        expandable: Expandable<'_>,
        persistent: &PersistentVolume,
        path: &Path,
        known_bytes: Option<i64>,
    ) -> Result<Option<i64>, VolumeError> {
        let Some(reference) = persistent.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
            return Ok(None);
        };
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let name = reference.name.as_deref().unwrap_or_default();
        let claim = self.client.namespaced::<PersistentVolumeClaim>(namespace).get(name).await;
        let claim = claim.map_err(|source| VolumeError::GetClaim { claim: format!("{namespace}/{name}"), source })?;
        let Some(expansion) = plan(&claim, persistent, known_bytes) else { return Ok(None) };
        let both = [client::reference(pod), client::reference(&claim)];
        if expandable.is_read_only() {
            let why = "requested read-only file system";
            let message = format!("MountVolume.NodeExpandVolume failed for volume {:?} {why}", persistent.name());
            both.iter().for_each(|about| self.recorder.warning(about, "FileSystemResizeFailed", message.clone()));
            return Ok(Some(expansion.bytes));
        }
        let state = claim.status.as_ref().and_then(|s| s.allocated_resource_statuses.as_ref()?.get("storage"));
        if expansion.is_tracked && !expansion.is_reported && state.map(String::as_str) != Some("NodeResizeInProgress") {
            let status = json!({ "allocatedResourceStatuses": { "storage": "NodeResizeInProgress" } });
            self.patch_claim_status(&claim, status).await.map_err(|error| VolumeError::Csi(error.to_string()))?;
        }
        match self.expand_volume(pod, expandable, persistent, path, expansion.bytes).await {
            Ok(true) => {}
            // Nothing is to be done here, then.
            Ok(false) if expansion.is_reported => return Ok(Some(expansion.bytes)),
            Ok(false) => return Ok(None),
            Err(error) => return self.expansion_failed(&claim, &expansion, error).await,
        }
        let node = &self.node_name;
        let message = format!("MountVolume.NodeExpandVolume succeeded for volume {:?} {node}", persistent.name());
        both.iter().for_each(|about| self.recorder.normal(about, "FileSystemResizeSuccessful", message.clone()));
        if !expansion.is_reported {
            let mut status =
                json!({ "capacity": { "storage": expansion.size }, "conditions": conditions(&claim, None) });
            if expansion.is_tracked {
                status["allocatedResourceStatuses"] = json!({ "storage": null });
            }
            let patched = self.patch_claim_status(&claim, status).await;
            patched.map_err(|error| {
                VolumeError::Csi(format!("mountVolume.NodeExpandVolume update pvc status failed: {error}"))
            })?;
        }
        Ok(Some(expansion.bytes))
    }

    /// Whether the volume was made larger, or there is nothing that could.
    async fn expand_volume(
        &self,
        pod: &Pod,
        expandable: Expandable<'_>,
        persistent: &PersistentVolume,
        path: &Path,
        bytes: i64,
    ) -> Result<bool, VolumeError> {
        match expandable {
            Expandable::Driver(volume) => Box::pin(self.csi.expand(volume, path, bytes)).await,
            Expandable::Plugin { expander, plugin, .. } => {
                let (began, path) = (self.env.monotonic(), path.to_path_buf());
                let key = format!("{}/{} expansion", pod_spec::uid(pod), persistent.name());
                let expanded = self.files.run(key, move || expander(&path)).await;
                self.observe(&plugin, "volume_fs_resize", began, expanded.is_ok());
                expanded.map(|()| true)
            }
        }
    }

    /// A driver that said no is not asked the same again: the claim says so, and its controller may try another size.
    async fn expansion_failed(
        &self,
        claim: &PersistentVolumeClaim,
        expansion: &Expansion,
        error: VolumeError,
    ) -> Result<Option<i64>, VolumeError> {
        let (code, is_final) = match &error {
            VolumeError::CsiCall(call) => (call.code, call.is_final()),
            _ => (Code::Unknown, false),
        };
        let why = format!("Expander.NodeExpand failed to expand the volume : {error}");
        if is_final && expansion.is_tracked {
            let now = json!(self.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
            let mut status = json!({ "conditions": conditions(claim, Some((&why, now))) });
            if is_infeasible(code, claim, expansion.bytes) {
                status["allocatedResourceStatuses"] = json!({ "storage": "NodeResizeInfeasible" });
            }
            if let Err(error) = self.patch_claim_status(claim, status).await {
                tracing::warn!(claim = claim.name(), %error, "failed to tell that a claim can't be expanded");
            }
        }
        // The driver can't while the volume is used, which keeps nobody from using it.
        match code == Code::FailedPrecondition {
            true => Ok(None),
            false => Err(VolumeError::Expand(why)),
        }
    }

    async fn patch_claim_status(&self, claim: &PersistentVolumeClaim, status: Value) -> Result<(), ApiError> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let api = self.client.namespaced::<PersistentVolumeClaim>(namespace);
        let patch = json!({ "metadata": { "uid": claim.metadata.uid }, "status": status });
        api.patch_status(claim.name(), &Patch::Merge(patch)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_was_refused_gives_way_to_the_one_that_is_wanted_now() {
        let check = |code: Code, request: &str, failed_before: bool, expected: bool| {
            let conditions =
                if failed_before { json!([{ "type": "NodeResizeError", "status": "True" }]) } else { json!([]) };
            let spec = json!({ "resources": { "requests": { "storage": request } } });
            let claim = json!({ "spec": spec, "status": { "conditions": conditions } });
            let claim = serde_json::from_value(claim).unwrap();
            assert_eq!(is_infeasible(code, &claim, 9 << 30), expected, "{code:?} {request} {failed_before}");
        };
        check(Code::OutOfRange, "9Gi", false, true);
        check(Code::PermissionDenied, "9Gi", true, false);
        check(Code::PermissionDenied, "5Gi", false, false);
        check(Code::PermissionDenied, "5Gi", true, true);
    }

    fn claim(status: Value, mode: &str) -> PersistentVolumeClaim {
        let spec = json!({ "accessModes": [mode] });
        serde_json::from_value(json!({ "metadata": { "name": "c" }, "spec": spec, "status": status })).unwrap()
    }

    #[test]
    fn a_volume_grows_when_its_claims_status_says_it_is_the_nodes_turn() {
        let volume = json!({ "metadata": { "name": "pv" }, "spec": { "capacity": { "storage": "2Gi" } } });
        let volume = serde_json::from_value(volume).unwrap();
        let check = |status: Value, mode: &str, known: Option<i64>, expected: Option<(i64, bool, bool)>| {
            let found = plan(&claim(status.clone(), mode), &volume, known);
            let found = found.map(|found| (found.bytes >> 20, found.is_reported, found.is_tracked));
            assert_eq!(found, expected, "{status} {mode} {known:?}");
        };
        let once = "ReadWriteOnce";
        let status = |size: &str, state: Option<&str>, allocated: Option<&str>| {
            let mut status = json!({ "capacity": { "storage": size } });
            if let Some(state) = state {
                status["allocatedResourceStatuses"] = json!({ "storage": state });
            }
            if let Some(allocated) = allocated {
                status["allocatedResources"] = json!({ "storage": allocated });
            }
            status
        };
        check(status("2Gi", None, None), once, Some(1 << 30), None);
        check(status("1Gi", None, None), once, None, Some((2048, false, false)));
        check(status("1Gi", None, Some("2Gi")), once, None, None);
        check(status("1Gi", Some("ControllerResizeInProgress"), Some("2Gi")), once, None, None);
        check(status("1Gi", Some("NodeResizePending"), Some("2Gi")), once, None, Some((2048, false, true)));
        check(status("1Gi", Some("NodeResizeInProgress"), Some("1536Mi")), once, None, Some((1536, false, true)));
        check(status("1Gi", Some("NodeResizeInfeasible"), Some("2Gi")), once, None, None);
        let shared = "ReadWriteMany";
        check(status("2Gi", None, Some("2Gi")), shared, Some(1 << 30), Some((2048, true, true)));
        check(status("2Gi", None, Some("2Gi")), shared, Some(2 << 30), None);
        check(status("2Gi", None, Some("2Gi")), shared, None, None);
        check(json!({}), once, None, None);
    }

    #[test]
    fn conditions_of_resizes_go_with_them() {
        let list = json!([{ "type": "Resizing", "status": "True" }, { "type": "ModifyingVolume", "status": "True" }]);
        let claim = claim(json!({ "conditions": list }), "ReadWriteOnce");
        let types = |list: Vec<Value>| list.iter().map(|c| c["type"].as_str().unwrap().to_string()).collect::<Vec<_>>();
        assert_eq!(types(conditions(&claim, None)), ["ModifyingVolume"]);
        let failed = conditions(&claim, Some(("no", json!("2026-01-01T00:00:00Z"))));
        assert_eq!(failed[2]["message"], "failed to expand pvc with no");
        assert_eq!(types(failed), ["Resizing", "ModifyingVolume", "NodeResizeError"]);
    }
}
