//! One descriptor per controller, by upstream's names.
//! Read by `runner`; adding a controller is its file and one line here.
//! Names are those of upstream's `--controllers`, and of its queues in `/metrics`, where upstream has the controller.

use std::sync::Arc;

use api::feature_gates::{
    CLUSTER_TRUST_BUNDLE, POD_CERTIFICATE_REQUEST, STORAGE_VERSION_API, STORAGE_VERSION_MIGRATOR,
};

use crate::{
    bootstrap, certificates, cluster_dns, cluster_role_aggregation, cron_job, daemon_set, deployment, disruption,
    endpoints, garbage_collector, horizontal_pod_autoscaler, job, load_balancer, namespace, node, replica_set,
    resource_claim, resource_quota,
    runner::{Controller, Setup},
    service_account, service_cidr, stateful_set, storage_version, validating_admission_policy, vertical_pod_autoscaler,
    volume,
};

pub struct ControllerDescriptor {
    pub name: &'static str,
    /// The account in `kube-system` that it writes under, whose rights are the role `system:controller:<account>` of the
    /// bootstrap policy; `minke:controller:<account>` where upstream has no such controller.
    /// `None`: the controller manager itself.
    pub service_account: Option<&'static str>,
    /// What its queue is counted under. Where upstream has several queues, the one that does the work; where it has none
    /// (it looks again every so often), a name of ours.
    pub queue: &'static str,
    pub on_by_default: bool,
    /// It is there only where this feature gate is on, and the server has the gate's kinds.
    pub gate: Option<&'static str>,
    pub workers: usize,
    pub make: fn(&mut Setup) -> Arc<dyn Controller>,
}

/// In place of a service account: as upstream, what makes the tokens of service accounts can't wait for one of its own.
const MANAGER: &str = "";

/// Its kinds are custom resources, which another installation may bring; so it is on only where it is asked for.
pub const VERTICAL_POD_AUTOSCALER: &str = "vertical-pod-autoscaler-controller";

pub const fn descriptor(
    name: &'static str,
    service_account: &'static str,
    queue: &'static str,
    workers: usize,
    make: fn(&mut Setup) -> Arc<dyn Controller>,
) -> ControllerDescriptor {
    let service_account = if service_account.is_empty() { None } else { Some(service_account) };
    ControllerDescriptor { name, service_account, queue, on_by_default: true, gate: None, workers, make }
}

/// One that is there only with its feature gate.
const fn gated(gate: &'static str, row: ControllerDescriptor) -> ControllerDescriptor {
    ControllerDescriptor { gate: Some(gate), ..row }
}

