//! Admission webhooks: services outside that change objects or refuse them.
//! The last of the mutating row and one of the validating row in `admission`.
//! Invariant: a service that fails is decided by its failure policy alone; dry runs reach only those without effects.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use serde_json::{Value, json};

use api::{ApiError, Object, Reason};

use super::{
    Attributes,
    matching::{self, Conditions, Matcher},
};
use crate::{
    cluster::Cluster,
    codec,
    index::{Index, Indexed},
    negotiate::Media,
    webhook::Client,
};

/// One webhook of a configuration.
pub struct Webhook {
    name: String,
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
    fn new(value: &Value) -> Self {
        let text = |field: &str| value[field].as_str().unwrap_or_default();
        let versions = value["admissionReviewVersions"].as_array();
        Self {
            name: text("name").to_string(),
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
        let webhooks = if resource.starts_with("mutating") { &mut self.mutating } else { &mut self.validating };
        match (old, new) {
            (_, Some(object)) => {
                let list = object.value()["webhooks"].as_array().cloned().unwrap_or_default();
                webhooks.insert(object.meta.name.clone(), list.iter().map(|w| Arc::new(Webhook::new(w))).collect());
            }
            (Some(object), None) => drop(webhooks.remove(&object.meta.name)),
            (None, None) => {}
        }
    }
}

pub struct Webhooks {
    configured: Indexed<Configured>,
    cluster: Arc<Cluster>,
}

/// What became of asking one webhook.
enum Answer {
    Allowed { patch: Option<Vec<u8>>, warnings: Vec<String> },
    Refused { error: ApiError, warnings: Vec<String> },
}

impl Webhooks {
    pub fn new(cluster: &Arc<Cluster>) -> Self {
        Self { configured: Indexed::new(cluster), cluster: cluster.clone() }
    }

    fn of(&self, mutating: bool) -> Vec<Arc<Webhook>> {
        let configured = self.configured.read();
        let webhooks = if mutating { &configured.mutating } else { &configured.validating };
        webhooks.values().flatten().cloned().collect()
    }

    /// Lets every mutating webhook that matches change the object, in turn. Those that want to see what others changed
    /// after them are asked once more. Returns whether anything changed.
    pub async fn mutate(&self, a: &mut Attributes<'_>) -> Result<bool, ApiError> {
        let webhooks = self.of(true);
        if webhooks.is_empty() || matching::is_exempt(a) {
            return Ok(false);
        }
        let before = a.object.clone();
        let mut left: Vec<(Arc<Webhook>, Value)> = Vec::new();
        for webhook in webhooks {
            if self.change(&webhook, a).await? && webhook.reinvoke {
                left.push((webhook, a.object.clone()));
            }
        }
        for (webhook, seen) in left {
            if a.object != seen {
                self.change(&webhook, a).await?;
            }
        }
        Ok(a.object != before)
    }

    /// Whether the webhook was asked.
    async fn change(&self, webhook: &Webhook, a: &mut Attributes<'_>) -> Result<bool, ApiError> {
        let Some(answer) = self.ask(webhook, a).await? else { return Ok(false) };
        match answer {
            Answer::Allowed { patch, warnings } => {
                a.warnings.extend(warnings);
                if let Some(patch) = patch.filter(|_| a.object.is_object()) {
                    let kind = (a.object["apiVersion"].clone(), a.object["kind"].clone());
                    let changed = api::patch::json_patch(&a.object, &patch).map_err(|e| {
                        ApiError::internal(format!("failed to apply the patch of webhook {:?}: {e}", webhook.name))
                    })?;
                    if (changed["apiVersion"].clone(), changed["kind"].clone()) != kind {
                        return Err(ApiError::internal(format!(
                            "webhook {:?} changed the kind of the object",
                            webhook.name
                        )));
                    }
                    a.object = self.decoded(a, changed)?;
                }
                Ok(true)
            }
            Answer::Refused { error, warnings } => {
                a.warnings.extend(warnings);
                Err(error)
            }
        }
    }

