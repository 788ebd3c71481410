//! The flags of `minke kubelet` that come from upstream by the dozen: which field each is, and what it does here.
//! Read by `kubelet_flags`.
//! Upstream knows no flag that is missing; what has no effect says so.

/// How the text of a flag becomes the value of a field.
#[derive(Clone, Copy)]
pub enum Form {
    Text,
    Flag,
    Number,
    /// Separated by commas.
    List,
    /// KEY=VALUE,…
    Map,
    /// SIGNAL<LEAST,…
    Thresholds,
    /// KEY[=VALUE]:EFFECT,…
    Taints,
    /// NAME:VALUE,…
    Headers,
    /// NAME=BOOL,…
    Gates,
    /// NODE:KIND=AMOUNT,…;…
    ReservedMemory,
}

use Form::{Flag, Gates, Headers, List, Map, Number, ReservedMemory, Taints, Text, Thresholds};

/// Flags that are fields of the configuration: flag, field, form, help.
#[rustfmt::skip]
pub const FIELDS: &[(&str, &str, Form, &str)] = &[
    ("address", "address", Text, "Address the kubelet listens on"),
    ("allowed-unsafe-sysctls", "allowedUnsafeSysctls", List, "Kernel settings pods may have beyond the safe ones"),
    ("anonymous-auth", "authentication.anonymous.enabled", Flag, "Let requests in that show nothing"),
    ("authentication-token-webhook", "authentication.webhook.enabled", Flag, "Ask the API server about bearer tokens"),
    ("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", Text, "How long it is remembered whose a bearer token is"),
    ("authorization-mode", "authorization.mode", Text, "AlwaysAllow or Webhook"),
    ("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", Text, "How long it is remembered that someone may do something"),
    ("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", Text, "How long it is remembered that someone may not"),
    ("cgroup-driver", "cgroupDriver", Text, "cgroupfs or systemd"),
    ("cgroup-root", "cgroupRoot", Text, "Control group below which pods' groups are made"),
    ("cgroups-per-qos", "cgroupsPerQOS", Flag, "true: pods always have their own control groups"),
    ("client-ca-file", "authentication.x509.clientCAFile", Text, "Authorities of clients' certificates"),
    ("cluster-dns", "clusterDNS", List, "Addresses of the cluster's DNS"),
    ("cluster-domain", "clusterDomain", Text, "Domain of the cluster"),
    ("container-log-max-files", "containerLogMaxFiles", Number, "Files kept of a container's log"),
    ("container-log-max-size", "containerLogMaxSize", Text, "Size at which a log is rotated"),
    ("container-runtime-endpoint", "containerRuntimeEndpoint", Text, "CRI socket of a runtime that is already there"),
    ("contention-profiling", "enableContentionProfiling", Flag, "false: there is no profiling"),
    ("cpu-cfs-quota", "cpuCFSQuota", Flag, "Enforce processor limits"),
    ("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Text, "100ms"),
    ("cpu-manager-policy", "cpuManagerPolicy", Text, "none, or static: whole processors of Guaranteed pods are exclusive"),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions", Map, "Options of the static policy, as full-pcpus-only=true,…"),
    ("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Text, "How often processors of containers are looked at when nothing calls for it"),
    ("enable-controller-attach-detach", "enableControllerAttachDetach", Flag, "true: volumes are attached by the controller"),
    ("enable-debugging-handlers", "enableDebuggingHandlers", Flag, "Serve logs, exec and the like"),
    ("enable-server", "enableServer", Flag, "Serve anything at all"),
    ("enforce-node-allocatable", "enforceNodeAllocatable", List, "What is held to its share: pods or none"),
    ("event-burst", "eventBurst", Number, "Has no effect: Events have their own limits"),
    ("event-qps", "eventRecordQPS", Number, "Has no effect: Events have their own limits"),
    ("eviction-hard", "evictionHard", Thresholds, "When pods are evicted, as SIGNAL<LEAST,…"),
    ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Number, "Seconds an evicted pod gets at most"),
    ("eviction-minimum-reclaim", "evictionMinimumReclaim", Map, "How much more than needed is freed, as SIGNAL=AMOUNT,…"),
    ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Text, "How long a pressure is told of after it ended"),
    ("eviction-soft", "evictionSoft", Thresholds, "As --eviction-hard, after a grace period"),
    ("eviction-soft-grace-period", "evictionSoftGracePeriod", Map, "Those grace periods, as SIGNAL=DURATION,…"),
    ("fail-cgroupv1", "failCgroupV1", Flag, "Refuse to start on cgroup v1"),
    ("fail-swap-on", "failSwapOn", Flag, "Refuse to start on a machine that swaps"),
    ("feature-gates", "featureGates", Gates, "Features to turn on or off, as NAME=true,…"),
    ("file-check-frequency", "fileCheckFrequency", Text, "How often the manifest directory is looked at besides"),
    ("hairpin-mode", "hairpinMode", Text, "Has no effect: pods always reach themselves through their Services"),
    ("healthz-bind-address", "healthzBindAddress", Text, "Address of the health check"),
    ("healthz-port", "healthzPort", Number, "Port of the health check; 0 turns it off"),
    ("http-check-frequency", "httpCheckFrequency", Text, "How often the manifest URL is asked"),
    ("image-gc-high-threshold", "imageGCHighThresholdPercent", Number, "Percent of disk usage beyond which unused images go"),
    ("image-gc-low-threshold", "imageGCLowThresholdPercent", Number, "Percent of disk usage at which they stop going"),
    ("image-service-endpoint", "imageServiceEndpoint", Text, "CRI socket for images, if it is another"),
    ("kernel-memcg-notification", "kernelMemcgNotification", Flag, "Has no effect: memory is looked at"),
    ("kube-api-burst", "kubeAPIBurst", Number, "Has no effect: the API server's flow control decides"),
    ("kube-api-content-type", "contentType", Text, "application/json"),
    ("kube-api-qps", "kubeAPIQPS", Number, "Has no effect: the API server's flow control decides"),
    ("kube-reserved", "kubeReserved", Map, "What pods do not get, as cpu=200m,memory=500Mi,…"),
    ("kube-reserved-cgroup", "kubeReservedCgroup", Text, "Not to be had: only pods are held to their share"),
    ("kubelet-cgroups", "kubeletCgroups", Text, "Control group that the kubelet itself moves to"),
    ("local-storage-capacity-isolation", "localStorageCapacityIsolation", Flag, "Count and limit what pods use of the disk"),
    ("make-iptables-util-chains", "makeIPTablesUtilChains", Flag, "Has no effect: there are no such chains"),
    ("manifest-url", "staticPodURL", Text, "URL of static pod manifests"),
    ("manifest-url-header", "staticPodURLHeader", Headers, "Headers to ask it with, as NAME:VALUE,…"),
    ("max-open-files", "maxOpenFiles", Number, "Files that the kubelet may have open"),
    ("max-pods", "maxPods", Number, "Most pods on this node"),
    ("memory-manager-policy", "memoryManagerPolicy", Text, "None, or Static: Guaranteed pods get memory of certain NUMA nodes"),
    ("minimum-image-ttl-duration", "imageMinimumGCAge", Text, "Age before which an unused image stays"),
    ("node-status-max-images", "nodeStatusMaxImages", Number, "Most images in the node's status; -1 for all"),
    ("node-status-update-frequency", "nodeStatusUpdateFrequency", Text, "How often the node's status is looked at"),
    ("oom-score-adj", "oomScoreAdj", Number, "The kubelet's own oom_score_adj"),
    ("pod-cidr", "podCIDR", Text, "Addresses of pods, where no cluster says so"),
    ("pod-manifest-path", "staticPodPath", Text, "Directory of static pod manifests"),
    ("pod-max-pids", "podPidsLimit", Number, "Most processes in a pod"),
    ("pods-per-core", "podsPerCore", Number, "Most pods per core"),
    ("port", "port", Number, "Port of the kubelet; 0 takes a free one"),
    ("protect-kernel-defaults", "protectKernelDefaults", Flag, "Refuse to start with other kernel settings, instead of changing them"),
    ("provider-id", "providerID", Text, "What the machine's provider calls it"),
    ("qos-reserved", "qosReserved", Map, "Not to be had"),
    ("read-only-port", "readOnlyPort", Number, "Plain port for pods and metrics; 0 turns it off"),
    ("register-node", "registerNode", Flag, "Make the Node object"),
    ("register-with-taints", "registerWithTaints", Taints, "Taints to register with, as KEY=VALUE:EFFECT,…"),
    ("registry-burst", "registryBurst", Number, "Pulls that may begin at once beyond --registry-qps"),
    ("registry-qps", "registryPullQPS", Number, "Pulls that may begin per second; 0 is without a limit"),
    ("reserved-cpus", "reservedSystemCPUs", Text, "Processors that no container has to itself, as 0-1,4; replaces what is reserved of cpu"),
    ("reserved-memory", "reservedMemory", ReservedMemory, "Memory kept from pods by NUMA node, as 0:memory=1Gi,hugepages-2Mi=64Mi;1:…"),
    ("resolv-conf", "resolvConf", Text, "Resolver configuration that pods' own is made from"),
    ("rotate-certificates", "rotateCertificates", Flag, "Renew the client certificate"),
    ("rotate-server-certificates", "serverTLSBootstrap", Flag, "Have the serving certificate signed by the cluster"),
    ("runonce", "runOnce", Flag, "false: upstream has removed it too"),
    ("runtime-request-timeout", "runtimeRequestTimeout", Text, "Longest call to the runtime"),
    ("seccomp-default", "seccompDefault", Flag, "RuntimeDefault for containers that name no seccomp profile"),
    ("serialize-image-pulls", "serializeImagePulls", Flag, "Pull one image at a time"),
    ("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", Text, "Has no effect: the runtime closes idle streams"),
    ("sync-frequency", "syncFrequency", Text, "Look at every pod this often, even if nothing happens"),
    ("system-cgroups", "systemCgroups", Text, "Not to be had: the system's processes stay where they are"),
    ("system-reserved", "systemReserved", Map, "As --kube-reserved, for the system"),
    ("system-reserved-cgroup", "systemReservedCgroup", Text, "Not to be had: only pods are held to their share"),
    ("tls-cert-file", "tlsCertFile", Text, "Serving certificate"),
    ("tls-cipher-suites", "tlsCipherSuites", List, "Cipher suites of TLS 1.2 to offer"),
    ("tls-min-version", "tlsMinVersion", Text, "VersionTLS12 or VersionTLS13"),
    ("tls-private-key-file", "tlsPrivateKeyFile", Text, "Its key"),
    ("topology-manager-policy", "topologyManagerPolicy", Text, "none, best-effort, restricted or single-numa-node"),
    ("topology-manager-policy-options", "topologyManagerPolicyOptions", Map, "prefer-closest-numa-nodes=true,max-allowable-numa-nodes=8"),
    ("topology-manager-scope", "topologyManagerScope", Text, "container or pod"),
    ("volume-plugin-dir", "volumePluginDir", Text, "Not to be had: there are no FlexVolume plugins"),
    ("volume-stats-agg-period", "volumeStatsAggPeriod", Text, "How long what a CSI driver says of a volume is told again; never asked when negative"),
];

