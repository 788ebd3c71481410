//! Admission webhooks: services outside that change objects or refuse them.
//! The last of the mutating row and one of the validating row in `admission`.
//! A service that fails is decided by its failure policy alone; dry runs reach only those without effects.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use serde_json::{Value, json};

use api::{ApiError, Object, Reason, Resource};

use super::{
    Attributes,
    admission_metrics::{WebhookOutcome, conditions_evaluated, webhook_asked},
    matching::{self, Conditions, Matched, Matcher},
};
use crate::{
    audit, authz,
    cel::authorizer::AuthorizerChecks,
    discovery::served::Served,
    handlers::{codec, negotiate::Media},
    metrics::in_webhooks,
    storage::{
        cluster::Cluster,
        index::{Index, Indexed},
    },
    transport::{webhook_client::WebhookIdentities, webhook_config::WebhookClient},
};

/// One webhook of a configuration.
pub struct Webhook {
    name: String,
    /// The name of the object it is in.
    configuration: String,
    mutates: bool,
    matcher: Result<Matcher, String>,
    conditions: Conditions,
    client: Value,
    ignores_failure: bool,
    has_side_effects: bool,
    reinvoke: bool,
    timeout_seconds: u64,
    understands_v1: bool,
}

impl Webhook {
    fn new(configuration: &str, mutates: bool, value: &Value) -> Self {
        let text = |field: &str| value[field].as_str().unwrap_or_default();
        let versions = value["admissionReviewVersions"].as_array();
        Self {
            name: text("name").to_string(),
            configuration: configuration.to_string(),
            mutates,
            matcher: Matcher::new(value),
            conditions: Conditions::new(&value["matchConditions"]),
            client: value["clientConfig"].clone(),
            ignores_failure: text("failurePolicy") == "Ignore",
            has_side_effects: !matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            reinvoke: text("reinvocationPolicy") == "IfNeeded",
            timeout_seconds: value["timeoutSeconds"].as_u64().unwrap_or(10),
            understands_v1: versions.is_none_or(|v| v.iter().any(|v| v == "v1")),
        }
    }
}

/// The webhooks of both kinds, in the order of their configurations' names.
#[derive(Default)]
pub struct Configured {
    mutating: BTreeMap<String, Vec<Arc<Webhook>>>,
    validating: BTreeMap<String, Vec<Arc<Webhook>>>,
}

impl Index for Configured {
    const RESOURCES: &'static [&'static str] = &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];

    fn apply(&mut self, resource: &'static str, old: Option<&Object>, new: Option<&Object>) {
        let mutates = resource.starts_with("mutating");
        let webhooks = if mutates { &mut self.mutating } else { &mut self.validating };
        match (old, new) {
            (_, Some(object)) => {
                let list = object.value()["webhooks"].as_array().cloned().unwrap_or_default();
                let name = object.meta.name.clone();
                let list = list.iter().map(|w| Arc::new(Webhook::new(&name, mutates, w))).collect();
                webhooks.insert(name, list);
            }
            (Some(object), None) => drop(webhooks.remove(&object.meta.name)),
            (None, None) => {}
        }
    }
}

pub struct Webhooks {
    configured: Indexed<Configured>,
    cluster: Arc<Cluster>,
    authorizer: Arc<authz::Chain>,
    metrics: ::metrics::Metrics,
    /// Who we are to webhooks that change, and to those that judge.
    identities: [WebhookIdentities; 2],
}

/// What became of asking one webhook.
struct Answer {
    /// A patch, if it is allowed.
    verdict: Result<Option<Vec<u8>>, ApiError>,
    warnings: Vec<String>,
    /// In which version it saw the object, if not in the one that was sent.
    seen: Option<Arc<Served>>,
}

/// Why a webhook has not answered, and the code that upstream's metrics give to that.
struct CallFailure {
    code: u16,
    message: String,
}

impl Webhooks {
    pub fn new(cluster: &Arc<Cluster>, authorizer: &Arc<authz::Chain>, metrics: &::metrics::Metrics) -> Self {
        let (cluster, authorizer, metrics) = (cluster.clone(), authorizer.clone(), metrics.clone());
        Self { configured: Indexed::new(&cluster), cluster, authorizer, metrics, identities: Default::default() }
    }

    pub fn with_identities(self, mutating: WebhookIdentities, validating: WebhookIdentities) -> Self {
        Self { identities: [mutating, validating], ..self }
    }

    fn configured_webhooks(&self, mutating: bool) -> Vec<Arc<Webhook>> {
        let configured = self.configured.read();
        let webhooks = if mutating { &configured.mutating } else { &configured.validating };
        webhooks.values().flatten().cloned().collect()
    }

