//! Rows about the control plane: its files, the API server, controllers, scheduler and store.

use super::{
    Row,
    Verdict::{Absent, Open, Operator, Pass},
    facts::{no_etcd, nothing, one_process, pod, that},
    tls_hello::{STRONG, TLS_1_2, hello, tls},
};

const AUDIT_IS_OFF: &str = "off, as upstream's default; `--audit-policy-file` turns it on";

pub const FILES: &[Row] = &[
    ("1.1.1", "API server pod specification: permissions", Absent, "components are one process, not pods", one_process),
    ("1.1.2", "API server pod specification: owner", Absent, "components are one process, not pods", one_process),
    ("1.1.3", "Controller manager pod specification: permissions", Absent, "one process, not pods", one_process),
    ("1.1.4", "Controller manager pod specification: owner", Absent, "one process, not pods", one_process),
    ("1.1.5", "Scheduler pod specification: permissions", Absent, "one process, not pods", one_process),
    ("1.1.6", "Scheduler pod specification: owner", Absent, "one process, not pods", one_process),
    ("1.1.7", "etcd pod specification: permissions", Absent, "objects are in the embedded store", no_etcd),
    ("1.1.8", "etcd pod specification: owner", Absent, "objects are in the embedded store", no_etcd),
    ("1.1.9", "CNI files: permissions", Pass, "`cni/net.d/*` 0600", |f| f.files("cni/net.d", "", 0o600)),
    ("1.1.10", "CNI files: owner", Pass, "root", |f| f.files("cni/net.d", "", 0o600)),
    ("1.1.11", "Data directory of the store: permissions", Pass, "`store` 0700", |f| f.mode("store", 0o700)),
    ("1.1.12", "Data directory of the store: owner", Pass, "root, as whom the server runs", |f| f.mode("store", 0o700)),
    ("1.1.13", "Admin credentials: permissions", Pass, "`admin.kubeconfig` 0600", |f| {
        f.mode("admin.kubeconfig", 0o600)
    }),
    ("1.1.14", "Admin credentials: owner", Pass, "root", |f| f.mode("admin.kubeconfig", 0o600)),
    ("1.1.15", "Scheduler kubeconfig: permissions", Pass, "0600", |f| f.mode("kubeconfig/scheduler", 0o600)),
    ("1.1.16", "Scheduler kubeconfig: owner", Pass, "root", |f| f.mode("kubeconfig/scheduler", 0o600)),
    ("1.1.17", "Controller manager kubeconfig: permissions", Pass, "0600", |f| {
        f.mode("kubeconfig/controller-manager", 0o600)
    }),
    ("1.1.18", "Controller manager kubeconfig: owner", Pass, "root", |f| {
        f.mode("kubeconfig/controller-manager", 0o600)
    }),
    ("1.1.19", "PKI directory and files: owner", Pass, "root, `pki` 0700", |f| f.mode("pki", 0o700)),
    ("1.1.20", "PKI certificates: permissions", Pass, "0644 or less", |f| f.files("pki", ".crt", 0o644)),
    ("1.1.21", "PKI keys: permissions", Pass, "0600", |f| f.files("pki", ".key", 0o600)),
];

