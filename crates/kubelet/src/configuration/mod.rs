//! The KubeletConfiguration file (`kubelet.config.k8s.io/v1beta1`): read strictly, then applied to a `Config`.
//! Used by `minke` for `--config`; flags are laid over the file by the same field names, so one table checks both.
//! A field that is unknown, of the wrong type, or not to be had here is refused by name; none is dropped.

pub mod error;
pub mod feature_gates;
mod fields;
pub mod live;
mod settings;
mod values;

use std::path::Path;

use serde_json::{Map, Value};

use crate::{
    config::Config,
    images::image_manager::{PullRate, pull_records::Verification},
    node::node_shutdown::ShutdownGracePeriods,
};
use error::{ConfigurationError, FieldError};
use feature_gates::{
    CRASH_LOOP_BACK_OFF_MAX, ENSURE_SECRET_PULLED_IMAGES, GRACEFUL_NODE_SHUTDOWN, GRACEFUL_NODE_SHUTDOWN_BY_PRIORITY,
    NODE_LOG_QUERY, ROTATE_SERVER_CERTIFICATE,
};
use fields::{FIELDS, Meaning};
pub use values::parse_duration;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

/// The fields of a file, with flags laid over them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Configuration(Map<String, Value>);

impl Configuration {
    pub fn load(path: &Path) -> Result<Self, ConfigurationError> {
        let text = std::fs::read_to_string(path).map_err(ConfigurationError::from);
        let loaded = text.and_then(|text| Self::parse(&text));
        loaded.map_err(|source| ConfigurationError::Load { path: path.into(), source: Box::new(source) })
    }