    /// Lets every mutating webhook that matches change the object, in turn. Those that want to see what others changed
    /// after them are asked once more. Returns whether anything changed.
    pub async fn mutate(&self, a: &mut Attributes<'_>) -> Result<bool, ApiError> {
        let webhooks = self.configured_webhooks(true);
        if webhooks.is_empty() || matching::is_exempt(a) {
            return Ok(false);
        }
        let env = self.cluster.env.clone();
        in_webhooks(&env, self.change_in_turn(webhooks, a)).await
    }

    async fn change_in_turn(&self, webhooks: Vec<Arc<Webhook>>, a: &mut Attributes<'_>) -> Result<bool, ApiError> {
        let before = a.object.clone();
        let mut left: Vec<(usize, Arc<Webhook>, Value)> = Vec::new();
        for (index, webhook) in webhooks.into_iter().enumerate() {
            if Box::pin(self.change(&webhook, a, (0, index))).await? && webhook.reinvoke {
                left.push((index, webhook, a.object.clone()));
            }
        }
        for (index, webhook, seen) in left {
            if a.object != seen {
                Box::pin(self.change(&webhook, a, (1, index))).await?;
            }
        }
        Ok(a.object != before)
    }

    /// Whether the webhook was asked. `place`: which round it is, and which webhook of it, for the record.
    async fn change(&self, webhook: &Webhook, a: &mut Attributes<'_>, place: (usize, usize)) -> Result<bool, ApiError> {
        let Some(answer) = self.ask(webhook, a, ("mutating", place)).await? else { return Ok(false) };
        a.warnings.extend(answer.warnings);
        let patch = answer.verdict?.filter(|_| a.object.is_object());
        note_mutation(webhook, place, patch.as_deref());
        match (patch, &answer.seen) {
            (None, _) => {}
            (Some(patch), None) => a.object = self.decoded(a.resource, patched(webhook, &a.object, &patch)?)?,
            (Some(patch), Some(seen)) => {
                let shown = matching::convert(&self.cluster, a.resource, seen, &a.object).await?;
                let changed = self.decoded(&seen.resource, patched(webhook, &shown, &patch)?)?;
                let own = self.cluster.served.find(&a.resource.group, &a.resource.version, &a.resource.plural);
                let own = own.ok_or_else(|| ApiError::internal("the resource is no longer served"))?;
                a.object = matching::convert(&self.cluster, &seen.resource, &own, &changed).await?;
            }
        }
        Ok(true)
    }

    /// A changed object as if a client had sent it: without what its schema does not know, with what it fills in.
    fn decoded(&self, resource: &Resource, changed: Value) -> Result<Value, ApiError> {
        let served = self.cluster.served.find(&resource.group, &resource.version, &resource.plural);
        let is_whole = changed["kind"] == resource.kind.as_str() && changed["apiVersion"] == resource.api_version();
        let Some((schema, id)) = served.as_ref().and_then(|s| s.schema.as_ref()).filter(|_| is_whole) else {
            return Ok(changed);
        };
        let decoded = codec::decode(changed.to_string().as_bytes(), Media::Json, Some((schema, *id)))
            .map_err(|e| ApiError::internal(e.to_string()))?;
        let mut object = decoded.value;
        schema.apply_defaults(*id, &mut object);
        resource.behavior.default(&mut object);
        Ok(object)
    }

