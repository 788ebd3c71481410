//! What each level of the Pod Security Standards forbids, in upstream's words.
//! Called by `pod_security`.
//! Invariant: pure; a namespace that pins a release gets what that release forbade, no more and no less (tidy:
//! `pure_files`).

use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Level::Privileged),
            "baseline" => Some(Level::Baseline),
            "restricted" => Some(Level::Restricted),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }
}

/// Follow the standards as they are now.
pub const LATEST: u32 = u32::MAX;

/// The checks of the lower level: from which release on, and whether they hold at the higher level too. Those that do not
/// are replaced there by a stricter one, once there was one.
const BASELINE: [(u32, fn(&Pod<'_>) -> bool, Check); 12] = [
    (0, always, app_armor),
    (0, |p| p.level == Level::Baseline || p.minor < 22, capabilities_baseline),
    (0, always, host_namespaces),
    (0, |p| p.level == Level::Baseline, host_path),
    (0, always, host_ports),
    (34, always, probe_hosts),
    (0, always, privileged),
    (0, always, proc_mount),
    (0, always, se_linux),
    (0, |p| p.level == Level::Baseline || p.minor < 19, seccomp_baseline),
    (0, always, sysctls),
    (0, always, host_process),
];

const RESTRICTED: [(u32, Check); 6] = [
    (8, privilege_escalation),
    (22, capabilities_restricted),
    (0, volume_types),
    (0, run_as_non_root),
    (23, run_as_user),
    (19, seccomp_restricted),
];

fn always(_: &Pod<'_>) -> bool {
    true
}

/// Every `reason (detail)`, by the standards of release 1.`minor`; empty if the pod is allowed.
pub fn violations(level: Level, minor: u32, metadata: &Value, spec: &Value) -> Vec<String> {
    if level == Level::Privileged {
        return Vec::new();
    }
    let pod = Pod {
        level,
        minor,
        metadata,
        spec,
        containers: containers(spec),
        // Until 1.25 the checks knew nothing of an operating system.
        windows: minor >= 25 && spec["os"]["name"] == "windows",
        // Since 1.35 root inside a user namespace is nobody outside.
        own_users: minor >= 35 && spec["hostUsers"] == false,
    };
    let baseline = BASELINE.iter().filter(|(since, holds, _)| minor >= *since && holds(&pod)).map(|(.., check)| *check);
    let restricted = RESTRICTED.iter().filter(|(since, _)| level == Level::Restricted && minor >= *since);
    let checks = baseline.chain(restricted.map(|(_, check)| *check));
    checks.filter_map(|check| check(&pod)).map(|(reason, detail)| format!("{reason} ({detail})")).collect()
}

struct Pod<'a> {
    level: Level,
    minor: u32,
    metadata: &'a Value,
    spec: &'a Value,
    containers: Vec<(&'a str, &'a Value)>,
    windows: bool,
    own_users: bool,
}

type Found = Option<(&'static str, String)>;
type Check = fn(&Pod<'_>) -> Found;

fn containers(spec: &Value) -> Vec<(&str, &Value)> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let all = lists.iter().flat_map(|list| spec[*list].as_array().into_iter().flatten());
    all.map(|c| (c["name"].as_str().unwrap_or_default(), c)).collect()
}

impl Pod<'_> {
    /// Names of the containers for which `bad` holds.
    fn bad(&self, bad: impl Fn(&Value) -> bool) -> Vec<String> {
        let found = self.containers.iter().filter(|(_, c)| bad(&c["securityContext"]));
        found.map(|(name, _)| name.to_string()).collect()
    }

    fn context(&self) -> &Value {
        &self.spec["securityContext"]
    }
}

fn quote(items: &[String]) -> String {
    items.iter().map(|i| format!("{i:?}")).collect::<Vec<_>>().join(", ")
}

fn these(items: &[String], one: &'static str, many: &'static str) -> &'static str {
    if items.len() == 1 { one } else { many }
}

/// `container "a"`, `containers "a", "b"`
fn named(items: &[String]) -> String {
    format!("{} {}", these(items, "container", "containers"), quote(items))
}

fn sorted(mut items: Vec<String>) -> Vec<String> {
    items.sort();
    items.dedup();
    items
}

/// `pod`, `container "a"` or both, whoever set it.
fn setters(pod: bool, bad: &[String]) -> Option<String> {
    let mut who = Vec::new();
    if pod {
        who.push("pod".to_string());
    }
    if !bad.is_empty() {
        who.push(named(bad));
    }
    (!who.is_empty()).then(|| who.join(" and "))
}

