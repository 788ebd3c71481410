//! A remote service decides: SubjectAccessReview over HTTPS, answers believed for a while.
//! A row of the modes in `authz`, as often as a configuration file names one.
//! A service that cannot be asked allows nothing; whether it denies is for the configuration to say.

use std::{collections::HashSet, fmt, path::PathBuf, time::Duration};

use ::metrics::{DEFAULT_BUCKETS, Family, Metrics};
use async_trait::async_trait;
use serde_json::{Value, json};

use api::field::{ErrorList, Path};
use env::Env;

use super::{Attributes, Authorizer, Decision, Rules, selectors};
use crate::{
    authn::User,
    cel::{self, Expression, Variables, types::Type},
    storage::expiring::Expiring,
    transport::webhook_client::{self, Endpoint},
};

const CACHED_DECISIONS_MAX: usize = 8192;
/// Requests longer than this are asked anew each time, so that nobody fills the memory with their names.
const CACHED_REQUEST_BYTES_MAX: usize = 10_000;
const MATCH_CONDITIONS_MAX: usize = 64;

const RESULT: &[&str] = &["name", "result"];
static EVALUATIONS: Family = Family::counter(
    "apiserver_authorization_webhook_evaluations_total",
    RESULT,
    "How often an authorization webhook was asked.",
);
static EVALUATION_SECONDS: Family = Family::histogram(
    "apiserver_authorization_webhook_duration_seconds",
    RESULT,
    DEFAULT_BUCKETS,
    "How long an authorization webhook took.",
);
static FAILED_OPEN: Family = Family::counter(
    "apiserver_authorization_webhook_evaluations_fail_open_total",
    RESULT,
    "How often an authorization webhook failed and others decided.",
);
const AUTHORIZER: &[&str] = &["type", "name"];
static CONDITION_ERRORS: Family = Family::counter(
    "apiserver_authorization_match_condition_evaluation_errors_total",
    AUTHORIZER,
    "Match conditions of authorization webhooks that could not be evaluated.",
);
static CONDITION_EXCLUSIONS: Family = Family::counter(
    "apiserver_authorization_match_condition_exclusions_total",
    AUTHORIZER,
    "Requests that match conditions kept from an authorization webhook.",
);
static CONDITION_SECONDS: Family = Family::histogram(
    "apiserver_authorization_match_condition_evaluation_seconds",
    AUTHORIZER,
    &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25],
    "How long it took to evaluate match conditions.",
);

/// What is said of one webhook.
#[derive(Debug)]
pub struct WebhookSettings {
    pub kubeconfig: PathBuf,
    /// How long answers are believed; zero: not at all.
    pub allowed_for: Duration,
    pub refused_for: Duration,
    pub timeout: Duration,
    pub review_version: &'static str,
    /// `failurePolicy: Deny`, rather than no opinion.
    pub denies_on_failure: bool,
    pub conditions: MatchConditions,
}

/// Which requests a webhook is asked about: all of these must hold.
#[derive(Default)]
pub struct MatchConditions(Vec<Expression>);

impl fmt::Debug for MatchConditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|e| &e.source)).finish()
    }
}

impl MatchConditions {
    pub fn compile(sources: &[&str], path: &Path, errors: &mut ErrorList) -> Self {
        if sources.len() > MATCH_CONDITIONS_MAX {
            errors.too_many(path, sources.len(), MATCH_CONDITIONS_MAX);
            return Self::default();
        }
        let (mut compiled, mut seen) = (Vec::new(), HashSet::new());
        let scope = [("request", request_type())];
        for (index, source) in sources.iter().enumerate() {
            let path = path.index(index).child("expression");
            if source.trim().is_empty() {
                errors.required(&path, "");
                continue;
            }
            if !seen.insert(source) {
                errors.duplicate(&path, *source);
                continue;
            }
            match Expression::compile(source).and_then(|e| e.check(&scope).map(|of| (e, of))) {
                Ok((expression, Type::Bool | Type::Dyn)) => compiled.push(expression),
                Ok(_) => errors.invalid(&path, *source, "must evaluate to bool"),
                Err(e) => errors.invalid(&path, *source, e.to_string()),
            }
        }
        Self(compiled)
    }