    /// Asks all validating webhooks that match, at once; the first refusal in their order counts.
    pub async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let webhooks = self.configured_webhooks(false);
        if webhooks.is_empty() || matching::is_exempt(a) {
            return Ok(());
        }
        let shown = &*a;
        let asked = webhooks.iter().enumerate();
        let asked = asked.map(|(index, webhook)| self.ask(webhook, shown, ("validating", (0, index))));
        let asked = Box::pin(join_all(asked));
        let answers = in_webhooks(&self.cluster.env, asked).await;
        let mut refused = None;
        for answer in answers {
            match answer {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    a.warnings.extend(answer.warnings);
                    if let Err(error) = answer.verdict {
                        refused.get_or_insert(error);
                    }
                }
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// `None`: it was not to be asked, or it failed and that does not matter.
    async fn ask(
        &self,
        webhook: &Webhook,
        a: &Attributes<'_>,
        (kind, (round, index)): (&str, (usize, usize)),
    ) -> Result<Option<Answer>, ApiError> {
        let name = &webhook.name;
        let matched = match &webhook.matcher {
            Ok(matcher) => matcher.matches(&self.cluster, a, false),
            Err(e) => return Err(ApiError::internal(format!("failed to read the selectors of webhook {name:?}: {e}"))),
        };
        let version = match matched {
            None => return Ok(None),
            Some(Matched::AsSent) => None,
            Some(Matched::As(served)) => Some(served),
        };
        let shown = match &version {
            None => None,
            Some(served) => Some(matching::converted(&self.cluster, a, served).await?),
        };
        let seen = shown.as_ref().unwrap_or(a);
        // As upstream's metrics name the steps.
        let counted = (name.as_str(), if kind == "mutating" { "admit" } else { "validating" });
        let env = &self.cluster.env;
        let began = env.monotonic();
        let held = self.conditions_hold(webhook, a, seen).await;
        if !webhook.conditions.is_empty() {
            let step = if kind == "mutating" { "admit" } else { "validate" };
            let (result, took) = (held.as_ref().map(|held| *held).map_err(drop), env.monotonic().saturating_sub(began));
            conditions_evaluated(&self.metrics, (name, "webhook", step), a.operation, result, took);
        }
        match held {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(_) if webhook.ignores_failure => return Ok(None),
            Err(e) => return Err(a.forbidden(&e)),
        }
        let began = env.monotonic();
        let ended = |outcome| {
            let took = env.monotonic().saturating_sub(began);
            webhook_asked(&self.metrics, counted, a.operation, outcome, took);
        };
        if a.dry_run && webhook.has_side_effects {
            ended(WebhookOutcome::NotAsked);
            return Err(ApiError::bad_request(format!("admission webhook {name:?} does not support dry run")));
        }
        let called = self.call(webhook, a, seen).await;
        ended(match &called {
            Ok(Answer { verdict: Ok(_), .. }) => WebhookOutcome::Allowed,
            Ok(Answer { verdict: Err(refusal), .. }) => WebhookOutcome::Rejected(refusal.code),
            Err(CallFailure { code, .. }) => {
                WebhookOutcome::CallFailed { code: *code, ignored: webhook.ignores_failure }
            }
        });
        match called.map_err(|failure| failure.message) {
            Ok(answer) => Ok(Some(Answer { seen: version.clone(), ..answer })),
            Err(e) if webhook.ignores_failure => {
                tracing::warn!(webhook = name, error = e, "failed calling webhook, failing open");
                let key = format!("failed-open.{kind}.webhook.admission.k8s.io/round_{round}_index_{index}");
                audit::annotate(&key, name);
                Ok(None)
            }
            Err(e) => Err(ApiError::internal(format!("failed calling webhook {name:?}: {e}"))),
        }
    }

    /// What conditions want to know about permissions is found out, and they are looked at again.
    async fn conditions_hold(
        &self,
        webhook: &Webhook,
        a: &Attributes<'_>,
        seen: &Attributes<'_>,
    ) -> Result<bool, String> {
        if webhook.conditions.is_empty() {
            return Ok(true);
        }
        let questions = AuthorizerChecks::default();
        loop {
            let held = webhook.conditions.hold(&matching::variables(&self.cluster, a, seen, &questions));
            if !questions.settle(&self.authorizer).await {
                return held;
            }
        }
    }

    async fn call(&self, webhook: &Webhook, a: &Attributes<'_>, seen: &Attributes<'_>) -> Result<Answer, CallFailure> {
        let uid = self.cluster.env.uuid();
        let mut request = matching::request(a, seen);
        request["uid"] = uid.as_str().into();
        request["object"] = seen.object.clone();
        request["oldObject"] = seen.old.clone();
        let version = if webhook.understands_v1 { "v1" } else { "v1beta1" };
        let api_version = format!("admission.k8s.io/{version}");
        let review = json!({ "apiVersion": api_version, "kind": "AdmissionReview", "request": request });
        let config = with_timeout(&webhook.client, webhook.timeout_seconds);
        let identities = &self.identities[usize::from(!webhook.mutates)];
        let client = WebhookClient::from_config(&self.cluster, &config, identities)
            .map_err(|e| CallFailure { code: 500, message: format!("failed to call webhook: {e}") })?;
        let limit = Duration::from_secs(webhook.timeout_seconds);
        let failed = |e| CallFailure { code: 503, message: format!("failed to call webhook: {e}") };
        let answer = client.post(&review, limit).await.map_err(failed)?;
        if answer["kind"] != "AdmissionReview" || answer["apiVersion"] != api_version.as_str() {
            let (kind, found) =
                (answer["kind"].as_str().unwrap_or_default(), answer["apiVersion"].as_str().unwrap_or_default());
            let message =
                format!("expected webhook response of {api_version}, Kind=AdmissionReview, got {found}, Kind={kind}");
            return Err(CallFailure { code: 500, message });
        }
        for (key, value) in answer["response"]["auditAnnotations"].as_object().into_iter().flatten() {
            audit::annotate(&format!("{}/{key}", webhook.name), value.as_str().unwrap_or_default());
        }
        read(&webhook.name, &answer["response"], &uid).map_err(|message| CallFailure { code: 500, message })
    }
}

/// Says in the record what a webhook did to the object; what exactly only where the object itself is recorded.
fn note_mutation(webhook: &Webhook, (round, index): (usize, usize), patch: Option<&[u8]>) {
    let Some(record) = audit::current() else { return };
    let patch: Option<Value> = patch.and_then(|patch| serde_json::from_slice(patch).ok());
    let patch = patch.filter(|patch| patch.as_array().is_some_and(|steps| !steps.is_empty()));
    let place = format!("round_{round}_index_{index}");
    let [configuration, name] = [&webhook.configuration, &webhook.name].map(|text| json!(text));
    let value = format!("{{\"configuration\":{configuration},\"webhook\":{name},\"mutated\":{}}}", patch.is_some());
    audit::annotate(&format!("mutation.webhook.admission.k8s.io/{place}"), &value);
    if let Some(patch) = patch.filter(|_| record.level() >= audit::Level::Request) {
        let value = format!(
            "{{\"configuration\":{configuration},\"webhook\":{name},\"patch\":{patch},\"patchType\":\"JSONPatch\"}}"
        );
        audit::annotate(&format!("patch.webhook.admission.k8s.io/{place}"), &value);
    }
}

fn patched(webhook: &Webhook, object: &Value, patch: &[u8]) -> Result<Value, ApiError> {
    let changed = api::patch::json_patch(object, patch)
        .map_err(|e| ApiError::internal(format!("failed to apply the patch of webhook {:?}: {e}", webhook.name)))?;
    if (&changed["apiVersion"], &changed["kind"]) != (&object["apiVersion"], &object["kind"]) {
        return Err(ApiError::internal(format!("webhook {:?} changed the kind of the object", webhook.name)));
    }
    Ok(changed)
}

/// The webhook is told how long it is waited for.
fn with_timeout(client: &Value, seconds: u64) -> Value {
    let mut client = client.clone();
    let add = |text: &str| format!("{text}{}timeout={seconds}s", if text.contains('?') { '&' } else { '?' });
    if let Some(url) = client["url"].as_str().map(add) {
        client["url"] = url.into();
    } else if client["service"].is_object() {
        client["service"]["path"] = add(client["service"]["path"].as_str().unwrap_or("/")).into();
    }
    client
}

fn read(name: &str, response: &Value, uid: &str) -> Result<Answer, String> {
    if !response.is_object() {
        return Err("webhook response was absent".into());
    }
    if response["uid"] != uid {
        let found = response["uid"].as_str().unwrap_or_default();
        return Err(format!("expected response.uid={uid:?}, got {found:?}"));
    }
    let warnings: Vec<String> =
        response["warnings"].as_array().into_iter().flatten().filter_map(|w| w.as_str().map(str::to_string)).collect();
    if response["allowed"] != true {
        return Ok(Answer { verdict: Err(refusal(name, &response["status"])), warnings, seen: None });
    }
    let patch = match response["patch"].as_str() {
        None | Some("") => None,
        Some(patch) if response["patchType"] == "JSONPatch" => {
            use base64::{Engine, prelude::BASE64_STANDARD};
            Some(BASE64_STANDARD.decode(patch).map_err(|e| format!("webhook response.patch is not base64: {e}"))?)
        }
        Some(_) => {
            let found = response["patchType"].as_str().unwrap_or_default();
            return Err(format!("webhook returned response.patch but invalid response.patchType: {found:?}"));
        }
    };
    Ok(Answer { verdict: Ok(patch), warnings, seen: None })
}

fn refusal(name: &str, status: &Value) -> ApiError {
    let text = |field: &str| status[field].as_str().unwrap_or_default();
    let denied = format!("admission webhook {name:?} denied the request");
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let code = status["code"].as_u64().filter(|c| (400..600).contains(c)).unwrap_or(400);
    let error = ApiError::new(Reason::parse(text("reason")), message).with_code(code as u16);
    match status.get("details").filter(|d| d.is_object()) {
        Some(details) => error.with_details(details.clone()),
        None => error,
    }
}
