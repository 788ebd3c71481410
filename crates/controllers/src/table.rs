//! One row per controller, by upstream's names.
//! Read by `shell`; adding a controller is its file and one line here.
//! Invariant: names are those of upstream's `--controllers`.

use std::sync::Arc;

use crate::{
    deployment, replica_set,
    shell::{Controller, Setup},
};

pub struct Row {
    pub name: &'static str,
    pub on_by_default: bool,
    pub workers: usize,
    pub make: fn(&mut Setup) -> Arc<dyn Controller>,
}

const fn row(name: &'static str, workers: usize, make: fn(&mut Setup) -> Arc<dyn Controller>) -> Row {
    Row { name, on_by_default: true, workers, make }
}

pub const CONTROLLERS: &[Row] = &[
    row("deployment-controller", 5, deployment::make),
    row("replicaset-controller", 5, replica_set::make_replica_sets),
    row("replicationcontroller-controller", 5, replica_set::make_replication_controllers),
];

/// The names that `Config::controllers` may hold.
pub fn names() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().map(|row| row.name)
}