/// Flags that are no fields: flag, form, the values that describe what happens anyway (none stands for any), help.
#[rustfmt::skip]
pub const OTHERS: &[(&str, Form, &[&str], &str)] = &[
    ("cert-dir", Text, &["", "/var/lib/kubelet/pki"], "Not to be had: certificates are below --data-dir"),
    ("cloud-provider", Text, &[""], "Not to be had: what a provider knows of a node is not asked for"),
    ("exit-on-lock-contention", Flag, &["false"], "Not to be had"),
    ("experimental-allocatable-ignore-eviction", Flag, &["false"], "Not to be had"),
    ("experimental-mounter-path", Text, &[""], "Not to be had: volumes are mounted without a program"),
    ("lock-file", Text, &[""], "Not to be had"),
    ("log-flush-frequency", Text, &["5s", "0", "0s"], "5s: nothing is held back"),
    ("log-json-info-buffer-size", Text, &["0"], "0: nothing is held back"),
    ("log-json-split-stream", Flag, &["false"], "false: logs go to stderr"),
    ("log-text-info-buffer-size", Text, &["0"], "0: nothing is held back"),
    ("log-text-split-stream", Flag, &["false"], "false: logs go to stderr"),
    ("runtime-cgroups", Text, &[""], "Not to be had: the runtime stays where it was started"),
    ("vmodule", Text, &[""], "Not to be had: MINKE_LOG says how much is logged"),
];

/// Every flag with its form and help.
pub fn all() -> impl Iterator<Item = (&'static str, Form, &'static str)> {
    let fields = FIELDS.iter().map(|(flag, _, form, help)| (*flag, *form, *help));
    fields.chain(OTHERS.iter().map(|(flag, form, _, help)| (*flag, *form, *help)))
}
