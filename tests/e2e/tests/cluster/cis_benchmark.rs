//! The CIS Kubernetes Benchmark (v1.11) as a table: what holds is checked on the running cluster, what does not is listed
//! with its reason, and where the reason claims something, that is checked too.
//! `docs/cis-benchmark.md` is this table; `MINKE_UPDATE_DOCS=1` writes it anew.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use e2e::{Cluster, Kubectl, Namespace, eventually, minke};
use serde_json::Value;

/// What a fresh cluster of `minke up` does about a recommendation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It holds, and the check shows it.
    Pass,
    /// There is no such file, process or flag here.
    Absent,
    /// It does not hold.
    Open,
    /// It is about what runs in the cluster, and so the operator's.
    Operator,
}

type Check = fn(&Facts) -> Result<(), String>;
type Row = (&'static str, &'static str, Verdict, &'static str, Check);

use Verdict::{Absent, Open, Operator, Pass};

/// One process runs all components, so that the files and flags of single ones are not there.
fn one_process(facts: &Facts) -> Result<(), String> {
    let path = facts.kubelet["staticPodPath"].as_str().unwrap_or_default();
    that(path.is_empty(), format!("static pods come from {path}"))
}

/// The store is the embedded one: no etcd listens, nothing is sent to one.
fn no_etcd(facts: &Facts) -> Result<(), String> {
    let named = facts.arguments.contains("--etcd") || facts.arguments.contains("etcd=");
    that(!named, facts.arguments.clone())
}

fn nothing(_: &Facts) -> Result<(), String> {
    Ok(())
}

const FILES: &[Row] = &[
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

const API_SERVER: &[Row] = &[
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
    ("1.2.16", "Audit log", Open, "audit logging is not built", |f| f.unknown("--audit-log-path")),
    ("1.2.17", "Age of audit logs", Open, "audit logging is not built", |f| f.unknown("--audit-log-maxage")),
    ("1.2.18", "Number of audit logs", Open, "audit logging is not built", |f| f.unknown("--audit-log-maxbackup")),
    ("1.2.19", "Size of audit logs", Open, "audit logging is not built", |f| f.unknown("--audit-log-maxsize")),
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
    ("1.2.27", "Encryption at rest", Open, "not built; the store's files are root's alone", |f| {
        f.unknown("--encryption-provider-config")?;
        f.mode("store", 0o700)
    }),
    ("1.2.28", "Encryption providers", Open, "not built", |f| f.unknown("--encryption-provider-config")),
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
        |f| f.unknown("--service-account-extend-token-expiration"),
    ),
];

const CONTROLLERS: &[Row] = &[
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

const ETCD: &[Row] = &[
    ("2.1", "etcd serves TLS", Absent, "objects are in the embedded store", no_etcd),
    ("2.2", "etcd asks for client certificates", Absent, "objects are in the embedded store", no_etcd),
    ("2.3", "etcd: no automatic TLS", Absent, "objects are in the embedded store", no_etcd),
    ("2.4", "etcd peers use TLS", Absent, "objects are in the embedded store", no_etcd),
    ("2.5", "etcd peers show certificates", Absent, "objects are in the embedded store", no_etcd),
    ("2.6", "etcd peers: no automatic TLS", Absent, "objects are in the embedded store", no_etcd),
    ("2.7", "etcd has an authority of its own", Absent, "objects are in the embedded store", no_etcd),
];

const CONTROL_PLANE: &[Row] = &[
    ("3.1.1", "Users do not have client certificates", Operator, "only the admin has one; OIDC is not built", nothing),
    ("3.1.2", "Users do not have ServiceAccount tokens", Operator, "who gets one is the operator's", nothing),
    ("3.1.3", "Users do not have bootstrap tokens", Pass, "one, for nodes, good for 24 hours", |f| {
        let expiration =
            ["get", "secret", "-n", "kube-system", "--field-selector", "type=bootstrap.kubernetes.io/token"];
        let found = f.kubectl(&[&expiration[..], &["-o", "jsonpath={.items[*].data.expiration}"]].concat())?;
        that(!found.trim().is_empty(), "a token without an end")
    }),
    ("3.2.1", "Audit policy", Open, "audit logging is not built", |f| f.unknown("--audit-policy-file")),
    ("3.2.2", "Audit policy covers what matters", Open, "audit logging is not built", |f| {
        f.unknown("--audit-policy-file")
    }),
];

const NODES: &[Row] = &[
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
    ("4.2.12", "Kubelet: strong ciphers", Pass, "TLS 1.2 and 1.3 with ECDHE and AEAD", |f| tls(f.kubelet_address)),
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

const RBAC: &[Row] = &[
    ("5.1.1", "cluster-admin is used where required only", Pass, "bound to system:masters alone", |f| {
        let subjects = ["get", "clusterrolebinding", "cluster-admin", "-o", "jsonpath={.subjects[*].name}"];
        let found = f.kubectl(&subjects)?;
        that(found == "system:masters", found)
    }),
    ("5.1.2", "Access to secrets", Pass, "accounts of pods have none", |f| f.account_has_no("secrets")),
    ("5.1.3", "Wildcards in roles", Pass, "accounts of pods have none", |f| f.account_has_no("*")),
    ("5.1.4", "Creating pods", Pass, "accounts of pods can't", |f| f.account_has_no("pods")),
    ("5.1.5", "Default accounts are not used", Pass, "they may do nothing but ask about themselves", |f| {
        f.account_has_no("configmaps")
    }),
    ("5.1.6", "Tokens are mounted where needed only", Operator, "by the pods' `automountServiceAccountToken`", nothing),
    (
        "5.1.7",
        "system:masters is not used",
        Open,
        "`admin.kubeconfig` is of that group, so that RBAC can always be mended",
        |f| {
            let who = f.kubectl(&["auth", "whoami"])?;
            that(who.contains("system:masters"), who)
        },
    ),
    ("5.1.8", "bind, impersonate and escalate", Pass, "accounts of pods have none", |f| {
        f.account_has_no("clusterroles")
    }),
    ("5.1.9", "Creating persistent volumes", Pass, "accounts of pods can't", |f| f.account_has_no("persistentvolumes")),
    ("5.1.10", "nodes/proxy", Pass, "accounts of pods have none", |f| f.account_has_no("nodes")),
    ("5.1.11", "Approving certificates", Pass, "accounts of pods can't", |f| {
        f.account_has_no("certificatesigningrequests")
    }),
    ("5.1.12", "Webhook configurations", Pass, "accounts of pods can't", |f| f.account_has_no("webhookconfigurations")),
    ("5.1.13", "Making tokens", Pass, "accounts of pods can't", |f| f.account_has_no("serviceaccounts")),
];

/// In a namespace that enforces the restricted Pod Security Standard; without the label nothing is enforced.
const POD_SECURITY: &[Row] = &[
    ("5.2.1", "A policy mechanism is active", Pass, "Pod Security admission, by labels of namespaces", |f| {
        let ok = f.restricted.try_run(&["create", "--dry-run=server", "-f", "-"], &pod(RESTRICTED));
        that(ok.ok, ok.stderr)
    }),
    ("5.2.2", "Privileged containers", Pass, "refused", |f| {
        f.violates("securityContext: {privileged: true}", "privileged")
    }),
    ("5.2.3", "Host process IDs", Pass, "refused", |f| f.violates_pod("hostPID: true", "hostPID")),
    ("5.2.4", "Host IPC", Pass, "refused", |f| f.violates_pod("hostIPC: true", "hostIPC")),
    ("5.2.5", "Host network", Pass, "refused", |f| f.violates_pod("hostNetwork: true", "hostNetwork")),
    ("5.2.6", "Privilege escalation", Pass, "refused", |f| {
        f.violates("securityContext: {allowPrivilegeEscalation: true}", "allowPrivilegeEscalation")
    }),
    ("5.2.7", "Containers of root", Pass, "refused", |f| f.violates("securityContext: {runAsUser: 0}", "runAsUser=0")),
    ("5.2.8", "NET_RAW", Pass, "refused", |f| {
        f.violates("securityContext: {capabilities: {add: [NET_RAW]}}", "NET_RAW")
    }),
    ("5.2.9", "Added capabilities", Pass, "refused", |f| {
        f.violates("securityContext: {capabilities: {add: [SYS_ADMIN]}}", "SYS_ADMIN")
    }),
    ("5.2.10", "Capabilities are dropped", Pass, "asked for", |f| {
        f.violates("securityContext: {allowPrivilegeEscalation: false}", "capabilities.drop=[\"ALL\"]")
    }),
    ("5.2.11", "Windows HostProcess containers", Pass, "refused", |f| {
        f.violates("securityContext: {windowsOptions: {hostProcess: true}}", "hostProcess")
    }),
    ("5.2.12", "hostPath volumes", Pass, "refused", |f| {
        f.violates_pod("volumes: [{name: v, hostPath: {path: /}}]", "hostPath")
    }),
    ("5.2.13", "Host ports", Pass, "refused", |f| f.violates("ports: [{containerPort: 1, hostPort: 1}]", "hostPort")),
];

const OTHER_POLICIES: &[Row] = &[
    (
        "5.3.1",
        "The CNI plugin supports NetworkPolicy",
        Open,
        "ours does not; `--cni none` leaves the place to one that does",
        |f| that(!f.arguments.contains("--cni"), f.arguments.clone()),
    ),
    ("5.3.2", "Namespaces have NetworkPolicies", Operator, "with a plugin that enforces them", nothing),
    ("5.4.1", "Secrets are files, not variables", Operator, "by the pods' own specification", nothing),
    ("5.4.2", "Secrets are kept outside", Operator, "a CSI driver for secrets can be installed", nothing),
    ("5.5.1", "Provenance of images", Operator, "a validating webhook; ImagePolicyWebhook is not built", nothing),
    ("5.6.1", "Namespaces are boundaries", Operator, "who works where is the operator's", nothing),
    ("5.6.2", "seccomp profiles of pods", Operator, "RuntimeDefault, by the pod or `seccompDefault`", nothing),
    ("5.6.3", "Security contexts of pods", Operator, "by the pods' own specification", nothing),
    ("5.6.4", "The default namespace is not used", Operator, "who works where is the operator's", nothing),
];

const SECTIONS: &[(&str, &[Row])] = &[
    ("Control plane files", FILES),
    ("API server", API_SERVER),
    ("Controller manager and scheduler", CONTROLLERS),
    ("etcd", ETCD),
    ("Control plane configuration", CONTROL_PLANE),
    ("Nodes", NODES),
    ("RBAC and service accounts", RBAC),
    ("Pod Security Standards", POD_SECURITY),
    ("Other policies", OTHER_POLICIES),
];

const SERVICE_WITH_EXTERNAL_IP: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: cis}\n\
    spec: {externalIPs: [192.0.2.7], ports: [{port: 80}]}\n";
const RESTRICTED: &str = "securityContext: {allowPrivilegeEscalation: false, runAsNonRoot: true, \
    capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}";

fn pod(container: &str) -> String {
    pod_with(container, "")
}

fn pod_with(container: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: cis}}\nspec:\n  {more}\n  containers:\n  - name: c\n    image: none\n    \
         {container}\n"
    )
}

