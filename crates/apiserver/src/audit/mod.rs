//! The record of who did what: one event per stage of a request, as deep as the policy says.
//! `server::pipeline` opens a record and names its stages; `handlers::respond`, `registry` and `admission` add what they know
//! to the record of the request that this task handles.
//! Nothing is built for level None; of what a Secret holds nothing is written at level Metadata.

mod backend;
mod event;
mod log_file;
mod metrics;
pub mod options;
mod policy;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, Uri, header};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use api::{ApiError, Object, Reason};
use env::Env;

use self::{
    backend::{Backend, Submitted},
    event::{Event, ObjectReference},
    policy::{Decision, Policy},
};
pub use metrics::AuditMetrics;
pub use policy::{Level, Stage};

use crate::{authn::User, request::request_info::RequestInfo};

/// Upstream's limit on one annotation of an admission plugin.
const ANNOTATION_BYTES_MAX: usize = 10 * 1024;

/// Where a request came from, as a request extension.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub SocketAddr);

pub struct Audit {
    policy: Policy,
    backends: Vec<Backend>,
    metrics: Arc<AuditMetrics>,
    env: Env,
}

/// What a record begins with.
pub struct Received<'a> {
    pub audit_id: &'a str,
    pub uri: &'a Uri,
    pub headers: &'a HeaderMap,
    pub peer: Option<PeerAddress>,
    pub info: &'a RequestInfo,
    /// Nobody, if authentication failed.
    pub user: Option<&'a User>,
    pub at: Timestamp,
}

impl Audit {
    /// `None`: nothing is to be recorded.
    pub fn new(options: &options::Audit, metrics: &Arc<AuditMetrics>, env: &Env) -> Result<Option<Arc<Self>>, String> {
        options.check()?;
        let Some(path) = &options.policy_file else { return Ok(None) };
        let attempt = |e: String| format!("loading audit policy file: {e}: from file {}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| attempt(format!("failed to read file path: {e}")))?;
        let (policy, unknown) = Policy::parse(&text).map_err(attempt)?;
        if !unknown.is_empty() {
            let path = path.display();
            tracing::warn!(%path, fields = unknown.join(", "), "the audit policy has fields that are not followed");
        }
        let backends = backend::backends(options, metrics, env)?;
        if backends.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self { policy, backends, metrics: metrics.clone(), env: env.clone() })))
    }

    /// Begins the record of a request; `None` for those of level None.
    pub fn begin(self: &Arc<Self>, received: &Received<'_>) -> Option<Arc<Record>> {
        let decision = self.policy.decide(received.user, received.info);
        self.metrics.decided(decision.level);
        if decision.level == Level::None {
            return None;
        }
        let event = Event {
            level: decision.level,
            audit_id: received.audit_id.to_string(),
            request_uri: received.uri.path_and_query().map_or("/", |p| p.as_str()).to_string(),
            verb: received.info.verb.as_str().to_string(),
            user: received.user.cloned(),
            impersonated: None,
            source_ips: source_ips(received.headers, received.peer),
            user_agent: event::shortened_user_agent(text(received.headers.get(header::USER_AGENT))),
            object: received.info.is_resource.then(|| ObjectReference::of(received.info)),
            status: None,
            request_object: None,
            response_object: None,
            received: received.at,
            annotations: Default::default(),
        };
        let is_secret = received.info.resource == "secrets" && received.info.group.is_empty();
        let (event, is_complete) = (Mutex::new(event), AtomicBool::new(false));
        Some(Arc::new(Record { audit: self.clone(), decision, is_secret, event, is_complete }))
    }

    /// Hands over what is buffered, before the server ends.
    pub async fn close(&self) {
        futures::future::join_all(self.backends.iter().map(Backend::close)).await;
    }
}

fn text(value: Option<&http::HeaderValue>) -> &str {
    value.and_then(|v| v.to_str().ok()).unwrap_or_default()
}

/// What proxies said of the client, then who is at the other end; an address is not told twice in a row.
fn source_ips(headers: &HeaderMap, peer: Option<PeerAddress>) -> Vec<String> {
    let address = |text: &str| text.trim().parse::<std::net::IpAddr>().ok();
    let forwarded = text(headers.get("x-forwarded-for")).split(',').filter_map(address);
    let mut found: Vec<_> = forwarded.collect();
    let rest = address(text(headers.get("x-real-ip"))).into_iter().chain(peer.map(|PeerAddress(peer)| peer.ip()));
    for ip in rest {
        let ip = ip.to_canonical();
        if found.last() != Some(&ip) {
            found.push(ip);
        }
    }
    found.iter().map(ToString::to_string).collect()
}

