//! The flags of kube-controller-manager.
//! A table of `upstream`; what acts is in `controller_manager_flags`, where `CONCURRENCY` says which flag gives which
//! controller its workers.

use super::{
    Component,
    Form::{Duration, Flag, Float, List, Number, Text},
    Meaning::{Acts, Idle, Only},
    Row, shared,
};

#[derive(Debug, Clone)]
pub struct ControllerManager;

impl Component for ControllerManager {
    fn tables() -> Vec<&'static [Row]> {
        vec![
            OWN,
            CLOUD,
            VOLUMES,
            SIGNING,
            shared::CLIENT_CONNECTION,
            shared::COMPONENT_PORT,
            shared::LEADER_ELECTION,
            shared::LOGS,
            shared::METRICS,
            shared::PROFILING,
            shared::VERSIONS,
        ]
    }
}

/// Flags that say how many workers a controller has: flag, controller.
pub const CONCURRENCY: &[(&str, &str)] = &[
    ("concurrent-cron-job-syncs", "cronjob-controller"),
    ("concurrent-daemonset-syncs", "daemonset-controller"),
    ("concurrent-deployment-syncs", "deployment-controller"),
    ("concurrent-endpoint-syncs", "endpoints-controller"),
    ("concurrent-ephemeralvolume-syncs", "ephemeral-volume-controller"),
    ("concurrent-gc-syncs", "garbage-collector-controller"),
    ("concurrent-horizontal-pod-autoscaler-syncs", "horizontal-pod-autoscaler-controller"),
    ("concurrent-job-syncs", "job-controller"),
    ("concurrent-namespace-syncs", "namespace-controller"),
    ("concurrent-rc-syncs", "replicationcontroller-controller"),
    ("concurrent-replicaset-syncs", "replicaset-controller"),
    ("concurrent-resource-quota-syncs", "resourcequota-controller"),
    ("concurrent-service-endpoint-syncs", "endpointslice-controller"),
    ("concurrent-service-syncs", "service-lb-controller"),
    ("concurrent-serviceaccount-token-syncs", "serviceaccount-token-controller"),
    ("concurrent-statefulset-syncs", "statefulset-controller"),
    ("concurrent-ttl-after-finished-syncs", "ttl-after-finished-controller"),
    ("mirroring-concurrent-service-endpoint-syncs", "endpointslice-mirroring-controller"),
];

const AT_ONCE: &str = "changes are followed as they come, and failures are tried again";
const NOT_HERE: &str = "that controller is not built";

const OWN: &[Row] = &[
    ("allocate-node-cidrs", Flag, Acts),
    ("cidr-allocator-type", Text, Only(&["RangeAllocator"], "nodes get parts of --cluster-cidr")),
    ("cluster-cidr", List, Acts),
    ("cluster-name", Text, Idle("only cloud providers name things after the cluster")),
    ("concurrent-cron-job-syncs", Number, Acts),
    ("concurrent-daemonset-syncs", Number, Acts),
    ("concurrent-deployment-syncs", Number, Acts),
    ("concurrent-device-taint-eviction-syncs", Number, Idle("DRADeviceTaints is off, as by default")),
    ("concurrent-endpoint-syncs", Number, Acts),
    ("concurrent-ephemeralvolume-syncs", Number, Acts),
    ("concurrent-gc-syncs", Number, Acts),
    ("concurrent-horizontal-pod-autoscaler-syncs", Number, Acts),
    ("concurrent-job-syncs", Number, Acts),
    ("concurrent-namespace-syncs", Number, Acts),
    ("concurrent-rc-syncs", Number, Acts),
    ("concurrent-replicaset-syncs", Number, Acts),
    ("concurrent-resource-quota-syncs", Number, Acts),
    ("concurrent-service-endpoint-syncs", Number, Acts),
    ("concurrent-service-syncs", Number, Acts),
    ("concurrent-serviceaccount-token-syncs", Number, Acts),
    ("concurrent-statefulset-syncs", Number, Acts),
    ("concurrent-ttl-after-finished-syncs", Number, Acts),
    (
        "concurrent-validating-admission-policy-status-syncs",
        Number,
        Idle("the API server keeps the status of policies"),
    ),
    ("controller-shutdown-timeout", Duration, Idle("controllers end with the process; the lease is given back")),
    ("controller-start-interval", Duration, Only(&["0s"], "controllers start together")),
    ("controllers", List, Acts),
    ("enable-garbage-collector", Flag, Acts),
    ("enable-leader-migration", Flag, Only(&["false"], "controllers are led by one Lease")),
    ("endpoint-updates-batch-period", Duration, Only(&["0s"], AT_ONCE)),
    ("endpointslice-updates-batch-period", Duration, Only(&["0s"], AT_ONCE)),
    ("horizontal-pod-autoscaler-cpu-initialization-period", Duration, Acts),
    ("horizontal-pod-autoscaler-downscale-stabilization", Duration, Acts),
    ("horizontal-pod-autoscaler-initial-readiness-delay", Duration, Acts),
    ("horizontal-pod-autoscaler-sync-period", Duration, Acts),
    ("horizontal-pod-autoscaler-tolerance", Float, Acts),
    ("large-cluster-size-threshold", Number, Only(&["50"], "zones are large from fifty nodes on")),
    ("leader-migration-config", Text, Only(&[""], "controllers are led by one Lease")),
    ("legacy-service-account-token-clean-up-period", Duration, Acts),
    ("max-endpoints-per-slice", Number, Only(&["100"], "slices hold a hundred endpoints")),
    ("min-resync-period", Duration, Idle(AT_ONCE)),
    ("mirroring-concurrent-service-endpoint-syncs", Number, Acts),
    ("mirroring-endpointslice-updates-batch-period", Duration, Only(&["0s"], AT_ONCE)),
    ("mirroring-max-endpoints-per-subset", Number, Only(&["1000"], "a thousand addresses of a subset are mirrored")),
    ("namespace-sync-period", Duration, Idle(AT_ONCE)),
    ("node-cidr-mask-size", Number, Acts),
    ("node-cidr-mask-size-ipv4", Number, Acts),
    ("node-cidr-mask-size-ipv6", Number, Acts),
    ("node-eviction-rate", Float, Only(&["0.1"], "pods of one node in ten seconds are evicted")),
    ("node-monitor-grace-period", Duration, Acts),
    ("node-monitor-period", Duration, Idle("nodes are looked at when their grace period is over")),
    ("node-startup-grace-period", Duration, Acts),
    ("resource-quota-sync-period", Duration, Idle(AT_ONCE)),
    ("root-ca-file", Text, Acts),
    (
        "secondary-node-eviction-rate",
        Float,
        Only(&["0.01"], "pods of one node in a hundred seconds are evicted where a zone fails"),
    ),
    ("service-account-private-key-file", Text, Acts),
    ("service-cluster-ip-range", List, Acts),
    ("terminated-pod-gc-threshold", Number, Acts),
    ("unhealthy-zone-threshold", Float, Only(&["0.55"], "a zone is failing when 55 % of its nodes are")),
    ("use-service-account-credentials", Flag, Acts),
];

