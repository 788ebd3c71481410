//! A pod on this node, from the source that names it to the status that the API shows: `sync_loop` brings changes to
//! `pod_manager` and `pod_workers`; `admission` refuses what can't run here; `pod_actions` decides, `pod_status`
//! describes, `status_manager` reports, `probe_manager` probes.
//! Containers are in `runtime`, volumes in `volumes`, what pods may use in `resources`.

pub(crate) mod admission;
pub(crate) mod http_probe;
pub mod pod_actions;
pub mod pod_manager;
pub mod pod_spec;
pub(crate) mod pod_start;
pub mod pod_status;
pub(crate) mod pod_wakes;
pub mod pod_workers;
pub mod probe_manager;
pub mod restart;
pub mod status_manager;
pub mod sync_loop;
