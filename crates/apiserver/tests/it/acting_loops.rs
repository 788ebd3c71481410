//! What acts on each kind that is served: none is stored that nothing acts on.
//! Rows name the file or folder whose loop it is.

use std::{collections::BTreeMap, path::Path};

use api::{Verb, kinds};

#[rustfmt::skip]
const ACTING: &[(&str, &str)] = &[
    ("configmaps", "crates/kubelet/src/volumes"),
    ("endpoints", "crates/controllers/src/endpoints/mirroring.rs"),
    ("events", "crates/apiserver/src/storage"),
    ("limitranges", "crates/apiserver/src/admission/limit_ranger.rs"),
    ("namespaces", "crates/controllers/src/namespace"),
    ("nodes", "crates/controllers/src/node"),
    ("persistentvolumeclaims", "crates/controllers/src/volume"),
    ("persistentvolumes", "crates/controllers/src/volume"),
    ("pods", "crates/kubelet/src/pod"),
    // A template for others to copy: nothing acts on it upstream either.
    ("podtemplates", "crates/api/src/kinds/core/pod_template.rs"),
    ("replicationcontrollers", "crates/controllers/src/replica_set"),
    ("resourcequotas", "crates/controllers/src/resource_quota.rs"),
    ("secrets", "crates/kubelet/src/volumes"),
    ("serviceaccounts", "crates/controllers/src/service_account"),
    ("services", "crates/proxy/src/rules.rs"),
    ("apiservices.apiregistration.k8s.io", "crates/apiserver/src/aggregator"),
    ("controllerrevisions.apps", "crates/controllers/src/common/revisions.rs"),
    ("daemonsets.apps", "crates/controllers/src/daemon_set"),
    ("deployments.apps", "crates/controllers/src/deployment"),
    ("replicasets.apps", "crates/controllers/src/replica_set"),
    ("statefulsets.apps", "crates/controllers/src/stateful_set"),
    ("events.events.k8s.io", "crates/apiserver/src/storage"),
    ("horizontalpodautoscalers.autoscaling", "crates/controllers/src/horizontal_pod_autoscaler"),
    ("cronjobs.batch", "crates/controllers/src/cron_job"),
    ("jobs.batch", "crates/controllers/src/job"),
    ("certificatesigningrequests.certificates.k8s.io", "crates/controllers/src/certificates"),
    ("ingressclasses.networking.k8s.io", "crates/ingress/src"),
    ("ingresses.networking.k8s.io", "crates/ingress/src"),
    ("ipaddresses.networking.k8s.io", "crates/controllers/src/service_cidr.rs"),
    ("networkpolicies.networking.k8s.io", "crates/network_policy/src"),
    ("servicecidrs.networking.k8s.io", "crates/controllers/src/service_cidr.rs"),
    ("poddisruptionbudgets.policy", "crates/controllers/src/disruption"),
    ("clusterrolebindings.rbac.authorization.k8s.io", "crates/apiserver/src/authz/rbac"),
    ("clusterroles.rbac.authorization.k8s.io", "crates/controllers/src/cluster_role_aggregation.rs"),
    ("rolebindings.rbac.authorization.k8s.io", "crates/apiserver/src/authz/rbac"),
    ("roles.rbac.authorization.k8s.io", "crates/apiserver/src/authz/rbac"),
    ("csidrivers.storage.k8s.io", "crates/kubelet/src/csi"),
    ("csinodes.storage.k8s.io", "crates/scheduler/src/plugins/node_volume_limits.rs"),
    ("csistoragecapacities.storage.k8s.io", "crates/scheduler/src/plugins/volume_binding"),
    ("storageclasses.storage.k8s.io", "crates/controllers/src/volume"),
    ("volumeattachments.storage.k8s.io", "crates/controllers/src/volume"),
    ("volumeattributesclasses.storage.k8s.io", "crates/controllers/src/volume/protection.rs"),
    ("mutatingwebhookconfigurations.admissionregistration.k8s.io", "crates/apiserver/src/admission/webhooks.rs"),
    ("validatingadmissionpolicies.admissionregistration.k8s.io", "crates/apiserver/src/admission/policy.rs"),
    ("validatingadmissionpolicybindings.admissionregistration.k8s.io", "crates/apiserver/src/admission/policy.rs"),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io", "crates/apiserver/src/admission/webhooks.rs"),
    ("customresourcedefinitions.apiextensions.k8s.io", "crates/apiserver/src/crd"),
    ("priorityclasses.scheduling.k8s.io", "crates/apiserver/src/admission/priority.rs"),
    ("leases.coordination.k8s.io", "crates/client/src/leader_election.rs"),
    ("runtimeclasses.node.k8s.io", "crates/apiserver/src/admission/pods.rs"),
    ("endpointslices.discovery.k8s.io", "crates/proxy/src/rules.rs"),
    ("deviceclasses.resource.k8s.io", "crates/device_allocation/src"),
    ("resourceclaims.resource.k8s.io", "crates/controllers/src/resource_claim"),
    ("resourceclaimtemplates.resource.k8s.io", "crates/controllers/src/resource_claim"),
    ("resourceslices.resource.k8s.io", "crates/scheduler/src/plugins/dynamic_resources"),
    ("flowschemas.flowcontrol.apiserver.k8s.io", "crates/apiserver/src/flow_control"),
    ("prioritylevelconfigurations.flowcontrol.apiserver.k8s.io", "crates/apiserver/src/flow_control"),
    // Behind feature gates.
    ("initializerconfigurations.admissionregistration.k8s.io", "crates/apiserver/src/registry/initializers.rs"),
    ("mutatingadmissionpolicies.admissionregistration.k8s.io", "crates/apiserver/src/admission/mutating_policy.rs"),
    ("mutatingadmissionpolicybindings.admissionregistration.k8s.io", "crates/apiserver/src/admission/mutating_policy.rs"),
    ("clustertrustbundles.certificates.k8s.io", "crates/kubelet/src/volumes/certificates"),
    ("podcertificaterequests.certificates.k8s.io", "crates/kubelet/src/volumes/certificates"),
    ("storageversions.internal.apiserver.k8s.io", "crates/controllers/src/storage_version/garbage_collector.rs"),
    ("storageversionmigrations.storagemigration.k8s.io", "crates/controllers/src/storage_version/migrator.rs"),
];

#[test]
fn something_acts_on_every_kind() {
    let rows: BTreeMap<&str, &str> = ACTING.iter().copied().collect();
    assert_eq!(rows.len(), ACTING.len(), "a kind is listed twice");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all = kinds::builtin().iter().chain(kinds::gated().iter().map(|(_, resource)| resource));
    let stored = all.filter(|resource| resource.stored() && resource.supports(&Verb::Create));
    let mut served = Vec::new();
    for resource in stored {
        let name = resource.group_resource();
        let acting = rows.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no row: what acts on it?"));
        assert!(root.join(acting).exists(), "{name}: {acting} is not there");
        served.push(name);
    }
    let gone: Vec<_> = rows.keys().filter(|name| !served.iter().any(|served| served == *name)).collect();
    assert!(gone.is_empty(), "not served: {gone:?}");
}
