//! Kinds of the group policy, one file each; their rows are in `kinds/table.rs`.

pub mod pod_disruption_budget;
