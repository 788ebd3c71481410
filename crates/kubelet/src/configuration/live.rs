//! The configuration in force, as `/configz` shows it: what was given, what was made of it, and what always holds.
//! Part of `configuration`; asked by the node's server.
//! What it shows, given as a file, makes the same node, secrets aside.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Configuration, settings};
use crate::{
    config::{CgroupDriver, Config},
    images::image_manager::pull_records::Verification,
    resources::resource_managers::settings::show_reserved_memory,
    runtime::container_config::memory_protection::SwapBehavior,
};

/// Values that follow from the node's present settings; `null` where there is nothing to show.
type Row = (&'static str, fn(&Config) -> Value);

#[rustfmt::skip]
pub const LIVE: &[Row] = &[
    ("address", |c| json!(c.address.map_or_else(|| "0.0.0.0".to_string(), |a| a.to_string()))),
    ("allowedUnsafeSysctls", |c| unless_empty(json!(c.allowed_unsafe_sysctls))),
    ("authentication.anonymous.enabled", |c| json!(c.anonymous_auth)),
    ("authentication.webhook.enabled", |c| json!(c.token_auth)),
    ("authorization.mode", |c| json!(if c.always_allow { "AlwaysAllow" } else { "Webhook" })),
    ("authorization.webhook.cacheAuthorizedTTL", |c| span(c.allowed_cache)),
    ("authorization.webhook.cacheUnauthorizedTTL", |c| span(c.denied_cache)),
    ("cgroupDriver", |c| json!(match c.cgroup_driver {
        CgroupDriver::Cgroupfs => "cgroupfs",
        CgroupDriver::Systemd => "systemd",
    })),
    ("cgroupRoot", |c| unless_empty(json!(c.cgroup_root))),
    ("clusterDNS", |c| unless_empty(json!(c.cluster_dns))),
    ("clusterDomain", |c| unless_empty(json!(c.cluster_domain))),
    ("containerLogMaxFiles", |c| json!(c.container_log_max_files)),
    ("containerLogMaxSize", |c| size(c.container_log_max_bytes)),
    ("containerLogMonitorInterval", |c| span(c.log_check_interval)),
    ("containerRuntimeEndpoint", |c| endpoint(&c.runtime_endpoint)),
    ("cpuCFSQuota", |c| json!(c.cpu_cfs_quota)),
    ("cpuManagerPolicy", |c| json!(c.managers.cpu_policy)),
    ("cpuManagerPolicyOptions", |c| unless_empty(json!(c.managers.cpu_options))),
    ("cpuManagerReconcilePeriod", |c| span(c.managers.cpu_reconcile_interval)),
    ("crashLoopBackOff.maxContainerRestartPeriod", |c| span(c.crash_backoff_max)),
    ("enableDebugFlagsHandler", |c| json!(c.debug_flags_handler)),
    ("enableDebuggingHandlers", |c| json!(c.debugging_handlers)),
    ("enableProfilingHandler", |c| json!(c.profiling_handler)),
    ("enableServer", |c| json!(c.enable_server)),
    ("enableSystemLogHandler", |c| json!(c.system_log_handler)),
    ("enforceNodeAllocatable", |c| json!(settings::enforced(c))),
    ("kubeReservedCgroup", |c| unless_empty(json!(c.kube_reserved.name))),
    ("systemReservedCgroup", |c| unless_empty(json!(c.system_reserved.name))),
    ("evictionHard", |c| json!(c.eviction_hard)),
    ("evictionMaxPodGracePeriod", |c| json!(c.eviction_max_grace_seconds)),
    ("evictionMinimumReclaim", |c| unless_empty(json!(c.eviction_minimum_reclaim))),
    ("evictionPressureTransitionPeriod", |c| span(c.eviction_transition)),
    ("evictionSoft", |c| unless_empty(json!(c.eviction_soft))),
    ("evictionSoftGracePeriod", |c| {
        unless_empty(c.eviction_soft_grace.iter().map(|(signal, grace)| (signal.clone(), span(*grace))).collect())
    }),
    ("failCgroupV1", |c| json!(c.fail_cgroup_v1)),
    ("failSwapOn", |c| json!(c.fail_swap_on)),
    ("fileCheckFrequency", |c| span(c.manifest_dir_interval)),
    ("healthzBindAddress", |c| json!(c.healthz_address)),
    ("healthzPort", |c| json!(c.healthz_port)),
    ("httpCheckFrequency", |c| span(c.manifest_url_interval)),
    ("imageGCHighThresholdPercent", |c| json!(c.image_gc_high_percent)),
    ("imageGCLowThresholdPercent", |c| json!(c.image_gc_low_percent)),
    ("imageMaximumGCAge", |c| span(c.image_max_age.unwrap_or_default())),
    ("imageMinimumGCAge", |c| span(c.image_min_age)),
    ("imagePullCredentialsVerificationPolicy", |c| json!(match c.image_verification {
        Verification::Never => "NeverVerify",
        Verification::NeverPreloaded => "NeverVerifyPreloadedImages",
        Verification::NeverAllowlisted => "NeverVerifyAllowlistedImages",
        Verification::Always => "AlwaysVerify",
    })),
    ("preloadedImagesVerificationAllowlist", |c| unless_empty(json!(c.image_verification_allowlist))),
    ("authentication.webhook.cacheTTL", |c| span(c.token_cache)),
    ("containerLogMaxWorkers", |c| json!(c.log_workers)),
    ("enableSystemLogQuery", |c| json!(c.system_log_query)),
    ("kubeletCgroups", |c| unless_empty(json!(c.kubelet_cgroups))),
    ("localStorageCapacityIsolation", |c| json!(c.local_storage_isolation)),
    ("maxOpenFiles", |c| json!(c.max_open_files)),
    ("oomScoreAdj", |c| json!(c.oom_score_adj)),
    ("protectKernelDefaults", |c| json!(c.protect_kernel_defaults)),
    ("syncFrequency", |c| c.sync_interval.map_or(Value::Null, span)),
    ("tlsCipherSuites", |c| unless_empty(json!(c.tls_cipher_suites))),
    ("tlsMinVersion", |c| json!(if c.tls_13_only { "VersionTLS13" } else { "VersionTLS12" })),
    ("userNamespaces.idsPerPod", |c| json!(c.user_namespace_ids)),
    ("imageServiceEndpoint", |c| c.image_endpoint.as_ref().map_or(Value::Null, |path| endpoint(path))),
    ("maxParallelImagePulls", |c| json!(c.max_parallel_pulls)),
    ("maxPods", |c| json!(c.max_pods)),
    ("memoryManagerPolicy", |c| json!(c.managers.memory_policy)),
    ("memorySwap.swapBehavior", |c| match c.swap_behavior {
        SwapBehavior::NoSwap => Value::Null,
        SwapBehavior::LimitedSwap => json!("LimitedSwap"),
    }),
    ("memoryThrottlingFactor", |c| json!(c.memory_throttling_factor)),
    ("nodeLeaseDurationSeconds", |c| json!(c.lease_seconds)),
    ("nodeStatusMaxImages", |c| json!(i64::try_from(c.max_reported_images).ok().filter(|n| *n < i64::MAX).unwrap_or(-1))),
    ("nodeStatusReportFrequency", |c| span(c.status_report_interval)),
    ("nodeStatusUpdateFrequency", |c| span(c.status_update_interval)),
    ("podCIDR", |c| json!(c.pod_cidr)),
    ("podLogsDir", |c| json!(c.pod_logs_dir())),
    ("podPidsLimit", |c| json!(c.pod_pids_limit.unwrap_or(-1))),
    ("podsPerCore", |c| Some(c.pods_per_core).filter(|n| *n > 0).map_or(Value::Null, Value::from)),
    ("port", |c| json!(c.port)),
    ("providerID", |c| unless_empty(json!(c.provider_id))),
    ("readOnlyPort", |c| Some(c.read_only_port).filter(|n| *n > 0).map_or(Value::Null, Value::from)),
    ("registerNode", |c| json!(c.register_node)),
    ("registerWithTaints", |c| unless_empty(json!(c.taints))),
    ("reservedMemory", |c| unless_empty(show_reserved_memory(&c.managers.reserved_memory))),
    ("reservedSystemCPUs", |c| unless_empty(json!(c.managers.reserved_cpus.to_string()))),
    ("resolvConf", |c| json!(c.resolv_conf)),
    ("runtimeRequestTimeout", |c| span(c.runtime_request_timeout)),
    ("seccompDefault", |c| json!(c.seccomp_default)),
    ("serializeImagePulls", |c| json!(c.max_parallel_pulls == 1)),
    ("singleProcessOOMKill", |c| json!(c.single_process_oom_kill)),
    ("staticPodPath", |c| json!(c.manifest_dir)),
    ("staticPodURL", |c| json!(c.manifest_url)),
    ("staticPodURLHeader", |c| {
        let mut headers: std::collections::BTreeMap<&str, Vec<&str>> = Default::default();
        // A client of this page is not to learn what opens the way to the manifests.
        c.manifest_url_headers.iter().for_each(|(name, _)| headers.entry(name).or_default().push("<masked>"));
        unless_empty(json!(headers))
    }),
    ("topologyManagerPolicy", |c| json!(c.managers.topology_policy)),
    ("topologyManagerPolicyOptions", |c| unless_empty(json!(c.managers.topology_options))),
    ("topologyManagerScope", |c| json!(c.managers.topology_scope)),
    ("volumeStatsAggPeriod", |c| c.volume_stats_period.map_or(json!("-1s"), span)),
];

/// What holds when nothing else was given: the only values of settings that are no choice here.
#[rustfmt::skip]
const FIXED: &[(&str, &str)] = &[
    ("cgroupsPerQOS", "true"),
    ("configMapAndSecretChangeDetectionStrategy", r#""Watch""#),
    ("cpuCFSQuotaPeriod", r#""100ms""#),
    ("enableControllerAttachDetach", "true"),
    ("memorySwap", "{}"),
    ("mergeDefaultEvictionSettings", "false"),
    ("shutdownGracePeriod", r#""0s""#),
    ("shutdownGracePeriodCriticalPods", r#""0s""#),
];

/// The whole configuration, without the kind that a file begins with.
pub fn effective_configuration(config: &Config) -> Value {
    let mut all: Configuration = config.given.clone();
    for (name, value) in FIXED.iter().filter_map(|(name, text)| Some((*name, serde_json::from_str(text).ok()?))) {
        if all.get(name).is_none() {
            all.set(name, value);
        }
    }
    for (name, of) in LIVE {
        let value = of(config);
        if !value.is_null() {
            all.set(name, value);
        }
    }
    Value::Object(all.0)
}

fn span(duration: Duration) -> Value {
    json!(api::printing::go_duration(duration))
}

fn endpoint(path: &std::path::Path) -> Value {
    let path = path.to_string_lossy();
    json!(if path.contains("://") { path.into_owned() } else { format!("unix://{path}") })
}

fn size(bytes: u64) -> Value {
    json!(match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{}Gi", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}Mi", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}Ki", bytes >> 10),
        _ => bytes.to_string(),
    })
}

fn unless_empty(value: Value) -> Value {
    let empty = match &value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    if empty { Value::Null } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::fields::{FIELDS, Meaning};

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn node(text: &str) -> Config {
        let mut config = Config::default();
        Configuration::parse(&format!("{HEAD}{text}")).unwrap().apply(&mut config).unwrap();
        config
    }

    #[test]
    fn what_is_shown_makes_the_same_node() {
        let check = |text: &str, expected: &[(&str, Value)]| {
            let found = effective_configuration(&node(text));
            for (pointer, value) in expected {
                assert_eq!(found.pointer(pointer), Some(value), "{pointer} of {found:#}");
            }
            let mut file = found.as_object().unwrap().clone();
            file.insert("apiVersion".into(), json!("kubelet.config.k8s.io/v1beta1"));
            file.insert("kind".into(), json!("KubeletConfiguration"));
            let mut again = Config::default();
            Configuration::parse(&Value::Object(file).to_string()).unwrap().apply(&mut again).unwrap();
            assert_eq!(effective_configuration(&again), found, "{text}");
        };
        check(
            "",
            &[
                ("/maxPods", json!(110)),
                ("/authentication/anonymous/enabled", json!(false)),
                ("/authorization/mode", json!("Webhook")),
                ("/containerRuntimeEndpoint", json!("unix:///run/containerd/containerd.sock")),
                ("/evictionHard/memory.available", json!("100Mi")),
                ("/evictionPressureTransitionPeriod", json!("5m0s")),
                ("/containerLogMaxSize", json!("10Mi")),
                ("/podPidsLimit", json!(-1)),
                ("/nodeStatusMaxImages", json!(50)),
            ],
        );
        check(
            "maxPods: 7\nkubeReserved: {cpu: 100m}\nsystemReserved: {cpu: 200m}\nserializeImagePulls: true\n\
             featureGates: {NodeLogQuery: true}\nclusterDNS: [10.0.0.10]\nnodeStatusMaxImages: -1\nenforceNodeAllocatable: []\n\
             evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m30s}\n\
             registerWithTaints: [{key: a, effect: NoSchedule}]\nstaticPodPath: /m\ncontainerLogMaxSize: '1500'\n\
             mergeDefaultEvictionSettings: true\nevictionHard: {memory.available: 5%}\nnodeStatusUpdateFrequency: 4s\n",
            &[
                ("/maxPods", json!(7)),
                ("/kubeReserved", json!({"cpu": "100m"})),
                ("/featureGates/NodeLogQuery", json!(true)),
                ("/maxParallelImagePulls", json!(1)),
                ("/evictionSoftGracePeriod", json!({"memory.available": "1m30s"})),
                ("/evictionHard/nodefs.available", json!("10%")),
                ("/enforceNodeAllocatable", json!(["none"])),
                ("/nodeStatusReportFrequency", json!("4s")),
            ],
        );
        let masked = effective_configuration(&node("staticPodURLHeader: {Authorization: [Bearer secret]}\n"));
        assert_eq!(masked["staticPodURLHeader"], json!({"Authorization": ["<masked>"]}));
    }

    #[test]
    fn every_field_with_an_effect_is_shown() {
        // Shown as they were given: what was made of them is a sum, or a file's content.
        let given = [
            "kubeReserved",
            "systemReserved",
            "mergeDefaultEvictionSettings",
            "featureGates",
            "logging",
            "eventBurst",
            "eventRecordQPS",
            "kubeAPIBurst",
            "kubeAPIQPS",
            "registryBurst",
            "registryPullQPS",
            "shutdownGracePeriod",
            "shutdownGracePeriodByPodPriority",
            "shutdownGracePeriodCriticalPods",
        ];
        let live = |name: &str| LIVE.iter().any(|(shown, _)| *shown == name) || given.contains(&name);
        for (name, meaning) in FIELDS {
            assert!(!matches!(meaning, Meaning::Sets(_)) || live(name), "{name} has an effect that nobody sees");
        }
        for (name, _) in LIVE {
            assert!(FIELDS.iter().any(|(known, _)| known == name), "{name} is no field");
        }
    }
}