    /// YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, ConfigurationError> {
        let options = serde_saphyr::options! { legacy_octal_numbers: true };
        let document: Value = serde_saphyr::from_str_with_options(text, options)
            .map_err(|error| ConfigurationError::Syntax(error.to_string()))?;
        let Value::Object(mut fields) = document else { return Err(ConfigurationError::NotObject) };
        for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            match fields.remove(field) {
                Some(Value::String(found)) if found == wanted => {}
                Some(found) => return Err(ConfigurationError::OtherKind { field, found, wanted }),
                None => return Err(ConfigurationError::NoKind { field, wanted }),
            }
        }
        let unknown = unknown(&fields);
        match unknown.is_empty() {
            true => Ok(Self(fields)),
            false => Err(ConfigurationError::UnknownFields(unknown)),
        }
    }

    /// A further file: what it says holds, and what it leaves out stays.
    pub fn lay_over(&mut self, other: Self) {
        merge(&mut self.0, other.0);
    }

    /// A flag: replaces what the file says. `path` has dots where fields are nested.
    pub fn set(&mut self, path: &str, value: Value) {
        let mut parts: Vec<&str> = path.split('.').collect();
        let last = parts.pop().unwrap_or_default();
        let mut place = &mut self.0;
        for part in parts {
            let next = place.entry(part).or_insert_with(|| Value::Object(Map::new()));
            if !next.is_object() {
                *next = Value::Object(Map::new());
            }
            let Value::Object(inner) = next else { return };
            place = inner;
        }
        place.insert(last.into(), value);
    }

    pub fn get(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let first = self.0.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    }

    /// Gives every field its effect. Returns the names of those that have none here.
    pub fn apply(&self, config: &mut Config) -> Result<Vec<&'static str>, ConfigurationError> {
        let mut idle = Vec::new();
        for (name, meaning) in FIELDS {
            let Some(value) = self.get(name).filter(|v| !v.is_null()) else { continue };
            match meaning {
                Meaning::Sets(set) => {
                    set(config, value).map_err(|source| ConfigurationError::Field { name, source })?
                }
                Meaning::Only(possible, reason) => {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
                    if !possible.contains(&text.as_str()) {
                        let source = FieldError::Unsupported { value: text, reason };
                        return Err(ConfigurationError::Field { name, source });
                    }
                }
                Meaning::Idle => idle.push(*name),
                Meaning::Elsewhere => {}
            }
        }
        self.settle(config)?;
        config.given = self.clone();
        Ok(idle)
    }

    /// Fields that need a gate which was turned off, or is off unless turned on.
    fn check_gates(&self, config: &mut Config) -> Result<(), ConfigurationError> {
        let empty = |value: &Value| {
            matches!(value.as_str(), Some("0s" | "0" | ""))
                || value.as_array().is_some_and(Vec::is_empty)
                || value == &Value::Bool(false)
        };
        for (name, gate) in [
            ("shutdownGracePeriod", GRACEFUL_NODE_SHUTDOWN),
            ("shutdownGracePeriodCriticalPods", GRACEFUL_NODE_SHUTDOWN),
            ("shutdownGracePeriodByPodPriority", GRACEFUL_NODE_SHUTDOWN_BY_PRIORITY),
            ("crashLoopBackOff.maxContainerRestartPeriod", CRASH_LOOP_BACK_OFF_MAX),
            ("imagePullCredentialsVerificationPolicy", ENSURE_SECRET_PULLED_IMAGES),
            ("enableSystemLogQuery", NODE_LOG_QUERY),
            ("serverTLSBootstrap", ROTATE_SERVER_CERTIFICATE),
        ] {
            let given = self.get(name).is_some_and(|value| !value.is_null() && !empty(value));
            if given && !config.feature_gates.enabled(gate) {
                return Err(ConfigurationError::RequiresGate { name, gate });
            }
        }
        if config.system_log_query && !config.system_log_handler {
            return Err(ConfigurationError::LogQueryWithoutHandler);
        }
        if !config.feature_gates.enabled(ENSURE_SECRET_PULLED_IMAGES) {
            config.image_verification = Verification::Never;
        }
        Ok(())
    }

    /// Of the two the rate decides whether there is a limit at all.
    fn settle_pull_rate(&self, config: &mut Config) -> Result<(), ConfigurationError> {
        let number = |name: &str| self.get(name).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        let (Some(per_second), burst) = (number("registryPullQPS"), number("registryBurst").unwrap_or(10)) else {
            return Ok(());
        };
        if per_second == 0 {
            return Ok(());
        }
        if burst == 0 {
            return Err(ConfigurationError::RegistryBurst { burst });
        }
        config.image_pull_rate = Some(PullRate { per_second, burst });
        Ok(())
    }

    fn settle_shutdown(&self, config: &mut Config) -> Result<(), ConfigurationError> {
        let period = |name: &str| self.get(name).and_then(Value::as_str).and_then(parse_duration).unwrap_or_default();
        let (whole, critical) = (period("shutdownGracePeriod"), period("shutdownGracePeriodCriticalPods"));
        if critical > whole {
            return Err(ConfigurationError::CriticalShutdownPeriod { whole, critical });
        }
        match (config.shutdown_grace_periods.is_empty(), whole.is_zero()) {
            (false, false) => return Err(ConfigurationError::TwoShutdownPeriods),
            (true, false) => config.shutdown_grace_periods = ShutdownGracePeriods::of_whole(whole, critical),
            (_, true) => {}
        }
        Ok(())
    }

    /// Rules that concern several fields.
    fn settle(&self, config: &mut Config) -> Result<(), ConfigurationError> {
        if self.get("serializeImagePulls") == Some(&Value::Bool(true)) {
            if config.max_parallel_pulls > 1 && self.get("maxParallelImagePulls").is_some() {
                return Err(ConfigurationError::ParallelPulls);
            }
            config.max_parallel_pulls = 1;
        }
        if self.get("mergeDefaultEvictionSettings") == Some(&Value::Bool(true)) {
            for (signal, least) in Config::default().eviction_hard {
                config.eviction_hard.entry(signal).or_insert(least);
            }
        }
        self.check_gates(config)?;
        self.settle_shutdown(config)?;
        self.settle_pull_rate(config)?;
        settings::settle_rates(self, config);
        settings::settle_enforcement(self, config).map_err(ConfigurationError::Managers)?;
        if self.get("nodeStatusReportFrequency").is_none() && self.get("nodeStatusUpdateFrequency").is_some() {
            config.status_report_interval = config.status_update_interval;
        }
        let gates = &config.feature_gates;
        config.managers.set_gates(|name| gates.enabled(name));
        config.memory_qos = gates.enabled("MemoryQoS");
        config.managers.check().map_err(ConfigurationError::Managers)?;
        if !config.managers.reserved_cpus.is_empty() {
            config.reserved.cpu_milli = config.managers.reserved_cpus.len() as i64 * 1000;
        }
        if config.image_gc_low_percent >= config.image_gc_high_percent
            && self.get("imageGCLowThresholdPercent").is_some()
        {
            return Err(ConfigurationError::ImageGcPercents {
                high_percent: config.image_gc_high_percent,
                low_percent: config.image_gc_low_percent,
            });
        }
        Ok(())
    }
}