/// What is known of one request that is recorded. Dropped without having been completed, as when its client goes away or a
/// watch ends, it completes itself.
pub struct Record {
    audit: Arc<Audit>,
    decision: Decision,
    is_secret: bool,
    event: Mutex<Event>,
    is_complete: AtomicBool,
}

impl Record {
    /// Hands the event of one stage to every backend. False: the request must not go on.
    pub async fn stage(&self, stage: Stage) -> bool {
        let (mut fine, mut waits) = (true, Vec::new());
        for submitted in self.submit(stage) {
            match submitted {
                Submitted::Done(done) => fine &= done,
                Submitted::Under(wait) => waits.push(wait),
            }
        }
        for wait in waits {
            fine &= wait.await;
        }
        if !fine && stage == Stage::RequestReceived {
            self.audit.metrics.rejected();
        }
        fine
    }

    fn submit(&self, stage: Stage) -> Vec<Submitted> {
        if matches!(stage, Stage::ResponseComplete | Stage::Panic) {
            self.is_complete.store(true, Ordering::Relaxed);
        }
        if self.decision.omit_stages.has(stage) {
            return Vec::new();
        }
        self.audit.metrics.event();
        let event = self.event.lock();
        let at = if stage == Stage::RequestReceived { event.received } else { self.audit.env.now() };
        let mut json = None;
        self.audit.backends.iter().map(|backend| backend.submit(&event, stage, at, &mut json)).collect()
    }

    /// Nobody was authenticated: upstream records that with one stage.
    pub async fn refused(&self, code: u16) {
        self.answered(code);
        self.stage(Stage::ResponseStarted).await;
        self.is_complete.store(true, Ordering::Relaxed);
    }

    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    pub fn level(&self) -> Level {
        self.decision.level
    }

    pub fn impersonates(&self, user: &User) {
        self.event.lock().impersonated = Some(user.clone());
    }

    /// The code of an answer, whatever else is known of it.
    pub fn answered(&self, code: u16) {
        let mut event = self.event.lock();
        match &mut event.status {
            Some(status) => status["code"] = code.into(),
            None => event.status = Some(json!({ "code": code })),
        }
    }

    pub fn panicked(&self) {
        self.event.lock().status = Some(json!({
            "status": "Failure", "reason": "InternalError", "code": 500, "message": "APIServer panic'd",
        }));
    }

    fn annotate(&self, key: &str, value: &str) {
        let mut event = self.event.lock();
        match event.annotations.get(key) {
            Some(present) if present != value => {
                tracing::warn!(key, "an audit annotation is already set to another value");
            }
            Some(_) => {}
            None => drop(event.annotations.insert(key.to_string(), value.to_string())),
        }
    }

    fn failed(&self, error: &ApiError) {
        let mut status = error.to_status();
        // Words about what was wrong with a Secret may quote it.
        let quotes = matches!(
            error.reason,
            Reason::Invalid | Reason::BadRequest | Reason::InternalError | Reason::StoreReadError | Reason::Unknown
        );
        if self.is_secret && self.decision.level < Level::Request && quotes {
            status["message"] = Value::Null;
            status["details"] = Value::Null;
        }
        if self.decision.level >= Level::RequestResponse {
            self.event.lock().response_object = Some(status.to_string().into());
        }
        self.event.lock().status = Some(status);
    }

    fn request(&self, object: &Value) {
        let bytes = (self.decision.level >= Level::Request).then(|| self.encoded(object));
        let mut event = self.event.lock();
        let metadata = &object["metadata"];
        if let Some(found) = &mut event.object {
            let fill = |to: &mut String, field: &str| {
                if to.is_empty() {
                    *to = metadata[field].as_str().unwrap_or_default().to_string();
                }
            };
            fill(&mut found.namespace, "namespace");
            fill(&mut found.name, "name");
            fill(&mut found.uid, "uid");
            fill(&mut found.resource_version, "resourceVersion");
        }
        if bytes.is_some() {
            event.request_object = bytes;
        }
    }

    fn encoded(&self, object: &Value) -> Bytes {
        match self.decision.omit_managed_fields {
            true => without_managed_fields(object.clone()).to_string().into(),
            false => object.to_string().into(),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.is_complete() {
            return;
        }
        let status = &mut self.event.get_mut().status;
        if status.is_none() {
            *status = Some(json!({ "status": "Success", "message": "Connection closed early", "code": 200 }));
        }
        for submitted in self.submit(Stage::ResponseComplete) {
            if let Submitted::Under(wait) = submitted {
                self.audit.env.spawn(wait);
            }
        }
    }
}

fn without_managed_fields(mut object: Value) -> Value {
    let remove = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    };
    remove(&mut object);
    object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(remove);
    object
}

/// The record of a request once there is one, and what was to be noted before.
#[derive(Default)]
pub struct Slot {
    state: Mutex<(Option<Arc<Record>>, Vec<(String, String)>)>,
}

