//! Every field of KubeletConfiguration v1beta1, and what it does here. Adding an effect is changing one row.
//! Read by `configuration`.
//! A field whose absence would surprise (a policy, a limit) is refused rather than left without effect.

use std::time::Duration;

use resource_managers::CpuSet;
use serde_json::Value;

use super::error::FieldError;
use super::values::{bytes, duration, flag, list, map, milli, number, parse_duration, parsed, text, texts};
use crate::config::VOLUME_STATS_PERIOD_DEFAULT;
use crate::{
    config::{CgroupDriver, Config, Reserved},
    images::image_manager::pull_records::{Verification, check_allowlisted},
    node::node_shutdown::{PriorityGracePeriod, ShutdownGracePeriods},
    resources::resource_managers::settings::{ManagerSettings, parse_reserved_memory},
    runtime::container_config::memory_protection::SwapBehavior,
    runtime::user_namespaces::UNIT_IDS,
};

pub enum Meaning {
    Sets(fn(&mut Config, &Value) -> Result<(), FieldError>),
    /// The values that describe what happens anyway, and why there are no others.
    Only(&'static [&'static str], &'static str),
    /// About something that is done in another way here, so that nothing is missed by leaving it out.
    Idle,
    /// Read by whoever starts the node, who has the certificates.
    Elsewhere,
}

use Meaning::{Elsewhere, Idle, Only, Sets};

macro_rules! set {
    ($field:ident = $read:expr) => {
        Sets(|config, value| {
            config.$field = $read(value)?;
            Ok(())
        })
    };
}

