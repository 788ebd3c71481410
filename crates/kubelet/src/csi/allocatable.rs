//! Keeps the number of volumes that a driver can attach true in the CSINode object, where the CSIDriver object asks for
//! it: in the period that it names, and at once when an attachment fails for want of room.
//! Part of `registration`, whose first answer it follows up.
//! Changes nothing but the driver's own entry.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::storage::v1::VolumeError as AttachError;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{csi_node, mounter::CsiManager, registration::CsiPluginHandler};

/// The shortest period that a CSIDriver may have.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// gRPC's number of ResourceExhausted.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Drivers whose number is known to be wrong.
#[derive(Default)]
pub struct ExhaustedDrivers {
    names: Mutex<BTreeSet<String>>,
    changed: Notify,
}

impl CsiManager {
    fn allocatable_period(&self, driver: &str) -> Option<Duration> {
        let seconds = self.driver_object(driver)?.spec.node_allocatable_update_period_seconds?;
        u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    pub(super) fn note_attach_error(&self, driver: &str, error: &AttachError) {
        if error.error_code == Some(RESOURCE_EXHAUSTED) && self.allocatable_period(driver).is_some() {
            self.exhausted.names.lock().insert(driver.into());
            self.exhausted.changed.notify_one();
        }
    }
}

impl CsiPluginHandler {
    pub async fn run_allocatable_updates(self: Arc<Self>) {
        // When each driver was asked last: it said so at its registration, too.
        let mut asked: HashMap<String, Duration> = HashMap::new();
        loop {
            self.env.timeout(CHECK_INTERVAL, self.csi.exhausted.changed.notified()).await;
            let exhausted = std::mem::take(&mut *self.csi.exhausted.names.lock());
            let now = self.env.monotonic();
            let drivers = self.csi.driver_names();
            asked.retain(|name, _| drivers.contains(name));
            for name in drivers {
                let Some(period) = self.csi.allocatable_period(&name) else { continue };
                let last = *asked.entry(name.clone()).or_insert(now);
                if !exhausted.contains(&name) && now - last < period {
                    continue;
                }
                asked.insert(name.clone(), now);
                if let Err(error) = self.update_allocatable(&name).await {
                    tracing::warn!(driver = name, error, "failed to update how many volumes the node can have");
                }
            }
        }
    }

    async fn update_allocatable(&self, driver: &str) -> Result<(), String> {
        let found = self.csi.driver(driver).map_err(|error| error.to_string())?;
        let info = found.node_info().await.map_err(|error| error.to_string())?;
        csi_node::update(&self.client, &self.node_name, driver, &info).await.map_err(|error| error.to_string())
    }
}