fn that(holds: bool, seen: impl Into<String>) -> Result<(), String> {
    if holds { Ok(()) } else { Err(seen.into()) }
}

struct Facts {
    data: PathBuf,
    kubectl: Kubectl,
    /// In a namespace that enforces the restricted standard.
    restricted: Namespace,
    node: String,
    api: SocketAddr,
    kubelet_address: SocketAddr,
    /// What the kubelet says of its configuration.
    kubelet: Value,
    /// Of the process that runs the cluster.
    arguments: String,
    help: String,
    /// What the account of pods may do.
    account: String,
}

impl Facts {
    fn gather() -> Self {
        let cluster = Cluster::shared();
        let kubectl = cluster.kubectl();
        let restricted = kubectl.namespace("cis");
        let label = "pod-security.kubernetes.io/enforce=restricted";
        kubectl.run(&["label", "namespace", &restricted.name, label]);
        eventually("the namespace is restricted", || {
            let privileged = pod("securityContext: {privileged: true}");
            let made = restricted.try_run(&["create", "--dry-run=server", "-f", "-"], &privileged);
            if made.ok { Err(made) } else { Ok(()) }
        });
        let node = kubectl.json(&["get", "nodes"])["items"][0].clone();
        let name = node["metadata"]["name"].as_str().expect("a node").to_string();
        let configz = kubectl.run(&["get", "--raw", &format!("/api/v1/nodes/{name}/proxy/configz")]);
        let configz: Value = serde_json::from_str(&configz).expect("a document");
        let server = kubectl.run(&["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"]);
        let kubelet_port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().expect("a port");
        let arguments = fs::read(format!("/proc/{}/cmdline", cluster.pid())).expect("a process");
        let help = Command::new(minke()).args(["server", "--help"]).output().expect("minke runs");
        let account = format!("--as=system:serviceaccount:{}:default", restricted.name);
        let account = restricted.run(&["auth", "can-i", "--list", &account, "--as-group=system:serviceaccounts"]);
        Self {
            data: cluster.data.clone(),
            node: name,
            api: server.trim().trim_start_matches("https://").parse().expect("an address"),
            kubelet_address: SocketAddr::from(([127, 0, 0, 1], kubelet_port as u16)),
            kubelet: configz["kubeletconfig"].clone(),
            arguments: String::from_utf8_lossy(&arguments).replace('\0', " "),
            help: String::from_utf8_lossy(&help.stdout).into_owned(),
            account,
            kubectl,
            restricted,
        }
    }

