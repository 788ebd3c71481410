//! What pods may use: `container_manager` has their control groups, `allocation_manager` what each was granted,
//! `container_devices` their devices (`pod_resources` tells monitors of them), `eviction` ends pods before the node runs out,
//! `oom_watcher` tells of what the kernel ended.
//! Used by `pod` and `runtime`.

pub(crate) mod allocation;
pub(crate) mod allocation_manager;
pub(crate) mod allocation_state;
pub(crate) mod container_devices;
pub mod container_manager;
pub(crate) mod device_hints;
pub(crate) mod eviction;
pub(crate) mod oom_watcher;
pub(crate) mod pod_resources;
pub(crate) mod resizes;
pub mod resource_managers;