fn merge(fields: &mut Map<String, Value>, over: Map<String, Value>) {
    for (name, value) in over {
        match (fields.get_mut(&name), value) {
            (Some(Value::Object(inner)), Value::Object(value)) => merge(inner, value),
            (_, value) => drop(fields.insert(name, value)),
        }
    }
}

fn unknown(fields: &Map<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, value) in fields {
        let nested = format!("{name}.");
        if FIELDS.iter().any(|(known, _)| known == name) {
            continue;
        }
        if !FIELDS.iter().any(|(known, _)| known.starts_with(&nested)) {
            found.push(format!("unknown field {name:?}"));
            continue;
        }
        found.extend(leaves(name, value).into_iter().filter_map(|path| {
            let known = FIELDS.iter().any(|(known, _)| *known == path || known.starts_with(&format!("{path}.")));
            (!known).then(|| format!("unknown field {path:?}"))
        }));
    }
    found
}

/// Paths of everything below a nested field, down to what the table has.
fn leaves(path: &str, value: &Value) -> Vec<String> {
    match value {
        Value::Object(inner) if !FIELDS.iter().any(|(known, _)| *known == path) => {
            inner.iter().flat_map(|(name, value)| leaves(&format!("{path}.{name}"), value)).collect()
        }
        _ => vec![path.to_string()],
    }
}

