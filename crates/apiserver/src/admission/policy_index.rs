//! Admission policies of either kind, compiled, with their bindings: what validating and mutating ones have in common.
//! Kept up to date by `storage::index`; asked by `policy` and `mutating_policy`, which know what a policy does.
//! A policy without a binding is never asked.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use serde_json::Value;

use api::{Object, selectors::LabelSelector};

use super::{
    Attributes,
    matching::{Conditions, Matched, Matcher},
};
use crate::{
    cel::{self, CelError, Expression, Variables},
    json_fields::text,
    storage::{cluster::Cluster, index::Index},
};

/// An expression, or why it can't be compiled.
pub type Compiled = Result<Expression, CelError>;

/// What a policy of one kind does.
pub trait Effect: Send + Sync + 'static {
    /// Plural names of the policies and of their bindings.
    const RESOURCES: &'static [&'static str];

    fn new(spec: &Value) -> Self;

    /// Compiles an expression that others of the policy may use.
    fn compile_variable(source: &str) -> Compiled;
}

pub struct Policy<E> {
    pub name: String,
    matcher: Result<Matcher, String>,
    pub conditions: Conditions,
    variables: Vec<(String, Compiled)>,
    /// apiVersion and kind of the parameters.
    params: Option<(String, String)>,
    pub ignores_failure: bool,
    pub effect: E,
}

pub struct Binding {
    pub name: String,
    policy: String,
    params: Value,
    matcher: Result<Matcher, String>,
    /// What a failed validation leads to; none where the policy mutates.
    pub actions: Vec<String>,
}

pub struct PolicyIndex<E> {
    policies: BTreeMap<String, Arc<Policy<E>>>,
    bindings: BTreeMap<String, Arc<Binding>>,
}

impl<E> Default for PolicyIndex<E> {
    fn default() -> Self {
        Self { policies: BTreeMap::new(), bindings: BTreeMap::new() }
    }
}

impl<E: Effect> Index for PolicyIndex<E> {
    const RESOURCES: &'static [&'static str] = E::RESOURCES;

    fn apply(&mut self, resource: &'static str, old: Option<&Object>, new: Option<&Object>) {
        let Some(name) = new.or(old).map(|o| o.meta.name.clone()) else { return };
        let spec = new.map(|o| o.value()["spec"].clone());
        match (resource == E::RESOURCES[0], spec) {
            (true, Some(spec)) => drop(self.policies.insert(name.clone(), Arc::new(Policy::new(name, &spec)))),
            (true, None) => drop(self.policies.remove(&name)),
            (false, Some(spec)) => drop(self.bindings.insert(name.clone(), Arc::new(Binding::new(name, &spec)))),
            (false, None) => drop(self.bindings.remove(&name)),
        }
    }
}

impl<E> PolicyIndex<E> {
    pub fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// Every binding with its policy, by the names of the bindings.
    pub fn bound(&self) -> Vec<(Arc<Policy<E>>, Arc<Binding>)> {
        let bound = self.bindings.values();
        bound.filter_map(|b| Some((self.policies.get(&b.policy)?.clone(), b.clone()))).collect()
    }
}

impl Binding {
    fn new(name: String, spec: &Value) -> Self {
        let actions = spec["validationActions"].as_array().into_iter().flatten();
        Self {
            name,
            policy: text(spec, "policyName").into(),
            params: spec["paramRef"].clone(),
            matcher: Matcher::new(&spec["matchResources"]),
            actions: actions.filter_map(|a| a.as_str().map(str::to_string)).collect(),
        }
    }
}

impl<E: Effect> Policy<E> {
    fn new(name: String, spec: &Value) -> Self {
        let variables = spec["variables"].as_array().into_iter().flatten();
        let variable = |v: &Value| (text(v, "name").into(), E::compile_variable(text(v, "expression")));
        let kind = &spec["paramKind"];
        Self {
            name,
            matcher: Matcher::new(&spec["matchConstraints"]),
            conditions: Conditions::new(&spec["matchConditions"]),
            variables: variables.map(variable).collect(),
            params: kind.is_object().then(|| (text(kind, "apiVersion").into(), text(kind, "kind").into())),
            ignores_failure: spec["failurePolicy"] == "Ignore",
            effect: E::new(spec),
        }
    }
}

impl<E> Policy<E> {
    /// Whether the request is for this policy and this binding of it, and how it is to be shown.
    pub fn matches(&self, binding: &Binding, cluster: &Cluster, a: &Attributes<'_>) -> Option<Matched> {
        let matched = self.matcher.as_ref().ok()?.matches(cluster, a, false)?;
        binding.matcher.as_ref().ok()?.matches(cluster, a, true)?;
        Some(matched)
    }

    /// The objects the policy is evaluated with: one null for a policy without parameters.
    pub fn params(&self, binding: &Binding, cluster: &Cluster, a: &Attributes<'_>) -> Result<Vec<Value>, String> {
        let reference = &binding.params;
        let Some((api_version, kind)) = &self.params else { return Ok(vec![Value::Null]) };
        if !reference.is_object() {
            return Ok(vec![Value::Null]);
        }
        let served = cluster.served.current();
        let found = served.resources.iter().find(|r| r.kind == *kind && r.api_version() == *api_version);
        let served = found.ok_or_else(|| {
            format!(
                "failed to configure binding: failed to find resource referenced by paramKind: '{api_version}, Kind={kind}'"
            )
        })?;
        let place = match (served.namespaced(), reference["namespace"].as_str()) {
            (false, _) => "",
            (true, Some(namespace)) if !namespace.is_empty() => namespace,
            _ => a.namespace,
        };
        let prefix = if place.is_empty() { String::new() } else { format!("{place}/") };
        let cache = cluster.cache.resource(&served.prefix);
        let found: Vec<Value> = match reference["name"].as_str().filter(|n| !n.is_empty()) {
            Some(name) => cache.get(&format!("{prefix}{name}")).map(|e| e.object.value()).into_iter().collect(),
            None => {
                let selector = LabelSelector::from_value(&reference["selector"])?;
                let kept = cache.list(&prefix, None, 0, 0, |e| selector.matches(&e.object.meta.labels));
                kept.entries.iter().map(|e| e.object.value()).collect()
            }
        };
        if found.is_empty() && reference["parameterNotFoundAction"] != "Allow" {
            return Err(
                "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
                    .into(),
            );
        }
        Ok(found)
    }

    /// Adds `variables.NAME`, each of which may name those before it. One that fails is missing, so that only those who
    /// use it fail; what they then say is given with what should be said instead.
    pub fn with_variables(&self, mut base: Variables, budget: &mut u64) -> (Variables, HashMap<CelError, CelError>) {
        let (mut known, mut missing) = (Vec::new(), HashMap::new());
        for (name, expression) in &self.variables {
            base.set_value("variables", cel::map(known.clone()));
            let expression = expression.as_ref().map_err(CelError::clone);
            let value = expression.and_then(|e| {
                let (value, cost) = e.evaluate(&base);
                cel::spend(budget, cost)?;
                value
            });
            match value {
                Ok(value) => known.push((name.clone(), value)),
                Err(error) => {
                    let error = missing.get(&error).cloned().unwrap_or(error);
                    let error = format!("composited variable {name:?} fails to evaluate: {error}");
                    missing.insert(CelError::Evaluation(format!("no such key: {name}")), CelError::Evaluation(error));
                }
            }
        }
        base.set_value("variables", cel::map(known));
        (base, missing)
    }
}
