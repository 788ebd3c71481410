//! What end-to-end tests stand on: a cluster of their own, stock kubectl, and images made here.
//! Used by the two test binaries beside it; `tests/e2e/run` starts the cluster that `tests/cluster` shares.
//! Everything a test starts carries its own names and is removed again, after a failure too.

mod cluster;
mod images;
mod join;
mod kubectl;
mod load;
mod process;
mod terminal;
mod traces;

pub use cluster::{Cluster, KEEP, Options, free_port, minke};
pub use images::{BUSYBOX, NGINX, busybox_archive, nginx_archive};
pub use join::JoinCommand;
pub use kubectl::{Kubectl, Namespace, Output, eventually};
pub use load::{http_get, update_under_load};
pub use process::Process;
pub use terminal::Terminal;
pub use traces::{id, id_of, pod_traces, traces};
