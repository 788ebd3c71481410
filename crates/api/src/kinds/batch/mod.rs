//! Kinds of the group batch, one file each; their rows are in `kinds/table.rs`.

pub mod cron_job;
pub mod job;