fn app_armor(p: &Pod<'_>) -> Found {
    let bad_type = |c: &Value| c["appArmorProfile"]["type"].as_str().filter(|t| *t == "Unconfined").map(str::to_string);
    let bad = p.bad(|c| bad_type(c).is_some());
    let mut values: Vec<String> = Vec::new();
    let pod = bad_type(p.context()).is_some();
    if pod || !bad.is_empty() {
        values.push("Unconfined".into());
    }
    let annotations = p.metadata["annotations"].as_object().into_iter().flatten();
    let forbidden: Vec<String> = annotations
        .filter(|(k, v)| {
            let value = v.as_str().unwrap_or_default();
            let fine = value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
            k.starts_with("container.apparmor.security.beta.kubernetes.io/") && !fine
        })
        .map(|(k, v)| format!("{k}={:?}", v.as_str().unwrap_or_default()))
        .collect();
    let mut who: Vec<String> = setters(pod, &bad).into_iter().collect();
    if !forbidden.is_empty() {
        who.push(these(&forbidden, "annotation", "annotations").to_string());
        values.extend(forbidden.iter().cloned());
    }
    if who.is_empty() {
        return None;
    }
    let reason = these(&values, "forbidden AppArmor profile", "forbidden AppArmor profiles");
    Some((reason, format!("{} must not set AppArmor profile type to {}", who.join(" and "), quote(&values))))
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

fn added(context: &Value) -> Vec<String> {
    let add = context["capabilities"]["add"].as_array().into_iter().flatten();
    add.filter_map(|c| c.as_str().map(str::to_string)).collect()
}

fn capabilities_baseline(p: &Pod<'_>) -> Found {
    let forbidden =
        |c: &Value| added(c).into_iter().filter(|c| !DEFAULT_CAPABILITIES.contains(&c.as_str())).collect::<Vec<_>>();
    let bad = p.bad(|c| !forbidden(c).is_empty());
    if bad.is_empty() {
        return None;
    }
    let all = sorted(p.containers.iter().flat_map(|(_, c)| forbidden(&c["securityContext"])).collect());
    let detail = format!("{} must not include {} in securityContext.capabilities.add", named(&bad), quote(&all));
    Some(("non-default capabilities", detail))
}

fn capabilities_restricted(p: &Pod<'_>) -> Found {
    if p.windows {
        return None;
    }
    let drops_all = |c: &Value| c["capabilities"]["drop"].as_array().is_some_and(|d| d.iter().any(|c| c == "ALL"));
    let forbidden = |c: &Value| added(c).into_iter().filter(|c| c != "NET_BIND_SERVICE").collect::<Vec<_>>();
    let keeping = p.bad(|c| !drops_all(c));
    let adding = p.bad(|c| !forbidden(c).is_empty());
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named(&keeping)));
    }
    if !adding.is_empty() {
        let all = sorted(p.containers.iter().flat_map(|(_, c)| forbidden(&c["securityContext"])).collect());
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&adding),
            quote(&all)
        ));
    }
    (!details.is_empty()).then(|| ("unrestricted capabilities", details.join("; ")))
}

fn host_namespaces(p: &Pod<'_>) -> Found {
    let used = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|f| p.spec[*f] == true);
    let used: Vec<_> = used.map(|f| format!("{f}=true")).collect();
    (!used.is_empty()).then(|| ("host namespaces", used.join(", ")))
}

fn host_path(p: &Pod<'_>) -> Found {
    let volumes = p.spec["volumes"].as_array().into_iter().flatten().filter(|v| !v["hostPath"].is_null());
    let names: Vec<String> = volumes.map(|v| v["name"].as_str().unwrap_or_default().to_string()).collect();
    let detail = format!("{} {}", these(&names, "volume", "volumes"), quote(&names));
    (!names.is_empty()).then_some(("hostPath volumes", detail))
}

fn host_ports(p: &Pod<'_>) -> Found {
    let ports = |c: &Value| {
        let ports = c["ports"].as_array().into_iter().flatten().filter_map(|p| p["hostPort"].as_i64());
        ports.filter(|p| *p != 0).map(|p| p.to_string()).collect::<Vec<_>>()
    };
    let bad: Vec<String> =
        p.containers.iter().filter(|(_, c)| !ports(c).is_empty()).map(|(n, _)| n.to_string()).collect();
    if bad.is_empty() {
        return None;
    }
    let all = sorted(p.containers.iter().flat_map(|(_, c)| ports(c)).collect());
    let (uses, noun) = (these(&bad, "uses", "use"), these(&all, "hostPort", "hostPorts"));
    Some(("hostPort", format!("{} {uses} {noun} {}", named(&bad), all.join(", "))))
}

