//! The flags of kube-proxy: most are fields of KubeProxyConfiguration.
//! A table of `upstream`, and the fields that `proxy_flags` lays over the file.

use super::{
    Component,
    Form::{self, Duration, Flag, Float, Gates, List, Number, Text},
    Meaning::{Acts, Idle, Only},
    Row, shared,
};

#[derive(Debug, Clone)]
pub struct Proxy;

impl Component for Proxy {
    fn tables() -> Vec<&'static [Row]> {
        vec![OWN, shared::LOGS]
    }

    /// An empty address turns its port off.
    fn empty_is_absent() -> bool {
        false
    }
}

const OWN: &[Row] = &[
    ("bind-address", Text, Acts),
    ("bind-address-hard-fail", Flag, Acts),
    ("cleanup", Flag, Acts),
    ("cluster-cidr", Text, Acts),
    ("config", Text, Acts),
    ("config-sync-period", Duration, Acts),
    ("conntrack-max-per-core", Number, Acts),
    ("conntrack-min", Number, Acts),
    ("conntrack-tcp-be-liberal", Flag, Acts),
    ("conntrack-tcp-timeout-close-wait", Duration, Acts),
    ("conntrack-tcp-timeout-established", Duration, Acts),
    ("conntrack-udp-timeout", Duration, Acts),
    ("conntrack-udp-timeout-stream", Duration, Acts),
    ("detect-local-mode", Text, Acts),
    ("feature-gates", Gates, Acts),
    ("healthz-bind-address", Text, Acts),
    ("healthz-port", Number, Acts),
    ("hostname-override", Text, Acts),
    ("init-only", Flag, Only(&["false"], "the proxy needs root for as long as it runs")),
    ("iptables-localhost-nodeports", Flag, Idle("there is only mode nftables")),
    ("iptables-masquerade-bit", Number, Idle("there is only mode nftables")),
    ("iptables-min-sync-period", Duration, Acts),
    ("iptables-sync-period", Duration, Acts),
    ("ipvs-exclude-cidrs", List, Idle("there is only mode nftables")),
    ("ipvs-min-sync-period", Duration, Idle("there is only mode nftables")),
    ("ipvs-scheduler", Text, Idle("there is only mode nftables")),
    ("ipvs-strict-arp", Flag, Idle("there is only mode nftables")),
    ("ipvs-sync-period", Duration, Idle("there is only mode nftables")),
    ("ipvs-tcp-timeout", Duration, Idle("there is only mode nftables")),
    ("ipvs-tcpfin-timeout", Duration, Idle("there is only mode nftables")),
    ("ipvs-udp-timeout", Duration, Idle("there is only mode nftables")),
    ("kube-api-burst", Number, Acts),
    ("kube-api-content-type", Text, Acts),
    ("kube-api-qps", Float, Acts),
    ("kubeconfig", Text, Acts),
    ("masquerade-all", Flag, Acts),
    ("master", Text, Acts),
    ("metrics-bind-address", Text, Acts),
    ("metrics-port", Number, Acts),
    ("nodeport-addresses", List, Acts),
    ("oom-score-adj", Number, Acts),
    ("pod-bridge-interface", Text, Acts),
    ("pod-interface-name-prefix", Text, Acts),
    ("profiling", Flag, Acts),
    ("proxy-mode", Text, Acts),
    ("show-hidden-metrics-for-version", Text, Acts),
    ("write-config-to", Text, Only(&[""], "the configuration is the file and the flags, with upstream's defaults")),
];

/// Flags that are fields: flag, field, form. Checked with the file's.
pub const FIELDS: &[(&str, &str, Form)] = &[
    ("bind-address", "bindAddress", Text),
    ("bind-address-hard-fail", "bindAddressHardFail", Flag),
    ("config-sync-period", "configSyncPeriod", Text),
    ("detect-local-mode", "detectLocalMode", Text),
    ("iptables-min-sync-period", "nftables.minSyncPeriod", Text),
    ("iptables-sync-period", "nftables.syncPeriod", Text),
    ("kube-api-burst", "clientConnection.burst", Number),
    ("kube-api-content-type", "clientConnection.contentType", Text),
    ("kube-api-qps", "clientConnection.qps", Text),
    ("pod-bridge-interface", "detectLocal.bridgeInterface", Text),
    ("pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", Text),
    ("profiling", "enableProfiling", Flag),
    ("show-hidden-metrics-for-version", "showHiddenMetricsForVersion", Text),
];
