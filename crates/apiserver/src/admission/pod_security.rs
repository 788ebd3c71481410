//! Pod Security Standards: three levels, enforced, warned about or noted by labels of the namespace.
//! A row of the table in `admission`; `pod_security_checks` says what each level forbids.
//! Invariant: only pods are refused; what makes pods is warned about.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde_json::Value;

use api::{ApiError, field::ErrorList};

use super::{
    Attributes, Operation, Plugin,
    pod_security_checks::{Level, violations},
};
use crate::cluster::Cluster;

pub struct PodSecurity(pub Arc<Cluster>);

const PREFIX: &str = "pod-security.kubernetes.io/";
/// A namespace's pods beyond this are not looked at when its level rises.
const CHECKED_PODS: usize = 3000;
const SHOWN_PODS: usize = 10;

/// What the labels of a namespace ask for, in one of the modes.
#[derive(Debug, PartialEq, Eq)]
struct Policy {
    level: Level,
    version: String,
}

fn policy(labels: &BTreeMap<String, String>, mode: &str) -> Policy {
    let level = labels.get(&format!("{PREFIX}{mode}")).map(String::as_str);
    let version = labels.get(&format!("{PREFIX}{mode}-version")).map_or("latest", String::as_str);
    // A level nobody knows is taken for the strictest, as upstream does.
    let level = level.map_or(Level::Privileged, |l| Level::parse(l).unwrap_or(Level::Restricted));
    Policy { level, version: version.to_string() }
}

impl Policy {
    fn violations(&self, metadata: &Value, spec: &Value) -> Option<String> {
        let found = violations(self.level, metadata, spec);
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
        let Some(namespace) = self.0.get("namespaces", "", a.namespace) else { return Ok(()) };
        let labels = &namespace.meta.labels;
        if !labels.keys().any(|k| k.starts_with(PREFIX)) {
            return Ok(());
        }
        if pod && a.operation == Operation::Update && a.old["spec"] == a.object["spec"] {
            return Ok(());
        }
        let enforced = policy(labels, "enforce").violations(&metadata, &spec).filter(|_| pod);
        if let Some(found) = enforced {
            return Err(a.forbidden(&format!("violates PodSecurity {found}")));
        }
        if let Some(found) = policy(labels, "warn").violations(&metadata, &spec) {
            a.warnings.push(format!("would violate PodSecurity {found}"));
        }
        Ok(())
    }
}

impl PodSecurity {
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
        let (before, after) = (policy(&old, "enforce"), policy(&new, "enforce"));
        if a.operation != Operation::Update || before == after || after.level <= before.level {
            return Ok(());
        }
        let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in self.0.list("pods", a.name).iter().take(CHECKED_PODS) {
            let value = pod.value();
            let found = violations(after.level, &value["metadata"], &value["spec"]);
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
            for (reasons, pods) in names.into_iter().take(SHOWN_PODS) {
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

fn is_version(text: &str) -> bool {
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
