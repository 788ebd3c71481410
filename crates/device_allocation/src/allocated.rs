//! The devices that claims have.
//! Kept by the scheduler, claim by claim; read by `search`.
//! What is there for administrators beside other users doesn't count.

use std::collections::HashMap;

use k8s_openapi::api::resource::v1::AllocationResult;

use crate::{DeviceId, PoolId};

#[derive(Debug, Default)]
pub struct AllocatedDevices(HashMap<DeviceId, u32>);

/// The devices that an allocation keeps from others.
pub fn devices(allocation: &AllocationResult) -> impl Iterator<Item = DeviceId> {
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    results.filter(|result| result.admin_access != Some(true)).map(|result| DeviceId {
        pool: PoolId { driver: result.driver.as_str().into(), pool: result.pool.as_str().into() },
        device: result.device.as_str().into(),
    })
}

impl AllocatedDevices {
    pub fn add(&mut self, allocation: &AllocationResult) {
        for device in devices(allocation) {
            *self.0.entry(device).or_default() += 1;
        }
    }

    pub fn remove(&mut self, allocation: &AllocationResult) {
        for device in devices(allocation) {
            if let Some(count) = self.0.get_mut(&device) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&device);
                }
            }
        }
    }

    pub fn contains(&self, device: &DeviceId) -> bool {
        self.0.contains_key(device)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
