//! EventRateLimit: so many Events a second, of the server, a namespace, a user, or a source about an object.
//! A row of the table in `admission`, off by default; its limits are in the admission configuration.
//! Remembers at most `cacheSize` keys of a limit; who was not heard of for longest is forgotten.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use api::{
    ApiError,
    field::{ErrorList, Path},
};
use env::Env;

use super::{Attributes, Operation, Plugin};

const CACHE_SIZE: usize = 4096;
const TYPES: [&str; 4] = ["Server", "Namespace", "User", "SourceAndObject"];

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    api_version: String,
    kind: String,
    #[serde(default)]
    limits: Vec<LimitSettings>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LimitSettings {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    qps: i64,
    #[serde(default)]
    burst: i64,
    #[serde(default)]
    cache_size: i64,
}

impl Settings {
    pub fn read(settings: Value) -> Result<Self, String> {
        let found: Self = serde_json::from_value(settings).map_err(|e| e.to_string())?;
        let expected = ("eventratelimit.admission.k8s.io/v1alpha1", "Configuration");
        if (found.api_version.as_str(), found.kind.as_str()) != expected {
            return Err(format!("no kind {:?} is registered for version {:?}", found.kind, found.api_version));
        }
        found.check()?;
        Ok(found)
    }

    fn check(&self) -> Result<(), String> {
        let (mut errors, limits) = (ErrorList::new(), Path::new("limits"));
        if self.limits.is_empty() {
            errors.invalid(&limits, Value::Null, "must not be empty");
        }
        for (index, limit) in self.limits.iter().enumerate() {
            let path = limits.index(index);
            if !TYPES.contains(&limit.kind.as_str()) {
                errors.not_supported(&path.child("type"), limit.kind.as_str(), &TYPES);
            }
            for (field, value) in [("burst", limit.burst), ("qps", limit.qps)] {
                if value <= 0 {
                    errors.invalid(&path.child(field), value, "must be positive");
                }
            }
            if limit.cache_size < 0 && limit.kind != "Server" {
                errors.invalid(&path.child("cacheSize"), limit.cache_size, "must not be negative");
            }
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        }
    }
}

pub struct EventRateLimit {
    limits: Vec<Limit>,
    env: Env,
}

struct Limit {
    kind: String,
    per_second: f64,
    burst: f64,
    keys_max: usize,
    buckets: Mutex<Buckets>,
}

#[derive(Default)]
struct Buckets {
    by_key: HashMap<String, Bucket>,
    /// Keys by when they were last heard of.
    by_use: BTreeMap<u64, String>,
    uses: u64,
}

struct Bucket {
    tokens: f64,
    at: Duration,
    last_use: u64,
}

impl EventRateLimit {
    pub fn new(settings: &Settings, env: &Env) -> Self {
        let limits = settings.limits.iter().map(|limit| Limit {
            kind: limit.kind.clone(),
            per_second: limit.qps as f64,
            burst: limit.burst as f64,
            keys_max: usize::try_from(limit.cache_size).ok().filter(|size| *size > 0).unwrap_or(CACHE_SIZE),
            buckets: Mutex::default(),
        });
        Self { limits: limits.collect(), env: env.clone() }
    }
}

impl Limit {
    fn key(&self, a: &Attributes<'_>) -> String {
        match self.kind.as_str() {
            "Namespace" => a.namespace.to_string(),
            "User" => a.user.name.clone(),
            "SourceAndObject" => source_and_object(&a.object),
            _ => String::new(),
        }
    }

    fn accepts(&self, key: &str, now: Duration) -> bool {
        let mut buckets = self.buckets.lock();
        buckets.uses += 1;
        let uses = buckets.uses;
        let found = buckets.by_key.remove(key);
        let mut bucket = match found {
            Some(bucket) => {
                buckets.by_use.remove(&bucket.last_use);
                bucket
            }
            None => Bucket { tokens: self.burst, at: now, last_use: uses },
        };
        let passed = now.saturating_sub(bucket.at).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * self.per_second).min(self.burst);
        (bucket.at, bucket.last_use) = (now, uses);
        let accepted = bucket.tokens >= 1.0;
        if accepted {
            bucket.tokens -= 1.0;
        }
        if buckets.by_key.len() >= self.keys_max
            && let Some((_, oldest)) = buckets.by_use.pop_first()
        {
            buckets.by_key.remove(&oldest);
        }
        buckets.by_use.insert(uses, key.to_string());
        buckets.by_key.insert(key.to_string(), bucket);
        accepted
    }
}

