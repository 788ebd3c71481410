//! What the node and its containers use, as cAdvisor tells it: samples of control groups, metrics, JSON and a page.
//! Start at `monitor.rs`, which the kubelet asks; `cgroup` reads the kernel's files, `info` is cAdvisor's form,
//! `container_metrics` and `machine_metrics` are the tables behind `/metrics/cadvisor`, `http` is port 4194.
//! Knows no pod: `Naming` tells it which group is whose. Costs nothing while nobody asks.

pub mod cgroup;
mod container_metrics;
mod devices;
pub mod http;
pub mod info;
mod machine;
mod machine_metrics;
mod monitor;
pub mod proc_files;
pub mod processes;

pub use cgroup::{Cgroups, ROOT};
pub use devices::{Devices, device_of};
pub use machine_metrics::Versions;
pub use monitor::{Container, GroupKind, Identity, Monitor, Naming};
