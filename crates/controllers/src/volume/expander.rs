//! Says of claims that are to grow who makes them grow: a driver's external resizer.
//! Local storage grows its own (`local_storage`); everything else is a driver's.
//! Said once for each size.

use std::{collections::HashMap, sync::Arc};

use api::quantity;
use async_trait::async_trait;
use client::{EventRecorder, Informer, reference};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use parking_lot::Mutex;

use super::matching::request;
use crate::{
    common::meta::Object,
    runner::{Controller, Outcome, Setup},
};

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (claims, volumes) = (setup.informer::<PersistentVolumeClaim>(), setup.informer::<PersistentVolume>());
    setup.on(&claims, |change, queue| match &change.new {
        Some(claim) if is_to_grow(claim) => queue.add(change.key.clone()),
        None => queue.add(change.key.clone()),
        _ => {}
    });
    let recorder = setup.context.recorder("volume_expand");
    Arc::new(Expander { claims, volumes, recorder, told: Mutex::default() })
}

fn is_to_grow(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    let bound = status.and_then(|s| s.phase.as_deref()) == Some("Bound");
    let has = status.and_then(|s| quantity::value(s.capacity.as_ref()?.get("storage")?));
    bound && has.is_some_and(|has| request(claim) > has)
}

struct Expander {
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    recorder: EventRecorder,
    /// The size that was last told of, by UID and claim.
    told: Mutex<HashMap<String, (String, i64)>>,
}

#[async_trait]
impl Controller for Expander {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(claim) = self.claims.get(key) else {
            self.told.lock().remove(key);
            return Ok(None);
        };
        let name = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).unwrap_or_default();
        let Some(volume) = self.volumes.get(&name).filter(|_| is_to_grow(&claim) && !claim.deleting()) else {
            return Ok(None);
        };
        let by = volume.annotation("pv.kubernetes.io/provisioned-by");
        let wanted = (claim.uid().to_string(), request(&claim));
        if by == Some(api::local_storage::PROVISIONER)
            || self.told.lock().insert(key.into(), wanted.clone()).as_ref() == Some(&wanted)
        {
            return Ok(None);
        }
        match volume.spec.as_ref().is_some_and(|spec| spec.csi.is_some()) {
            true => {
                let message = "waiting for an external controller to expand this PVC";
                self.recorder.normal(&reference(&*claim), "ExternalExpanding", message);
            }
            false => {
                let message = "didn't find a plugin capable of expanding the volume; waiting for an external controller \
                               to process this PVC";
                self.recorder.warning(&reference(&*claim), "ExternalExpanding", message);
            }
        }
        Ok(None)
    }
}
