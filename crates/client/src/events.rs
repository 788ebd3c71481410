//! Events: what components tell people about objects, counted rather than repeated.
//! Used by every component; shown by `kubectl describe`.
//! Recording neither blocks nor fails its caller (type: it returns nothing and is not async); beyond its limits it
//! drops the newest.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use ::api::kinds;
use env::Env;
use futures::{StreamExt, stream};
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
const WAITING_EVENTS_MAX: usize = 1000;
/// What is said within one is written together: the store syncs once for all.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);
const REQUESTS_IN_FLIGHT_MAX: usize = 32;
/// Series remembered for counting.
const SERIES_MAX: usize = 4096;
/// Per object: a burst, then one more every so often.
const BURST_EVENTS: f64 = 25.0;
const REFILL_INTERVAL: Duration = Duration::from_secs(300);
/// This many distinct messages for one reason within the window, and the rest are combined.
const SIMILAR_EVENTS_MAX: usize = 10;
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);

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
        api_version: Some(kinds::resource_of::<K>().api_version()),
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
    sender: mpsc::Sender<PendingEvent>,
    env: Env,
}

struct PendingEvent {
    about: ObjectRef,
    kind: EventType,
    reason: String,
    message: String,
    annotations: BTreeMap<String, String>,
    at: Timestamp,
}

impl EventRecorder {
    /// `host` is the node for node components, empty otherwise.
    pub fn new(client: Client, env: Env, component: &str, host: &str) -> Self {
        let (sender, mut receiver) = mpsc::channel::<PendingEvent>(WAITING_EVENTS_MAX);
        let mut writer = Writer {
            client,
            env: env.clone(),
            component: component.to_string(),
            host: host.to_string(),
            series: HashMap::new(),
            tokens: HashMap::new(),
            similar: HashMap::new(),
        };
        let waiting = env.clone();
        env.spawn(async move {
            let mut said = Vec::new();
            while receiver.recv_many(&mut said, WAITING_EVENTS_MAX).await > 0 {
                waiting.next_beat(BATCH_INTERVAL).await;
                while let Ok(more) = receiver.try_recv() {
                    said.push(more);
                }
                writer.write(said.drain(..)).await;
            }
        });
        Self { sender, env }
    }

    pub fn event(&self, about: &ObjectRef, kind: EventType, reason: &str, message: impl Into<String>) {
        self.annotated(about, kind, reason, message, BTreeMap::new());
    }

    /// An Event with annotations, for programs that read it.
    pub fn annotated(
        &self,
        about: &ObjectRef,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
        annotations: BTreeMap<String, String>,
    ) {
        let said = PendingEvent {
            about: about.clone(),
            kind,
            reason: reason.into(),
            message: message.into(),
            annotations,
            at: self.env.now(),
        };
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

impl SeriesKey {
    fn new(uid: String, said: &PendingEvent) -> Self {
        Self {
            uid,
            name: said.about.name.clone().unwrap_or_default(),
            namespace: said.about.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".into()),
            field_path: said.about.field_path.clone(),
            kind: said.kind,
            reason: said.reason.clone(),
            message: said.message.clone(),
        }
    }
}

struct Series {
    event_name: String,
    count: i32,
}

/// What was said of one series in one moment.
struct SeriesUpdate {
    key: SeriesKey,
    said: PendingEvent,
    last: Timestamp,
    times: i32,
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
    async fn write(&mut self, said: impl Iterator<Item = PendingEvent>) {
        let news = self.news(said);
        let writer = &*self;
        let written: Vec<_> =
            stream::iter(news).map(|news| writer.send(news)).buffer_unordered(REQUESTS_IN_FLIGHT_MAX).collect().await;
        for (key, series) in written.into_iter().flatten() {
            if self.series.len() >= SERIES_MAX {
                self.series.clear();
            }
            self.series.insert(key, series);
        }
    }

    /// What is worth telling, each series once.
    fn news(&mut self, said: impl Iterator<Item = PendingEvent>) -> Vec<SeriesUpdate> {
        let mut news: Vec<SeriesUpdate> = Vec::new();
        let mut places: HashMap<SeriesKey, usize> = HashMap::new();
        for mut said in said {
            let uid = said.about.uid.clone().unwrap_or_default();
            if !self.take_token(&uid) {
                continue;
            }
            said.message = self.combined(&uid, &said);
            let key = SeriesKey::new(uid, &said);
            match places.get(&key) {
                Some(place) => {
                    news[*place].last = said.at;
                    news[*place].times += 1;
                }
                None => {
                    places.insert(key.clone(), news.len());
                    news.push(SeriesUpdate { key, last: said.at, said, times: 1 });
                }
            }
        }
        news
    }

    /// What is known of the series from now on.
    async fn send(&self, news: SeriesUpdate) -> Option<(SeriesKey, Series)> {
        let api = self.client.namespaced::<Event>(&news.key.namespace);
        if let Some(known) = self.series.get(&news.key) {
            let series = Series { event_name: known.event_name.clone(), count: known.count + news.times };
            let last = news.last.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let patch = json!({ "count": series.count, "lastTimestamp": last });
            match api.patch(&series.event_name, &Patch::Strategic(patch)).await {
                Err(error) if error.is_not_found() => {}
                counted => {
                    if let Err(error) = counted {
                        tracing::debug!(%error, "couldn't count an event");
                    }
                    return Some((news.key, series));
                }
            }
        }
        let event = self.event(&news);
        let event_name = event.metadata.name.clone().unwrap_or_default();
        match api.create(&event).await {
            Ok(_) => Some((news.key, Series { event_name, count: news.times })),
            // The namespace may be going away, or the server: an event is not worth a retry.
            Err(error) => {
                tracing::debug!(%error, "couldn't write an event");
                None
            }
        }
    }

    fn event(&self, SeriesUpdate { key, said, last, times }: &SeriesUpdate) -> Event {
        let suffix = format!("{:x}", unique(said.at));
        let time = |at: &Timestamp| Some(Time(at.round(jiff::Unit::Second).unwrap_or(*at)));
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{suffix}", key.name)),
                namespace: Some(key.namespace.clone()),
                annotations: Some(said.annotations.clone()).filter(|all| !all.is_empty()),
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
            first_timestamp: time(&said.at),
            last_timestamp: time(last),
            count: Some(*times),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.host.clone()),
            ..Event::default()
        }
    }