const NO_CLOUD: &str = "there are no cloud providers in this binary";

const CLOUD: &[Row] = &[
    ("allow-untagged-cloud", Flag, Only(&["false"], NO_CLOUD)),
    ("cloud-config", Text, Only(&[""], NO_CLOUD)),
    ("cloud-provider", Text, Only(&["", "external"], NO_CLOUD)),
    ("configure-cloud-routes", Flag, Idle(NO_CLOUD)),
    ("external-cloud-volume-plugin", Text, Only(&[""], NO_CLOUD)),
    ("node-sync-period", Duration, Idle(NO_CLOUD)),
    ("route-reconciliation-period", Duration, Idle(NO_CLOUD)),
];

const RECYCLER: &str = "volumes with the deprecated policy Recycle are not recycled";

const VOLUMES: &[Row] = &[
    ("attach-detach-reconcile-sync-period", Duration, Idle(AT_ONCE)),
    ("disable-attach-detach-reconcile-sync", Flag, Only(&["false"], "attachments are compared with what nodes say")),
    ("disable-force-detach-on-timeout", Flag, Only(&["false"], "volumes of dead nodes are detached after six minutes")),
    ("enable-dynamic-provisioning", Flag, Only(&["true"], "claims of a StorageClass are always provisioned")),
    ("enable-hostpath-provisioner", Flag, Only(&["false"], NOT_HERE)),
    (
        "flex-volume-plugin-dir",
        Text,
        Only(&["/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", ""], "there are no FlexVolume plugins"),
    ),
    ("pv-recycler-increment-timeout-nfs", Number, Only(&["30"], RECYCLER)),
    ("pv-recycler-minimum-timeout-hostpath", Number, Only(&["60"], RECYCLER)),
    ("pv-recycler-minimum-timeout-nfs", Number, Only(&["300"], RECYCLER)),
    ("pv-recycler-pod-template-filepath-hostpath", Text, Only(&[""], RECYCLER)),
    ("pv-recycler-pod-template-filepath-nfs", Text, Only(&[""], RECYCLER)),
    ("pv-recycler-timeout-increment-hostpath", Number, Only(&["30"], RECYCLER)),
    ("pvclaimbinder-sync-period", Duration, Idle(AT_ONCE)),
];

const SIGNING: &[Row] = &[
    ("cluster-signing-cert-file", Text, Acts),
    ("cluster-signing-duration", Duration, Acts),
    ("cluster-signing-key-file", Text, Acts),
    ("cluster-signing-kube-apiserver-client-cert-file", Text, Acts),
    ("cluster-signing-kube-apiserver-client-key-file", Text, Acts),
    ("cluster-signing-kubelet-client-cert-file", Text, Acts),
    ("cluster-signing-kubelet-client-key-file", Text, Acts),
    ("cluster-signing-kubelet-serving-cert-file", Text, Acts),
    ("cluster-signing-kubelet-serving-key-file", Text, Acts),
    ("cluster-signing-legacy-unknown-cert-file", Text, Acts),
    ("cluster-signing-legacy-unknown-key-file", Text, Acts),
];
