//! One row per controller, by upstream's names.
//! Read by `shell`; adding a controller is its file and one line here.
//! Invariant: names are those of upstream's `--controllers`.

use std::sync::Arc;

use crate::{
    bootstrap_signer, bootstrap_token, certificates, cluster_role, cron_job, daemon_set, deployment, disruption,
    endpoints, garbage_collector, job, legacy_token, namespace, node, replica_set, resource_quota, root_ca,
    service_account, service_account_token, service_cidr,
    shell::{Controller, Setup},
    stateful_set, volume,
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
    row("daemonset-controller", 2, daemon_set::make),
    row("statefulset-controller", 5, stateful_set::make),
    row("job-controller", 5, job::make),
    row("ttl-after-finished-controller", 1, job::make_ttl),
    row("cronjob-controller", 5, cron_job::make),
    row("endpointslice-controller", 5, endpoints::make_endpoint_slices),
    row("endpoints-controller", 5, endpoints::make_endpoints),
    row("namespace-controller", 5, namespace::make),
    row("serviceaccount-controller", 1, service_account::make),
    row("serviceaccount-token-controller", 1, service_account_token::make),
    row("legacy-serviceaccount-token-cleaner-controller", 1, legacy_token::make),
    row("root-ca-certificate-publisher-controller", 1, root_ca::make),
    row("garbage-collector-controller", 10, garbage_collector::make),
    row("node-lifecycle-controller", 2, node::make_lifecycle),
    row("taint-eviction-controller", 4, node::make_taint_eviction),
    row("node-ipam-controller", 1, node::make_ipam),
    row("ttl-controller", 1, node::make_ttl),
    row("pod-garbage-collector-controller", 1, node::make_pod_gc),
    row("resourcequota-controller", 5, resource_quota::make),
    row("endpointslice-mirroring-controller", 5, endpoints::make_mirroring),
    row("certificatesigningrequest-approving-controller", 1, certificates::make_approver),
    row("certificatesigningrequest-signing-controller", 2, certificates::make_signer),
    row("certificatesigningrequest-cleaner-controller", 1, certificates::make_cleaner),
    row("bootstrap-signer-controller", 1, bootstrap_signer::make),
    row("token-cleaner-controller", 1, bootstrap_token::make),
    row("disruption-controller", 2, disruption::make),
    row("clusterrole-aggregation-controller", 1, cluster_role::make),
    row("persistentvolume-binder-controller", 1, volume::make_binder),
    row("persistentvolumeclaim-protection-controller", 1, volume::make_claim_protection),
    row("ephemeral-volume-controller", 2, volume::make_ephemeral),
    row("persistentvolume-protection-controller", 1, volume::make_volume_protection),
    row("volumeattributesclass-protection-controller", 1, volume::make_class_protection),
    row("service-cidr-controller", 1, service_cidr::make),
];

/// The names that `Config::controllers` may hold.
pub fn names() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().map(|row| row.name)
}