fn probe_hosts(p: &Pod<'_>) -> Found {
    let hosts = |c: &Value| {
        let handlers = [
            &c["livenessProbe"],
            &c["readinessProbe"],
            &c["startupProbe"],
            &c["lifecycle"]["postStart"],
            &c["lifecycle"]["preStop"],
        ];
        let actions = handlers.into_iter().flat_map(|h| [&h["httpGet"]["host"], &h["tcpSocket"]["host"]]);
        let named = actions.filter_map(Value::as_str).filter(|h| !h.is_empty());
        named.map(str::to_string).collect::<Vec<_>>()
    };
    let bad: Vec<String> =
        p.containers.iter().filter(|(_, c)| !hosts(c).is_empty()).map(|(n, _)| n.to_string()).collect();
    if bad.is_empty() {
        return None;
    }
    let all = sorted(p.containers.iter().flat_map(|(_, c)| hosts(c)).collect());
    let noun = these(&all, "probe or lifecycle host", "probe or lifecycle hosts");
    let detail = format!("{} {} {noun} {}", named(&bad), these(&bad, "uses", "use"), quote(&all));
    Some(("probe or lifecycle host", detail))
}

fn privileged(p: &Pod<'_>) -> Found {
    let bad = p.bad(|c| c["privileged"] == true);
    (!bad.is_empty()).then(|| ("privileged", format!("{} must not set securityContext.privileged=true", named(&bad))))
}

fn proc_mount(p: &Pod<'_>) -> Found {
    if p.own_users && p.level == Level::Baseline {
        return None;
    }
    let forbidden = |c: &Value| c["procMount"].as_str().filter(|m| *m != "Default").map(str::to_string);
    let bad = p.bad(|c| forbidden(c).is_some());
    let types = sorted(p.containers.iter().filter_map(|(_, c)| forbidden(&c["securityContext"])).collect());
    let detail = format!("{} must not set securityContext.procMount to {}", named(&bad), quote(&types));
    (!bad.is_empty()).then_some(("procMount", detail))
}

fn se_linux(p: &Pod<'_>) -> Found {
    const TYPES: [&str; 4] = ["", "container_t", "container_init_t", "container_kvm_t"];
    let allowed = |t: &str| TYPES.contains(&t) || (t == "container_engine_t" && p.minor >= 31);
    let text = |c: &Value, field: &str| c["seLinuxOptions"][field].as_str().unwrap_or_default().to_string();
    let bad_type = |c: &Value| Some(text(c, "type")).filter(|t| !allowed(t));
    let is_bad = |c: &Value| bad_type(c).is_some() || !text(c, "user").is_empty() || !text(c, "role").is_empty();
    let bad = p.bad(is_bad);
    let who = setters(is_bad(p.context()), &bad)?;
    let contexts: Vec<&Value> =
        std::iter::once(p.context()).chain(p.containers.iter().map(|(_, c)| &c["securityContext"])).collect();
    let types = sorted(contexts.iter().filter_map(|c| bad_type(c)).collect());
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", these(&types, "type", "types"), quote(&types)));
    }
    for field in ["user", "role"] {
        if contexts.iter().any(|c| !text(c, field).is_empty()) {
            data.push(format!("{field} may not be set"));
        }
    }
    Some(("seLinuxOptions", format!("{who} set forbidden securityContext.seLinuxOptions: {}", data.join("; "))))
}

fn seccomp_type(context: &Value) -> Option<&str> {
    context["seccompProfile"]["type"].as_str()
}

/// How profiles were named before there was a field for them.
fn seccomp_annotations(p: &Pod<'_>) -> Found {
    let pod = "seccomp.security.alpha.kubernetes.io/pod".to_string();
    let containers =
        p.containers.iter().map(|(name, _)| format!("container.seccomp.security.alpha.kubernetes.io/{name}"));
    let forbidden = std::iter::once(pod).chain(containers).filter_map(|key| {
        let value = p.metadata["annotations"][&key].as_str()?;
        let fine = matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
        (!fine).then(|| format!("{key}={value:?}"))
    });
    let forbidden = sorted(forbidden.collect());
    let detail = format!("forbidden {} {}", these(&forbidden, "annotation", "annotations"), forbidden.join(", "));
    (!forbidden.is_empty()).then_some(("seccompProfile", detail))
}

