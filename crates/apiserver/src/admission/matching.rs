//! Which requests a webhook or a policy is asked about: rules, selectors and conditions, and in which version.
//! Used by `webhooks` and `policy`.
//! Configurations of admission itself are never matched, so that they can always be mended.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};

use api::{ApiError, Resource, selectors::LabelSelector};

use super::{Attributes, Operation};
use crate::{
    authz,
    cel::{self, CelError, Expression, Variables, authorizer},
    discovery::served::Served,
    json_fields::texts,
    storage::cluster::Cluster,
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
    /// `matchPolicy: Equivalent`: a rule also means the other versions of what it names.
    equivalent: bool,
}

/// How a request matched: as it came, or in another version of its resource, in which it is to be shown.
pub enum Matched {
    AsSent,
    As(Arc<Served>),
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
            equivalent: value["matchPolicy"] != "Exact",
        })
    }

    /// `without_rules`: no rules at all match everything, as in a binding.
    pub fn matches(&self, cluster: &Cluster, a: &Attributes<'_>, without_rules: bool) -> Option<Matched> {
        if !self.namespace_matches(cluster, a) || !self.object_matches(a) {
            return None;
        }
        if self.excluded.iter().any(|r| r.matches(a, a.resource)) {
            return None;
        }
        if (without_rules && self.rules.is_empty()) || self.rules.iter().any(|r| r.matches(a, a.resource)) {
            return Some(Matched::AsSent);
        }
        if !self.equivalent {
            return None;
        }
        let others = equivalents(cluster, a.resource);
        if others.iter().any(|o| self.excluded.iter().any(|r| r.matches(a, &o.resource))) {
            return None;
        }
        others.into_iter().find(|o| self.rules.iter().any(|r| r.matches(a, &o.resource))).map(Matched::As)
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

/// The other ways to see the same stored objects.
fn equivalents(cluster: &Cluster, resource: &Resource) -> Vec<Arc<Served>> {
    let set = cluster.served.current();
    let Some(own) = set.find(&resource.group, &resource.version, &resource.plural) else { return Vec::new() };
    let other = |s: &&Arc<Served>| s.prefix == own.prefix && !Arc::ptr_eq(s, own);
    set.resources.iter().filter(other).cloned().collect()
}

/// The request as if it had come for `served`, another version of its resource.
pub async fn converted<'a>(
    cluster: &Cluster,
    a: &Attributes<'a>,
    served: &'a Served,
) -> Result<Attributes<'a>, ApiError> {
    Ok(Attributes {
        user: a.user,
        operation: a.operation,
        resource: &served.resource,
        subresource: a.subresource,
        namespace: a.namespace,
        name: a.name,
        object: convert(cluster, a.resource, served, &a.object).await?,
        old: convert(cluster, a.resource, served, &a.old).await?,
        dry_run: a.dry_run,
        options: a.options.clone(),
        warnings: Vec::new(),
    })
}

/// An object of `from` in the version of `to`. Bodies of another kind, as of a scale, are the same in every version.
pub async fn convert(cluster: &Cluster, from: &Resource, to: &Served, object: &Value) -> Result<Value, ApiError> {
    if !object.is_object() || object["kind"] != from.kind.as_str() {
        return Ok(object.clone());
    }
    match &to.custom {
        Some(custom) => {
            let converted = custom.convert(cluster, vec![object.clone()], &to.api_version()).await?;
            converted.into_iter().next().ok_or_else(|| ApiError::internal("conversion returned nothing"))
        }
        None => Ok(api::kinds::convert(from, &to.resource, object.clone())),
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

    fn matches(&self, a: &Attributes<'_>, seen: &Resource) -> bool {
        let any = |list: &[String], wanted: &str| list.iter().any(|item| item == "*" || item == wanted);
        let scope = match self.scope.as_str() {
            // A Namespace is its own scope's boundary and counts as cluster-scoped.
            "Namespaced" => seen.namespaced(),
            "Cluster" => !seen.namespaced(),
            _ => true,
        };
        let resource = self.resources.iter().any(|rule| {
            let (resource, subresource) = rule.split_once('/').unwrap_or((rule, ""));
            (resource == "*" || resource == seen.plural) && (subresource == "*" || subresource == a.subresource)
        });
        scope
            && resource
            && any(&self.operations, a.operation.as_str())
            && any(&self.groups, &seen.group)
            && any(&self.versions, &seen.version)
            && (self.names.is_empty() || self.names.iter().any(|n| n == a.name))
    }
}

/// The conditions of a webhook or policy: all must hold.
#[derive(Default)]
pub struct Conditions(Vec<(String, Result<Expression, CelError>)>);

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
    pub fn hold(&self, variables: &Variables) -> Result<bool, String> {
        let (mut errors, mut budget) = (Vec::new(), cel::CONDITIONS_COST_BUDGET);
        for (name, expression) in &self.0 {
            let held = expression.as_ref().map_err(CelError::clone).and_then(|e| {
                let (held, cost) = e.holds(variables);
                cel::spend(&mut budget, cost)?;
                held
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

/// What expressions can name about a request; what they ask about permissions is kept in `questions`.
pub fn variables(
    cluster: &Cluster,
    sent: &Attributes<'_>,
    seen: &Attributes<'_>,
    questions: &authorizer::AuthorizerChecks,
) -> Variables {
    let mut variables = Variables::default();
    variables.set("object", &seen.object);
    variables.set("oldObject", &seen.old);
    variables.set("request", &request(sent, seen));
    let namespace = Some(sent.namespace).filter(|n| !n.is_empty()).and_then(|n| cluster.get("namespaces", "", n));
    variables.set("namespaceObject", &namespace.map(|n| n.value()).unwrap_or_default());
    let text = str::to_string;
    let asked = authz::Attributes {
        user: sent.user.clone(),
        is_resource: true,
        group: sent.resource.group.clone(),
        version: sent.resource.version.clone(),
        resource: sent.resource.plural.clone(),
        subresource: text(sent.subresource),
        namespace: text(sent.namespace),
        name: text(sent.name),
        ..authz::Attributes::default()
    };
    variables.set_library(authorizer::register);
    for (name, value) in authorizer::variables(asked, questions) {
        variables.set_value(name, value);
    }
    variables
}

/// The kind of what is shown. A subresource's body may have one of its own, and what is deleted is of the resource's.
fn kind(a: &Attributes<'_>) -> Value {
    let text = |field: &str| a.object[field].as_str();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let own = a.resource.api_version();
    let (version, kind) = (api_version.unwrap_or(&own), kind.unwrap_or(&a.resource.kind));
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    json!({ "group": group, "version": version, "kind": kind })
}

/// The part of an AdmissionRequest that does not carry the objects: what was `sent`, and how it is `seen`.
pub fn request(sent: &Attributes<'_>, seen: &Attributes<'_>) -> Value {
    let plural = |r: &Resource| json!({ "group": r.group, "version": r.version, "resource": r.plural });
    let mut request = json!({
        "kind": kind(seen), "resource": plural(seen.resource),
        "requestKind": kind(sent), "requestResource": plural(sent.resource),
        "name": sent.name, "namespace": sent.namespace, "operation": sent.operation.as_str(),
        "userInfo": sent.user.info(), "dryRun": sent.dry_run, "options": sent.options,
    });
    if !sent.subresource.is_empty() {
        request["subResource"] = sent.subresource.into();
        request["requestSubResource"] = sent.subresource.into();
    }
    request
}
