//! ValidatingAdmissionPolicy: expressions decide what may be stored.
//! A part of the validating row in `admission`.
//! A policy without a binding decides nothing.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use api::{ApiError, Reason};

use super::{
    Attributes,
    admission_metrics::policy_checked,
    matching::{self, Matched},
    policy_index::{self, Binding, Compiled, Effect, PolicyIndex},
};
use crate::{
    audit, authz,
    cel::{self, CelError, Expression, Variables, authorizer::AuthorizerChecks},
    json_fields::text,
    storage::{cluster::Cluster, index::Indexed},
};

/// What validating policies do.
struct Validations {
    validations: Vec<Validation>,
    /// Key and value of notes about requests.
    annotations: Vec<(String, Compiled)>,
}

type Policy = policy_index::Policy<Validations>;

struct Validation {
    expression: Compiled,
    source: String,
    message: String,
    message_expression: Option<Compiled>,
    reason: String,
}

impl Effect for Validations {
    const RESOURCES: &'static [&'static str] = &["validatingadmissionpolicies", "validatingadmissionpolicybindings"];

    fn new(spec: &Value) -> Self {
        let list = |field: &str| spec[field].as_array().cloned().unwrap_or_default();
        let validation = |v: &Value| Validation {
            expression: Expression::compile(text(v, "expression")),
            source: text(v, "expression").into(),
            message: text(v, "message").into(),
            message_expression: v["messageExpression"].as_str().filter(|e| !e.is_empty()).map(Expression::compile),
            reason: text(v, "reason").into(),
        };
        Self {
            validations: list("validations").iter().map(validation).collect(),
            annotations: list("auditAnnotations")
                .iter()
                .map(|a| (text(a, "key").to_string(), Expression::compile(text(a, "valueExpression"))))
                .collect(),
        }
    }

    fn compile_variable(source: &str) -> Compiled {
        Expression::compile(source)
    }
}

pub struct Policies {
    configured: Indexed<PolicyIndex<Validations>>,
    cluster: Arc<Cluster>,
    authorizer: Arc<authz::Chain>,
    metrics: ::metrics::Metrics,
}

/// Why a request is refused, or warned about.
struct Violation {
    message: String,
    reason: String,
    /// Which of the validations it was.
    index: usize,
    checked: Checked,
}

/// What was wrong with a validation itself, in the words of upstream's metrics, and how long it took.
#[derive(Clone, Copy)]
struct Checked {
    error: &'static str,
    took: Duration,
}

impl Checked {
    fn new(error: Option<&CelError>, took: Duration) -> Self {
        let error = match error {
            None => "no_error",
            Some(CelError::Compilation(_)) => "compile_error",
            Some(CelError::OutOfBudget) => "out_of_budget",
            Some(_) => "invalid_error",
        };
        Self { error, took }
    }

    /// What goes wrong before any expression is looked at.
    fn unprepared() -> Self {
        Self { error: "invalid_error", took: Duration::ZERO }
    }
}

/// What one policy has to say about a request.
#[derive(Default)]
struct Verdict {
    violations: Vec<Violation>,
    /// Of the validations that hold, and of those whose failure does not matter.
    passed: Vec<Checked>,
    annotations: Vec<(String, String)>,
}

impl Policies {
    pub fn new(cluster: &Arc<Cluster>, authorizer: &Arc<authz::Chain>, metrics: &::metrics::Metrics) -> Self {
        let (cluster, authorizer, metrics) = (cluster.clone(), authorizer.clone(), metrics.clone());
        Self { configured: Indexed::new(&cluster), cluster, authorizer, metrics }
    }

