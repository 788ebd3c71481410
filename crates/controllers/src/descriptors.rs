//! One descriptor per controller, by upstream's names.
//! Read by `runner`; adding a controller is its file and one line here.
//! Invariant: names are those of upstream's `--controllers`, and of its queues in `/metrics`.

use std::sync::Arc;

use crate::{
    bootstrap, certificates, cluster_role_aggregation, cron_job, daemon_set, deployment, disruption, endpoints,
    garbage_collector, job, namespace, node, replica_set, resource_quota,
    runner::{Controller, Setup},
    service_account, service_cidr, stateful_set, volume,
};

pub struct ControllerDescriptor {
    pub name: &'static str,
    /// What its queue is counted under. Where upstream has several queues, the one that does the work; where it has none
    /// (it looks again every so often), a name of ours.
    pub queue: &'static str,
    pub on_by_default: bool,
    pub workers: usize,
    pub make: fn(&mut Setup) -> Arc<dyn Controller>,
}

const fn descriptor(
    name: &'static str,
    queue: &'static str,
    workers: usize,
    make: fn(&mut Setup) -> Arc<dyn Controller>,
) -> ControllerDescriptor {
    ControllerDescriptor { name, queue, on_by_default: true, workers, make }
}

pub const CONTROLLERS: &[ControllerDescriptor] = &[
    descriptor("deployment-controller", "deployment", 5, deployment::make),
    descriptor("replicaset-controller", "replicaset", 5, replica_set::make_replica_sets),
    descriptor("replicationcontroller-controller", "replicationmanager", 5, replica_set::make_replication_controllers),
    descriptor("daemonset-controller", "daemonset", 2, daemon_set::make),
    descriptor("statefulset-controller", "statefulset", 5, stateful_set::make),
    descriptor("job-controller", "job", 5, job::make),
    descriptor("ttl-after-finished-controller", "ttl_jobs_to_delete", 1, job::make_ttl),
    descriptor("cronjob-controller", "cronjob", 5, cron_job::make),
    descriptor("endpointslice-controller", "endpoint_slice", 5, endpoints::make_endpoint_slices),
    descriptor("endpoints-controller", "endpoint", 5, endpoints::make_endpoints),
    descriptor("namespace-controller", "namespace", 5, namespace::make),
    descriptor("serviceaccount-controller", "serviceaccount", 1, service_account::make_accounts),
    descriptor("serviceaccount-token-controller", "serviceaccount_tokens_service", 1, service_account::make_tokens),
    descriptor(
        "legacy-serviceaccount-token-cleaner-controller",
        "legacy_serviceaccount_token_cleaner",
        1,
        service_account::make_legacy_token_cleaner,
    ),
    descriptor(
        "root-ca-certificate-publisher-controller",
        "root_ca_cert_publisher",
        1,
        service_account::make_root_ca_publisher,
    ),
    descriptor("garbage-collector-controller", "garbage_collector_attempt_to_delete", 10, garbage_collector::make),
    descriptor("node-lifecycle-controller", "node_lifecycle_controller", 2, node::make_lifecycle),
    descriptor("taint-eviction-controller", "noexec_taint_pod", 4, node::make_taint_eviction),
    descriptor("node-ipam-controller", "cidrallocator_node", 1, node::make_ipam),
    descriptor("ttl-controller", "ttlcontroller", 1, node::make_ttl),
    descriptor("pod-garbage-collector-controller", "orphaned_pods_nodes", 1, node::make_pod_gc),
    descriptor("resourcequota-controller", "resourcequota_primary", 5, resource_quota::make),
    descriptor("endpointslice-mirroring-controller", "endpoint_slice_mirroring", 5, endpoints::make_mirroring),
    descriptor("certificatesigningrequest-approving-controller", "certificate", 1, certificates::make_approver),
    descriptor("certificatesigningrequest-signing-controller", "certificate", 2, certificates::make_signer),
    descriptor("certificatesigningrequest-cleaner-controller", "certificate_cleaner", 1, certificates::make_cleaner),
    descriptor("bootstrap-signer-controller", "bootstrap_signer_queue", 1, bootstrap::make_signer),
    descriptor("token-cleaner-controller", "token_cleaner", 1, bootstrap::make_token_cleaner),
    descriptor("disruption-controller", "disruption", 2, disruption::make),
    descriptor("clusterrole-aggregation-controller", "ClusterRoleAggregator", 1, cluster_role_aggregation::make),
    descriptor("persistentvolume-binder-controller", "claims", 1, volume::make_binder),
    descriptor("persistentvolumeclaim-protection-controller", "pvcprotection", 1, volume::make_claim_protection),
    descriptor("ephemeral-volume-controller", "ephemeral_volume", 2, volume::make_ephemeral),
    descriptor("persistentvolume-protection-controller", "pvprotection", 1, volume::make_volume_protection),
    descriptor("volumeattributesclass-protection-controller", "vacprotection", 1, volume::make_class_protection),
    descriptor("service-cidr-controller", "ipaddresses", 1, service_cidr::make),
];

/// The names that `Config::controllers` may hold.
pub fn names() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().map(|row| row.name)
}