pub const API_SERVER: &[Row] = &[
    (
        "1.2.1",
        "Anonymous requests are off",
        Open,
        "on, as upstream's default; they may read health and version only",
        |f| {
            f.anonymous("get --raw /version")?;
            f.refused_to_anonymous("get --raw /api/v1/secrets")
        },
    ),
    ("1.2.2", "No static token file", Pass, "`--token-auth-file` is not given", |f| f.without("--token-auth-file")),
    (
        "1.2.3",
        "DenyServiceExternalIPs",
        Open,
        "off, as upstream's default; `--enable-admission-plugins` turns it on",
        |f| f.accepts("Service with externalIPs", SERVICE_WITH_EXTERNAL_IP),
    ),
    ("1.2.4", "Client certificate for kubelets", Pass, "the kubelet answers the API server's certificate", |f| {
        f.files("pki", "apiserver-kubelet-client.key", 0o600)?;
        f.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{}/proxy/healthz", f.node)]).map(drop)
    }),
    (
        "1.2.5",
        "Authority of kubelets is checked",
        Pass,
        "the kubelet's certificate is of the kubelets' authority",
        |f| f.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{}/proxy/healthz", f.node)]).map(drop),
    ),
    ("1.2.6", "Authorization is not AlwaysAllow", Pass, "Node,RBAC by default", |f| f.without("AlwaysAllow")),
    ("1.2.7", "Authorization includes Node", Pass, "a node may not read another node's secrets", |f| {
        let node = ["--as=system:node:stranger", "--as-group=system:nodes"];
        f.refused(&[&node[..], &["get", "secrets", "-n", "kube-system"]].concat(), "", "orbidden")
    }),
    ("1.2.8", "Authorization includes RBAC", Pass, "a user without bindings may do nothing", |f| {
        f.refused(&["--as=stranger", "get", "pods"], "", "orbidden")
    }),
    ("1.2.9", "EventRateLimit", Open, "off, as upstream's default", |f| f.without("EventRateLimit")),
    ("1.2.10", "AlwaysAdmit is off", Pass, "not turned on", |f| f.without("AlwaysAdmit")),
    ("1.2.11", "AlwaysPullImages", Open, "off, as upstream's default; `--enable-admission-plugins` turns it on", |f| {
        f.without("AlwaysPullImages")
    }),
    ("1.2.12", "ServiceAccount admission", Pass, "a pod without an account gets the default one", |f| {
        let made = f.kubectl_with(&["create", "--dry-run=server", "-o", "yaml", "-f", "-"], &pod(""))?;
        that(made.contains("serviceAccountName: default"), made)
    }),
    ("1.2.13", "NamespaceLifecycle admission", Pass, "nothing is made in a namespace that is not there", |f| {
        let arguments = ["create", "configmap", "a", "-n", "cis-absent", "--dry-run=server"];
        f.refused(&arguments, "", "not found")
    }),
    ("1.2.14", "NodeRestriction admission", Pass, "a node may not change another's Node object", |f| {
        let node = ["--as=system:node:stranger", "--as-group=system:nodes"];
        f.refused(&[&node[..], &["label", "node", &f.node, "cis=1"]].concat(), "", "orbidden")
    }),
    ("1.2.15", "Profiling is off", Pass, "there is none", |f| {
        f.refused(&["get", "--raw", "/debug/pprof/"], "", "NotFound")
    }),
    ("1.2.16", "Audit log", Open, AUDIT_IS_OFF, |f| f.without("--audit-log-path")),
    ("1.2.17", "Age of audit logs", Open, AUDIT_IS_OFF, |f| f.without("--audit-log-maxage")),
    ("1.2.18", "Number of audit logs", Open, AUDIT_IS_OFF, |f| f.without("--audit-log-maxbackup")),
    ("1.2.19", "Size of audit logs", Open, AUDIT_IS_OFF, |f| f.without("--audit-log-maxsize")),
    ("1.2.20", "Request timeout", Pass, "60 s, upstream's default; there is no flag", |f| {
        f.without("--request-timeout")
    }),
    ("1.2.21", "Tokens of deleted accounts are refused", Pass, "always looked up; no flag turns it off", |f| {
        f.unknown("--service-account-lookup")
    }),
    ("1.2.22", "Key of ServiceAccount tokens", Pass, "a key of its own, `pki/sa.key` 0600", |f| {
        f.mode("pki/sa.key", 0o600)
    }),
    ("1.2.23", "Certificate for etcd", Absent, "objects are in the embedded store", no_etcd),
    ("1.2.24", "Serving certificate", Pass, "TLS only, by the cluster's authority", |f| {
        f.files("pki", "apiserver.key", 0o600)?;
        hello(f.api, TLS_1_2, STRONG).map(drop)
    }),
    ("1.2.25", "Authority of clients", Pass, "`pki/ca.crt`", |f| f.mode("pki/ca.crt", 0o644)),
    ("1.2.26", "Authority of etcd", Absent, "objects are in the embedded store", no_etcd),
    ("1.2.27", "Encryption at rest", Open, "off by default; the store's files are root's alone", |f| {
        f.without("--encryption-provider-config")?;
        f.mode("store", 0o700)
    }),
    ("1.2.28", "Encryption providers", Open, "off by default", |f| f.without("--encryption-provider-config")),
    (
        "1.2.29",
        "Strong ciphers",
        Pass,
        "TLS 1.2 and 1.3 with ECDHE and AEAD; weaker offers are refused",
        |f| tls(f.api),
    ),
    (
        "1.2.30",
        "Tokens are not extended",
        Open,
        "projected tokens may be used for a year, as upstream's default",
        |f| f.without("--service-account-extend-token-expiration"),
    ),
];