    pub async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let pairs: Vec<(Arc<Policy>, Arc<Binding>)> = {
            let configured = self.configured.read();
            if configured.is_empty() || matching::is_exempt(a) {
                return Ok(());
            }
            configured.bound()
        };
        let mut refused: Option<ApiError> = None;
        for (policy, binding) in pairs {
            let Some(matched) = policy.matches(&binding, &self.cluster, a) else { continue };
            let verdict = match &matched {
                Matched::AsSent => self.decide(&policy, &binding, a, a).await,
                Matched::As(served) => {
                    let shown = matching::converted(&self.cluster, a, served).await?;
                    self.decide(&policy, &binding, a, &shown).await
                }
            };
            verdict.annotations.iter().for_each(|(key, value)| audit::annotate(key, value));
            let acts = |wanted: &str| binding.actions.iter().any(|action| action == wanted);
            let count = |checked: &Checked, action: &str| {
                let of = (policy.name.as_str(), binding.name.as_str());
                policy_checked(&self.metrics, of, checked.error, action, checked.took);
            };
            verdict.passed.iter().for_each(|checked| count(checked, "allow"));
            for violation in &verdict.violations {
                for (action, word) in [("Deny", "deny"), ("Audit", "audit"), ("Warn", "warn")] {
                    if acts(action) {
                        count(&violation.checked, word);
                    }
                }
            }
            if acts("Audit") && !verdict.violations.is_empty() {
                audit::annotate(FAILURE, &failures(&policy, &binding, &verdict.violations));
            }
            for violation in verdict.violations {
                if acts("Warn") {
                    a.warnings.push(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                        policy.name, binding.name, violation.message
                    ));
                }
                if acts("Deny") && refused.is_none() {
                    refused = Some(refusal(a, &policy, &binding, &violation));
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// What expressions want to know about permissions is found out, and they are evaluated again.
    async fn decide(&self, policy: &Policy, binding: &Binding, a: &Attributes<'_>, seen: &Attributes<'_>) -> Verdict {
        let questions = AuthorizerChecks::default();
        loop {
            let variables = matching::variables(&self.cluster, a, seen, &questions);
            let verdict = self.evaluate(policy, binding, seen, variables);
            if !questions.settle(&self.authorizer).await {
                return verdict;
            }
        }
    }

    fn evaluate(&self, policy: &Policy, binding: &Binding, a: &Attributes<'_>, mut base: Variables) -> Verdict {
        let mut verdict = Verdict::default();
        let fails =
            |verdict: &mut Verdict, index: usize, message: String, checked: Checked| match policy.ignores_failure {
                true => verdict.passed.push(checked),
                false => verdict.violations.push(Violation { message, reason: String::new(), index, checked }),
            };
        let params = match policy.params(binding, &self.cluster, a) {
            Ok(params) => params,
            Err(e) => {
                fails(&mut verdict, 0, e, Checked::unprepared());
                return verdict;
            }
        };
        let mut budget = cel::COST_BUDGET;
        for params in params {
            base.set("params", &params);
            match policy.conditions.hold(&base) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(e) => {
                    fails(&mut verdict, 0, e, Checked::unprepared());
                    continue;
                }
            }
            let (variables, missing) = policy.with_variables(base.clone(), &mut budget);
            let explain = |error: CelError| missing.get(&error).cloned().unwrap_or(error);
            for (index, validation) in policy.effect.validations.iter().enumerate() {
                let began = self.cluster.env.monotonic();
                let expression = validation.expression.as_ref().map_err(CelError::clone);
                let held = expression.and_then(|e| {
                    let (held, cost) = e.holds(&variables);
                    cel::spend(&mut budget, cost)?;
                    held.map_err(explain)
                });
                let took = self.cluster.env.monotonic().saturating_sub(began);
                let checked = Checked::new(held.as_ref().err(), took);
                match held {
                    Err(e @ CelError::OutOfBudget) => {
                        fails(&mut verdict, index, e.to_string(), checked);
                        return verdict;
                    }
                    Ok(true) => verdict.passed.push(checked),
                    Ok(false) => {
                        verdict.violations.push(validation.violation(index, &variables, &mut budget, checked));
                    }
                    Err(e) => {
                        let message = format!("expression '{}' resulted in error: {e}", validation.source);
                        fails(&mut verdict, index, message, checked);
                    }
                }
            }
            for (key, expression) in &policy.effect.annotations {
                let expression = expression.as_ref().map_err(CelError::clone);
                let text = expression.and_then(|e| {
                    let (text, cost) = e.text(&variables);
                    cel::spend(&mut budget, cost)?;
                    text.map_err(explain)
                });
                match text {
                    Ok(value) if value.trim().is_empty() => {}
                    Ok(value) => verdict.annotations.push((format!("{}/{key}", policy.name), value.trim().to_string())),
                    Err(e) => {
                        let message = format!("valueExpression of {key:?} resulted in error: {e}");
                        fails(&mut verdict, 0, message, Checked::new(Some(&e), Duration::ZERO));
                    }
                }
            }
        }
        verdict
    }
}

impl Validation {
    fn violation(&self, index: usize, variables: &Variables, budget: &mut u64, checked: Checked) -> Violation {
        let made = self.message_expression.as_ref().and_then(|e| {
            let (text, cost) = e.as_ref().ok()?.text(variables);
            cel::spend(budget, cost).ok()?;
            text.ok()
        });
        let made = made.map(|m| m.trim().to_string()).filter(|m| !m.is_empty() && !m.contains('\n'));
        let message = match (made, self.message.is_empty()) {
            (Some(made), _) => made,
            (None, false) => self.message.clone(),
            (None, true) => format!("failed expression: {}", self.source.trim()),
        };
        Violation { message, reason: self.reason.clone(), index, checked }
    }
}

const FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";

/// What failed, for the audit log.
fn failures(policy: &Policy, binding: &Binding, violations: &[Violation]) -> String {
    let failed = violations.iter().map(|v| {
        json!({
            "message": v.message, "policy": policy.name, "binding": binding.name, "expressionIndex": v.index,
            "validationActions": binding.actions,
        })
    });
    Value::Array(failed.collect()).to_string()
}

fn refusal(a: &Attributes<'_>, policy: &Policy, binding: &Binding, violation: &Violation) -> ApiError {
    let message = format!(
        "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {}",
        policy.name, binding.name, violation.message
    );
    let reason = match violation.reason.as_str() {
        "" => Reason::Invalid,
        word => Reason::parse(word),
    };
    let forbidden = a.forbidden(&message);
    let mut details = forbidden.details.clone().unwrap_or_else(|| json!({}));
    details["causes"] = json!([{ "message": message }]);
    ApiError::new(reason, forbidden.message.clone()).with_details(details)
}
