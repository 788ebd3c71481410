//! Rows about what runs in the cluster: RBAC, the Pod Security Standards, and the rest of the policies.

use super::{
    Row,
    Verdict::{Open, Operator, Pass},
    facts::{RESTRICTED, nothing, pod, that},
};

pub const RBAC: &[Row] = &[
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
pub const POD_SECURITY: &[Row] = &[
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

pub const OTHER_POLICIES: &[Row] = &[
    (
        "5.3.1",
        "The CNI plugin supports NetworkPolicy",
        Pass,
        "every node enforces them; `--network-policy=none` leaves that to another",
        |f| that(!f.arguments.contains("--cni") && !f.arguments.contains("--network-policy"), f.arguments.clone()),
    ),
    ("5.3.2", "Namespaces have NetworkPolicies", Operator, "by who works in them", nothing),
    ("5.4.1", "Secrets are files, not variables", Operator, "by the pods' own specification", nothing),
    ("5.4.2", "Secrets are kept outside", Operator, "a CSI driver for secrets can be installed", nothing),
    ("5.5.1", "Provenance of images", Operator, "a validating webhook, or the plugin ImagePolicyWebhook", nothing),
    ("5.6.1", "Namespaces are boundaries", Operator, "who works where is the operator's", nothing),
    ("5.6.2", "seccomp profiles of pods", Operator, "RuntimeDefault, by the pod or `seccompDefault`", nothing),
    ("5.6.3", "Security contexts of pods", Operator, "by the pods' own specification", nothing),
    ("5.6.4", "The default namespace is not used", Operator, "who works where is the operator's", nothing),
];