fn seccomp_baseline(p: &Pod<'_>) -> Found {
    if p.minor < 19 {
        return seccomp_annotations(p);
    }
    let forbidden =
        |c: &Value| seccomp_type(c).filter(|t| !matches!(*t, "RuntimeDefault" | "Localhost")).map(str::to_string);
    seccomp_explicit(p, &forbidden)
}

fn seccomp_explicit(p: &Pod<'_>, forbidden: &dyn Fn(&Value) -> Option<String>) -> Found {
    let bad = p.bad(|c| forbidden(c).is_some());
    let who = setters(forbidden(p.context()).is_some(), &bad)?;
    let contexts = std::iter::once(p.context()).chain(p.containers.iter().map(|(_, c)| &c["securityContext"]));
    let values = sorted(contexts.filter_map(forbidden).collect());
    Some(("seccompProfile", format!("{who} must not set securityContext.seccompProfile.type to {}", quote(&values))))
}

fn seccomp_restricted(p: &Pod<'_>) -> Found {
    if p.windows {
        return None;
    }
    if let Some(found) = seccomp_baseline(p) {
        return Some(found);
    }
    if seccomp_type(p.context()).is_some() {
        return None;
    }
    let bad = p.bad(|c| seccomp_type(c).is_none());
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        named(&bad)
    );
    (!bad.is_empty()).then_some(("seccompProfile", detail))
}

/// With the release since which they are safe.
const SYSCTLS: [(u32, &str); 12] = [
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
];

fn sysctls(p: &Pod<'_>) -> Found {
    let set = p.context()["sysctls"].as_array().into_iter().flatten().filter_map(|s| s["name"].as_str());
    let safe = |name: &str| SYSCTLS.iter().any(|(since, known)| *known == name && p.minor >= *since);
    let forbidden: Vec<_> = set.filter(|s| !safe(s)).collect();
    (!forbidden.is_empty()).then(|| ("forbidden sysctls", forbidden.join(", ")))
}

fn host_process(p: &Pod<'_>) -> Found {
    let bad = p.bad(|c| c["windowsOptions"]["hostProcess"] == true);
    let who = setters(p.context()["windowsOptions"]["hostProcess"] == true, &bad)?;
    Some(("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true")))
}

fn privilege_escalation(p: &Pod<'_>) -> Found {
    let bad = p.bad(|c| c["allowPrivilegeEscalation"] != false);
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", named(&bad));
    (!p.windows && !bad.is_empty()).then_some(("allowPrivilegeEscalation != false", detail))
}

fn volume_types(p: &Pod<'_>) -> Found {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
        "image",
    ];
    let (mut names, mut types) = (Vec::new(), Vec::new());
    for volume in p.spec["volumes"].as_array().into_iter().flatten() {
        let source = volume.as_object().into_iter().flatten().find(|(k, v)| *k != "name" && !v.is_null());
        if let Some((kind, _)) = source.filter(|(k, _)| !ALLOWED.contains(&k.as_str())) {
            names.push(volume["name"].as_str().unwrap_or_default().to_string());
            types.push(kind.clone());
        }
    }
    if names.is_empty() {
        return None;
    }
    let types = sorted(types);
    let noun = these(&types, "restricted volume type", "restricted volume types");
    let (volumes, uses) = (these(&names, "volume", "volumes"), these(&names, "uses", "use"));
    Some(("restricted volume types", format!("{volumes} {} {uses} {noun} {}", quote(&names), quote(&types))))
}

