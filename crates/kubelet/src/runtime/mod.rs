//! Containers and sandboxes: `container_config` describes them, `runtime_manager` makes and ends them over CRI, `pleg`
//! tells what happened to them, `container_gc` removes the dead ones.
//! Driven by `pod::pod_workers`; images are in `images`, logs in `logs`.

pub mod backoff;
pub mod container_config;
pub(crate) mod container_exits;
pub(crate) mod container_gc;
pub(crate) mod metered_runtime;
pub mod pleg;
pub(crate) mod runtime_features;
pub mod runtime_manager;
pub mod runtime_status;
pub(crate) mod user_namespaces;