    /// Root's, with no more rights than `most`.
    fn mode(&self, name: &str, most: u32) -> Result<(), String> {
        is_private(&self.data.join(name), most)
    }

    /// Every file in a directory whose name ends so; there is at least one.
    fn files(&self, directory: &str, ending: &str, most: u32) -> Result<(), String> {
        let directory = self.data.join(directory);
        let entries = fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        let files: Vec<_> = files.iter().filter(|path| path.to_string_lossy().ends_with(ending)).collect();
        that(!files.is_empty(), format!("{} holds no *{ending}", directory.display()))?;
        files.iter().try_for_each(|path| is_private(path, most))
    }

    fn without(&self, text: &str) -> Result<(), String> {
        that(!self.arguments.contains(text), self.arguments.clone())
    }

    /// No flag of that name is there to be given.
    fn unknown(&self, flag: &str) -> Result<(), String> {
        that(!self.help.contains(flag), format!("{flag} is there: mend the table"))
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_with(arguments, "")
    }

    fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let output = self.kubectl.try_run(arguments, input);
        if output.ok { Ok(output.stdout) } else { Err(output.stderr) }
    }

    fn refused(&self, arguments: &[&str], input: &str, saying: &str) -> Result<(), String> {
        match self.kubectl_with(arguments, input) {
            Ok(output) => Err(format!("it was done: {output}")),
            Err(said) => that(said.contains(saying), said),
        }
    }

    fn accepts(&self, what: &str, manifest: &str) -> Result<(), String> {
        let made = self.kubectl_with(&["create", "--dry-run=server", "-f", "-"], manifest);
        made.map(drop).map_err(|said| format!("{what} is refused, so mend the table: {said}"))
    }

    /// What kubectl says when it shows nothing: it asks for a name where a server answers Unauthorized.
    fn without_credentials(&self, address: SocketAddr, path: &str) -> Result<String, String> {
        let server = format!("--server=https://{address}");
        let mut command = Command::new("kubectl");
        command.args(["--kubeconfig", "/dev/null", &server, "--insecure-skip-tls-verify", "get", "--raw", path]);
        let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        that(!output.status.success(), said.clone())?;
        Ok(said)
    }

    fn anonymous(&self, arguments: &str) -> Result<(), String> {
        let arguments: Vec<&str> = ["--as=system:anonymous", "--as-group=system:unauthenticated"]
            .into_iter()
            .chain(arguments.split(' '))
            .collect();
        self.kubectl(&arguments).map(drop)
    }

    fn refused_to_anonymous(&self, arguments: &str) -> Result<(), String> {
        match self.anonymous(arguments) {
            Ok(()) => Err(format!("anonymous may {arguments}")),
            Err(said) => that(said.contains("orbidden"), said),
        }
    }

    fn account_has_no(&self, resource: &str) -> Result<(), String> {
        let named = |line: &str| {
            let listed = line.split_whitespace().next().unwrap_or_default();
            // Lines without a resource begin with the brackets of none.
            listed.starts_with(resource) || listed.contains(&format!("{resource}."))
        };
        let found = self.account.lines().skip(1).find(|line| named(line));
        that(found.is_none(), found.unwrap_or_default())
    }

    fn violates(&self, container: &str, saying: &str) -> Result<(), String> {
        self.is_violation(&pod(container), saying)
    }

    fn violates_pod(&self, more: &str, saying: &str) -> Result<(), String> {
        self.is_violation(&pod_with(RESTRICTED, more), saying)
    }

    fn is_violation(&self, manifest: &str, saying: &str) -> Result<(), String> {
        let output = self.restricted.try_run(&["create", "--dry-run=server", "-f", "-"], manifest);
        that(
            !output.ok && output.stderr.contains("violates PodSecurity"),
            format!("{}{}", output.stdout, output.stderr),
        )?;
        that(output.stderr.contains(saying), output.stderr)
    }
}