/// Of both forms of an Event.
fn source_and_object(event: &Value) -> String {
    let [source, object] = [["source", "deprecatedSource"], ["involvedObject", "regarding"]]
        .map(|names| names.iter().map(|name| &event[*name]).find(|value| value.is_object()).unwrap_or(&Value::Null));
    let fields = ["component", "host"].map(|field| &source[field]).into_iter();
    let fields = fields.chain(["kind", "namespace", "name", "uid", "apiVersion"].map(|field| &object[field]));
    fields.map(|value| value.as_str().unwrap_or_default()).collect()
}

#[async_trait]
impl Plugin for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }

    fn check(&self) -> Result<(), String> {
        match self.limits.is_empty() {
            true => Err("limits: Invalid value: null: must not be empty".into()),
            false => Ok(()),
        }
    }

    fn validates(&self) -> bool {
        true
    }

    async fn validate(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if a.dry_run || !writes || !(a.is("", "events") || a.is("events.k8s.io", "events")) {
            return Ok(());
        }
        let now = self.env.monotonic();
        let mut reached = Vec::new();
        for limit in &self.limits {
            let key = limit.key(a);
            if !limit.accepts(&key, now) {
                reached.push(format!("limit reached on type {} for key {key}", limit.kind));
            }
        }
        match &reached[..] {
            [] => Ok(()),
            [one] => Err(ApiError::too_many_requests(one.clone(), 0)),
            many => Err(ApiError::too_many_requests(format!("[{}]", many.join(", ")), 0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn buckets_fill_and_are_forgotten() {
        let limit =
            |keys_max| Limit { kind: "User".into(), per_second: 1.0, burst: 2.0, keys_max, buckets: Mutex::default() };
        let few = limit(2);
        let check = |key: &str, at_ms: u64, expected: bool| {
            assert_eq!(few.accepts(key, Duration::from_millis(at_ms)), expected, "{key} at {at_ms}");
        };
        check("a", 0, true);
        check("a", 0, true);
        check("a", 0, false);
        check("a", 999, false);
        check("a", 1000, true);
        check("b", 1000, true);
        // The third forgets the one that was not heard of for longest, which then begins anew.
        check("c", 1000, true);
        check("a", 1000, true);
        let buckets = few.buckets.lock();
        assert_eq!((buckets.by_key.len(), buckets.by_use.len()), (2, 2));
    }

    #[test]
    fn settings_are_checked() {
        let read = |limits: Value| {
            let version = "eventratelimit.admission.k8s.io/v1alpha1";
            Settings::read(json!({ "apiVersion": version, "kind": "Configuration", "limits": limits }))
        };
        assert_eq!(read(json!([{ "type": "Server", "qps": 50, "burst": 100 }])).map(|s| s.limits.len()), Ok(1));
        let check = |limits: Value, expected: &str| assert!(read(limits).unwrap_err().contains(expected), "{expected}");
        check(json!([]), "limits: Invalid value: null: must not be empty");
        check(json!([{ "type": "Node", "qps": 1, "burst": 1 }]), "limits[0].type: Unsupported value: \"Node\"");
        check(json!([{ "type": "User", "qps": 0, "burst": 1 }]), "limits[0].qps: Invalid value: 0: must be positive");
        check(json!([{ "type": "User", "qps": 1, "burst": 1, "cacheSize": -1 }]), "must not be negative");
    }

    #[test]
    fn both_forms_of_an_event_have_the_same_key() {
        let (source, object) = (json!({ "component": "c", "host": "h" }), json!({ "kind": "Pod", "name": "p" }));
        let old = json!({ "source": source, "involvedObject": object });
        assert_eq!(source_and_object(&old), "chPodp");
        assert_eq!(source_and_object(&json!({ "deprecatedSource": source, "regarding": object })), "chPodp");
    }
}