    /// Whether all hold for a review. One that does not hold outweighs one that fails.
    fn hold(&self, review: &Value) -> Result<bool, cel::CelError> {
        let mut variables = Variables::default();
        variables.set("request", &evaluated_request(&review["spec"]));
        let mut failure = None;
        let mut budget = cel::CONDITIONS_COST_BUDGET;
        for condition in &self.0 {
            let (holds, cost) = condition.holds(&variables);
            match cel::spend(&mut budget, cost).and(holds) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(e) => failure = Some(e),
            }
        }
        failure.map_or(Ok(true), Err)
    }
}

/// Every text field is there, whether or not the review has it.
fn evaluated_request(spec: &Value) -> Value {
    let mut request = json!({ "uid": "", "extra": {}, "groups": [] });
    for (name, value) in spec.as_object().into_iter().flatten() {
        request[name] = value.clone();
    }
    request
}

fn request_type() -> Type {
    let record = |name: &'static str, fields: Vec<(&str, Type)>| {
        Type::Record(name, fields.into_iter().map(|(n, of)| (n.to_string(), of)).collect::<Vec<_>>().into())
    };
    let texts = || Type::List(Box::new(Type::String));
    let requirement = || {
        let fields = vec![("key", Type::String), ("operator", Type::String), ("values", texts())];
        record("kubernetes.SelectorRequirement", fields)
    };
    let selector = || {
        let fields = vec![("rawSelector", Type::String), ("requirements", Type::List(Box::new(requirement())))];
        record("kubernetes.SelectorAttributes", fields)
    };
    let named = ["namespace", "verb", "group", "version", "resource", "subresource", "name"];
    let mut attributes: Vec<_> = named.into_iter().map(|name| (name, Type::String)).collect();
    attributes.extend([("fieldSelector", selector()), ("labelSelector", selector())]);
    record(
        "kubernetes.SubjectAccessReviewSpec",
        vec![
            ("user", Type::String),
            ("groups", texts()),
            ("uid", Type::String),
            ("extra", Type::Map(Box::new(texts()))),
            ("resourceAttributes", record("kubernetes.ResourceAttributes", attributes)),
            (
                "nonResourceAttributes",
                record("kubernetes.NonResourceAttributes", vec![("path", Type::String), ("verb", Type::String)]),
            ),
        ],
    )
}

pub struct WebhookAuthorizer {
    name: String,
    metrics: Metrics,
    settings: WebhookSettings,
    endpoint: Endpoint,
    answers: Expiring<String, Decision>,
    env: Env,
}

impl WebhookAuthorizer {
    pub fn new(name: String, settings: WebhookSettings, env: Env, metrics: Metrics) -> Result<Self, String> {
        let endpoint = webhook_client::from_kubeconfig(&settings.kubeconfig)?;
        Ok(Self { name, metrics, endpoint, answers: Expiring::new(CACHED_DECISIONS_MAX), settings, env })
    }

    /// Whether the webhook is to be asked about a review.
    fn concerns(&self, review: &Value) -> Result<bool, cel::CelError> {
        if self.settings.conditions.0.is_empty() {
            return Ok(true);
        }
        let (began, labels) = (self.env.monotonic(), ["Webhook", self.name.as_str()]);
        let held = self.settings.conditions.hold(review);
        let took = self.env.monotonic().saturating_sub(began);
        self.metrics.observe(&CONDITION_SECONDS, &labels, took.as_secs_f64());
        match &held {
            Ok(true) => {}
            Ok(false) => self.metrics.count(&CONDITION_EXCLUSIONS, &labels),
            Err(_) => self.metrics.count(&CONDITION_ERRORS, &labels),
        }
        held
    }

    fn asked(&self, result: &str, took: Duration) {
        let labels = [self.name.as_str(), result];
        self.metrics.count(&EVALUATIONS, &labels);
        self.metrics.observe(&EVALUATION_SECONDS, &labels, took.as_secs_f64());
        if result != "success" && !self.settings.denies_on_failure {
            self.metrics.count(&FAILED_OPEN, &labels);
        }
    }

    fn on_failure(&self) -> Decision {
        match self.settings.denies_on_failure {
            true => Decision::Deny(String::new()),
            false => Decision::NoOpinion(String::new()),
        }
    }
}

