//! ImagePolicyWebhook: a service outside decides whether the images of a pod may run (imagepolicy.k8s.io/v1alpha1 ImageReview).
//! A row of the table in `admission`, off by default; where the service is stands in the admission configuration.
//! A service that cannot be asked refuses, unless `defaultAllow` says otherwise; then the record says so.

use std::{path::Path, time::Duration};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use api::ApiError;
use env::Env;

use super::{Attributes, Operation, Plugin};
use crate::{
    audit,
    storage::expiring::Expiring,
    transport::webhook_client::{self, Endpoint},
};

const CACHED_REVIEWS_MAX: usize = 1024;
const REVIEW_TIMEOUT: Duration = Duration::from_secs(30);
const ATTEMPTS_MAX: u32 = 5;
const RETRY_FACTOR: f64 = 1.5;
const ANNOTATION_DOMAIN: &str = ".image-policy.k8s.io/";
const AUDIT_PREFIX: &str = "imagepolicywebhook.image-policy.k8s.io/";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    image_policy: ImagePolicy,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ImagePolicy {
    kube_config_file: String,
    #[serde(rename = "allowTTL", default)]
    allow_ttl: i64,
    #[serde(rename = "denyTTL", default)]
    deny_ttl: i64,
    #[serde(default)]
    retry_backoff: i64,
    #[serde(default)]
    default_allow: bool,
}

#[derive(Clone)]
pub struct Settings {
    endpoint: Endpoint,
    allowed_for: Duration,
    denied_for: Duration,
    retry_backoff: Duration,
    default_allow: bool,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Settings({})", self.endpoint.url)
    }
}

impl Settings {
    /// `folder`: where a relative kubeconfig is.
    pub fn read(settings: Value, folder: &Path) -> Result<Self, String> {
        let file: File = serde_json::from_value(settings).map_err(|e| e.to_string())?;
        let policy = file.image_policy;
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        Ok(Self {
            retry_backoff: normalized(
                policy.retry_backoff,
                Duration::from_millis(1),
                (Duration::from_nanos(1), 5 * minute),
                Duration::from_millis(500),
            )?,
            allowed_for: normalized(policy.allow_ttl, second, (second, 30 * minute), 5 * minute)?,
            denied_for: normalized(policy.deny_ttl, second, (second, 30 * minute), 30 * second)?,
            endpoint: webhook_client::from_kubeconfig(&folder.join(&policy.kube_config_file))?,
            default_allow: policy.default_allow,
        })
    }
}

/// -1: none; 0: the default.
fn normalized(
    value: i64,
    unit: Duration,
    (min, max): (Duration, Duration),
    default: Duration,
) -> Result<Duration, String> {
    match value {
        -1 => Ok(Duration::ZERO),
        0 => Ok(default),
        value => {
            let found = u32::try_from(value).ok().map(|value| unit.saturating_mul(value));
            let found = found.filter(|found| (min..=max).contains(found));
            found.ok_or_else(|| format!("valid value is between {min:?} and {max:?}, got {value} times {unit:?}"))
        }
    }
}

pub struct ImagePolicyWebhook {
    settings: Option<Settings>,
    answers: Expiring<String, Value>,
    env: Env,
}

impl ImagePolicyWebhook {
    pub fn new(settings: &Option<Settings>, env: &Env) -> Self {
        Self { settings: settings.clone(), answers: Expiring::new(CACHED_REVIEWS_MAX), env: env.clone() }
    }

    /// The status of the review.
    async fn ask(&self, settings: &Settings, spec: Value) -> Result<Value, String> {
        let key = spec.to_string();
        if let Some(known) = self.answers.get(&key, self.env.monotonic()) {
            return Ok(known);
        }
        let review = json!({ "apiVersion": "imagepolicy.k8s.io/v1alpha1", "kind": "ImageReview", "spec": spec });
        let mut delay = settings.retry_backoff;
        for attempt in 1.. {
            match settings.endpoint.review(&self.env, REVIEW_TIMEOUT, &review).await {
                Ok(status) => {
                    let now = self.env.monotonic();
                    let lasts = if status["allowed"] == true { settings.allowed_for } else { settings.denied_for };
                    self.answers.insert(key, status.clone(), now + lasts, now);
                    return Ok(status);
                }
                Err(error) if attempt == ATTEMPTS_MAX => return Err(error),
                Err(_) => self.env.sleep(delay).await,
            }
            delay = delay.mul_f64(RETRY_FACTOR);
        }
        Err("the image policy webhook was not asked".into())
    }
}

fn images(a: &Attributes<'_>) -> Option<Vec<Value>> {
    let lists: &[&str] = match a.subresource {
        "" => &["containers", "initContainers"],
        "ephemeralcontainers" => &["ephemeralContainers"],
        _ => return None,
    };
    let containers = lists.iter().flat_map(|list| a.object["spec"][*list].as_array().into_iter().flatten());
    Some(containers.map(|container| json!({ "image": container["image"] })).collect())
}

#[async_trait]
impl Plugin for ImagePolicyWebhook {
    fn name(&self) -> &'static str {
        "ImagePolicyWebhook"
    }

    fn check(&self) -> Result<(), String> {
        self.settings.as_ref().map(|_| ()).ok_or_else(|| "no config specified".into())
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        let Some(settings) = self.settings.as_ref().filter(|_| writes && a.is("", "pods")) else { return Ok(()) };
        let Some(containers) = images(a) else { return Ok(()) };
        let annotations = a.object["metadata"]["annotations"].as_object().into_iter().flatten();
        let annotations: serde_json::Map<_, _> = annotations
            .filter(|(key, _)| key.contains(ANNOTATION_DOMAIN))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let mut spec = json!({ "containers": containers, "namespace": a.namespace });
        if !annotations.is_empty() {
            spec["annotations"] = annotations.into();
        }
        let status = match self.ask(settings, spec).await {
            Ok(status) => status,
            Err(error) if settings.default_allow => {
                tracing::warn!(error, "the image policy webhook failed, failing open");
                audit::annotate(&format!("{AUDIT_PREFIX}failed-open"), "true");
                return Ok(());
            }
            Err(error) => return Err(a.forbidden(&error)),
        };
        for (key, value) in status["auditAnnotations"].as_object().into_iter().flatten() {
            audit::annotate(&format!("{AUDIT_PREFIX}{key}"), value.as_str().unwrap_or_default());
        }
        match (status["allowed"] == true, status["reason"].as_str().unwrap_or_default()) {
            (true, _) => Ok(()),
            (false, "") => Err(a.forbidden("one or more images rejected by webhook backend")),
            (false, why) => Err(a.forbidden(&format!("image policy webhook backend denied one or more images: {why}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_bounds_and_defaults() {
        let second = Duration::from_secs(1);
        let check = |value: i64, expected: Option<Duration>| {
            assert_eq!(normalized(value, second, (second, 60 * second), 30 * second).ok(), expected, "{value}");
        };
        check(-1, Some(Duration::ZERO));
        check(0, Some(30 * second));
        check(7, Some(7 * second));
        check(61, None);
        check(-2, None);
    }
}
