//! How long admission takes and what it refuses, under upstream's names (`apiserver_admission_*` and those of policies).
//! Told by `Chain`, `webhooks` and `policy`; shown by `metrics::Metrics::render`.
//! What every write passes is counted without a lock.

use std::time::Duration;

use ::metrics::{Family, Histogram, Metrics, Text};

use super::Operation;

const BUCKETS_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const OPERATIONS: [Operation; 4] = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

#[derive(Debug, Clone, Copy)]
pub enum Step {
    Admit,
    Validate,
}

impl Step {
    fn as_str(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Validate => "validate",
        }
    }
}

/// By step, operation and whether it was refused.
struct Durations(Vec<Histogram>);

impl Durations {
    fn new() -> Self {
        Self((0..2 * OPERATIONS.len() * 2).map(|_| Histogram::seconds(BUCKETS_SECONDS)).collect())
    }

    fn observe(&self, step: Step, operation: Operation, rejected: bool, took: Duration) {
        let at = (step as usize * OPERATIONS.len() + operation as usize) * 2 + usize::from(rejected);
        self.0[at].observe(took.as_secs_f64());
    }

    fn seen(&self) -> impl Iterator<Item = ([(&'static str, &'static str); 3], &Histogram)> {
        let labels = [Step::Admit, Step::Validate].into_iter().flat_map(|step| {
            OPERATIONS.into_iter().flat_map(move |operation| {
                ["false", "true"].map(|rejected| {
                    [("operation", operation.as_str()), ("rejected", rejected), ("type", step.as_str())]
                })
            })
        });
        labels.zip(&self.0).filter(|(_, histogram)| histogram.count() > 0)
    }
}

/// What the chain as a whole and each of its plugins take.
pub struct AdmissionMetrics {
    steps: Durations,
    controllers: Vec<(&'static str, Durations)>,
}

impl AdmissionMetrics {
    pub fn new(plugins: impl Iterator<Item = &'static str>) -> Self {
        Self { steps: Durations::new(), controllers: plugins.map(|name| (name, Durations::new())).collect() }
    }

    pub fn step(&self, step: Step, operation: Operation, rejected: bool, took: Duration) {
        self.steps.observe(step, operation, rejected, took);
    }

    /// `plugin`: its place among those given to `new`.
    pub fn plugin(&self, plugin: usize, step: Step, operation: Operation, rejected: bool, took: Duration) {
        self.controllers[plugin].1.observe(step, operation, rejected, took);
    }

    pub fn render(&self, out: &mut Text) {
        let name = "apiserver_admission_step_admission_duration_seconds";
        let mut family = out.family(name, "histogram", "How long a step of admission took.");
        for (labels, histogram) in self.steps.seen() {
            histogram.show(&mut family, &labels);
        }
        let name = "apiserver_admission_controller_admission_duration_seconds";
        let mut family = out.family(name, "histogram", "How long an admission plugin took.");
        for (plugin, durations) in &self.controllers {
            for ([operation, rejected, step], histogram) in durations.seen() {
                histogram.show(&mut family, &[("name", *plugin), operation, rejected, step]);
            }
        }
    }
}

const WEBHOOK: &[&str] = &["name", "type", "operation", "rejected"];
static WEBHOOK_SECONDS: Family = Family::histogram(
    "apiserver_admission_webhook_admission_duration_seconds",
    WEBHOOK,
    &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0],
    "How long an admission webhook took.",
);
static WEBHOOK_REQUESTS: Family = Family::counter(
    "apiserver_admission_webhook_request_total",
    &["name", "type", "operation", "code", "rejected"],
    "Requests that an admission webhook was asked about.",
);
static WEBHOOK_REJECTIONS: Family = Family::counter(
    "apiserver_admission_webhook_rejection_count",
    &["name", "type", "operation", "error_type", "rejection_code"],
    "Requests that an admission webhook refused, or that were refused because it failed.",
);
static WEBHOOK_FAILED_OPEN: Family = Family::counter(
    "apiserver_admission_webhook_fail_open_count",
    &["name", "type"],
    "Requests that went on although an admission webhook failed.",
);
const CONDITIONS: &[&str] = &["name", "kind", "type", "operation"];
static CONDITION_ERRORS: Family = Family::counter(
    "apiserver_admission_match_condition_evaluation_errors_total",
    CONDITIONS,
    "Match conditions that could not be evaluated.",
);
static CONDITION_EXCLUSIONS: Family = Family::counter(
    "apiserver_admission_match_condition_exclusions_total",
    CONDITIONS,
    "Requests that match conditions kept from a webhook or policy.",
);
static CONDITION_SECONDS: Family = Family::histogram(
    "apiserver_admission_match_condition_evaluation_seconds",
    CONDITIONS,
    &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25],
    "How long it took to evaluate match conditions.",
);
const CHECK: &[&str] = &["policy", "policy_binding", "error_type", "enforcement_action"];
static CHECKS: Family = Family::counter(
    "apiserver_validating_admission_policy_check_total",
    CHECK,
    "Validations of policies, by what was done about them.",
);
static CHECK_SECONDS: Family = Family::histogram(
    "apiserver_validating_admission_policy_check_duration_seconds",
    CHECK,
    &[0.0000005, 0.001, 0.01, 0.1, 1.0],
    "How long a validation of a policy took.",
);
/// Codes of webhooks beyond this are shown as this.
const CODE_MAX: u16 = 600;