fn review(a: &Attributes) -> Value {
    let user = &a.user;
    let mut spec = json!({ "user": user.name, "groups": user.groups });
    if !user.uid.is_empty() {
        spec["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        spec["extra"] = json!(user.extra);
    }
    match a.is_resource {
        true => {
            spec["resourceAttributes"] = json!({
                "namespace": a.namespace, "verb": a.verb, "group": a.group, "version": a.version,
                "resource": a.resource, "subresource": a.subresource, "name": a.name,
            });
            for (name, selector) in selectors::review(a) {
                spec["resourceAttributes"][name] = selector;
            }
        }
        false => spec["nonResourceAttributes"] = json!({ "path": a.path, "verb": a.verb }),
    }
    json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec })
}

/// The decision of a status; `None` if it can't be understood. Whoever allows and denies at once denies.
fn read(status: &Value) -> Option<Decision> {
    let flag = |field: &str| match &status[field] {
        Value::Null => Some(None),
        Value::Bool(flag) => Some(Some(*flag)),
        _ => None,
    };
    let reason = status["reason"].as_str().unwrap_or_default().to_string();
    match (flag("allowed")?, flag("denied")?) {
        (_, Some(true)) => Some(Decision::Deny(reason)),
        (Some(true), _) => Some(Decision::Allow(reason)),
        (Some(false), _) => Some(Decision::NoOpinion(reason)),
        // An answer that decides nothing is none.
        (None, _) => None,
    }
}

/// In v1beta1 the groups have another name.
fn in_version(mut review: Value, version: &str) -> Value {
    if version == "v1beta1" {
        review["apiVersion"] = "authorization.k8s.io/v1beta1".into();
        if let Some(groups) = review["spec"].as_object_mut().and_then(|spec| spec.remove("groups")) {
            review["spec"]["group"] = groups;
        }
    }
    review
}

#[async_trait]
impl Authorizer for WebhookAuthorizer {
    async fn authorize(&self, a: &Attributes) -> Decision {
        let review = review(a);
        match self.concerns(&review) {
            Ok(true) => {}
            Ok(false) => return Decision::NoOpinion(String::new()),
            Err(error) => {
                tracing::warn!(%error, "failed to evaluate the match conditions of a webhook authorizer");
                return self.on_failure();
            }
        }
        let key = review["spec"].to_string();
        let now = self.env.monotonic();
        if let Some(known) = self.answers.get(&key, now) {
            return known;
        }
        let review = in_version(review, self.settings.review_version);
        let answer = self.endpoint.review(&self.env, self.settings.timeout, &review).await;
        let took = self.env.monotonic().saturating_sub(now);
        let status = match answer {
            Ok(status) => {
                self.asked("success", took);
                status
            }
            Err(error) => {
                self.asked(if took >= self.settings.timeout { "timeout" } else { "error" }, took);
                tracing::warn!(error, "failed to make webhook authorizer request");
                return self.on_failure();
            }
        };
        let Some(decision) = read(&status) else {
            tracing::warn!("failed to read what a webhook authorizer decided");
            return self.on_failure();
        };
        let lasts = match decision {
            Decision::Allow(_) => self.settings.allowed_for,
            _ => self.settings.refused_for,
        };
        if !lasts.is_zero() && key.len() <= CACHED_REQUEST_BYTES_MAX {
            self.answers.insert(key, decision.clone(), now + lasts, now);
        }
        decision
    }

    async fn rules(&self, _: &User, _: &str) -> Rules {
        Rules::unknown("webhook authorizer does not support user rule resolution")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_read_allows_nothing() {
        let check = |status: Value, expected: Option<Decision>| assert_eq!(read(&status), expected, "{status}");
        let why = || "r".to_string();
        check(json!({ "allowed": true, "reason": "r" }), Some(Decision::Allow(why())));
        check(json!({ "allowed": true, "denied": false, "reason": "r" }), Some(Decision::Allow(why())));
        check(json!({ "allowed": false, "reason": "r" }), Some(Decision::NoOpinion(why())));
        check(json!({ "denied": true, "reason": "r" }), Some(Decision::Deny(why())));
        check(json!({ "allowed": true, "denied": true, "reason": "r" }), Some(Decision::Deny(why())));
        for denied in [json!("true"), json!(1), json!({}), json!([true])] {
            check(json!({ "allowed": true, "denied": denied }), None);
        }
        check(json!({ "allowed": "true" }), None);
        check(json!({ "denied": false }), None);
        check(json!({}), None);
        check(Value::Null, None);
    }
}
