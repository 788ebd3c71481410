//! Endpoint drain: whether Services still send new connections to a pod that is to stop.
//! Implemented by `minke` with the proxy; asked by `pod_workers` before the stop signal, and by other nodes through
//! `server`.
//! A wait here is bounded by the implementation; a pod in no Service never waits.

use std::fmt::Debug;

use async_trait::async_trait;

#[async_trait]
pub trait EndpointDrain: Debug + Send + Sync + 'static {
    /// Returns once no node sends new connections to the pod, or when it has waited long enough.
    async fn drained(&self, pod_uid: &str);

    /// The same for this node alone: `true` once its rules hold what was known at `version` and no longer use the pod.
    async fn drained_here(&self, pod_uid: &str, version: u64) -> bool;
}