/// How asking a webhook ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WebhookOutcome {
    Allowed,
    Rejected(u16),
    /// It could not be asked; whether that refuses the request is for its failure policy.
    CallFailed {
        code: u16,
        ignored: bool,
    },
    /// It was not asked because of what this server knows of it.
    NotAsked,
}

/// `kind`: `admit` of mutating webhooks, `validating` of others, as upstream has it.
pub fn webhook_asked(
    metrics: &Metrics,
    (name, kind): (&str, &str),
    operation: Operation,
    outcome: WebhookOutcome,
    took: Duration,
) {
    let (code, error_type) = match outcome {
        WebhookOutcome::Allowed => (200, None),
        WebhookOutcome::Rejected(code) => (code, Some("no_error")),
        WebhookOutcome::CallFailed { code, ignored } => (code, (!ignored).then_some("calling_webhook_error")),
        WebhookOutcome::NotAsked => (0, Some("apiserver_internal_error")),
    };
    let (code, operation) = (code.min(CODE_MAX).to_string(), operation.as_str());
    let rejected = if error_type.is_some() { "true" } else { "false" };
    if let Some(error_type) = error_type {
        metrics.count(&WEBHOOK_REJECTIONS, &[name, kind, operation, error_type, &code]);
    }
    if matches!(outcome, WebhookOutcome::CallFailed { ignored: true, .. }) {
        metrics.count(&WEBHOOK_FAILED_OPEN, &[name, kind]);
    }
    metrics.count(&WEBHOOK_REQUESTS, &[name, kind, operation, &code, rejected]);
    metrics.observe(&WEBHOOK_SECONDS, &[name, kind, operation, rejected], took.as_secs_f64());
}

/// `of` is the name of a webhook or policy, what of the two it is, and the step.
pub fn conditions_evaluated(
    metrics: &Metrics,
    (name, kind, step): (&str, &str, &str),
    operation: Operation,
    held: Result<bool, ()>,
    took: Duration,
) {
    let labels = [name, kind, step, operation.as_str()];
    metrics.observe(&CONDITION_SECONDS, &labels, took.as_secs_f64());
    match held {
        Ok(true) => {}
        Ok(false) => metrics.count(&CONDITION_EXCLUSIONS, &labels),
        Err(()) => metrics.count(&CONDITION_ERRORS, &labels),
    }
}

/// One validation of a policy: `error` is what was wrong with it, `action` what was done.
pub fn policy_checked(
    metrics: &Metrics,
    (policy, binding): (&str, &str),
    error: &'static str,
    action: &str,
    took: Duration,
) {
    metrics.count(&CHECKS, &[policy, binding, error, action]);
    metrics.observe(&CHECK_SECONDS, &[policy, binding, error, action], took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_and_steps() {
        let metrics = AdmissionMetrics::new(["A", "B"].into_iter());
        metrics.plugin(1, Step::Validate, Operation::Delete, true, Duration::from_millis(30));
        metrics.plugin(0, Step::Admit, Operation::Create, false, Duration::from_millis(1));
        metrics.step(Step::Admit, Operation::Connect, false, Duration::from_millis(1));
        let mut out = Text::default();
        metrics.render(&mut out);
        let page = out.finish();
        let counts: Vec<_> = page.lines().filter(|line| line.contains("_count{")).collect();
        let name = |of: &str| format!("apiserver_admission_{of}_admission_duration_seconds_count");
        assert_eq!(
            counts,
            [
                format!("{}{{operation=\"CONNECT\",rejected=\"false\",type=\"admit\"}} 1", name("step")),
                format!(
                    "{}{{name=\"A\",operation=\"CREATE\",rejected=\"false\",type=\"admit\"}} 1",
                    name("controller")
                ),
                format!(
                    "{}{{name=\"B\",operation=\"DELETE\",rejected=\"true\",type=\"validate\"}} 1",
                    name("controller")
                ),
            ]
        );
    }

    #[test]
    fn outcomes_of_webhooks() {
        let check = |outcome: WebhookOutcome, lines: &[&str]| {
            let metrics = Metrics::default();
            webhook_asked(&metrics, ("w", "admit"), Operation::Create, outcome, Duration::from_millis(1));
            let page = metrics.page();
            let found: Vec<_> =
                page.lines().filter_map(|line| line.strip_prefix("apiserver_admission_webhook_")).collect();
            let found: Vec<_> = found.into_iter().filter(|line| !line.starts_with("admission_duration")).collect();
            assert_eq!(found, lines);
        };
        let request = |code: u16, rejected: bool| {
            format!(
                "request_total{{name=\"w\",type=\"admit\",operation=\"CREATE\",code=\"{code}\",rejected=\"{rejected}\"}} 1"
            )
        };
        let rejection = |error: &str, code: u16| {
            format!(
                "rejection_count{{name=\"w\",type=\"admit\",operation=\"CREATE\",error_type=\"{error}\",\
                 rejection_code=\"{code}\"}} 1"
            )
        };
        check(WebhookOutcome::Allowed, &[&request(200, false)]);
        check(WebhookOutcome::Rejected(403), &[&rejection("no_error", 403), &request(403, true)]);
        check(WebhookOutcome::Rejected(999), &[&rejection("no_error", 600), &request(600, true)]);
        let failed = |ignored| WebhookOutcome::CallFailed { code: 500, ignored };
        check(failed(false), &[&rejection("calling_webhook_error", 500), &request(500, true)]);
        check(failed(true), &["fail_open_count{name=\"w\",type=\"admit\"} 1", &request(500, false)]);
        check(WebhookOutcome::NotAsked, &[&rejection("apiserver_internal_error", 0), &request(0, true)]);
    }
}
