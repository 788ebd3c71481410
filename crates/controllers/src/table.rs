//! One row per controller, by upstream's names.
//! Read by `shell`; adding a controller is its file and one line here.
//! Invariant: names are those of upstream's `--controllers`, and of its queues in `/metrics`.

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
    /// What its queue is counted under. Where upstream has several queues, the one that does the work; where it has none
    /// (it looks again every so often), a name of ours.
    pub queue: &'static str,
    pub on_by_default: bool,
    pub workers: usize,
    pub make: fn(&mut Setup) -> Arc<dyn Controller>,
}

const fn row(
    name: &'static str,
    queue: &'static str,
    workers: usize,
    make: fn(&mut Setup) -> Arc<dyn Controller>,
) -> Row {
    Row { name, queue, on_by_default: true, workers, make }
}

pub const CONTROLLERS: &[Row] = &[
    row("deployment-controller", "deployment", 5, deployment::make),
    row("replicaset-controller", "replicaset", 5, replica_set::make_replica_sets),
    row("replicationcontroller-controller", "replicationmanager", 5, replica_set::make_replication_controllers),
    row("daemonset-controller", "daemonset", 2, daemon_set::make),
    row("statefulset-controller", "statefulset", 5, stateful_set::make),
    row("job-controller", "job", 5, job::make),
    row("ttl-after-finished-controller", "ttl_jobs_to_delete", 1, job::make_ttl),
    row("cronjob-controller", "cronjob", 5, cron_job::make),
    row("endpointslice-controller", "endpoint_slice", 5, endpoints::make_endpoint_slices),
    row("endpoints-controller", "endpoint", 5, endpoints::make_endpoints),
    row("namespace-controller", "namespace", 5, namespace::make),
    row("serviceaccount-controller", "serviceaccount", 1, service_account::make),
    row("serviceaccount-token-controller", "serviceaccount_tokens_service", 1, service_account_token::make),
    row("legacy-serviceaccount-token-cleaner-controller", "legacy_serviceaccount_token_cleaner", 1, legacy_token::make),
    row("root-ca-certificate-publisher-controller", "root_ca_cert_publisher", 1, root_ca::make),
    row("garbage-collector-controller", "garbage_collector_attempt_to_delete", 10, garbage_collector::make),
    row("node-lifecycle-controller", "node_lifecycle_controller", 2, node::make_lifecycle),
    row("taint-eviction-controller", "noexec_taint_pod", 4, node::make_taint_eviction),
    row("node-ipam-controller", "cidrallocator_node", 1, node::make_ipam),
    row("ttl-controller", "ttlcontroller", 1, node::make_ttl),
    row("pod-garbage-collector-controller", "orphaned_pods_nodes", 1, node::make_pod_gc),
    row("resourcequota-controller", "resourcequota_primary", 5, resource_quota::make),
    row("endpointslice-mirroring-controller", "endpoint_slice_mirroring", 5, endpoints::make_mirroring),
    row("certificatesigningrequest-approving-controller", "certificate", 1, certificates::make_approver),
    row("certificatesigningrequest-signing-controller", "certificate", 2, certificates::make_signer),
    row("certificatesigningrequest-cleaner-controller", "certificate_cleaner", 1, certificates::make_cleaner),
    row("bootstrap-signer-controller", "bootstrap_signer_queue", 1, bootstrap_signer::make),
    row("token-cleaner-controller", "token_cleaner", 1, bootstrap_token::make),
    row("disruption-controller", "disruption", 2, disruption::make),
    row("clusterrole-aggregation-controller", "ClusterRoleAggregator", 1, cluster_role::make),
    row("persistentvolume-binder-controller", "claims", 1, volume::make_binder),
    row("persistentvolumeclaim-protection-controller", "pvcprotection", 1, volume::make_claim_protection),
    row("ephemeral-volume-controller", "ephemeral_volume", 2, volume::make_ephemeral),
    row("persistentvolume-protection-controller", "pvprotection", 1, volume::make_volume_protection),
    row("volumeattributesclass-protection-controller", "vacprotection", 1, volume::make_class_protection),
    row("service-cidr-controller", "ipaddresses", 1, service_cidr::make),
];

/// The names that `Config::controllers` may hold.
pub fn names() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().map(|row| row.name)
}
