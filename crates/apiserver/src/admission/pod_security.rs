//! Pod Security Standards: three levels, enforced, warned about or noted by labels of the namespace.
//! A row of the table in `admission`; `pod_security_checks` says what each level forbids.
//! Only pods are refused; what makes pods is warned about.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;

use api::{ApiError, field::ErrorList};

use super::{
    Attributes, Operation, Plugin,
    pod_security_checks::{LATEST, Level, violations},
};
use crate::{audit, storage::cluster::Cluster};

pub struct PodSecurity {
    cluster: Arc<Cluster>,
    settings: Settings,
}

/// `PodSecurityConfiguration`
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub defaults: Defaults,
    pub exemptions: Exemptions,
}

/// Where a namespace says nothing; empty: privileged, latest.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Defaults {
    pub enforce: String,
    pub enforce_version: String,
    pub audit: String,
    pub audit_version: String,
    pub warn: String,
    pub warn_version: String,
}

/// Whom and what nobody looks at.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Exemptions {
    pub usernames: Vec<String>,
    pub namespaces: Vec<String>,
    pub runtime_classes: Vec<String>,
}

const PREFIX: &str = "pod-security.kubernetes.io/";
const ENFORCED: &str = "pod-security.kubernetes.io/enforce-policy";
const EXEMPT: &str = "pod-security.kubernetes.io/exempt";
const AUDIT: &str = "pod-security.kubernetes.io/audit-violations";
/// A namespace's pods beyond this are not looked at when its level rises.
const CHECKED_PODS_MAX: usize = 3000;
const SHOWN_PODS_MAX: usize = 10;

/// What the labels of a namespace ask for, in one of the modes.
#[derive(Debug, PartialEq, Eq)]
struct Policy {
    level: Level,
    version: String,
}

impl Defaults {
    fn level_and_version(&self, mode: &str) -> (&str, &str) {
        match mode {
            "enforce" => (&self.enforce, &self.enforce_version),
            "audit" => (&self.audit, &self.audit_version),
            _ => (&self.warn, &self.warn_version),
        }
    }
}

fn policy(labels: &BTreeMap<String, String>, mode: &str, defaults: &Defaults) -> Policy {
    let (level, version) = defaults.level_and_version(mode);
    let label = |suffix: &str| labels.get(&format!("{PREFIX}{mode}{suffix}")).map(String::as_str);
    let level = label("").or(Some(level).filter(|l| !l.is_empty()));
    let version = label("-version").or(Some(version).filter(|v| !v.is_empty())).unwrap_or("latest");
    // A level nobody knows is taken for the strictest, and a version nobody knows for the newest, as upstream does.
    let level = level.map_or(Level::Privileged, |l| Level::parse(l).unwrap_or(Level::Restricted));
    Policy { level, version: if is_version(version) { version } else { "latest" }.to_string() }
}

impl Policy {
    /// Of the release the standards are followed as of.
    fn minor(&self) -> u32 {
        self.version.strip_prefix("v1.").and_then(|m| m.parse().ok()).unwrap_or(LATEST)
    }

    fn violations(&self, metadata: &Value, spec: &Value) -> Option<String> {
        let found = violations(self.level, self.minor(), metadata, spec);
        (!found.is_empty()).then(|| format!("\"{}:{}\": {}", self.level.as_str(), self.version, found.join(", ")))
    }
}

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if !writes || !a.object.is_object() {
            return Ok(());
        }
        if a.is("", "namespaces") && a.subresource.is_empty() {
            return self.namespace(a);
        }
        let pod = a.is("", "pods") && matches!(a.subresource, "" | "ephemeralcontainers" | "resize");
        let Some((metadata, spec)) = template(a, pod) else { return Ok(()) };
        let exempt = &self.settings.exemptions;
        let class = spec["runtimeClassName"].as_str().unwrap_or_default();
        let listed = |list: &[String], item: &str| !item.is_empty() && list.iter().any(|i| i == item);
        let exemptions = [
            ("namespace", listed(&exempt.namespaces, a.namespace)),
            ("user", listed(&exempt.usernames, &a.user.name)),
            ("runtimeClass", listed(&exempt.runtime_classes, class)),
        ];
        if let Some((why, _)) = exemptions.iter().find(|(_, is_exempt)| *is_exempt) {
            audit::annotate(EXEMPT, why);
            return Ok(());
        }
        let Some(namespace) = self.cluster.get("namespaces", "", a.namespace) else { return Ok(()) };
        let labels = &namespace.meta.labels;
        if pod && a.operation == Operation::Update && a.old["spec"] == a.object["spec"] {
            return Ok(());
        }
        let found = |mode: &str| policy(labels, mode, &self.settings.defaults).violations(&metadata, &spec);
        if pod {
            let enforced = policy(labels, "enforce", &self.settings.defaults);
            audit::annotate(ENFORCED, &format!("{}:{}", enforced.level.as_str(), enforced.version));
        }
        if let Some(found) = found("audit") {
            audit::annotate(AUDIT, &format!("would violate PodSecurity {found}"));
        }
        if let Some(found) = found("enforce").filter(|_| pod) {
            return Err(a.forbidden(&format!("violates PodSecurity {found}")));
        }
        if let Some(found) = found("warn") {
            a.warnings.push(format!("would violate PodSecurity {found}"));
        }
        Ok(())
    }
}

