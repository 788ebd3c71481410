//! What becomes of a volume whose claim is gone, or has another: it is released, and its policy carried out.
//! Part of `binder`; provisioners delete what they have made, `recycler` says how a volume is emptied.
//! No policy is carried out before the server, not a cache, has said that the claim is gone.

use std::time::Duration;

use api::ApiError;
use client::{Patch, reference};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::json;

use super::{
    binder::{BOUND_BY_CONTROLLER, Binder, PROVISIONED_BY},
    matching::{claim_ref, has_same_mode},
    protection::USERS,
    recycler::{self, Attempt, Step},
};
use crate::common::{
    meta::{self, Object},
    pods,
};

/// When a policy that could not be carried out is tried again.
const RECLAIM_RETRY: Duration = Duration::from_secs(15);

#[derive(Debug, PartialEq)]
enum Fate {
    /// The claim's own turn settles it.
    Wait,
    Mismatched,
    Bound,
    /// The claim has another volume.
    Unbind,
    Release,
}

fn fate(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> Fate {
    let Some(claim) = claim else { return Fate::Release };
    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    match named {
        "" if !has_same_mode(volume, claim) => Fate::Mismatched,
        "" => Fate::Wait,
        _ if named == volume.name() => Fate::Bound,
        // It was made for this claim, which does not need it.
        _ if volume.annotation(PROVISIONED_BY).is_some() && policy == Some("Delete") => Fate::Release,
        _ => Fate::Unbind,
    }
}

impl Binder {
    pub(super) async fn look_at_volume(&self, volume: &PersistentVolume) -> Result<Option<Duration>, ApiError> {
        let Some(owner) = claim_ref(volume) else {
            return self.set_volume_phase(volume, "Available").await.map(|()| None);
        };
        let uid = owner.uid.as_deref().unwrap_or_default();
        if uid.is_empty() {
            // Reserved for a claim that has not been bound yet.
            return self.set_volume_phase(volume, "Available").await.map(|()| None);
        }
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        let (namespace, name) = (text(&owner.namespace), text(&owner.name));
        let key = meta::key(&namespace, &name);
        let mut claim = self.claims.get(&key).filter(|claim| claim.uid() == uid);
        if claim.is_none() {
            // The cache may be behind: a volume is released for good.
            let api = self.context.client.namespaced::<PersistentVolumeClaim>(&namespace);
            claim = api.find(&name).await?.filter(|claim| claim.uid() == uid).map(Into::into);
        }
        match fate(volume, claim.as_deref()) {
            Fate::Wait => Ok(None),
            Fate::Bound => self.set_volume_phase(volume, "Bound").await.map(|()| None),
            Fate::Unbind => self.unbind(volume).await.map(|()| None),
            Fate::Mismatched => {
                let why = "due to incompatible volumeMode.";
                let about = |claim: &PersistentVolumeClaim| {
                    let message =
                        format!("Cannot bind PersistentVolume to requested PersistentVolumeClaim {name:?} {why}");
                    self.recorder.warning(&reference(volume), "VolumeMismatch", message);
                    let volume = volume.name();
                    let message =
                        format!("Cannot bind PersistentVolume {volume:?} to requested PersistentVolumeClaim {why}");
                    self.recorder.warning(&reference(claim), "VolumeMismatch", message);
                };
                claim.as_deref().into_iter().for_each(about);
                Ok(None)
            }
            Fate::Release => self.release(volume, &key).await,
        }
    }

    async fn release(&self, volume: &PersistentVolume, claim: &str) -> Result<Option<Duration>, ApiError> {
        // Whoever looks is to see that something failed, while it is tried again.
        let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
        if phase != Some("Failed") {
            self.set_volume_phase(volume, "Released").await?;
        }
        match volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref()) {
            Some("Recycle") => self.recycle(volume, claim).await,
            Some("Delete") if volume.annotation(PROVISIONED_BY).is_none() && !volume.deleting() => {
                let why = "no deletable volume plugin matched";
                let message = format!("error getting deleter volume plugin for volume {:?}: {why}", volume.name());
                self.fail_volume(volume, "VolumeFailedDelete", &message).await.map(|()| None)
            }
            _ => Ok(None),
        }
    }

    /// One step of emptying the volume: the pod that does it is made, waited for, and removed.
    async fn recycle(&self, volume: &PersistentVolume, claim: &str) -> Result<Option<Duration>, ApiError> {
        let failed = "VolumeFailedRecycle";
        let Some(pod) = recycler::pod(volume) else {
            let message = "No recycler plugin found for the volume!";
            return self.fail_volume(volume, failed, message).await.map(|()| None);
        };
        let users = self.pods.by_index(USERS, claim);
        let users: Vec<String> = users.iter().filter(|pod| !pods::finished(pod)).map(|pod| pod.key()).collect();
        // A claim of that name is another one by now, and so are its pods.
        if !users.is_empty() && self.claims.get(claim).is_none() {
            self.recorder.normal(&reference(volume), failed, format!("Volume is used by pods: {}", users.join(",")));
            // Their end wakes it.
            return Ok(None);
        }
        let api = self.context.client.namespaced::<Pod>(recycler::NAMESPACE);
        let name = recycler::pod_name(volume);
        let found = api.find(&name).await?;
        let (attempt, now) =
            (self.recyclers.lock().get(volume.uid()).cloned().unwrap_or_default(), self.context.env.monotonic());
        let step = recycler::next(found.as_ref(), attempt.pod_uid.as_deref());
        if step == Step::Start && now < attempt.not_before {
            return Ok(Some(attempt.not_before - now));
        }
        if let (Step::Retry(_) | Step::Done | Step::Replace, Some(found)) = (&step, &found) {
            match api.delete(&name, &meta::delete_options(found.uid())).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        match step {
            Step::Start => {
                let pod = serde_json::from_value(pod).map_err(|error| ApiError::internal(error.to_string()))?;
                let made = api.create(&pod).await?;
                let attempt = Attempt { pod_uid: Some(made.uid().into()), not_before: now };
                self.recyclers.lock().insert(volume.uid().into(), attempt);
                Ok(None)
            }
            Step::Wait => Ok(None),
            Step::Done => {
                self.recyclers.lock().remove(volume.uid());
                self.recorder.normal(&reference(volume), "VolumeRecycled", "Volume recycled");
                self.unbind(volume).await.map(|()| None)
            }
            Step::Replace => {
                let message = "Recycle failed: old recycler pod found, will retry later";
                self.retry_later(volume, failed, message, now).await
            }
            Step::Retry(why) => {
                let message = format!("Recycle failed: failed to recycle volume: {why}");
                self.retry_later(volume, failed, &message, now).await
            }
        }
    }

    async fn retry_later(
        &self,
        volume: &PersistentVolume,
        reason: &str,
        message: &str,
        now: Duration,
    ) -> Result<Option<Duration>, ApiError> {
        // The end of its pod wakes the volume at once.
        let attempt = Attempt { pod_uid: None, not_before: now + RECLAIM_RETRY };
        self.recyclers.lock().insert(volume.uid().into(), attempt);
        self.fail_volume(volume, reason, message).await.map(|()| Some(RECLAIM_RETRY))
    }

    /// Free again, or, where a person has reserved it, for the next claim of that name.
    async fn unbind(&self, volume: &PersistentVolume) -> Result<(), ApiError> {
        let mut meta = json!({ "uid": volume.uid(), "resourceVersion": volume.metadata.resource_version });
        let spec = match volume.annotation(BOUND_BY_CONTROLLER).is_some() {
            true => {
                meta["annotations"] = json!({ BOUND_BY_CONTROLLER: null });
                json!({ "claimRef": null })
            }
            false => json!({ "claimRef": { "uid": null, "resourceVersion": null } }),
        };
        let api = self.context.client.api::<PersistentVolume>();
        let patched = api.patch(volume.name(), &Patch::Merge(json!({ "metadata": meta, "spec": spec }))).await?;
        self.set_volume_phase(&patched, "Available").await
    }

    async fn fail_volume(&self, volume: &PersistentVolume, reason: &str, message: &str) -> Result<(), ApiError> {
        let known = volume.status.as_ref();
        let is_told = known.and_then(|s| s.phase.as_deref()) == Some("Failed")
            && known.and_then(|s| s.message.as_deref()) == Some(message);
        if is_told {
            return Ok(());
        }
        let status = json!({ "phase": "Failed", "message": message,
            "lastPhaseTransitionTime": meta::time(self.context.env.now()) });
        let patch = json!({ "metadata": { "uid": volume.uid() }, "status": status });
        let api = self.context.client.api::<PersistentVolume>();
        match api.patch_status(volume.name(), &Patch::Merge(patch)).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        self.recorder.warning(&reference(volume), reason, message);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_follows_its_claim() {
        let volume = |policy: &str, provisioned: bool| -> PersistentVolume {
            let annotations = if provisioned { json!({ PROVISIONED_BY: "d" }) } else { json!({}) };
            let spec = json!({ "persistentVolumeReclaimPolicy": policy });
            let metadata = json!({ "name": "pv", "annotations": annotations });
            serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
        };
        let check = |volume: PersistentVolume, claim: Option<(&str, &str)>, expected: Fate| {
            let claim = claim.map(|(named, mode)| -> PersistentVolumeClaim {
                let spec = json!({ "volumeName": named, "volumeMode": mode });
                serde_json::from_value(json!({ "metadata": { "name": "c" }, "spec": spec })).unwrap()
            });
            assert_eq!(fate(&volume, claim.as_ref()), expected, "{volume:?}");
        };
        check(volume("Retain", false), None, Fate::Release);
        check(volume("Retain", false), Some(("", "Filesystem")), Fate::Wait);
        check(volume("Retain", false), Some(("", "Block")), Fate::Mismatched);
        check(volume("Retain", false), Some(("pv", "Filesystem")), Fate::Bound);
        check(volume("Delete", true), Some(("other", "Filesystem")), Fate::Release);
        check(volume("Retain", true), Some(("other", "Filesystem")), Fate::Unbind);
        check(volume("Delete", false), Some(("other", "Filesystem")), Fate::Unbind);
    }
}