fn run_as_non_root(p: &Pod<'_>) -> Found {
    if p.own_users {
        return None;
    }
    let pod = p.context()["runAsNonRoot"].as_bool();
    let explicit = p.bad(|c| c["runAsNonRoot"] == false);
    let implicit = p.bad(|c| c["runAsNonRoot"].is_null());
    // A pod's false counts only where a container relies on it.
    if let Some(who) = setters(pod == Some(false), &explicit) {
        return Some(("runAsNonRoot != true", format!("{who} must not set securityContext.runAsNonRoot=false")));
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", named(&implicit));
    (pod.is_none() && !implicit.is_empty()).then_some(("runAsNonRoot != true", detail))
}

fn run_as_user(p: &Pod<'_>) -> Found {
    if p.own_users {
        return None;
    }
    let bad = p.bad(|c| c["runAsUser"] == 0);
    let who = setters(p.context()["runAsUser"] == 0, &bad)?;
    Some(("runAsUser=0", format!("{who} must not set runAsUser=0")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_upstreams() {
        let check = |level: Level, spec: Value, expected: &[&str]| {
            assert_eq!(violations(level, LATEST, &json!({}), &spec), expected, "{spec}");
        };
        let plain = json!({ "containers": [{ "name": "c" }] });
        check(Level::Privileged, json!({ "hostPID": true }), &[]);
        check(Level::Baseline, plain.clone(), &[]);
        check(
            Level::Restricted,
            plain,
            &[
                "allowPrivilegeEscalation != false (container \"c\" must set \
                 securityContext.allowPrivilegeEscalation=false)",
                "unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"])",
                "runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)",
                "seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \
                 \"RuntimeDefault\" or \"Localhost\")",
            ],
        );
        let good = json!({
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "c", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
            } }],
            "volumes": [{ "name": "v", "emptyDir": {} }],
        });
        check(Level::Restricted, good, &[]);
        let bad = json!({
            "hostNetwork": true, "hostIPC": true,
            "containers": [
                { "name": "a", "ports": [{ "hostPort": 80 }], "securityContext": { "privileged": true } },
                { "name": "b", "securityContext": { "privileged": true, "capabilities": { "add": ["SYS_ADMIN"] } } },
            ],
            "volumes": [{ "name": "v", "hostPath": { "path": "/" } }],
        });
        check(
            Level::Baseline,
            bad,
            &[
                "non-default capabilities (container \"b\" must not include \"SYS_ADMIN\" in \
                 securityContext.capabilities.add)",
                "host namespaces (hostNetwork=true, hostIPC=true)",
                "hostPath volumes (volume \"v\")",
                "hostPort (container \"a\" uses hostPort 80)",
                "privileged (containers \"a\", \"b\" must not set securityContext.privileged=true)",
            ],
        );
    }

    #[test]
    fn releases_differ() {
        let check = |level: Level, minor: u32, pod: &Value, expected: &[&str]| {
            let found = violations(level, minor, &pod["metadata"], &pod["spec"]);
            let reasons: Vec<_> = found.iter().map(|f| f.split(" (").next().unwrap_or_default()).collect();
            assert_eq!(reasons, expected, "1.{minor} {pod}");
        };
        use Level::{Baseline, Restricted};
        let probe = json!({ "spec": { "containers": [
            { "name": "c", "livenessProbe": { "httpGet": { "host": "127.0.0.1", "port": 80 } } },
        ] } });
        check(Baseline, 33, &probe, &[]);
        check(Baseline, 34, &probe, &["probe or lifecycle host"]);
        let sysctl = json!({ "spec": { "containers": [], "securityContext": { "sysctls": [
            { "name": "net.ipv4.tcp_rmem" }, { "name": "net.ipv4.ip_local_reserved_ports" },
        ] } } });
        check(Baseline, 26, &sysctl, &["forbidden sysctls"]);
        check(Baseline, 31, &sysctl, &["forbidden sysctls"]);
        check(Baseline, 32, &sysctl, &[]);
        let engine = json!({ "spec": { "containers": [],
            "securityContext": { "seLinuxOptions": { "type": "container_engine_t" } } } });
        check(Baseline, 30, &engine, &["seLinuxOptions"]);
        check(Baseline, 31, &engine, &[]);
        let annotated = json!({
            "metadata": { "annotations": { "seccomp.security.alpha.kubernetes.io/pod": "unconfined" } },
            "spec": { "containers": [] },
        });
        check(Baseline, 18, &annotated, &["seccompProfile"]);
        check(Baseline, 19, &annotated, &[]);
        let root = json!({ "spec": {
            "hostUsers": false,
            "securityContext": { "runAsUser": 0, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "c", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "procMount": "Unmasked",
            } }],
        } });
        check(Restricted, 34, &root, &["procMount", "runAsNonRoot != true", "runAsUser=0"]);
        check(Restricted, 35, &root, &["procMount"]);
        check(Baseline, 34, &root, &["procMount"]);
        check(Baseline, 35, &root, &[]);
        check(Restricted, 22, &root, &["procMount", "runAsNonRoot != true"]);
        let windows = json!({ "spec": { "os": { "name": "windows" }, "securityContext": { "runAsNonRoot": true },
            "containers": [{ "name": "c" }] } });
        check(
            Restricted,
            24,
            &windows,
            &["allowPrivilegeEscalation != false", "unrestricted capabilities", "seccompProfile"],
        );
        check(Restricted, 25, &windows, &[]);
        check(Restricted, 7, &windows, &[]);
    }
}