    fn take_token(&mut self, uid: &str) -> bool {
        let now = self.env.monotonic();
        if self.tokens.len() >= SERIES_MAX {
            self.tokens.clear();
        }
        let (tokens, since) = self.tokens.entry(uid.to_string()).or_insert((BURST_EVENTS, now));
        *tokens = (*tokens + (now - *since).as_secs_f64() / REFILL_INTERVAL.as_secs_f64()).min(BURST_EVENTS);
        *since = now;
        let granted = *tokens >= 1.0;
        if granted {
            *tokens -= 1.0;
        }
        granted
    }

    /// The message, or a combined one when this object has said too many different things for one reason.
    fn combined(&mut self, uid: &str, said: &PendingEvent) -> String {
        let now = self.env.monotonic();
        if self.similar.len() >= SERIES_MAX {
            self.similar.clear();
        }
        let entry = self.similar.entry((uid.to_string(), said.reason.clone())).or_insert((Vec::new(), now));
        if now - entry.1 > SIMILAR_INTERVAL {
            *entry = (Vec::new(), now);
        }
        if !entry.0.contains(&said.message) {
            if entry.0.len() >= SIMILAR_EVENTS_MAX {
                return format!("(combined from similar events): {}", said.message);
            }
            entry.0.push(said.message.clone());
        }
        said.message.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ::api::{ApiError, Resource as Kind};
    use async_trait::async_trait;
    use bytes::Bytes;
    use http::{Request, Response};
    use parking_lot::Mutex;
    use serde_json::Value;

    use super::*;
    use crate::{ListParams, ObjectList, Transport, WatchStream};

    /// Keeps what was sent, and answers with it.
    #[derive(Clone, Default)]
    struct Sent(Arc<Mutex<Vec<(String, Value)>>>);

    #[async_trait]
    impl Transport for Sent {
        async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
            let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
            self.0.lock().push((request.method().to_string(), body));
            let event = json!({ "metadata": {}, "involvedObject": {} });
            Ok(Response::new(Bytes::from(event.to_string())))
        }

        async fn list(&self, _: &Kind, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
            Err(ApiError::internal("not served"))
        }

        async fn watch(&self, _: &Kind, _: Option<&str>, _: &ListParams, _: &str) -> Result<WatchStream, ApiError> {
            Err(ApiError::internal("not served"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_moment_is_told_once() {
        let (sent, env) = (Sent::default(), Env::simulated(Timestamp::UNIX_EPOCH, 1));
        let recorder = EventRecorder::new(Client::new(sent.clone()), env.clone(), "tester", "");
        let pod = ObjectRef { name: Some("p".into()), namespace: Some("n".into()), ..ObjectRef::default() };
        let check = async |said: &[&str], expected: &[(&str, &str, i64)]| {
            said.iter().for_each(|reason| recorder.normal(&pod, reason, "message"));
            env.sleep(2 * BATCH_INTERVAL).await;
            let sent: Vec<_> = std::mem::take(&mut *sent.0.lock());
            let told = |(method, body): &(String, Value)| {
                let reason = body["reason"].as_str().unwrap_or_default().to_string();
                (method.clone(), reason, body["count"].as_i64().unwrap_or_default())
            };
            let told: Vec<_> = sent.iter().map(told).collect();
            let expected: Vec<_> = expected.iter().map(|(m, r, n)| (m.to_string(), r.to_string(), *n)).collect();
            assert_eq!(told, expected, "{said:?}");
        };
        check(&["Pulled", "Created"], &[("POST", "Pulled", 1), ("POST", "Created", 1)]).await;
        check(&["BackOff", "BackOff", "Killing", "BackOff"], &[("POST", "BackOff", 3), ("POST", "Killing", 1)]).await;
        check(&["BackOff", "BackOff"], &[("PATCH", "", 5)]).await;
        let annotations = BTreeMap::from([("starved_resource".to_string(), "memory".to_string())]);
        recorder.annotated(&pod, EventType::Warning, "Evicted", "low", annotations);
        env.sleep(2 * BATCH_INTERVAL).await;
        assert_eq!(sent.0.lock()[0].1["metadata"]["annotations"], json!({"starved_resource": "memory"}));
    }

    #[test]
    fn events_of_one_instant_have_different_names() {
        let at: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut names: Vec<u64> = (0..100).map(|_| unique(at)).collect();
        names.dedup();
        assert_eq!(names.len(), 100);
    }
}