fn is_private(path: &Path, most: u32) -> Result<(), String> {
    let found = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let seen = format!("{} is {:o} of {}:{}", path.display(), found.mode() & 0o7777, found.uid(), found.gid());
    that(found.mode() & 0o7777 & !most == 0 && found.uid() == 0 && found.gid() == 0, seen)
}

const TLS_1_1: [u8; 2] = [3, 2];
const TLS_1_2: [u8; 2] = [3, 3];
/// ECDHE with AES-GCM and ChaCha20, for both kinds of keys.
const STRONG: &[u16] = &[0xc02b, 0xc02c, 0xcca9, 0xc02f, 0xc030, 0xcca8];
/// RSA key exchange, CBC, 3DES, RC4, NULL.
const WEAK: &[u16] = &[0x002f, 0x0035, 0x003c, 0x009c, 0xc009, 0xc00a, 0xc013, 0xc014, 0x000a, 0xc008, 0x0005, 0x0002];

fn tls(address: SocketAddr) -> Result<(), String> {
    that(hello(address, TLS_1_2, STRONG)?, "TLS 1.2 with strong ciphers is refused")?;
    that(!hello(address, TLS_1_2, WEAK)?, "weak ciphers are accepted")?;
    that(!hello(address, TLS_1_1, &[STRONG, WEAK].concat())?, "TLS 1.1 is accepted")
}

