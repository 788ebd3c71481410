//! Dynamic resource allocation on the node: `manager` has drivers prepare the claims of a pod before it starts and
//! unprepare them after it ended, `drivers` are those that are registered, `claim_info` is what is prepared for whom,
//! `health` what drivers say of their devices, `checkpoint` the file of what is prepared, `pod_claims` which claims a pod has, `messages` the published protocol.
//! Used by `kubelet`.
//! Invariant: no container starts before all claims of its pod are prepared (test: `pods_wait_for_what_is_not_there`).

pub mod checkpoint;
pub mod claim_info;
pub mod drivers;
pub mod health;
pub mod manager;
pub mod messages;
pub mod pod_claims;
mod turns;

#[cfg(test)]
mod tests;
