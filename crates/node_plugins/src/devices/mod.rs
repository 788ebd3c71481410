//! Device plugins: `manager` speaks with them, `state` knows their devices and decides who gets which, `pod_devices` is
//! who has them, `checkpoint` the file of it, `messages` the published protocol.
//! Used by `kubelet`: at admission, when a container is made, and for the node's status.
//! Invariant: a device is never given to two pods (test: `state_tests.rs`).

pub mod checkpoint;
pub mod manager;
pub mod messages;
pub mod pod_devices;
pub mod state;

#[cfg(test)]
mod manager_tests;
#[cfg(test)]
mod state_tests;