impl Slot {
    pub fn record(&self) -> Option<Arc<Record>> {
        self.state.lock().0.clone()
    }

    fn begin(&self, record: &Arc<Record>) {
        let mut state = self.state.lock();
        std::mem::take(&mut state.1).iter().for_each(|(key, value)| record.annotate(key, value));
        state.0 = Some(record.clone());
    }
}

tokio::task_local! {
    /// Of the request that this task handles.
    static CURRENT: Arc<Slot>;
}

/// Runs a request with a place for its record.
pub async fn recorded<T>(slot: Arc<Slot>, request: impl Future<Output = T>) -> T {
    CURRENT.scope(slot, request).await
}

/// From here on what is told below goes into `record`.
pub fn begin(record: &Arc<Record>) {
    let _ = CURRENT.try_with(|slot| slot.begin(record));
}

/// The record of the request that this task handles, if there is one.
pub fn current() -> Option<Arc<Record>> {
    CURRENT.try_with(|slot| slot.record()).ok().flatten()
}

/// Notes something about the current request; what comes before its record is kept for it.
pub fn annotate(key: &str, value: &str) {
    let _ = CURRENT.try_with(|slot| {
        let mut state = slot.state.lock();
        match &state.0 {
            Some(record) => record.annotate(key, shortened(value)),
            None => state.1.push((key.to_string(), shortened(value).to_string())),
        }
    });
}

fn shortened(value: &str) -> &str {
    let mut end = value.len().min(ANNOTATION_BYTES_MAX);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    &value[..end]
}

/// The object that the current request brings.
pub fn request_object(object: &Value, api_version: &str, kind: &str) {
    let Some(record) = current() else { return };
    if record.decision.level < Level::Request || object["kind"].is_string() && object["apiVersion"].is_string() {
        return record.request(object);
    }
    let mut typed = object.clone();
    typed["kind"] = kind.into();
    typed["apiVersion"] = api_version.into();
    record.request(&typed);
}

/// The patch that the current request brings, in JSON or YAML.
pub fn request_patch(body: &[u8]) {
    let Some(record) = current().filter(|record| record.decision.level >= Level::Request) else { return };
    let text = String::from_utf8_lossy(body);
    let patch: Option<Value> = serde_json::from_str(&text).ok().or_else(|| serde_saphyr::from_str(&text).ok());
    record.event.lock().request_object = patch.map(|patch| record.encoded(&patch));
}

/// The current request is answered with an error.
pub fn response_error(error: &ApiError) {
    if let Some(record) = current() {
        record.failed(error);
    }
}

/// The current request is answered with a document that is no object of the store.
pub fn response_value(value: &Value) {
    let Some(record) = current() else { return };
    let object = (record.decision.level >= Level::RequestResponse).then(|| record.encoded(value));
    let mut event = record.event.lock();
    if value["kind"] == "Status" {
        event.status = Some(value.clone());
    }
    event.response_object = object;
}

/// The current request is answered with an object. Its bytes are shared, not made.
pub fn response_object(object: &Object) {
    let Some(record) = current().filter(|record| record.decision.level >= Level::RequestResponse) else { return };
    let bytes = match record.decision.omit_managed_fields {
        true => record.encoded(&object.value()),
        false => object.json().clone(),
    };
    record.event.lock().response_object = Some(bytes);
}

/// The current request is answered with a list, made only if it is recorded.
pub fn response_list(list: impl FnOnce() -> Value) {
    let Some(record) = current().filter(|record| record.decision.level >= Level::RequestResponse) else { return };
    let bytes = record.encoded(&list());
    record.event.lock().response_object = Some(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_limited_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "é".repeat(ANNOTATION_BYTES_MAX);
        assert_eq!(shortened(&long).len(), ANNOTATION_BYTES_MAX);
        let odd = format!("a{long}");
        assert_eq!(shortened(&odd).len(), ANNOTATION_BYTES_MAX - 1);
    }

    #[test]
    fn sources_are_told_once() {
        let check = |forwarded: &str, real: &str, peer: &str, expected: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", forwarded.parse().unwrap());
            headers.insert("x-real-ip", real.parse().unwrap());
            let peer = peer.parse().ok().map(PeerAddress);
            assert_eq!(source_ips(&headers, peer).join(" "), expected);
        };
        check("", "", "", "");
        check("", "", "10.0.0.1:99", "10.0.0.1");
        check("1.1.1.1, 2.2.2.2,junk", "2.2.2.2", "3.3.3.3:1", "1.1.1.1 2.2.2.2 3.3.3.3");
        check("1.1.1.1", "", "1.1.1.1:1", "1.1.1.1");
    }
}
