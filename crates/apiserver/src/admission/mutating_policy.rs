//! MutatingAdmissionPolicy: expressions complete what is stored, by an apply configuration or a JSON patch.
//! A part of the mutating row in `admission`, before webhooks; on where `--enable-admission-plugins` names it, and then its
//! kinds (v1beta1) are served.
//! A policy without a binding changes nothing; one that fails is decided by its failure policy alone.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use api::{ApiError, Reason};

use super::{
    Attributes, Operation,
    matching::{self, Matched},
    policy_index::{self, Binding, Compiled, Effect, PolicyIndex},
};
use crate::{
    authz,
    cel::{self, Expression, Variables, authorizer::AuthorizerChecks, to_json},
    discovery::served::Served,
    storage::{cluster::Cluster, index::Indexed},
};

/// What mutating policies do.
struct Mutations {
    mutations: Vec<Mutation>,
    reinvoke: bool,
}

type Policy = policy_index::Policy<Mutations>;

struct Mutation {
    is_json_patch: bool,
    expression: Compiled,
}

impl Effect for Mutations {
    const RESOURCES: &'static [&'static str] = &["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"];

    fn new(spec: &Value) -> Self {
        let mutation = |mutation: &Value| {
            let is_json_patch = mutation["patchType"] == "JSONPatch";
            let patch = &mutation[if is_json_patch { "jsonPatch" } else { "applyConfiguration" }];
            let expression = Expression::compile_mutation(patch["expression"].as_str().unwrap_or_default());
            Mutation { is_json_patch, expression }
        };
        Self {
            mutations: spec["mutations"].as_array().into_iter().flatten().map(mutation).collect(),
            reinvoke: spec["reinvocationPolicy"] == "IfNeeded",
        }
    }

    fn compile_variable(source: &str) -> Compiled {
        Expression::compile_mutation(source)
    }
}

pub struct MutatingPolicies {
    configured: Indexed<PolicyIndex<Mutations>>,
    cluster: Arc<Cluster>,
    authorizer: Arc<authz::Chain>,
}

/// What policies have made of a request so far, for those who want to look again.
#[derive(Default)]
pub struct Invocations {
    /// By policy and binding: the object as each left it.
    left: BTreeMap<(String, String), Value>,
}

impl MutatingPolicies {
    pub fn new(cluster: &Arc<Cluster>, authorizer: &Arc<authz::Chain>) -> Self {
        Self { configured: Indexed::new(cluster), cluster: cluster.clone(), authorizer: authorizer.clone() }
    }

    /// Lets every bound policy that matches change the object, in the order of their names. Those that have been asked are
    /// asked again only if they want that and somebody changed the object since. Returns whether anything changed.
    pub async fn mutate(&self, a: &mut Attributes<'_>, invocations: &mut Invocations) -> Result<bool, ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update) && a.object.is_object();
        let mut pairs: Vec<(Arc<Policy>, Arc<Binding>)> = {
            let configured = self.configured.read();
            if configured.is_empty() || !writes || matching::is_exempt(a) {
                return Ok(false);
            }
            configured.bound()
        };
        pairs.sort_by(|a, b| (&a.0.name, &a.1.name).cmp(&(&b.0.name, &b.1.name)));
        let before = a.object.clone();
        // Once more for those who want to see what others changed after them.
        for _ in 0..2 {
            for (policy, binding) in &pairs {
                let key = (policy.name.clone(), binding.name.clone());
                let asks = match invocations.left.get(&key) {
                    None => true,
                    Some(left) => policy.effect.reinvoke && *left != a.object,
                };
                if asks {
                    self.change(policy, binding, a).await?;
                    invocations.left.insert(key, a.object.clone());
                }
            }
        }
        Ok(a.object != before)
    }