pub const CONTROLLERS: &[Row] = &[
    ("1.3.1", "Ended pods are collected", Pass, "beyond 12500, upstream's default; no flag turns it off", |f| {
        f.unknown("--terminated-pod-gc-threshold")
    }),
    ("1.3.2", "Profiling is off", Pass, "there is none", |f| {
        f.refused(&["get", "--raw", "/debug/pprof/"], "", "NotFound")
    }),
    (
        "1.3.3",
        "Accounts of single controllers",
        Open,
        "controllers share one identity, which is not cluster-admin",
        |f| f.refused(&["auth", "can-i", "*", "*", "--as=system:kube-controller-manager"], "", ""),
    ),
    ("1.3.4", "Key of ServiceAccount tokens", Pass, "`pki/sa.key` 0600", |f| f.mode("pki/sa.key", 0o600)),
    ("1.3.5", "Root authority for pods", Pass, "every namespace has `kube-root-ca.crt`", |f| {
        f.kubectl(&["get", "configmap", "kube-root-ca.crt"]).map(drop)
    }),
    ("1.3.6", "Serving certificates of kubelets rotate", Pass, "always; checked in unit tests", |f| {
        f.files("pki", "kubelet.key", 0o600)
    }),
    ("1.3.7", "The controller manager listens on loopback", Absent, "in one process it has no port", one_process),
    ("1.4.1", "Profiling is off", Pass, "there is none", |f| {
        f.refused(&["get", "--raw", "/debug/pprof/"], "", "NotFound")
    }),
    ("1.4.2", "The scheduler listens on loopback", Absent, "in one process it has no port", one_process),
];

pub const ETCD: &[Row] = &[
    ("2.1", "etcd serves TLS", Absent, "objects are in the embedded store", no_etcd),
    ("2.2", "etcd asks for client certificates", Absent, "objects are in the embedded store", no_etcd),
    ("2.3", "etcd: no automatic TLS", Absent, "objects are in the embedded store", no_etcd),
    ("2.4", "etcd peers use TLS", Absent, "objects are in the embedded store", no_etcd),
    ("2.5", "etcd peers show certificates", Absent, "objects are in the embedded store", no_etcd),
    ("2.6", "etcd peers: no automatic TLS", Absent, "objects are in the embedded store", no_etcd),
    ("2.7", "etcd has an authority of its own", Absent, "objects are in the embedded store", no_etcd),
];

pub const CONTROL_PLANE: &[Row] = &[
    (
        "3.1.1",
        "Users do not have client certificates",
        Operator,
        "only the admin has one; others can come by OpenID Connect",
        nothing,
    ),
    ("3.1.2", "Users do not have ServiceAccount tokens", Operator, "who gets one is the operator's", nothing),
    ("3.1.3", "Users do not have bootstrap tokens", Pass, "one, for nodes, good for 24 hours", |f| {
        let expiration =
            ["get", "secret", "-n", "kube-system", "--field-selector", "type=bootstrap.kubernetes.io/token"];
        let found = f.kubectl(&[&expiration[..], &["-o", "jsonpath={.items[*].data.expiration}"]].concat())?;
        that(!found.trim().is_empty(), "a token without an end")
    }),
    ("3.2.1", "Audit policy", Open, AUDIT_IS_OFF, |f| f.without("--audit-policy-file")),
    ("3.2.2", "Audit policy covers what matters", Open, AUDIT_IS_OFF, |f| f.without("--audit-policy-file")),
];

const SERVICE_WITH_EXTERNAL_IP: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: cis}\n\
    spec: {externalIPs: [192.0.2.7], ports: [{port: 80}]}\n";
