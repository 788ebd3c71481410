//! Which devices a ResourceClaim gets on a node (structured parameters of dynamic resource allocation).
//! `inventory` is what drivers publish, `allocated` what claims have already, `request` what a claim asks for, `search`
//! finds devices for several claims at once, `result` writes down what was found. Asked by the scheduler.
//! Does no I/O and knows no clock: how long a search may take, the caller says.

mod allocated;
mod inventory;
mod request;
mod result;
mod search;
mod selectors;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, sync::Arc};

use thiserror::Error;

pub use allocated::AllocatedDevices;
pub use inventory::Inventory;
pub use request::ClaimRequests;
pub use search::Allocator;
pub use selectors::Selectors;

/// Devices that one claim can have.
pub const RESULTS_MAX: usize = 32;
/// Alternatives that one request can have.
pub const ALTERNATIVES_MAX: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId {
    pub driver: Arc<str>,
    pub pool: Arc<str>,
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    pub pool: PoolId,
    pub device: Arc<str>,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.pool, self.device)
    }
}

/// The node that devices are looked for on.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    pub name: &'a str,
    pub labels: &'a BTreeMap<String, String>,
}

/// Why claims get no devices, in upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AllocationError {
    #[error("cannot allocate all claims")]
    NoDevices,
    /// Not all that a driver publishes could be used.
    #[error("invalid resource pools were encountered")]
    InvalidPools,
    #[error("timed out trying to allocate devices")]
    TimedOut,
    /// Something is wrong with a claim, a class or what a selector finds.
    #[error("{0}")]
    Broken(String),
}
