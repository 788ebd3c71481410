//! Events: what components tell people about objects, counted rather than repeated.
//! Used by every component; shown by `kubectl describe`.
//! Invariant: never blocks and never fails its caller; beyond its limits it drops the newest.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use ::api::kinds;
use env::Env;
use jiff::Timestamp;
use k8s_openapi::{
    Metadata, Resource,
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{Client, Patch};

/// Events waiting to be written; more are dropped.
const MAX_WAITING: usize = 1000;
/// Series remembered for counting.
const MAX_SERIES: usize = 4096;
/// Per object: a burst, then one more every so often.
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);
/// This many distinct messages for one reason within the window, and the rest are combined.
const SIMILAR_MESSAGES: usize = 10;
const SIMILAR_WINDOW: Duration = Duration::from_secs(600);

pub type ObjectRef = ObjectReference;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

/// A reference to `object`, for events about it.
pub fn reference<K: Resource + Metadata<Ty = ObjectMeta>>(object: &K) -> ObjectRef {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(kinds::of::<K>().api_version()),
        kind: Some(K::KIND.to_string()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// One component's voice. Cheap to clone.
#[derive(Clone)]
pub struct EventRecorder {
    sender: mpsc::Sender<Said>,
    env: Env,
}

struct Said {
    about: ObjectRef,
    kind: EventType,
    reason: String,
    message: String,
    at: Timestamp,
}

impl EventRecorder {
    /// `host` is the node for node components, empty otherwise.
    pub fn new(client: Client, env: Env, component: &str, host: &str) -> Self {
        let (sender, mut receiver) = mpsc::channel::<Said>(MAX_WAITING);
        let mut writer = Writer {
            client,
            env: env.clone(),
            component: component.to_string(),
            host: host.to_string(),
            series: HashMap::new(),
            tokens: HashMap::new(),
            similar: HashMap::new(),
        };
        env.spawn(async move {
            while let Some(said) = receiver.recv().await {
                writer.write(said).await;
            }
        });
        Self { sender, env }
    }

    pub fn event(&self, about: &ObjectRef, kind: EventType, reason: &str, message: impl Into<String>) {
        let said =
            Said { about: about.clone(), kind, reason: reason.into(), message: message.into(), at: self.env.now() };
        if self.sender.try_send(said).is_err() {
            tracing::warn!(reason, "too many events are waiting; dropped one");
        }
    }

    pub fn normal(&self, about: &ObjectRef, reason: &str, message: impl Into<String>) {
        self.event(about, EventType::Normal, reason, message);
    }

    pub fn warning(&self, about: &ObjectRef, reason: &str, message: impl Into<String>) {
        self.event(about, EventType::Warning, reason, message);
    }
}

/// The nanoseconds of `at`, or the next number that no event of this process has had: clocks may stand still.
fn unique(at: Timestamp) -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let at = at.as_nanosecond() as u64;
    let mut given = at;
    let next = |last: u64| {
        given = at.max(last + 1);
        Some(given)
    };
    LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok();
    given
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct SeriesKey {
    uid: String,
    name: String,
    namespace: String,
    field_path: Option<String>,
    kind: EventType,
    reason: String,
    message: String,
}

struct Series {
    event_name: String,
    count: i32,
}

struct Writer {
    client: Client,
    env: Env,
    component: String,
    host: String,
    series: HashMap<SeriesKey, Series>,
    /// Per object: tokens left, and when they were counted.
    tokens: HashMap<String, (f64, Duration)>,
    /// Per object and reason: distinct messages, and when the window began.
    similar: HashMap<(String, String), (Vec<String>, Duration)>,
}

impl Writer {
    async fn write(&mut self, mut said: Said) {
        let uid = said.about.uid.clone().unwrap_or_default();
        if !self.take_token(&uid) {
            return;
        }
        said.message = self.combined(&uid, &said);
        let key = SeriesKey {
            uid,
            name: said.about.name.clone().unwrap_or_default(),
            namespace: said.about.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".into()),
            field_path: said.about.field_path.clone(),
            kind: said.kind,
            reason: said.reason.clone(),
            message: said.message.clone(),
        };
        let api = self.client.namespaced::<Event>(&key.namespace);
        if let Some(series) = self.series.get_mut(&key) {
            series.count += 1;
            let patch =
                json!({ "count": series.count, "lastTimestamp": said.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string() });
            match api.patch(&series.event_name, &Patch::Strategic(patch)).await {
                Ok(_) => return,
                Err(error) if error.is_not_found() => {}
                Err(error) => return tracing::debug!(%error, "couldn't count an event"),
            }
        }
        let event = self.event(&key, &said);
        let event_name = event.metadata.name.clone().unwrap_or_default();
        match api.create(&event).await {
            Ok(_) => {
                if self.series.len() >= MAX_SERIES {
                    self.series.clear();
                }
                self.series.insert(key, Series { event_name, count: 1 });
            }
            // The namespace may be going away, or the server: an event is not worth a retry.
            Err(error) => tracing::debug!(%error, "couldn't write an event"),
        }
    }

    fn event(&self, key: &SeriesKey, said: &Said) -> Event {
        let suffix = format!("{:x}", unique(said.at));
        let time = || Time(said.at.round(jiff::Unit::Second).unwrap_or(said.at));
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{suffix}", key.name)),
                namespace: Some(key.namespace.clone()),
                ..ObjectMeta::default()
            },
            involved_object: said.about.clone(),
            reason: Some(said.reason.clone()),
            message: Some(said.message.clone()),
            type_: Some(match said.kind {
                EventType::Normal => "Normal".into(),
                EventType::Warning => "Warning".into(),
            }),
            source: Some(EventSource {
                component: Some(self.component.clone()),
                host: Some(self.host.clone()).filter(|h| !h.is_empty()),
            }),
            first_timestamp: Some(time()),
            last_timestamp: Some(time()),
            count: Some(1),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.host.clone()),
            ..Event::default()
        }
    }

    fn take_token(&mut self, uid: &str) -> bool {
        let now = self.env.monotonic();
        if self.tokens.len() >= MAX_SERIES {
            self.tokens.clear();
        }
        let (tokens, since) = self.tokens.entry(uid.to_string()).or_insert((BURST, now));
        *tokens = (*tokens + (now - *since).as_secs_f64() / REFILL.as_secs_f64()).min(BURST);
        *since = now;
        let granted = *tokens >= 1.0;
        if granted {
            *tokens -= 1.0;
        }
        granted
    }

    /// The message, or a combined one when this object has said too many different things for one reason.
    fn combined(&mut self, uid: &str, said: &Said) -> String {
        let now = self.env.monotonic();
        if self.similar.len() >= MAX_SERIES {
            self.similar.clear();
        }
        let entry = self.similar.entry((uid.to_string(), said.reason.clone())).or_insert((Vec::new(), now));
        if now - entry.1 > SIMILAR_WINDOW {
            *entry = (Vec::new(), now);
        }
        if !entry.0.contains(&said.message) {
            if entry.0.len() >= SIMILAR_MESSAGES {
                return format!("(combined from similar events): {}", said.message);
            }
            entry.0.push(said.message.clone());
        }
        said.message.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_instant_have_different_names() {
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut names: Vec<u64> = (0..100).map(|_| unique(at)).collect();
        names.dedup();
        assert_eq!(names.len(), 100);
    }
}