#[rustfmt::skip]
pub const FIELDS: &[(&str, Meaning)] = &[
    ("address", Sets(|c, v| { c.address = Some(parsed(v, "an IP address")?); Ok(()) })),
    ("allowedUnsafeSysctls", set!(allowed_unsafe_sysctls = texts)),
    ("authentication.anonymous.enabled", set!(anonymous_auth = flag)),
    ("authentication.webhook.cacheTTL", set!(token_cache = duration)),
    ("authentication.webhook.enabled", set!(token_auth = flag)),
    ("authentication.x509.clientCAFile", Elsewhere),
    ("authorization.mode", Sets(|c, v| {
        c.always_allow = match v.as_str() {
            Some("AlwaysAllow") => true,
            Some("Webhook") => false,
            _ => return Err(FieldError::AuthorizationMode(v.clone())),
        };
        Ok(())
    })),
    ("authorization.webhook.cacheAuthorizedTTL", set!(allowed_cache = duration)),
    ("authorization.webhook.cacheUnauthorizedTTL", set!(denied_cache = duration)),
    ("cgroupDriver", Sets(|c, v| {
        c.cgroup_driver = match v.as_str() {
            Some("cgroupfs") => CgroupDriver::Cgroupfs,
            Some("systemd") => CgroupDriver::Systemd,
            _ => return Err(FieldError::CgroupDriver(v.clone())),
        };
        Ok(())
    })),
    ("cgroupRoot", set!(cgroup_root = text)),
    ("cgroupsPerQOS", Only(&["true"], "pods always have their own control groups")),
    ("clusterDNS", Sets(|c, v| {
        c.cluster_dns = list(v)?.iter().map(|address| parsed(address, "an IP address")).collect::<Result<_, _>>()?;
        Ok(())
    })),
    ("clusterDomain", set!(cluster_domain = text)),
    ("configMapAndSecretChangeDetectionStrategy", Only(&["Watch"], "changes are always watched")),
    ("containerLogMaxFiles", Sets(|c, v| {
        c.container_log_max_files = number(v)?;
        if c.container_log_max_files < 2 { Err(FieldError::OutOfRange("greater than 1")) } else { Ok(()) }
    })),
    ("containerLogMaxSize", Sets(|c, v| {
        c.container_log_max_bytes = u64::try_from(bytes(&text(v)?)?).map_err(|_| FieldError::Negative)?;
        Ok(())
    })),
    ("containerLogMaxWorkers", Sets(|c, v| {
        c.log_workers = number(v)?;
        if c.log_workers == 0 { Err(FieldError::OutOfRange("a positive number")) } else { Ok(()) }
    })),
    ("containerLogMonitorInterval", set!(log_check_interval = duration)),
    ("containerRuntimeEndpoint", Elsewhere),
    // What upstream has by default is taken too, so that its whole configuration can be given as a file.
    ("contentType", Only(&["", "application/json", "application/vnd.kubernetes.protobuf"], "requests are always JSON")),
    ("cpuCFSQuota", set!(cpu_cfs_quota = flag)),
    ("cpuCFSQuotaPeriod", Only(&["100ms"], "it requires feature gate CustomCPUCFSQuotaPeriod")),
    ("cpuManagerPolicy", Sets(|c, v| { c.managers.cpu_policy = one_of(v, &["none", "static"], "none or static")?; Ok(()) })),
    ("cpuManagerPolicyOptions", Sets(|c, v| { c.managers.cpu_options = map(v)?; Ok(()) })),
    ("cpuManagerReconcilePeriod", Sets(|c, v| {
        // Zero is upstream's word for the default.
        let interval = Some(duration(v)?).filter(|interval| !interval.is_zero());
        c.managers.cpu_reconcile_interval = interval.unwrap_or(ManagerSettings::default().cpu_reconcile_interval);
        Ok(())
    })),
    ("crashLoopBackOff.maxContainerRestartPeriod", Sets(|c, v| {
        c.crash_backoff_max = duration(v)?;
        match (Duration::from_secs(1)..=Duration::from_secs(300)).contains(&c.crash_backoff_max) {
            true => Ok(()),
            false => Err(FieldError::OutOfRange("between 1s and 300s")),
        }
    })),
    ("enableContentionProfiling", Only(&["false"], "there is no profiling")),
    ("enableControllerAttachDetach", Only(&["true"], "volumes are attached by the controller")),
    ("enableDebugFlagsHandler", set!(debug_flags_handler = flag)),
    ("enableDebuggingHandlers", set!(debugging_handlers = flag)),
    ("enableProfilingHandler", set!(profiling_handler = flag)),
    ("enableServer", set!(enable_server = flag)),
    ("enableSystemLogHandler", set!(system_log_handler = flag)),
    ("enableSystemLogQuery", set!(system_log_query = flag)),
    // Applied after all others: `Configuration::settle`.
    ("enforceNodeAllocatable", Sets(|_, v| texts(v).map(drop))),
    ("eventBurst", Sets(|_, v| rate(v).map(drop))),
    ("eventRecordQPS", Sets(|_, v| rate(v).map(drop))),
    ("evictionHard", Sets(|c, v| thresholds(&mut c.eviction_hard, v))),
    ("evictionMaxPodGracePeriod", set!(eviction_max_grace_seconds = number)),
    ("evictionMinimumReclaim", Sets(|c, v| thresholds(&mut c.eviction_minimum_reclaim, v))),
    ("evictionPressureTransitionPeriod", set!(eviction_transition = duration)),
    ("evictionSoft", Sets(|c, v| thresholds(&mut c.eviction_soft, v))),
    ("evictionSoftGracePeriod", Sets(|c, v| {
        let period = |(signal, text): (String, String)| {
            let period = parse_duration(&text).ok_or_else(|| FieldError::NotDuration { signal: signal.clone(), text })?;
            Ok((signal, period))
        };
        c.eviction_soft_grace = map(v)?.into_iter().map(period).collect::<Result<_, FieldError>>()?;
        Ok(())
    })),
    ("failCgroupV1", set!(fail_cgroup_v1 = flag)),
    ("failSwapOn", set!(fail_swap_on = flag)),
    ("featureGates", Sets(|c, v| {
        let Some(gates) = v.as_object() else { return Err(FieldError::NotMap) };
        let gates: Vec<(&str, bool)> =
            gates.iter().map(|(name, on)| Ok((name.as_str(), flag(on)?))).collect::<Result<_, FieldError>>()?;
        c.feature_gates = c.feature_gates.with(gates).map_err(FieldError::FeatureGate)?;
        Ok(())
    })),
    ("fileCheckFrequency", set!(manifest_dir_interval = duration)),
    // As upstream, whose runtimes do it themselves.
    ("hairpinMode", Idle),
    ("healthzBindAddress", Sets(|c, v| { c.healthz_address = parsed(v, "an IP address")?; Ok(()) })),
    ("healthzPort", set!(healthz_port = number)),
    ("httpCheckFrequency", set!(manifest_url_interval = duration)),
    ("imageGCHighThresholdPercent", Sets(|c, v| { c.image_gc_high_percent = percent(v)?; Ok(()) })),
    ("imageGCLowThresholdPercent", Sets(|c, v| { c.image_gc_low_percent = percent(v)?; Ok(()) })),
    ("imageMaximumGCAge", Sets(|c, v| { c.image_max_age = Some(duration(v)?).filter(|d| !d.is_zero()); Ok(()) })),
    ("imageMinimumGCAge", set!(image_min_age = duration)),
    ("imagePullCredentialsVerificationPolicy", Sets(|c, v| {
        c.image_verification = match v.as_str() {
            Some("NeverVerify") => Verification::Never,
            Some("NeverVerifyPreloadedImages") => Verification::NeverPreloaded,
            Some("NeverVerifyAllowlistedImages") => Verification::NeverAllowlisted,
            Some("AlwaysVerify") => Verification::Always,
            _ => {
                let choices = "NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify";
                return Err(FieldError::NotAmong { value: v.to_string(), choices });
            }
        };
        Ok(())
    })),
    ("imageServiceEndpoint", Sets(|c, v| {
        c.image_endpoint = Some(text(v)?).filter(|t| !t.is_empty()).map(Into::into);
        Ok(())
    })),
    // As upstream, which has no such chains any more.
    ("iptablesDropBit", Idle),
    ("iptablesMasqueradeBit", Idle),
    // As upstream on cgroup v2.
    ("kernelMemcgNotification", Idle),
    // Applied after all others: `Configuration::settle`.
    ("kubeAPIBurst", Sets(|_, v| rate(v).map(drop))),
    ("kubeAPIQPS", Sets(|_, v| rate(v).map(drop))),
    ("kubeReserved", Sets(|c, v| {
        c.kube_reserved.reserved = reserved(v)?;
        c.reserved = c.reserved.plus(c.kube_reserved.reserved);
        Ok(())
    })),
    ("kubeReservedCgroup", Sets(|c, v| { c.kube_reserved.name = text(v)?; Ok(()) })),
    ("kubeletCgroups", set!(kubelet_cgroups = text)),
    ("localStorageCapacityIsolation", set!(local_storage_isolation = flag)),
    ("logging", Sets(logging)),
    ("makeIPTablesUtilChains", Idle),
    ("maxOpenFiles", Sets(|c, v| { c.max_open_files = Some(number::<i64>(v)?.try_into().map_err(|_| FieldError::Negative)?); Ok(()) })),
    ("maxParallelImagePulls", Sets(|c, v| {
        c.max_parallel_pulls = number(v)?;
        if c.max_parallel_pulls == 0 { Err(FieldError::OutOfRange("a positive number")) } else { Ok(()) }
    })),
    ("maxPods", set!(max_pods = number)),
    ("memoryManagerPolicy", Sets(|c, v| {
        c.managers.memory_policy = one_of(v, &["None", "Static"], "None or Static")?;
        Ok(())
    })),
    ("memorySwap.swapBehavior", Sets(|c, v| {
        c.swap_behavior = match v.as_str() {
            Some("" | "NoSwap") => SwapBehavior::NoSwap,
            Some("LimitedSwap") => SwapBehavior::LimitedSwap,
            _ => return Err(FieldError::SwapBehavior(v.clone())),
        };
        Ok(())
    })),
    ("memoryThrottlingFactor", Sets(|c, v| {
        let factor = v.as_f64().ok_or_else(|| FieldError::Expected { what: "a number", found: v.clone() })?;
        if factor <= 0.0 || factor > 1.0 { return Err(FieldError::OutOfRange("greater than 0 and less than or equal to 1.0")) }
        c.memory_throttling_factor = factor;
        Ok(())
    })),
    // Applied after all others: `Configuration::settle`.
    ("mergeDefaultEvictionSettings", Sets(|_, v| flag(v).map(drop))),
    ("nodeLeaseDurationSeconds", Sets(|c, v| {
        c.lease_seconds = number(v)?;
        if c.lease_seconds <= 0 { return Err(FieldError::OutOfRange("greater than 0")) }
        c.lease_renew_interval = Duration::from_secs_f64(f64::from(c.lease_seconds) / 4.0);
        Ok(())
    })),
    ("nodeStatusMaxImages", Sets(|c, v| {
        // -1 is without a limit.
        c.max_reported_images = usize::try_from(number::<i64>(v)?).unwrap_or(usize::MAX);
        Ok(())
    })),
    ("nodeStatusReportFrequency", set!(status_report_interval = duration)),
    ("nodeStatusUpdateFrequency", set!(status_update_interval = duration)),
    ("oomScoreAdj", Sets(|c, v| {
        let score: i32 = number(v)?;
        c.oom_score_adj = Some(score);
        if (-1000..=1000).contains(&score) { Ok(()) } else { Err(FieldError::OutOfRange("between -1000 and 1000, inclusive")) }
    })),
    ("podCIDR", Sets(|c, v| { c.pod_cidr = Some(text(v)?).filter(|t| !t.is_empty()); Ok(()) })),
    ("podLogsDir", Sets(|c, v| { c.pod_logs = Some(text(v)?.into()); Ok(()) })),
    ("podPidsLimit", Sets(|c, v| { c.pod_pids_limit = Some(number::<i64>(v)?).filter(|n| *n > 0); Ok(()) })),
    ("podsPerCore", set!(pods_per_core = number)),
    ("port", set!(port = number)),
    ("preloadedImagesVerificationAllowlist", Sets(|c, v| {
        c.image_verification_allowlist = texts(v)?;
        let wrong = c.image_verification_allowlist.iter().find_map(|pattern| check_allowlisted(pattern).err());
        wrong.map_or(Ok(()), |why| Err(FieldError::OutOfRange(why)))
    })),
    ("protectKernelDefaults", Sets(|c, v| { c.protect_kernel_defaults = Some(flag(v)?); Ok(()) })),
    ("providerID", set!(provider_id = text)),
    ("qosReserved", Only(&["{}"], "it requires feature gate QOSReserved")),
    ("readOnlyPort", set!(read_only_port = number)),
    ("registerNode", set!(register_node = flag)),
    ("registerWithTaints", Sets(|c, v| {
        for taint in list(v)? {
            let known = ["key", "value", "effect", "timeAdded"];
            if let Some(other) = taint.as_object().and_then(|t| t.keys().find(|k| !known.contains(&k.as_str()))) {
                return Err(FieldError::UnknownField(other.clone()));
            }
        }
        c.taints = serde_json::from_value(v.clone()).map_err(FieldError::Taints)?;
        Ok(())
    })),
    // Applied after all others: `Configuration::settle`.
    ("registryBurst", Sets(|_, v| number::<u32>(v).map(drop))),
    ("registryPullQPS", Sets(|_, v| number::<u32>(v).map(drop))),
    ("reservedMemory", Sets(|c, v| { c.managers.reserved_memory = parse_reserved_memory(v)?; Ok(()) })),
    // Takes the place of the processors that are reserved for system and node: `Configuration::settle`.
    ("reservedSystemCPUs", Sets(|c, v| {
        let list = text(v)?;
        c.managers.reserved_cpus = CpuSet::parse(&list).map_err(|source| FieldError::ReservedCpus { list, source })?;
        Ok(())
    })),
    ("resolvConf", set!(resolv_conf = |v| text(v).map(Into::into))),
    ("rotateCertificates", Elsewhere),
    ("runOnce", Only(&["false"], "run-once mode was removed upstream too")),
    ("runtimeRequestTimeout", set!(runtime_request_timeout = duration)),
    ("seccompDefault", set!(seccomp_default = flag)),
    ("serializeImagePulls", Sets(|_, v| flag(v).map(drop))),
    ("serverTLSBootstrap", Elsewhere),
    ("showHiddenMetricsForVersion", Only(&[""], "no metrics are hidden")),
    // Applied after all others: `Configuration::settle`.
    ("shutdownGracePeriod", Sets(|_, v| shutdown_period(v))),
    ("shutdownGracePeriodByPodPriority", Sets(|c, v| {
        c.shutdown_grace_periods = ShutdownGracePeriods::by_priority(priority_periods(v)?);
        Ok(())
    })),
    ("shutdownGracePeriodCriticalPods", Sets(|_, v| shutdown_period(v))),
    ("singleProcessOOMKill", Sets(|c, v| { c.single_process_oom_kill = Some(flag(v)?); Ok(()) })),
    ("staticPodPath", Sets(|c, v| { c.manifest_dir = Some(text(v)?).filter(|t| !t.is_empty()).map(Into::into); Ok(()) })),
    ("staticPodURL", Sets(|c, v| { c.manifest_url = Some(text(v)?).filter(|t| !t.is_empty()); Ok(()) })),
    ("staticPodURLHeader", Sets(|c, v| {
        let Some(headers) = v.as_object() else { return Err(FieldError::NotMap) };
        for (name, values) in headers {
            c.manifest_url_headers.extend(texts(values)?.into_iter().map(|value| (name.clone(), value)));
        }
        Ok(())
    })),
    // As upstream: the runtime closes idle streams.
    ("streamingConnectionIdleTimeout", Idle),
    ("syncFrequency", Sets(|c, v| {
        let interval = duration(v)?;
        c.sync_interval = Some(interval).filter(|interval| !interval.is_zero());
        if interval.is_zero() || interval >= Duration::from_secs(1) { Ok(()) } else { Err(FieldError::OutOfRange("at least 1s")) }
    })),
    ("systemCgroups", Only(&[""], "the system's processes stay where they are")),
    ("systemReserved", Sets(|c, v| {
        c.system_reserved.reserved = reserved(v)?;
        c.reserved = c.reserved.plus(c.system_reserved.reserved);
        Ok(())
    })),
    ("systemReservedCgroup", Sets(|c, v| { c.system_reserved.name = text(v)?; Ok(()) })),
    ("tlsCertFile", Elsewhere),
    ("tlsCipherSuites", Sets(|c, v| {
        c.tls_cipher_suites = texts(v)?;
        let unknown = c.tls_cipher_suites.iter().find(|name| !serve::is_cipher_suite(name));
        unknown.map_or(Ok(()), |name| Err(FieldError::CipherSuite(name.clone())))
    })),
    ("tlsMinVersion", Sets(|c, v| {
        c.tls_13_only = match v.as_str() {
            Some("" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12") => false,
            Some("VersionTLS13") => true,
            _ => return Err(FieldError::NotAmong { value: v.to_string(), choices: "VersionTLS12 or VersionTLS13" }),
        };
        Ok(())
    })),
    ("tlsPrivateKeyFile", Elsewhere),
    ("topologyManagerPolicy", Sets(|c, v| {
        c.managers.topology_policy = Some(text(v)?).filter(|t| !t.is_empty()).unwrap_or_else(|| "none".into());
        Ok(())
    })),
    ("topologyManagerPolicyOptions", Sets(|c, v| { c.managers.topology_options = map(v)?; Ok(()) })),
    ("topologyManagerScope", Sets(|c, v| {
        c.managers.topology_scope = Some(text(v)?).filter(|t| !t.is_empty()).unwrap_or_else(|| "container".into());
        Ok(())
    })),
    ("tracing", Only(&["{}"], "spans go to the log, and nowhere else")),
    ("userNamespaces.idsPerPod", Sets(|c, v| {
        c.user_namespace_ids = number(v)?;
        match c.user_namespace_ids {
            ids if ids < UNIT_IDS => Err(FieldError::OutOfRange("not less than 65536")),
            ids if !ids.is_multiple_of(UNIT_IDS) => Err(FieldError::OutOfRange("a multiple of 65536")),
            _ => Ok(()),
        }
    })),
    ("volumePluginDir", Only(&["", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"], "there are no FlexVolume plugins")),
    ("volumeStatsAggPeriod", Sets(|c, v| {
        // Less than nothing: no driver is asked.
        let negative = v.as_str().and_then(|text| parse_duration(text.strip_prefix('-')?));
        c.volume_stats_period = match negative {
            Some(_) => None,
            None => Some(duration(v)?).map(|period| if period.is_zero() { VOLUME_STATS_PERIOD_DEFAULT } else { period }),
        };
        Ok(())
    })),
];

/// Known signals only, and the words are kept for messages.
fn thresholds(target: &mut std::collections::BTreeMap<String, String>, value: &Value) -> Result<(), FieldError> {
    let wanted = map(value)?;
    crate::resources::eviction::parse(&wanted, &Default::default(), &Default::default())?;
    *target = wanted;
    Ok(())
}

/// The log is opened before the file is read; how much goes there can change at any time.
fn logging(config: &mut Config, value: &Value) -> Result<(), FieldError> {
    let Some(fields) = value.as_object() else { return Err(FieldError::NotMap) };
    if let Some(verbosity) = fields.get("verbosity").filter(|value| !value.is_null()) {
        config.log_verbosity = Some(number(verbosity)?).filter(|level| *level > 0);
    }
    let usual = |name: &str, value: &Value| match name {
        "format" => matches!(value.as_str(), Some("" | "text")),
        "verbosity" => true,
        "vmodule" => value.as_array().is_some_and(Vec::is_empty),
        // Nothing is held back, so that there is nothing to flush and no buffer to size.
        "flushFrequency" | "options" => true,
        _ => false,
    };
    match fields.iter().find(|(name, value)| !value.is_null() && !usual(name, value)) {
        None => Ok(()),
        Some((name, value)) => Err(FieldError::Unsupported {
            value: format!("{name} {value}"),
            reason: "use --logging-format: the log is opened before this file is read",
        }),
    }
}

fn shutdown_period(value: &Value) -> Result<(), FieldError> {
    let period = duration(value)?;
    match period.is_zero() || period >= Duration::from_secs(1) {
        true => Ok(()),
        false => Err(FieldError::OutOfRange("either zero or otherwise >= 1 sec")),
    }
}

fn priority_periods(value: &Value) -> Result<Vec<PriorityGracePeriod>, FieldError> {
    let row = |row: &Value| {
        let Some(fields) = row.as_object() else { return Err(FieldError::NotMap) };
        if let Some(other) =
            fields.keys().find(|key| !["priority", "shutdownGracePeriodSeconds"].contains(&key.as_str()))
        {
            return Err(FieldError::UnknownField(other.clone()));
        }
        let number_of = |name: &str| fields.get(name).map_or(Ok(0), number::<i64>);
        Ok(PriorityGracePeriod {
            priority: i32::try_from(number_of("priority")?).map_err(|_| FieldError::OutOfRange("a priority"))?,
            grace_period_seconds: number_of("shutdownGracePeriodSeconds")?,
        })
    };
    list(value)?.iter().map(row).collect()
}

/// One of these texts; an empty one is the first.
fn one_of(value: &Value, possible: &[&str], choices: &'static str) -> Result<String, FieldError> {
    let text = text(value)?;
    match possible.iter().find(|known| **known == text || text.is_empty()) {
        Some(known) => Ok(known.to_string()),
        None => Err(FieldError::NotAmong { value: text, choices }),
    }
}

/// Requests per second, or at once.
fn rate(value: &Value) -> Result<u32, FieldError> {
    u32::try_from(number::<i64>(value)?).map_err(|_| FieldError::OutOfRange("a number that is not negative"))
}

fn percent(value: &Value) -> Result<u8, FieldError> {
    let percent: u8 = number(value)?;
    if percent > 100 { Err(FieldError::OutOfRange("between 0 and 100, inclusive")) } else { Ok(percent) }
}

fn reserved(value: &Value) -> Result<Reserved, FieldError> {
    let mut sum = Reserved::default();
    for (name, amount) in map(value)? {
        match name.as_str() {
            "cpu" => sum.cpu_milli = milli(&amount)?,
            "memory" => sum.memory_bytes = bytes(&amount)?,
            "ephemeral-storage" => sum.ephemeral_bytes = bytes(&amount)?,
            "pid" => sum.pids = bytes(&amount)?,
            other => return Err(FieldError::NotReservable(other.into())),
        }
    }
    Ok(sum)
}
