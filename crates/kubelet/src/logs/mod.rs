//! Container logs on disk: `container_logs` knows their places and links, `log_rotation` and `log_compression` keep them small, `log_file`
//! knows when one is complete.
//! Served by `server::logs`.

pub(crate) mod container_logs;
mod log_compression;
pub(crate) mod log_file;
pub(crate) mod log_rotation;