#[cfg(test)]
mod effects_tests;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn apply(text: &str) -> Result<Config, ConfigurationError> {
        let mut config = Config::default();
        Configuration::parse(&format!("{HEAD}{text}"))?.apply(&mut config)?;
        Ok(config)
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let check = |text: &str, expected: &str| {
            let error = apply(text).map(|_| ()).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        };
        check("maxPodz: 3\n", "strict decoding error: unknown field \"maxPodz\"");
        check("authentication: {x509: {caFile: a}}\n", "unknown field \"authentication.x509.caFile\"");
        check("maxPods: many\n", "maxPods: expected a whole number, found \"many\"");
        check("syncFrequency: 5\n", "syncFrequency: expected a duration");
        check("featureGates: {Nonsense: true}\n", "featureGates: unrecognized feature gate: Nonsense");
        check("enableSystemLogQuery: true\n", "enableSystemLogQuery requires feature gate NodeLogQuery");
        let off = "featureGates: {GracefulNodeShutdown: false}\nshutdownGracePeriod: 10s\n";
        check(off, "shutdownGracePeriod requires feature gate GracefulNodeShutdown");
        check("shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 20s\n", "must be <= shutdownGracePeriod 10s");
        check("shutdownGracePeriod: 10ms\n", "either zero or otherwise >= 1 sec");
        let both = "shutdownGracePeriod: 10s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 2}]\n";
        check(both, "Cannot specify both");
        check("shutdownGracePeriodByPodPriority: [{priorty: 1}]\n", "unknown field \"priorty\"");
        check("tlsCipherSuites: [TLS_RSA_WITH_RC4_128_SHA]\n", "Cipher suite TLS_RSA_WITH_RC4_128_SHA not supported");
        check("logging: {format: json}\n", "use --logging-format: the log is opened");
        check("logging: {verbosity: much}\n", "logging: expected a whole number");
        check("preloadedImagesVerificationAllowlist: ['r/a:1']\n", "an image without tag and digest");
        check("enableContentionProfiling: true\n", "there is no profiling");
        check("cpuManagerPolicy: magic\n", "cpuManagerPolicy: magic is not supported");
        check("memoryManagerPolicy: Some\n", "memoryManagerPolicy: Some is not supported: use None or Static");
        check(
            "topologyManagerScope: node\n",
            "invalid configuration: topologyManagerScope (--topology-manager-scope) \"node\"",
        );
        let parse = "unable to parse reservedSystemCPUs (--reserved-cpus) 1-x, error: strconv.Atoi: parsing \"x\"";
        check("reservedSystemCPUs: 1-x\n", parse);
        let swap = "memorySwap.swapBehavior \"Unlimited\" must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"";
        check("memorySwap: {swapBehavior: Unlimited}\n", swap);
        check("memoryThrottlingFactor: 1.5\n", "must be greater than 0 and less than or equal to 1.0");
        let twice = "[{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 0, limits: {memory: 1Gi}}]";
        check(&format!("reservedMemory: {twice}\n"), "the reserved memory has a duplicate value for NUMA node 0");
        check("evictionHard: {disk: 5%}\n", "unsupported eviction signal disk");
        check("imageGCHighThresholdPercent: 50\nimageGCLowThresholdPercent: 60\n", "must be greater than");
        check("registerWithTaints: [{key: a, efect: NoSchedule}]\n", "registerWithTaints: ");
        check("clusterDNS: [ten]\n", "clusterDNS: ");
        let other = Configuration::parse("kind: KubeletConfiguration\napiVersion: v1\n");
        assert!(other.unwrap_err().to_string().contains("not \"kubelet.config.k8s.io/v1beta1\""));
        let twice = Configuration::parse(&format!("{HEAD}maxPods: 1\nmaxPods: 2\n"));
        assert!(twice.is_err(), "a field given twice");
    }

    #[test]
    fn fields_have_their_effect() {
        let config = apply(
            "maxPods: 20\nclusterDNS: [10.0.0.10]\nclusterDomain: x.y\nstaticPodPath: /m\nhealthzPort: 0\n\
             cgroupDriver: systemd\nnodeLeaseDurationSeconds: 20\nnodeStatusUpdateFrequency: 4s\n\
             systemReserved: {cpu: 200m, memory: 1Gi}\nkubeReserved: {cpu: 100m, ephemeral-storage: 1Gi}\n\
             evictionHard: {memory.available: 5%}\nregisterWithTaints: [{key: a, effect: NoSchedule}]\n\
             containerLogMaxSize: 1Mi\npodPidsLimit: 100\nserializeImagePulls: true\nseccompDefault: true\n\
             crashLoopBackOff: {maxContainerRestartPeriod: 30s}\nauthentication: {anonymous: {enabled: true}}\n\
             authorization: {mode: AlwaysAllow}\nimageMinimumGCAge: 1m30s\nenforceNodeAllocatable: [none]\n",
        )
        .unwrap();
        assert_eq!((config.max_pods, config.healthz_port, config.max_parallel_pulls), (20, 0, 1));
        assert_eq!(config.cluster_dns, ["10.0.0.10".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(config.cgroup_driver, crate::config::CgroupDriver::Systemd);
        assert_eq!((config.lease_seconds, config.lease_renew_interval), (20, Duration::from_secs(5)));
        assert_eq!(config.status_report_interval, Duration::from_secs(4), "follows the update frequency");
        assert_eq!((config.reserved.cpu_milli, config.reserved.memory_bytes), (300, 1 << 30));
        assert_eq!(config.reserved.ephemeral_bytes, 1 << 30);
        assert_eq!(config.eviction_hard.len(), 1, "the others are off unless merging is asked for");
        assert_eq!(config.taints[0].effect, "NoSchedule");
        assert_eq!((config.container_log_max_bytes, config.pod_pids_limit), (1 << 20, Some(100)));
        assert!(config.seccomp_default && config.anonymous_auth && config.always_allow);
        assert!(!config.enforce_node_allocatable);
        assert_eq!(config.crash_backoff_max, Duration::from_secs(30));
        assert_eq!(config.image_min_age, Duration::from_secs(90));
        let more = apply(
            "featureGates: {NodeLogQuery: true, KubeletEnsureSecretPulledImages: false}\nenableSystemLogQuery: true\n\
             shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\nsyncFrequency: 90s\nregistryPullQPS: 5\n\
             tlsMinVersion: VersionTLS13\ntlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]\nmaxOpenFiles: 1000\n\
             logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}}, verbosity: 0}\noomScoreAdj: -999\n",
        )
        .unwrap();
        assert!(more.system_log_query && more.tls_13_only);
        assert_eq!(more.shutdown_grace_periods.total(), Duration::from_secs(30));
        assert_eq!((more.sync_interval, more.oom_score_adj), (Some(Duration::from_secs(90)), Some(-999)));
        assert_eq!(more.image_pull_rate, Some(PullRate { per_second: 5, burst: 10 }));
        assert_eq!(more.image_verification, Verification::Never);
        let managers = apply(
            "cpuManagerPolicy: static\nkubeReserved: {cpu: 100m}\nreservedSystemCPUs: 0-1\ncpuManagerReconcilePeriod: 5s\n\
             topologyManagerPolicy: restricted\ntopologyManagerScope: pod\nmemoryManagerPolicy: Static\n\
             reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\nmemorySwap: {swapBehavior: LimitedSwap}\n\
             featureGates: {CPUManagerPolicyAlphaOptions: true, MemoryQoS: true}\n",
        )
        .unwrap();
        assert_eq!((managers.reserved.cpu_milli, managers.managers.reserved_cpus.len()), (2000, 2));
        assert_eq!(managers.managers.cpu_reconcile_interval, Duration::from_secs(5));
        assert!(managers.managers.cpu_option_gates.alpha && managers.memory_qos);
        assert_eq!(managers.managers.reserved_memory.len(), 1);
        let merged = apply("mergeDefaultEvictionSettings: true\nevictionHard: {memory.available: 5%}\n").unwrap();
        assert_eq!((merged.eviction_hard.len(), merged.eviction_hard["memory.available"].as_str()), (5, "5%"));
    }

    #[test]
    fn flags_are_laid_over_the_file() {
        let mut configuration = Configuration::parse(&format!("{HEAD}maxPods: 20\npodsPerCore: 4\n")).unwrap();
        configuration.set("maxPods", json!(30));
        configuration.set("authentication.x509.clientCAFile", json!("/ca"));
        let mut config = Config::default();
        configuration.apply(&mut config).unwrap();
        assert_eq!((config.max_pods, config.pods_per_core), (30, 4));
        assert_eq!(configuration.get("authentication.x509.clientCAFile"), Some(&json!("/ca")));
    }

    #[test]
    fn further_files_keep_what_they_leave_out() {
        let mut configuration = Configuration::parse(&format!(
            "{HEAD}maxPods: 20\nauthorization: {{mode: Webhook}}\nclusterDNS: [10.0.0.1]\n"
        ))
        .unwrap();
        let over = "authorization: {webhook: {cacheAuthorizedTTL: 1s}}\nclusterDNS: [10.0.0.2]\n";
        configuration.lay_over(Configuration::parse(&format!("{HEAD}{over}")).unwrap());
        assert_eq!(configuration.get("maxPods"), Some(&json!(20)));
        assert_eq!(configuration.get("authorization.mode"), Some(&json!("Webhook")));
        assert_eq!(configuration.get("authorization.webhook.cacheAuthorizedTTL"), Some(&json!("1s")));
        assert_eq!(configuration.get("clusterDNS"), Some(&json!(["10.0.0.2"])));
    }

    #[test]
    fn no_field_has_two_rows() {
        let mut names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FIELDS.len(), "a row is there twice");
    }
}
