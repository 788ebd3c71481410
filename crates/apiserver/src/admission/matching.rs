//! Which requests a webhook or a policy is asked about: rules, selectors and conditions.
//! Used by `webhooks` and `policy`.
//! Invariant: configurations of admission itself are never matched, so that they can always be mended.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use api::selectors::LabelSelector;

use super::{Attributes, Operation};
use crate::{
    cel::{Expression, Variables},
    cluster::Cluster,
};

const EXEMPT: [&str; 6] = [
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
];

pub fn is_exempt(a: &Attributes<'_>) -> bool {
    a.resource.group == "admissionregistration.k8s.io" && EXEMPT.contains(&a.resource.plural.as_str())
}

#[derive(Default)]
pub struct Matcher {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    namespace_selector: Option<LabelSelector>,
    object_selector: Option<LabelSelector>,
}

#[derive(Default)]
struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    scope: String,
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|t| t.as_str().map(str::to_string)).collect()
}

impl Matcher {
    /// From a webhook, or from the `matchConstraints` or `matchResources` of a policy.
    pub fn new(value: &Value) -> Result<Self, String> {
        let rules = |list: &Value| list.as_array().into_iter().flatten().map(Rule::new).collect();
        let selector = |field: &str| match &value[field] {
            Value::Null => Ok(None),
            found => LabelSelector::from_value(found).map(Some),
        };
        Ok(Self {
            rules: rules(if value["rules"].is_array() { &value["rules"] } else { &value["resourceRules"] }),
            excluded: rules(&value["excludeResourceRules"]),
            namespace_selector: selector("namespaceSelector")?,
            object_selector: selector("objectSelector")?,
        })
    }

    /// `without_rules`: no rules at all match everything, as in a binding.
    pub fn matches(&self, cluster: &Cluster, a: &Attributes<'_>, without_rules: bool) -> bool {
        let ruled = (without_rules && self.rules.is_empty()) || self.rules.iter().any(|r| r.matches(a));
        ruled
            && !self.excluded.iter().any(|r| r.matches(a))
            && self.namespace_matches(cluster, a)
            && self.object_matches(a)
    }

    fn namespace_matches(&self, cluster: &Cluster, a: &Attributes<'_>) -> bool {
        let Some(selector) = self.namespace_selector.as_ref().filter(|s| !s.is_empty()) else { return true };
        if a.is("", "namespaces") {
            let object = if a.operation == Operation::Delete { &a.old } else { &a.object };
            return selector.matches(&labels(object));
        }
        if !a.resource.namespaced() {
            return true;
        }
        let found = cluster.get("namespaces", "", a.namespace);
        found.is_some_and(|n| selector.matches(&n.meta.labels))
    }

    fn object_matches(&self, a: &Attributes<'_>) -> bool {
        let Some(selector) = self.object_selector.as_ref().filter(|s| !s.is_empty()) else { return true };
        let fits = |object: &Value| object.is_object() && selector.matches(&labels(object));
        fits(&a.object) || fits(&a.old)
    }
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
    labels.filter_map(|(k, v)| v.as_str().map(|v| (k.clone(), v.to_string()))).collect()
}

impl Rule {
    fn new(value: &Value) -> Self {
        Self {
            operations: texts(&value["operations"]),
            groups: texts(&value["apiGroups"]),
            versions: texts(&value["apiVersions"]),
            resources: texts(&value["resources"]),
            names: texts(&value["resourceNames"]),
            scope: value["scope"].as_str().unwrap_or("*").to_string(),
        }
    }

    fn matches(&self, a: &Attributes<'_>) -> bool {
        let any = |list: &[String], wanted: &str| list.iter().any(|item| item == "*" || item == wanted);
        let scope = match self.scope.as_str() {
            // A Namespace is its own scope's boundary and counts as cluster-scoped.
            "Namespaced" => a.resource.namespaced(),
            "Cluster" => !a.resource.namespaced(),
            _ => true,
        };
        let resource = self.resources.iter().any(|rule| {
            let (resource, subresource) = rule.split_once('/').unwrap_or((rule, ""));
            (resource == "*" || resource == a.resource.plural) && (subresource == "*" || subresource == a.subresource)
        });
        scope
            && resource
            && any(&self.operations, a.operation.as_str())
            && any(&self.groups, &a.resource.group)
            && any(&self.versions, &a.resource.version)
            && (self.names.is_empty() || self.names.iter().any(|n| n == a.name))
    }
}

/// The conditions of a webhook or policy: all must hold.
#[derive(Default)]
pub struct Conditions(Vec<(String, Result<Expression, String>)>);

impl Conditions {
    pub fn new(list: &Value) -> Self {
        let conditions = list.as_array().into_iter().flatten().map(|condition| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default();
            (text("name").to_string(), Expression::compile(text("expression")))
        });
        Self(conditions.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One that does not hold settles it, whatever is wrong with the others.
    pub fn hold(&self, a: &Attributes<'_>, variables: &Variables) -> Result<bool, String> {
        let mut errors = Vec::new();
        for (name, expression) in &self.0 {
            let held = expression.as_ref().map_err(String::clone).and_then(|e| {
                e.cost(&[("object", &a.object), ("oldObject", &a.old)])?;
                e.holds(variables)
            });
            match held {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(e) => errors.push(format!("expression '{name}' resulted in error: {e}")),
            }
        }
        if errors.is_empty() { Ok(true) } else { Err(errors.join(", ")) }
    }
}

/// What expressions can name about a request.
pub fn variables(cluster: &Cluster, a: &Attributes<'_>) -> Variables {
    let mut variables = Variables::default();
    variables.set("object", &a.object);
    variables.set("oldObject", &a.old);
    variables.set("request", &request(a));
    let namespace = Some(a.namespace).filter(|n| !n.is_empty()).and_then(|n| cluster.get("namespaces", "", n));
    variables.set("namespaceObject", &namespace.map(|n| n.value()).unwrap_or_default());
    variables
}

/// The part of an AdmissionRequest that does not carry the objects.
pub fn request(a: &Attributes<'_>) -> Value {
    let resource = a.resource;
    let kind = json!({ "group": resource.group, "version": resource.version, "kind": resource.kind });
    let plural = json!({ "group": resource.group, "version": resource.version, "resource": resource.plural });
    let mut request = json!({
        "kind": kind, "resource": plural, "requestKind": kind, "requestResource": plural,
        "name": a.name, "namespace": a.namespace, "operation": a.operation.as_str(),
        "userInfo": a.user.info(), "dryRun": a.dry_run, "options": a.options,
    });
    if !a.subresource.is_empty() {
        request["subResource"] = a.subresource.into();
        request["requestSubResource"] = a.subresource.into();
    }
    request
}
