//! `status.typeChecking` of admission policies: what an expression gets wrong about the kinds it is asked about.
//! A row of `post_start_hooks`, since it needs this crate's CEL; upstream's is one of the controller manager's controllers,
//! and so is its identity. Woken by every change of a policy. The checker itself is `cel::types`.
//! A warning changes nothing about what the policy decides.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use http::{Method, Request, header};
use serde_json::{Value, json};

use api::{ApiError, Object};

use super::expressions;
use crate::{
    authn::User,
    cel::types::Type,
    discovery::served::{Served, Set},
    post_start_hooks::ControlLoop,
    request::body,
    server::pipeline::ApiServer,
};

/// Kinds beyond this many are not looked at.
const MAX_KINDS: usize = 10;

#[derive(Default)]
pub struct PolicyStatus {
    /// The generation of each policy that was checked, by uid, so that our own writes are not looked at.
    checked: HashMap<String, i64>,
}

#[async_trait]
impl ControlLoop for PolicyStatus {
    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        let policies = server.cluster.list("validatingadmissionpolicies", "");
        self.checked.retain(|uid, _| policies.iter().any(|p| p.meta.uid == *uid));
        for policy in policies {
            if self.checked.get(&policy.meta.uid) != Some(&policy.meta.generation) && check(server, &policy).await {
                self.checked.insert(policy.meta.uid.clone(), policy.meta.generation);
            }
        }
        Ok(None)
    }
}

/// Whether the policy's status says what is to be said.
async fn check(server: &Arc<ApiServer>, policy: &Object) -> bool {
    let value = policy.value();
    let status = &value["status"];
    if status["observedGeneration"] == policy.meta.generation && status["typeChecking"].is_object() {
        return true;
    }
    let found = warnings(&server.cluster.served.current(), &value["spec"]);
    let type_checking = if found.is_empty() { json!({}) } else { json!({ "expressionWarnings": found }) };
    let patch = json!({
        "metadata": { "uid": policy.meta.uid, "resourceVersion": policy.meta.resource_version.to_string() },
        "status": { "observedGeneration": policy.meta.generation, "typeChecking": type_checking },
    });
    write(server, &policy.meta.name, &patch).await
}

/// As `ExpressionWarning`s, in the order of the expressions.
fn warnings(set: &Set, spec: &Value) -> Vec<Value> {
    let kinds = kinds(set, spec);
    let mut found = Vec::new();
    for (at, validation) in spec["validations"].as_array().into_iter().flatten().enumerate() {
        for field in ["expression", "messageExpression"] {
            let Some(source) = validation[field].as_str().filter(|s| !s.is_empty()) else { continue };
            let problems = kinds.iter().filter_map(|served| {
                let (schema, id) = served.schema.clone()?;
                let names = expressions::policy_names(set, spec, Type::Struct(schema, id));
                let problem = expressions::check_source(source, &names).err()?;
                Some(format!("{}, Kind={}: {problem}\n", served.api_version(), served.kind))
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

/// The kinds a policy names outright; with a star it could be any.
fn kinds(set: &Set, spec: &Value) -> Vec<Arc<Served>> {
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
    let found = named.iter().filter_map(|(group, version, plural)| set.find(group, version, plural).cloned());
    found.take(MAX_KINDS).collect()
}

async fn write(server: &Arc<ApiServer>, name: &str, patch: &Value) -> bool {
    let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/{name}/status"))
        .header(header::CONTENT_TYPE, "application/merge-patch+json")
        .header(header::USER_AGENT, "validatingadmissionpolicy-status-controller")
        .body(body::full(patch.to_string()));
    let Ok(request) = request else { return true };
    let user = User::new(
        "system:serviceaccount:kube-system:validatingadmissionpolicy-status-controller",
        &["system:serviceaccounts", "system:serviceaccounts:kube-system"],
    );
    let response = server.handle(ApiServer::in_process_request(user, request)).await;
    // What lost a race has changed again and comes back.
    response.status().is_success()
}