/// Name, service account, queue, workers.
#[rustfmt::skip]
pub const CONTROLLERS: &[ControllerDescriptor] = &[
    descriptor("deployment-controller", "deployment-controller", "deployment", 5, deployment::make),
    descriptor("replicaset-controller", "replicaset-controller", "replicaset", 5, replica_set::make_replica_sets),
    descriptor("replicationcontroller-controller", "replication-controller", "replicationmanager", 5, replica_set::make_replication_controllers),
    descriptor("daemonset-controller", "daemon-set-controller", "daemonset", 2, daemon_set::make),
    descriptor("statefulset-controller", "statefulset-controller", "statefulset", 5, stateful_set::make),
    descriptor("job-controller", "job-controller", "job", 5, job::make),
    descriptor("ttl-after-finished-controller", "ttl-after-finished-controller", "ttl_jobs_to_delete", 1, job::make_ttl),
    descriptor("cronjob-controller", "cronjob-controller", "cronjob", 5, cron_job::make),
    descriptor("endpointslice-controller", "endpointslice-controller", "endpoint_slice", 5, endpoints::make_endpoint_slices),
    descriptor("endpoints-controller", "endpoint-controller", "endpoint", 5, endpoints::make_endpoints),
    descriptor("namespace-controller", "namespace-controller", "namespace", 5, namespace::make),
    descriptor("serviceaccount-controller", "service-account-controller", "serviceaccount", 1, service_account::make_accounts),
    descriptor("serviceaccount-token-controller", MANAGER, "serviceaccount_tokens_service", 1, service_account::make_tokens),
    descriptor("legacy-serviceaccount-token-cleaner-controller", "legacy-service-account-token-cleaner", "legacy_serviceaccount_token_cleaner", 1, service_account::make_legacy_token_cleaner),
    descriptor("root-ca-certificate-publisher-controller", "root-ca-cert-publisher", "root_ca_cert_publisher", 1, service_account::make_root_ca_publisher),
    descriptor("garbage-collector-controller", "generic-garbage-collector", "garbage_collector_attempt_to_delete", 10, garbage_collector::make),
    descriptor("node-lifecycle-controller", "node-controller", "node_lifecycle_controller", 2, node::make_lifecycle),
    descriptor("taint-eviction-controller", "node-controller", "noexec_taint_pod", 4, node::make_taint_eviction),
    descriptor("node-ipam-controller", "node-controller", "cidrallocator_node", 1, node::make_ipam),
    descriptor("ttl-controller", "ttl-controller", "ttlcontroller", 1, node::make_ttl),
    descriptor("pod-garbage-collector-controller", "pod-garbage-collector", "orphaned_pods_nodes", 1, node::make_pod_gc),
    descriptor("resourcequota-controller", "resourcequota-controller", "resourcequota_primary", 5, resource_quota::make),
    descriptor("endpointslice-mirroring-controller", "endpointslicemirroring-controller", "endpoint_slice_mirroring", 5, endpoints::make_mirroring),
    descriptor("certificatesigningrequest-approving-controller", "certificate-controller", "certificate", 1, certificates::make_approver),
    descriptor("certificatesigningrequest-signing-controller", "certificate-controller", "certificate", 2, certificates::make_signer),
    descriptor("certificatesigningrequest-cleaner-controller", "certificate-controller", "certificate_cleaner", 1, certificates::make_cleaner),
    descriptor("kubelet-serving-approving-controller", "kubelet-serving-approver", "kubelet_serving_approver", 1, certificates::make_serving_approver),
    descriptor("kubelet-serving-ca-publisher-controller", "kubelet-serving-ca-publisher", "kubelet_serving_ca_publisher", 1, certificates::make_serving_ca_publisher),
    descriptor("cluster-dns-controller", "cluster-dns-controller", "cluster_dns", 1, cluster_dns::make),
    descriptor("bootstrap-signer-controller", "bootstrap-signer", "bootstrap_signer_queue", 1, bootstrap::make_signer),
    descriptor("token-cleaner-controller", "token-cleaner", "token_cleaner", 1, bootstrap::make_token_cleaner),
    descriptor("horizontal-pod-autoscaler-controller", "horizontal-pod-autoscaler", "horizontalpodautoscaler", 5, horizontal_pod_autoscaler::make),
    descriptor("disruption-controller", "disruption-controller", "disruption", 2, disruption::make),
    descriptor("clusterrole-aggregation-controller", "clusterrole-aggregation-controller", "ClusterRoleAggregator", 1, cluster_role_aggregation::make),
    descriptor("persistentvolume-binder-controller", "persistent-volume-binder", "claims", 1, volume::make_binder),
    descriptor("persistentvolume-attach-detach-controller", "attachdetach-controller", "attach_detach", 4, volume::make_attach_detach),
    descriptor("persistentvolume-expander-controller", "expand-controller", "volume_expand", 1, volume::make_expander),
    descriptor("persistentvolumeclaim-protection-controller", "pvc-protection-controller", "pvcprotection", 1, volume::make_claim_protection),
    descriptor("ephemeral-volume-controller", "ephemeral-volume-controller", "ephemeral_volume", 2, volume::make_ephemeral),
    descriptor("resourceclaim-controller", "resource-claim-controller", "resource_claim", 10, resource_claim::make),
    descriptor("persistentvolume-protection-controller", "pv-protection-controller", "pvprotection", 1, volume::make_volume_protection),
    descriptor("volumeattributesclass-protection-controller", "volumeattributesclass-protection-controller", "vacprotection", 1, volume::make_class_protection),
    descriptor("service-lb-controller", "service-controller", "service", 1, load_balancer::make),
    descriptor("local-storage-provisioner-controller", "local-storage-provisioner", "local_storage", 1, volume::make_local_storage),
    descriptor("validatingadmissionpolicy-status-controller", "validatingadmissionpolicy-status-controller", "validatingadmissionpolicy-status", 1, validating_admission_policy::make),
    descriptor("service-cidr-controller", "service-cidrs-controller", "ipaddresses", 1, service_cidr::make),
    gated(CLUSTER_TRUST_BUNDLE, descriptor("kube-apiserver-serving-clustertrustbundle-publisher-controller", "kube-apiserver-serving-clustertrustbundle-publisher", "ca_cert_publisher_cluster_trust_bundles", 1, certificates::make_trust_bundle_publisher)),
    gated(POD_CERTIFICATE_REQUEST, descriptor("podcertificaterequest-cleaner-controller", "podcertificaterequestcleaner", "podcertificaterequest_cleaner", 1, certificates::make_pod_request_cleaner)),
    gated(STORAGE_VERSION_API, descriptor("storageversion-garbage-collector-controller", "storage-version-garbage-collector", "storage_version_garbage_collector_storageversions", 1, storage_version::make_garbage_collector)),
    gated(STORAGE_VERSION_MIGRATOR, descriptor("storage-version-migrator-controller", "storage-version-migrator-controller", "storage-version-migrator-controller", 5, storage_version::make_migrator)),
    ControllerDescriptor { on_by_default: false, ..descriptor("selinux-warning-controller", "selinux-warning-controller", "selinux_warning", 1, volume::make_selinux_warning) },
    ControllerDescriptor { on_by_default: false, ..descriptor(VERTICAL_POD_AUTOSCALER, "vertical-pod-autoscaler", "verticalpodautoscaler", 1, vertical_pod_autoscaler::make) },
];

/// The names that `Config::controllers` may hold.
pub fn names() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().map(|row| row.name)
}

/// The accounts of `kube-system` that controllers write under, where they have one of their own.
pub fn service_accounts() -> impl Iterator<Item = &'static str> {
    CONTROLLERS.iter().filter_map(|row| row.service_account)
}