/// Whether a server goes on after such a hello. Its answer is a handshake record then, else an alert.
fn hello(address: SocketAddr, version: [u8; 2], suites: &[u16]) -> Result<bool, String> {
    const ALERT: u8 = 21;
    const HANDSHAKE: u8 = 22;
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let suites: Vec<u8> = suites.iter().flat_map(|suite| suite.to_be_bytes()).collect();
    let extension = |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &sized(body)].concat();
    let groups = extension(10, &sized(&[0, 0x17, 0, 0x18, 0, 0x1d]));
    let points = extension(11, &[1, 0]);
    let signatures = extension(13, &sized(&[4, 3, 5, 3, 8, 4, 4, 1, 5, 1, 2, 3, 2, 1]));
    let mut body = [&version[..], &[7; 32], &[0], &sized(&suites), &[1, 0]].concat();
    body.extend(sized(&[groups, points, signatures].concat()));
    let message = [&[1, 0][..], &sized(&body)].concat();
    let record = [&[HANDSHAKE, 3, 1][..], &sized(&message)].concat();
    let exchange = || -> std::io::Result<u8> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(&record)?;
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        Ok(kind[0])
    };
    match exchange().map_err(|error| format!("{address}: {error}"))? {
        HANDSHAKE => Ok(true),
        ALERT => Ok(false),
        other => Err(format!("{address} answered with a record of type {other}")),
    }
}

#[test]
fn the_cis_benchmark_holds_or_says_why_not() {
    let facts = Facts::gather();
    let rows = SECTIONS.iter().flat_map(|(_, rows)| rows.iter());
    let wrong: Vec<String> = rows
        .filter_map(|(number, title, _, text, check)| {
            check(&facts).err().map(|seen| format!("{number} {title} ({text}): {}", seen.trim()))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_page_about_the_cis_benchmark_is_this_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cis-benchmark.md");
    let text = page_text();
    if std::env::var_os("MINKE_UPDATE_DOCS").is_some() {
        fs::create_dir_all(page.parent().expect("a directory")).expect("made");
        fs::write(&page, &text).expect("written");
    }
    let found = fs::read_to_string(&page).unwrap_or_default();
    assert!(found == text, "write it anew with MINKE_UPDATE_DOCS=1");
}

fn page_text() -> String {
    let all = || SECTIONS.iter().flat_map(|(_, rows)| rows.iter());
    let count = |wanted: Verdict| all().filter(|row| row.2 == wanted).count();
    let mut text = format!(
        "# The CIS benchmark\n\nEach recommendation of the CIS Kubernetes Benchmark v1.11, and what a cluster of `minke up` does \
         about it: {} hold, {} are about\nsomething that is not there, {} do not hold, {} are the operator's. The titles are \
         ours. The table is checked on a running\ncluster by `tests/e2e/tests/cluster/cis_benchmark.rs`, which also writes this \
         page.\n",
        count(Pass),
        count(Absent),
        count(Open),
        count(Operator)
    );
    for (section, rows) in SECTIONS {
        text += &format!("\n## {section}\n\n| number | recommendation | | how, or why not |\n|---|---|---|---|\n");
        for (number, title, verdict, reason, _) in *rows {
            let word = match verdict {
                Pass => "holds",
                Absent => "absent",
                Open => "does not hold",
                Operator => "operator",
            };
            text += &format!("| {number} | {title} | {word} | {reason} |\n");
        }
    }
    text
}
