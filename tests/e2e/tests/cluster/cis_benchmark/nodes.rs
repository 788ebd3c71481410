//! Rows about nodes: the files, flags and ports of kubelet and proxy.

use super::{
    Row,
    Verdict::{Absent, Open, Operator, Pass},
    facts::{nothing, one_process, that},
    tls_hello::{STRONG, TLS_1_2, hello, tls},
};

pub const NODES: &[Row] = &[
    ("4.1.1", "Kubelet service file: permissions", Absent, "`minke up` is no service of systemd", one_process),
    ("4.1.2", "Kubelet service file: owner", Absent, "`minke up` is no service of systemd", one_process),
    ("4.1.3", "Proxy kubeconfig: permissions", Pass, "0600", |f| f.mode("kubeconfig/proxy", 0o600)),
    ("4.1.4", "Proxy kubeconfig: owner", Pass, "root", |f| f.mode("kubeconfig/proxy", 0o600)),
    ("4.1.5", "Kubelet kubeconfig: permissions", Pass, "none; its key is 0600", |f| {
        f.files("pki", "kubelet.key", 0o600)
    }),
    ("4.1.6", "Kubelet kubeconfig: owner", Pass, "none; its key is root's", |f| f.files("pki", "kubelet.key", 0o600)),
    ("4.1.7", "Client authorities: permissions", Pass, "`pki/ca.crt` 0644 or less", |f| f.mode("pki/ca.crt", 0o644)),
    ("4.1.8", "Client authorities: owner", Pass, "root", |f| f.mode("pki/ca.crt", 0o644)),
    ("4.1.9", "Kubelet configuration: permissions", Absent, "none is given", |f| f.without("--kubelet-config")),
    ("4.1.10", "Kubelet configuration: owner", Absent, "none is given", |f| f.without("--kubelet-config")),
    ("4.2.1", "Kubelet: no anonymous requests", Pass, "answered with 401", |f| {
        that(f.kubelet["authentication"]["anonymous"]["enabled"] != true, "anonymous requests are on")?;
        let said = f.without_credentials(f.kubelet_address, "/pods")?;
        that(said.contains("enter Username"), said)
    }),
    ("4.2.2", "Kubelet: authorization is not AlwaysAllow", Pass, "Webhook: the API server is asked", |f| {
        that(f.kubelet["authorization"]["mode"] != "AlwaysAllow", f.kubelet["authorization"].to_string())
    }),
    ("4.2.3", "Kubelet: authority of clients", Pass, "the cluster's; without a certificate nobody is known", |f| {
        let said = f.without_credentials(f.kubelet_address, "/metrics")?;
        that(said.contains("enter Username"), said)
    }),
    ("4.2.4", "Kubelet: no read-only port", Pass, "off", |f| {
        that(f.kubelet["readOnlyPort"].as_u64().unwrap_or(0) == 0, f.kubelet["readOnlyPort"].to_string())
    }),
    ("4.2.5", "Kubelet: idle streams end", Pass, "after 4 hours, upstream's default", |f| {
        let timeout = f.kubelet["streamingConnectionIdleTimeout"].as_str().unwrap_or("4h0m0s");
        that(!matches!(timeout, "0" | "0s"), timeout)
    }),
    ("4.2.6", "Kubelet: iptables utility chains", Absent, "rules are nftables, in tables of our own", |f| {
        that(f.kubelet["makeIPTablesUtilChains"] != false, "turned off")
    }),
    ("4.2.7", "Kubelet: no other host name", Operator, "the host's own unless `--node-name` says otherwise", nothing),
    ("4.2.8", "Kubelet: rate of Events", Pass, "50 a second, upstream's default", |f| {
        that(f.kubelet["eventRecordQPS"].as_i64().unwrap_or(50) > 0, f.kubelet["eventRecordQPS"].to_string())
    }),
    ("4.2.9", "Kubelet: serving certificate", Pass, "of the kubelets' authority", |f| {
        hello(f.kubelet_address, TLS_1_2, STRONG).map(drop)
    }),
    ("4.2.10", "Kubelet: client certificate rotates", Pass, "always", |f| {
        that(f.kubelet["rotateCertificates"] != false, "turned off")
    }),
    ("4.2.11", "Kubelet: serving certificate rotates", Pass, "at two thirds of its life", |f| {
        f.files("pki", "kubelet.crt", 0o644)
    }),
    (
        "4.2.12",
        "Kubelet: strong ciphers",
        Pass,
        "TLS 1.2 and 1.3 with ECDHE and AEAD; `tlsCipherSuites` offers fewer",
        |f| tls(f.kubelet_address),
    ),
    (
        "4.2.13",
        "Kubelet: processes of a pod are limited",
        Open,
        "no limit, as upstream's default; `podPidsLimit` sets one",
        |f| that(f.kubelet["podPidsLimit"].as_i64().unwrap_or(-1) == -1, f.kubelet["podPidsLimit"].to_string()),
    ),
    ("4.2.14", "Kubelet: seccomp by default", Open, "off, as upstream's default; `seccompDefault` turns it on", |f| {
        that(f.kubelet["seccompDefault"] != true, "it is on: mend the table")
    }),
    ("4.3.1", "Proxy: metrics on loopback", Pass, "`127.0.0.1:10249`", |f| f.without("--metrics-bind-address")),
];
