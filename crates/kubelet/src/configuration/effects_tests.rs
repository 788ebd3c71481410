//! What every field of KubeletConfiguration does: acts, or is refused with a reason, or upstream ignores it too.
//! Upstream's whole configuration with its defaults written out, as `kubectl get --raw …/configz` shows it, is a file.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    Configuration,
    error::ConfigurationError,
    fields::{FIELDS, Meaning},
};
use crate::config::Config;

/// What upstream ignores, and rules of iptables, which there are none of.
const IGNORED: [&str; 6] = [
    "hairpinMode",
    "iptablesDropBit",
    "iptablesMasqueradeBit",
    "kernelMemcgNotification",
    "makeIPTablesUtilChains",
    "streamingConnectionIdleTimeout",
];

/// Read by whoever starts the node: files of certificates, and the runtime's socket.
const OF_THE_STARTER: [&str; 6] = [
    "authentication.x509.clientCAFile",
    "containerRuntimeEndpoint",
    "rotateCertificates",
    "serverTLSBootstrap",
    "tlsCertFile",
    "tlsPrivateKeyFile",
];

/// Fields with a value that is not the default, in JSON; of several, the first is the field's own and the others are
/// what it needs beside it.
#[rustfmt::skip]
const ACTING: &[(&str, &str)] = &[
    ("address", r#"{"address": "127.0.0.1"}"#),
    ("allowedUnsafeSysctls", r#"{"allowedUnsafeSysctls": ["kernel.msg*"]}"#),
    ("authentication.anonymous.enabled", r#"{"authentication": {"anonymous": {"enabled": true}}}"#),
    ("authentication.webhook.cacheTTL", r#"{"authentication": {"webhook": {"cacheTTL": "7s"}}}"#),
    ("authentication.webhook.enabled", r#"{"authentication": {"webhook": {"enabled": false}}}"#),
    ("authorization.mode", r#"{"authorization": {"mode": "AlwaysAllow"}}"#),
    ("authorization.webhook.cacheAuthorizedTTL", r#"{"authorization": {"webhook": {"cacheAuthorizedTTL": "7s"}}}"#),
    ("authorization.webhook.cacheUnauthorizedTTL", r#"{"authorization": {"webhook": {"cacheUnauthorizedTTL": "7s"}}}"#),
    ("cgroupDriver", r#"{"cgroupDriver": "systemd"}"#),
    ("cgroupRoot", r#"{"cgroupRoot": "/pods"}"#),
    ("clusterDNS", r#"{"clusterDNS": ["10.0.0.10"]}"#),
    ("clusterDomain", r#"{"clusterDomain": "x.y"}"#),
    ("containerLogMaxFiles", r#"{"containerLogMaxFiles": 3}"#),
    ("containerLogMaxSize", r#"{"containerLogMaxSize": "1Mi"}"#),
    ("containerLogMaxWorkers", r#"{"containerLogMaxWorkers": 2}"#),
    ("containerLogMonitorInterval", r#"{"containerLogMonitorInterval": "3s"}"#),
    ("cpuCFSQuota", r#"{"cpuCFSQuota": false}"#),
    ("cpuManagerPolicy", r#"{"cpuManagerPolicy": "static", "systemReserved": {"cpu": "1"}}"#),
    ("cpuManagerPolicyOptions", r#"{"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}, "cpuManagerPolicy": "static", "systemReserved": {"cpu": "1"}}"#),
    ("cpuManagerReconcilePeriod", r#"{"cpuManagerReconcilePeriod": "3s"}"#),
    ("crashLoopBackOff.maxContainerRestartPeriod", r#"{"crashLoopBackOff": {"maxContainerRestartPeriod": "7s"}}"#),
    ("enableDebugFlagsHandler", r#"{"enableDebugFlagsHandler": false}"#),
    ("enableDebuggingHandlers", r#"{"enableDebuggingHandlers": false}"#),
    ("enableProfilingHandler", r#"{"enableProfilingHandler": false}"#),
    ("enableServer", r#"{"enableServer": false}"#),
    ("enableSystemLogHandler", r#"{"enableSystemLogHandler": false}"#),
    ("enableSystemLogQuery", r#"{"enableSystemLogQuery": true, "featureGates": {"NodeLogQuery": true}}"#),
    ("enforceNodeAllocatable", r#"{"enforceNodeAllocatable": ["none"]}"#),
    ("eventBurst", r#"{"eventBurst": 7}"#),
    ("eventRecordQPS", r#"{"eventRecordQPS": 7}"#),
    ("evictionHard", r#"{"evictionHard": {"memory.available": "7Mi"}}"#),
    ("evictionMaxPodGracePeriod", r#"{"evictionMaxPodGracePeriod": 7}"#),
    ("evictionMinimumReclaim", r#"{"evictionMinimumReclaim": {"memory.available": "7Mi"}}"#),
    ("evictionPressureTransitionPeriod", r#"{"evictionPressureTransitionPeriod": "7s"}"#),
    ("evictionSoft", r#"{"evictionSoft": {"memory.available": "1Gi"}, "evictionSoftGracePeriod": {"memory.available": "7s"}}"#),
    ("evictionSoftGracePeriod", r#"{"evictionSoftGracePeriod": {"memory.available": "7s"}, "evictionSoft": {"memory.available": "1Gi"}}"#),
    ("failCgroupV1", r#"{"failCgroupV1": true}"#),
    ("failSwapOn", r#"{"failSwapOn": true}"#),
    ("featureGates", r#"{"featureGates": {"MemoryQoS": true}}"#),
    ("fileCheckFrequency", r#"{"fileCheckFrequency": "7s"}"#),
    ("healthzBindAddress", r#"{"healthzBindAddress": "0.0.0.0"}"#),
    ("healthzPort", r#"{"healthzPort": 7}"#),
    ("httpCheckFrequency", r#"{"httpCheckFrequency": "7s"}"#),
    ("imageGCHighThresholdPercent", r#"{"imageGCHighThresholdPercent": 90}"#),
    ("imageGCLowThresholdPercent", r#"{"imageGCLowThresholdPercent": 7}"#),
    ("imageMaximumGCAge", r#"{"imageMaximumGCAge": "7m"}"#),
    ("imageMinimumGCAge", r#"{"imageMinimumGCAge": "7m"}"#),
    ("imagePullCredentialsVerificationPolicy", r#"{"imagePullCredentialsVerificationPolicy": "AlwaysVerify"}"#),
    ("imageServiceEndpoint", r#"{"imageServiceEndpoint": "unix:///i.sock"}"#),
    ("kubeAPIBurst", r#"{"kubeAPIBurst": 7}"#),
    ("kubeAPIQPS", r#"{"kubeAPIQPS": 7}"#),
    ("kubeReserved", r#"{"kubeReserved": {"cpu": "7m"}}"#),
    ("kubeReservedCgroup", r#"{"kubeReservedCgroup": "/k"}"#),
    ("kubeletCgroups", r#"{"kubeletCgroups": "/kubelet"}"#),
    ("localStorageCapacityIsolation", r#"{"localStorageCapacityIsolation": false}"#),
    ("logging", r#"{"logging": {"verbosity": 4}}"#),
    ("maxOpenFiles", r#"{"maxOpenFiles": 1000}"#),
    ("maxParallelImagePulls", r#"{"maxParallelImagePulls": 7, "serializeImagePulls": false}"#),
    ("maxPods", r#"{"maxPods": 7}"#),
    ("memoryManagerPolicy", r#"{"memoryManagerPolicy": "Static", "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}]}"#),
    ("memorySwap.swapBehavior", r#"{"memorySwap": {"swapBehavior": "LimitedSwap"}}"#),
    ("memoryThrottlingFactor", r#"{"memoryThrottlingFactor": 0.7}"#),
    ("mergeDefaultEvictionSettings", r#"{"mergeDefaultEvictionSettings": true, "evictionHard": {"memory.available": "7Mi"}}"#),
    ("nodeLeaseDurationSeconds", r#"{"nodeLeaseDurationSeconds": 7}"#),
    ("nodeStatusMaxImages", r#"{"nodeStatusMaxImages": 7}"#),
    ("nodeStatusReportFrequency", r#"{"nodeStatusReportFrequency": "7s"}"#),
    ("nodeStatusUpdateFrequency", r#"{"nodeStatusUpdateFrequency": "7s"}"#),
    ("oomScoreAdj", r#"{"oomScoreAdj": -7}"#),
    ("podCIDR", r#"{"podCIDR": "10.1.0.0/24"}"#),
    ("podLogsDir", r#"{"podLogsDir": "/logs"}"#),
    ("podPidsLimit", r#"{"podPidsLimit": 7}"#),
    ("podsPerCore", r#"{"podsPerCore": 7}"#),
    ("port", r#"{"port": 7}"#),
    ("preloadedImagesVerificationAllowlist", r#"{"preloadedImagesVerificationAllowlist": ["r/a"], "imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages"}"#),
    ("protectKernelDefaults", r#"{"protectKernelDefaults": true}"#),
    ("providerID", r#"{"providerID": "x://y"}"#),
    ("readOnlyPort", r#"{"readOnlyPort": 7}"#),
    ("registerNode", r#"{"registerNode": false}"#),
    ("registerWithTaints", r#"{"registerWithTaints": [{"key": "a", "effect": "NoSchedule"}]}"#),
    ("registryBurst", r#"{"registryBurst": 7, "registryPullQPS": 5}"#),
    ("registryPullQPS", r#"{"registryPullQPS": 7}"#),
    ("reservedMemory", r#"{"reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}]}"#),
    ("reservedSystemCPUs", r#"{"reservedSystemCPUs": "0"}"#),
    ("resolvConf", r#"{"resolvConf": "/r"}"#),
    ("runtimeRequestTimeout", r#"{"runtimeRequestTimeout": "7s"}"#),
    ("seccompDefault", r#"{"seccompDefault": true}"#),
    ("serializeImagePulls", r#"{"serializeImagePulls": true}"#),
    ("shutdownGracePeriod", r#"{"shutdownGracePeriod": "7s"}"#),
    ("shutdownGracePeriodByPodPriority", r#"{"shutdownGracePeriodByPodPriority": [{"priority": 1, "shutdownGracePeriodSeconds": 2}]}"#),
    ("shutdownGracePeriodCriticalPods", r#"{"shutdownGracePeriodCriticalPods": "3s", "shutdownGracePeriod": "7s"}"#),
    ("singleProcessOOMKill", r#"{"singleProcessOOMKill": true}"#),
    ("staticPodPath", r#"{"staticPodPath": "/m"}"#),
    ("staticPodURL", r#"{"staticPodURL": "http://m"}"#),
    ("staticPodURLHeader", r#"{"staticPodURLHeader": {"a": ["b"]}}"#),
    ("syncFrequency", r#"{"syncFrequency": "7s"}"#),
    ("systemReserved", r#"{"systemReserved": {"cpu": "7m"}}"#),
    ("systemReservedCgroup", r#"{"systemReservedCgroup": "/s"}"#),
    ("tlsCipherSuites", r#"{"tlsCipherSuites": ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]}"#),
    ("tlsMinVersion", r#"{"tlsMinVersion": "VersionTLS13"}"#),
    ("topologyManagerPolicy", r#"{"topologyManagerPolicy": "restricted"}"#),
    ("topologyManagerPolicyOptions", r#"{"topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}, "topologyManagerPolicy": "restricted"}"#),
    ("topologyManagerScope", r#"{"topologyManagerScope": "pod"}"#),
    ("userNamespaces.idsPerPod", r#"{"userNamespaces": {"idsPerPod": 131072}}"#),
    ("volumeStatsAggPeriod", r#"{"volumeStatsAggPeriod": "7s"}"#),
];

fn apply(fields: Value) -> Result<(Config, Vec<&'static str>), ConfigurationError> {
    let mut config = Config::default();
    let Value::Object(mut file) = fields else { panic!("no object") };
    file.insert("apiVersion".into(), "kubelet.config.k8s.io/v1beta1".into());
    file.insert("kind".into(), "KubeletConfiguration".into());
    let idle = Configuration::parse(&Value::Object(file).to_string())?.apply(&mut config)?;
    // What was said is not what was made of it.
    config.given = Configuration::default();
    Ok((config, idle))
}

fn shown(fields: Value) -> String {
    format!("{:?}", apply(fields.clone()).unwrap_or_else(|error| panic!("{fields}: {error}")).0)
}

#[test]
fn every_field_acts_or_is_refused() {
    let mut acting = ACTING.iter();
    for (name, meaning) in FIELDS {
        match meaning {
            Meaning::Sets(_) => {
                let (acts, fields) = acting.next().expect("a value for every field that acts");
                assert_eq!(acts, name, "the tables have the same order");
                let mut fields: Value = serde_json::from_str(fields).unwrap();
                let with = shown(fields.clone());
                let top = name.split('.').next().unwrap_or_default();
                assert!(fields.as_object_mut().unwrap().remove(top).is_some(), "{name}");
                // Threshold and period of a soft signal make sense only together.
                if matches!(*name, "evictionSoft" | "evictionSoftGracePeriod" | "memoryManagerPolicy") {
                    fields = json!({});
                }
                assert_ne!(shown(fields), with, "{name} changes nothing");
            }
            Meaning::Only(possible, reason) => {
                let mut fields = Configuration::default();
                fields.set(name, json!("something else"));
                let refused = fields.apply(&mut Config::default()).expect_err(name).to_string();
                assert!(refused.contains(name) && refused.contains(reason), "{name}: {refused}");
                assert!(!possible.is_empty(), "{name}");
            }
            Meaning::Idle => assert!(IGNORED.contains(name), "{name} has no effect"),
            Meaning::Elsewhere => assert!(OF_THE_STARTER.contains(name), "{name}"),
        }
    }
    assert_eq!(acting.next(), None);
}

/// All that upstream's kubelet shows when it was told nothing.
const UPSTREAM_DEFAULTS: &str = r#"{
    "address": "0.0.0.0",
    "authentication": {"anonymous": {"enabled": false}, "webhook": {"cacheTTL": "2m0s", "enabled": true}, "x509": {}},
    "authorization": {"mode": "Webhook", "webhook": {"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"}},
    "cgroupDriver": "cgroupfs", "cgroupsPerQOS": true, "configMapAndSecretChangeDetectionStrategy": "Watch",
    "containerLogMaxFiles": 5, "containerLogMaxSize": "10Mi", "containerLogMaxWorkers": 1,
    "containerLogMonitorInterval": "10s", "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "contentType": "application/vnd.kubernetes.protobuf", "cpuCFSQuota": true, "cpuCFSQuotaPeriod": "100ms",
    "cpuManagerPolicy": "none", "cpuManagerReconcilePeriod": "10s",
    "crashLoopBackOff": {"maxContainerRestartPeriod": "5m0s"}, "enableControllerAttachDetach": true,
    "enableDebugFlagsHandler": true, "enableDebuggingHandlers": true, "enableProfilingHandler": true,
    "enableServer": true, "enableSystemLogHandler": true, "enableSystemLogQuery": false,
    "enforceNodeAllocatable": ["pods"], "eventBurst": 100, "eventRecordQPS": 50,
    "evictionPressureTransitionPeriod": "5m0s", "failCgroupV1": true, "failSwapOn": true, "fileCheckFrequency": "20s",
    "hairpinMode": "promiscuous-bridge", "healthzBindAddress": "127.0.0.1", "healthzPort": 10248,
    "httpCheckFrequency": "20s", "imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80,
    "imageMaximumGCAge": "0s", "imageMinimumGCAge": "2m0s",
    "imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages", "iptablesDropBit": 15,
    "iptablesMasqueradeBit": 14, "kubeAPIBurst": 100, "kubeAPIQPS": 50, "localStorageCapacityIsolation": true,
    "logging": {"flushFrequency": "5s", "format": "text", "verbosity": 0,
        "options": {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}}},
    "makeIPTablesUtilChains": true, "maxOpenFiles": 1000000, "maxPods": 110, "memoryManagerPolicy": "None",
    "memorySwap": {}, "memoryThrottlingFactor": 0.9, "mergeDefaultEvictionSettings": false,
    "nodeLeaseDurationSeconds": 40, "nodeStatusMaxImages": 50, "nodeStatusReportFrequency": "5m0s",
    "nodeStatusUpdateFrequency": "10s", "oomScoreAdj": -999, "podLogsDir": "/var/log/pods", "podPidsLimit": -1,
    "port": 10250, "registerNode": true, "registryBurst": 10, "registryPullQPS": 5, "resolvConf": "/etc/resolv.conf",
    "runtimeRequestTimeout": "2m0s", "seccompDefault": false, "serializeImagePulls": true,
    "shutdownGracePeriod": "0s", "shutdownGracePeriodCriticalPods": "0s", "streamingConnectionIdleTimeout": "4h0m0s",
    "syncFrequency": "1m0s", "topologyManagerPolicy": "none", "topologyManagerScope": "container",
    "volumePluginDir": "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", "volumeStatsAggPeriod": "1m0s"
}"#;

#[test]
fn upstreams_defaults_written_out_are_a_configuration() {
    let defaults: Value = serde_json::from_str(UPSTREAM_DEFAULTS).unwrap();
    let (_, idle) = apply(defaults).unwrap();
    let ignored: BTreeSet<&str> = IGNORED.into();
    assert!(idle.iter().all(|name| ignored.contains(name)), "{idle:?}");
}