    async fn change(&self, policy: &Policy, binding: &Binding, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let Some(matched) = policy.matches(binding, &self.cluster, a) else { return Ok(()) };
        let own = self.cluster.served.find(&a.resource.group, &a.resource.version, &a.resource.plural);
        let Some(own) = own else { return Ok(()) };
        let changed = match &matched {
            Matched::AsSent => self.changed(policy, binding, a, a, &own).await,
            Matched::As(served) => {
                let shown = matching::converted(&self.cluster, a, served).await?;
                match self.changed(policy, binding, a, &shown, served).await {
                    Ok(changed) => Ok(matching::convert(&self.cluster, &served.resource, &own, &changed).await?),
                    failed => failed,
                }
            }
        };
        match changed {
            Ok(changed) => {
                a.object = changed;
                Ok(())
            }
            Err(error) if policy.ignores_failure => {
                tracing::debug!(policy = policy.name, error, "a mutating admission policy failed, failing open");
                Ok(())
            }
            Err(error) => {
                let why = format!("policy '{}' with binding '{}' denied request: {error}", policy.name, binding.name);
                let forbidden = a.forbidden(&why);
                Err(ApiError::new(Reason::Invalid, forbidden.message.clone())
                    .with_details(forbidden.details.clone().unwrap_or_default()))
            }
        }
    }

    /// The object with everything the policy does to it, for each of its parameters.
    async fn changed(
        &self,
        policy: &Policy,
        binding: &Binding,
        a: &Attributes<'_>,
        seen: &Attributes<'_>,
        served: &Served,
    ) -> Result<Value, String> {
        let params = policy.params(binding, &self.cluster, seen)?;
        let mut object = seen.object.clone();
        let mut budget = cel::COST_BUDGET;
        for params in params {
            let conditions = |variables: &Variables, _: &mut u64| policy.conditions.hold(variables);
            if !self.ask(a, seen, &object, &params, &mut budget, conditions).await? {
                continue;
            }
            for mutation in &policy.effect.mutations {
                let expression = mutation.expression.as_ref().map_err(ToString::to_string)?;
                let made = self.ask(a, seen, &object, &params, &mut budget, |variables, budget| {
                    let (variables, missing) = policy.with_variables(variables.clone(), budget);
                    let (made, cost) = expression.evaluate(&variables);
                    cel::spend(budget, cost).map_err(|e| e.to_string())?;
                    let made = made.map_err(|error| missing.get(&error).cloned().unwrap_or(error).to_string())?;
                    to_json(&made).ok_or_else(|| "the expression evaluated to a type that is not JSON".to_string())
                });
                object = apply(mutation.is_json_patch, served, &object, made.await?)?;
            }
        }
        Ok(object)
    }

    /// Evaluates with the object as it is now; what is to be known about permissions is found out, and it is evaluated again.
    async fn ask<T>(
        &self,
        a: &Attributes<'_>,
        seen: &Attributes<'_>,
        object: &Value,
        params: &Value,
        budget: &mut u64,
        evaluate: impl Fn(&Variables, &mut u64) -> Result<T, String>,
    ) -> Result<T, String> {
        let questions = AuthorizerChecks::default();
        loop {
            let mut variables = matching::variables(&self.cluster, a, seen, &questions);
            variables.set("object", object);
            variables.set("params", params);
            let answer = evaluate(&variables, budget);
            if !questions.settle(&self.authorizer).await {
                return answer;
            }
        }
    }
}

fn apply(is_json_patch: bool, served: &Served, object: &Value, made: Value) -> Result<Value, String> {
    let changed = match is_json_patch {
        true if !made.is_array() => {
            return Err("type mismatch: JSONPatchType.expression should evaluate to array".into());
        }
        true => api::patch::json_patch(object, made.to_string().as_bytes()).map_err(|e| format!("JSON Patch: {e}"))?,
        false if !made.is_object() => {
            return Err("unsupported return type from ApplyConfiguration expression".into());
        }
        false => match &served.schema {
            Some((schema, root)) => api::managed_fields::merged(schema, *root, object, &made),
            None => {
                let mut merged = object.clone();
                merge(&mut merged, made);
                merged
            }
        },
    };
    match (&changed["apiVersion"], &changed["kind"]) == (&object["apiVersion"], &object["kind"]) {
        true => Ok(changed),
        false => Err("the kind of an object can't be changed".into()),
    }
}

/// Without a schema maps are merged and everything else is replaced.
fn merge(into: &mut Value, made: Value) {
    match (into, made) {
        (Value::Object(into), Value::Object(made)) => {
            for (key, value) in made {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, made) => *into = made,
    }
}