    /// A changed object as if a client had sent it: without what its schema does not know, with what it fills in.
    fn decoded(&self, a: &Attributes<'_>, changed: Value) -> Result<Value, ApiError> {
        let served = self.cluster.served.find(&a.resource.group, &a.resource.version, &a.resource.plural);
        let is_whole = changed["kind"] == a.resource.kind.as_str() && changed["apiVersion"] == a.resource.api_version();
        let Some((schema, id)) = served.as_ref().and_then(|s| s.schema.as_ref()).filter(|_| is_whole) else {
            return Ok(changed);
        };
        let decoded = codec::decode(changed.to_string().as_bytes(), Media::Json, Some((schema, *id)))
            .map_err(|e| ApiError::internal(e.to_string()))?;
        let mut object = decoded.value;
        schema.apply_defaults(*id, &mut object);
        a.resource.behavior.default(&mut object);
        Ok(object)
    }

    /// Asks all validating webhooks that match, at once; the first refusal in their order counts.
    pub async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let webhooks = self.of(false);
        if webhooks.is_empty() || matching::is_exempt(a) {
            return Ok(());
        }
        let shown = &*a;
        let answers = join_all(webhooks.iter().map(|w| self.ask(w, shown))).await;
        let mut refused = None;
        for answer in answers {
            match answer {
                Ok(None) => {}
                Ok(Some(Answer::Allowed { warnings, .. })) => a.warnings.extend(warnings),
                Ok(Some(Answer::Refused { error, warnings })) => {
                    a.warnings.extend(warnings);
                    refused.get_or_insert(error);
                }
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// `None`: it was not to be asked, or it failed and that does not matter.
    async fn ask(&self, webhook: &Webhook, a: &Attributes<'_>) -> Result<Option<Answer>, ApiError> {
        let name = &webhook.name;
        let matches = match &webhook.matcher {
            Ok(matcher) => matcher.matches(&self.cluster, a, false),
            Err(e) => return Err(ApiError::internal(format!("failed to read the selectors of webhook {name:?}: {e}"))),
        };
        if !matches {
            return Ok(None);
        }
        if !webhook.conditions.is_empty() {
            match webhook.conditions.hold(a, &matching::variables(&self.cluster, a)) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(_) if webhook.ignores_failure => return Ok(None),
                Err(e) => return Err(a.forbidden(&e)),
            }
        }
        if a.dry_run && webhook.has_side_effects {
            return Err(ApiError::bad_request(format!("admission webhook {name:?} does not support dry run")));
        }
        match self.call(webhook, a).await {
            Ok(answer) => Ok(Some(answer)),
            Err(e) if webhook.ignores_failure => {
                tracing::warn!(webhook = name, error = e, "failed calling webhook, failing open");
                Ok(None)
            }
            Err(e) => Err(ApiError::internal(format!("failed calling webhook {name:?}: {e}"))),
        }
    }

    async fn call(&self, webhook: &Webhook, a: &Attributes<'_>) -> Result<Answer, String> {
        let uid = self.cluster.env.uuid();
        let mut request = matching::request(a);
        request["uid"] = uid.as_str().into();
        request["object"] = a.object.clone();
        request["oldObject"] = a.old.clone();
        let version = if webhook.understands_v1 { "v1" } else { "v1beta1" };
        let api_version = format!("admission.k8s.io/{version}");
        let review = json!({ "apiVersion": api_version, "kind": "AdmissionReview", "request": request });
        let client = Client::from_config(&self.cluster, &with_timeout(&webhook.client, webhook.timeout_seconds))
            .map_err(|e| format!("failed to call webhook: {e}"))?;
        let limit = Duration::from_secs(webhook.timeout_seconds);
        let answer = client.post(&review, limit).await.map_err(|e| format!("failed to call webhook: {e}"))?;
        if answer["kind"] != "AdmissionReview" || answer["apiVersion"] != api_version.as_str() {
            let (kind, found) =
                (answer["kind"].as_str().unwrap_or_default(), answer["apiVersion"].as_str().unwrap_or_default());
            return Err(format!(
                "expected webhook response of {api_version}, Kind=AdmissionReview, got {found}, Kind={kind}"
            ));
        }
        read(&webhook.name, &answer["response"], &uid)
    }
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
        return Ok(Answer::Refused { error: refusal(name, &response["status"]), warnings });
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
    Ok(Answer::Allowed { patch, warnings })
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
