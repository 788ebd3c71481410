//! `status.typeChecking` of validating admission policies: what an expression gets wrong about the kinds it is asked about.
//! Woken by changes of policies; asks discovery and the published schemas about kinds that are not built in.
//! The checker itself is `cel`. A warning changes nothing about what a policy decides.

use std::{collections::BTreeSet, sync::Arc};

use api::{ApiError, kinds};
use async_trait::async_trait;
use cel::{
    admission::{check_source, policy_names},
    openapi_types,
    types::{SchemaRef, Type},
};
use client::{Client, Informer, Patch};
use http::Method;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use serde_json::{Value, json};

use crate::{
    common::objects,
    runner::{Context, Controller, Outcome, Setup},
};

const FIELD_MANAGER: &str = "validatingadmissionpolicy-status";
/// Kinds beyond this many are not looked at.
const KINDS_MAX: usize = 10;

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let policies = setup.informer::<ValidatingAdmissionPolicy>();
    setup.on_keys(&policies);
    Arc::new(PolicyStatus { context: setup.context.clone(), policies })
}

struct PolicyStatus {
    context: Context,
    policies: Informer<ValidatingAdmissionPolicy>,
}

#[async_trait]
impl Controller for PolicyStatus {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(policy) = self.policies.get(key) else { return Ok(None) };
        let generation = policy.metadata.generation.unwrap_or_default();
        let observed = policy.status.as_ref().and_then(|status| status.observed_generation).unwrap_or_default();
        if generation <= observed {
            return Ok(None);
        }
        let spec = serde_json::to_value(&policy.spec)
            .map_err(|e| ApiError::internal(format!("couldn't read the policy {key}: {e}")))?;
        let found = self.warnings(&spec).await?;
        let type_checking = if found.is_empty() { json!({}) } else { json!({ "expressionWarnings": found }) };
        let config = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": key },
            "status": { "observedGeneration": generation, "typeChecking": type_checking },
        });
        let patch = Patch::Apply { manager: FIELD_MANAGER.into(), force: true, config };
        match self.context.client.api::<ValidatingAdmissionPolicy>().patch_status(key, &patch).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(None),
        }
    }
}

impl PolicyStatus {
    async fn warnings(&self, spec: &Value) -> Result<Vec<Value>, ApiError> {
        let client = &self.context.client;
        let mut kinds = Vec::new();
        for (group, version, plural) in named_resources(spec) {
            if kinds.len() < KINDS_MAX
                && let Some(kind) = kind_of(client, &group, &version, &plural).await?
                && let Some(object) = type_of_kind(client, &group, &version, &kind).await?
            {
                kinds.push(CheckedKind { api_version: api_version(&group, &version), kind, object });
            }
        }
        let params = match (spec["paramKind"]["apiVersion"].as_str(), spec["paramKind"]["kind"].as_str()) {
            (Some(version), Some(kind)) => {
                let (group, version) = version.split_once('/').unwrap_or(("", version));
                type_of_kind(client, group, version, kind).await?
            }
            _ => None,
        };
        Ok(expression_warnings(spec, &kinds, &params.unwrap_or(Type::Dyn)))
    }
}

/// One that a policy is asked about.
struct CheckedKind {
    api_version: String,
    kind: String,
    object: Type,
}

/// As `ExpressionWarning`s, in the order of the expressions.
fn expression_warnings(spec: &Value, kinds: &[CheckedKind], params: &Type) -> Vec<Value> {
    let mut found = Vec::new();
    for (at, validation) in spec["validations"].as_array().into_iter().flatten().enumerate() {
        for field in ["expression", "messageExpression"] {
            let Some(source) = validation[field].as_str().filter(|s| !s.is_empty()) else { continue };
            let problems = kinds.iter().filter_map(|CheckedKind { api_version, kind, object }| {
                let names = policy_names(spec, object.clone(), params.clone());
                let problem = check_source(source, &names).err()?;
                Some(format!("{api_version}, Kind={kind}: {problem}\n"))
            });
            let problems: Vec<String> = problems.collect();
            if !problems.is_empty() {
                let field = format!("spec.validations[{at}].{field}");
                found.push(json!({ "fieldRef": field, "warning": problems.join("\n") }));
            }
        }
    }
    found
}

/// Group, version and plural of the resources a policy names outright; with a star it could be any.
fn named_resources(spec: &Value) -> BTreeSet<(String, String, String)> {
    let mut named = BTreeSet::new();
    for rule in spec["matchConstraints"]["resourceRules"].as_array().into_iter().flatten() {
        let texts = |field: &str| rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        if texts("apiGroups").chain(texts("apiVersions")).any(|t| t.contains('*')) {
            continue;
        }
        for group in texts("apiGroups") {
            for version in texts("apiVersions") {
                for resource in texts("resources").filter(|r| !r.contains(['*', '/'])) {
                    named.insert((group.to_string(), version.to_string(), resource.to_string()));
                }
            }
        }
    }
    named
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_string() } else { format!("{group}/{version}") }
}

/// The kind of a resource; none where the server has no such resource.
async fn kind_of(client: &Client, group: &str, version: &str, plural: &str) -> Result<Option<String>, ApiError> {
    let builtin = kinds::builtin().iter().find(|r| r.group == group && r.version == version && r.plural == plural);
    if let Some(resource) = builtin {
        return Ok(Some(resource.kind.clone()));
    }
    let list = ask(client, &format!("/apis/{group}/{version}")).await?;
    let mut resources = list["resources"].as_array().into_iter().flatten();
    let found = resources.find(|resource| resource["name"] == plural);
    Ok(found.and_then(|resource| resource["kind"].as_str()).map(str::to_string))
}

/// The type of a kind: of the built-in ones as this program knows it, of others as the server publishes it.
async fn type_of_kind(client: &Client, group: &str, version: &str, kind: &str) -> Result<Option<Type>, ApiError> {
    if let Some((schema, id)) = api::schema::find_built_in(group, version, kind) {
        return Ok(Some(Type::Struct(SchemaRef::Builtin(schema), id)));
    }
    let document = ask(client, &format!("/openapi/v3/apis/{group}/{version}")).await?;
    let this = json!({ "group": group, "version": version, "kind": kind });
    let mut schemas = document["components"]["schemas"].as_object().into_iter().flatten();
    let is_this = |schema: &Value| {
        schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|kinds| kinds.contains(&this))
    };
    Ok(schemas.find(|(_, schema)| is_this(schema)).map(|(_, schema)| openapi_types::type_of_kind(schema)))
}

/// What the server publishes there; nothing where it has nothing.
async fn ask(client: &Client, path: &str) -> Result<Value, ApiError> {
    match objects::call(client, Method::GET, path.to_string(), "application/json", Vec::new()).await {
        Err(error) if error.is_not_found() => Ok(Value::Null),
        other => other,
    }
}