impl PodSecurity {
    pub fn new(cluster: &Arc<Cluster>, settings: &Settings) -> Self {
        Self { cluster: cluster.clone(), settings: settings.clone() }
    }

    /// Labels must make sense, and pods that are already there are named if they no longer would be let in.
    fn namespace(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let labels = |object: &Value| -> BTreeMap<String, String> {
            let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
            labels.filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_string()))).collect()
        };
        let (new, old) = (labels(&a.object), labels(&a.old));
        let mut errors = ErrorList::new();
        for mode in ["enforce", "audit", "warn"] {
            let path = |key: &str| api::field::Path::new("metadata").child("labels").key(key);
            let key = format!("{PREFIX}{mode}");
            if let Some(level) = new.get(&key).filter(|l| Level::parse(l).is_none()) {
                errors.invalid(&path(&key), level.as_str(), "must be one of privileged, baseline, restricted");
            }
            let key = format!("{key}-version");
            if let Some(version) = new.get(&key).filter(|v| !is_version(v)) {
                errors.invalid(&path(&key), version.as_str(), "must be \"latest\" or \"v1.x\"");
            }
        }
        if !errors.is_empty() && new != old {
            return Err(ApiError::invalid("", "Namespace", a.name, errors));
        }
        let defaults = &self.settings.defaults;
        let (before, after) = (policy(&old, "enforce", defaults), policy(&new, "enforce", defaults));
        let looser = after.level < before.level || (after.level == before.level && after.minor() == before.minor());
        let exempt = self.settings.exemptions.namespaces.iter().any(|n| n == a.name);
        if a.operation != Operation::Update || looser || exempt {
            return Ok(());
        }
        let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in self.cluster.list("pods", a.name).iter().take(CHECKED_PODS_MAX) {
            let value = pod.value();
            let found = violations(after.level, after.minor(), &value["metadata"], &value["spec"]);
            if !found.is_empty() {
                let reasons = found.iter().map(|f| f.split(" (").next().unwrap_or_default().to_string());
                names.entry(reasons.collect::<Vec<_>>().join(", ")).or_default().push(pod.meta.name.clone());
            }
        }
        if !names.is_empty() {
            a.warnings.push(format!(
                "existing pods in namespace {:?} violate the new PodSecurity enforce level \"{}:{}\"",
                a.name,
                after.level.as_str(),
                after.version
            ));
            for (reasons, pods) in names.into_iter().take(SHOWN_PODS_MAX) {
                let more = match pods.len() {
                    1 => String::new(),
                    2 => " (and 1 other pod)".into(),
                    n => format!(" (and {} other pods)", n - 1),
                };
                a.warnings.push(format!("{}{more}: {reasons}", pods[0]));
            }
        }
        Ok(())
    }
}

pub fn is_version(text: &str) -> bool {
    let minor = text.strip_prefix("v1.");
    text == "latest" || minor.is_some_and(|m| !m.is_empty() && m.bytes().all(|b| b.is_ascii_digit()))
}

/// The metadata and spec of the pod an object is or makes.
fn template(a: &Attributes<'_>, pod: bool) -> Option<(Value, Value)> {
    let object = &a.object;
    let template = match (a.resource.group.as_str(), a.resource.plural.as_str()) {
        ("", "pods") => return pod.then(|| (object["metadata"].clone(), object["spec"].clone())),
        _ if !a.subresource.is_empty() => return None,
        ("", "podtemplates") => &object["template"],
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => &object["spec"]["template"],
        ("batch", "cronjobs") => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => return None,
    };
    template["spec"].is_object().then(|| (template["metadata"].clone(), template["spec"].clone()))
}
