//! Kinds of the group autoscaling, one file each; their rows are in `kinds/table.rs`.

pub mod horizontal_pod_autoscaler;
