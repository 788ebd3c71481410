//! What pods may use: `container_manager` has their control groups, `allocation_manager` what each was granted,
//! `eviction` ends pods before the node runs out, `oom_watcher` tells of what the kernel ended.
//! Used by `pod` and `runtime`.

pub(crate) mod allocation;
pub(crate) mod allocation_manager;
pub(crate) mod allocation_state;
pub mod container_manager;
pub(crate) mod eviction;
pub(crate) mod oom_watcher;
pub(crate) mod resizes;
pub mod resource_managers;
