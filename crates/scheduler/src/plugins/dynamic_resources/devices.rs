//! Devices as the scheduler knows them: what drivers publish, what claims have, and what decided pods are about to get.
//! Fed by `scheduler::event_handlers`; what is about to be written is added at Reserve by `DynamicResources`.
//! Invariant: what was promised counts until the claim itself says it, or it is certain that it never will; so nothing
//! is given twice, whatever is on its way (test: `what_is_promised_is_not_given_again`).

use std::{collections::HashMap, sync::Arc};

use device_allocation::{AllocatedDevices, Inventory, Selectors};
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};

use super::claim_writes::ClaimWrites;
use crate::cluster::{Objects, put};

/// An allocation that is decided and not yet seen in its claim.
struct PendingAllocation {
    allocation: Arc<AllocationResult>,
    writes: ClaimWrites,
}

#[derive(Default)]
pub struct Devices {
    claims: Objects<ResourceClaim>,
    pub classes: Objects<DeviceClass>,
    pub inventory: Inventory,
    /// Of claims and of pending allocations.
    pub allocated: AllocatedDevices,
    pub selectors: Selectors,
    /// By the claim's uid.
    pending: HashMap<String, PendingAllocation>,
}

pub fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

pub fn uid(claim: &ResourceClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

fn version(claim: &ResourceClaim) -> u64 {
    claim.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl Devices {
    pub fn claim(&self, key: &str) -> Option<&Arc<ResourceClaim>> {
        self.claims.get(key)
    }

    pub fn set_slice(&mut self, name: &str, slice: Option<Arc<ResourceSlice>>) {
        match slice {
            Some(slice) => self.inventory.set(name, slice),
            None => self.inventory.remove(name),
        }
    }

    /// A claim as it is now.
    pub fn set_claim(&mut self, key: &str, claim: Option<Arc<ResourceClaim>>) {
        let old = self.claims.get(key).cloned();
        if let Some(new) = claim.as_deref().and_then(allocation) {
            self.allocated.add(new);
        }
        if let Some(old) = &old {
            if let Some(allocation) = allocation(old) {
                self.allocated.remove(allocation);
            }
            // One that is gone, or has become another, gets nothing any more.
            if claim.as_deref().is_none_or(|claim| uid(claim) != uid(old)) {
                self.forget(uid(old));
            }
        }
        if let Some(claim) = &claim
            && let Some(pending) = self.pending.get(uid(claim))
        {
            let is_later = pending.writes.version(uid(claim)).is_some_and(|written| version(claim) >= written);
            if allocation(claim).is_some() || is_later {
                self.forget(uid(claim));
            }
        }
        put(&mut self.claims, key, claim);
        self.sweep();
    }

    pub fn is_pending(&self, claim: &ResourceClaim) -> bool {
        self.pending.contains_key(uid(claim))
    }

    /// Holds the devices until `writes` have come to something.
    pub fn promise(&mut self, claim: &ResourceClaim, allocation: Arc<AllocationResult>, writes: ClaimWrites) {
        self.forget(uid(claim));
        self.allocated.add(&allocation);
        self.pending.insert(uid(claim).to_string(), PendingAllocation { allocation, writes });
    }

    /// Frees what was promised to pods that were given up, as far as it was not written.
    pub fn sweep(&mut self) {
        let is_over = |(uid, pending): &(&String, &PendingAllocation)| {
            pending.writes.is_given_up() && pending.writes.version(uid).is_none()
        };
        let over: Vec<String> = self.pending.iter().filter(is_over).map(|(uid, _)| uid.clone()).collect();
        over.iter().for_each(|uid| self.forget(uid));
    }

    fn forget(&mut self, uid: &str) {
        if let Some(pending) = self.pending.remove(uid) {
            self.allocated.remove(&pending.allocation);
        }
    }
}
