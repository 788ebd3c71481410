//! One audit.k8s.io/v1 Event, and its forms in the log: JSON with upstream's fields in upstream's order, or one line of text.
//! Filled by `audit` while a request is handled; written by its backends.
//! Invariant: pure; bodies are shared, not copied, until the event is written (tidy: `pure_files`).

use std::{collections::BTreeMap, fmt::Write as _};

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, value::RawValue};

use super::policy::{Level, Stage};
use crate::{authn::User, request::request_info::RequestInfo};

/// How every event begins; those of an EventList leave it out.
const TYPE: &str = "{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",";
/// Set on an event that lost its objects because it was too large.
const TRUNCATED: &str = "audit.k8s.io/truncated";
const USER_AGENT_BYTES_MAX: usize = 1024;

#[derive(Debug, Clone, Default)]
pub struct ObjectReference {
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub group: String,
    pub version: String,
    pub resource_version: String,
    pub subresource: String,
}

impl ObjectReference {
    pub fn of(info: &RequestInfo) -> Self {
        Self {
            resource: info.resource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            group: info.group.clone(),
            version: info.version.clone(),
            subresource: info.subresource.clone(),
            ..Self::default()
        }
    }
}

/// What is known of a request so far.
#[derive(Debug, Clone)]
pub struct Event {
    pub level: Level,
    pub audit_id: String,
    pub request_uri: String,
    pub verb: String,
    pub user: Option<User>,
    pub impersonated: Option<User>,
    pub source_ips: Vec<String>,
    pub user_agent: String,
    pub object: Option<ObjectReference>,
    /// A Status with its bounded fields.
    pub status: Option<Value>,
    pub request_object: Option<Bytes>,
    pub response_object: Option<Bytes>,
    pub received: Timestamp,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct UserInfo<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'a BTreeMap<String, Vec<String>>,
}

impl<'a> UserInfo<'a> {
    fn of(user: &'a User) -> Self {
        Self { username: &user.name, uid: &user.uid, groups: &user.groups, extra: &user.extra }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Reference<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_group: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
}

/// The order of a Status's fields on the wire.
#[derive(Serialize)]
struct Status<'a> {
    metadata: Empty,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Value>,
    code: u64,
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    kind: &'static str,
    api_version: &'static str,
    level: &'static str,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'a str,
    user: UserInfo<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<UserInfo<'a>>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[String]>::is_empty")]
    source_ips: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<Reference<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<Status<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_object: Option<&'a RawValue>,
    request_received_timestamp: &'a str,
    stage_timestamp: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
}

impl Event {
    /// One line of JSON, with its end.
    pub fn json(&self, stage: Stage, at: Timestamp) -> Bytes {
        self.encoded(stage, at, &self.annotations, true)
    }

    /// The same without objects, and marked so.
    pub fn truncated_json(&self, stage: Stage, at: Timestamp) -> Bytes {
        let mut annotations = self.annotations.clone();
        annotations.insert(TRUNCATED.into(), "true".into());
        self.encoded(stage, at, &annotations, false)
    }

    fn encoded(
        &self,
        stage: Stage,
        at: Timestamp,
        annotations: &BTreeMap<String, String>,
        with_objects: bool,
    ) -> Bytes {
        let request_object = self.request_object.as_ref().filter(|_| with_objects).and_then(raw);
        let response_object = self.response_object.as_ref().filter(|_| with_objects).and_then(raw);
        let nobody = User::default();
        let (received, at) = (micro_time(self.received), micro_time(at));
        let document = Document {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: self.level.as_str(),
            audit_id: &self.audit_id,
            stage: stage.as_str(),
            request_uri: &self.request_uri,
            verb: &self.verb,
            user: UserInfo::of(self.user.as_ref().unwrap_or(&nobody)),
            impersonated_user: self.impersonated.as_ref().map(UserInfo::of),
            source_ips: &self.source_ips,
            user_agent: &self.user_agent,
            object_ref: self.object.as_ref().map(|o| Reference {
                resource: &o.resource,
                namespace: &o.namespace,
                name: &o.name,
                uid: &o.uid,
                api_group: &o.group,
                api_version: &o.version,
                resource_version: &o.resource_version,
                subresource: &o.subresource,
            }),
            response_status: self.status.as_ref().map(status),
            request_object,
            response_object,
            request_received_timestamp: &received,
            stage_timestamp: &at,
            annotations,
        };
        let objects = [request_object, response_object].into_iter().flatten().map(|o| o.get().len()).sum::<usize>();
        let mut out = Vec::with_capacity(1024 + objects);
        serde_json::to_writer(&mut out, &document).expect("strings, numbers and JSON always encode");
        out.push(b'\n');
        out.into()
    }

    /// As `--audit-log-format=legacy` has it.
    pub fn legacy_line(&self, stage: Stage) -> Bytes {
        let quoted = |list: &[String]| list.iter().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(",");
        let user = self.user.as_ref().filter(|user| !user.name.is_empty());
        let groups = user.filter(|user| !user.groups.is_empty()).map(|user| quoted(&user.groups));
        let acting = self.impersonated.as_ref();
        let namespace = self.object.as_ref().map(|o| o.namespace.as_str()).filter(|n| !n.is_empty());
        let response = self.status.as_ref().map_or("<deferred>".to_string(), |s| s["code"].to_string());
        let mut line = String::with_capacity(512);
        let written = writeln!(
            line,
            "{} AUDIT: id={:?} stage={:?} ip={:?} method={:?} user={:?} groups={:?} as={:?} asgroups={:?} \
             user-agent={:?} namespace={:?} uri={:?} response=\"{response}\"",
            self.received,
            self.audit_id,
            stage.as_str(),
            self.source_ips.first().map_or("<unknown>", String::as_str),
            self.verb,
            user.map_or("<none>", |user| user.name.as_str()),
            groups.as_deref().unwrap_or("<none>"),
            acting.map_or("<self>", |user| user.name.as_str()),
            acting.map_or("<lookup>".to_string(), |user| quoted(&user.groups)),
            self.user_agent,
            namespace.unwrap_or("<none>"),
            self.request_uri,
        );
        debug_assert!(written.is_ok(), "a string takes everything");
        line.into()
    }
}

fn raw(object: &Bytes) -> Option<&RawValue> {
    serde_json::from_slice(object.trim_ascii_end()).ok()
}

/// The documents of events as one EventList.
pub fn event_list(events: &[Bytes]) -> Bytes {
    let bytes: usize = events.iter().map(Bytes::len).sum();
    let mut out = Vec::with_capacity(bytes + 128);
    out.extend_from_slice(b"{\"kind\":\"EventList\",\"apiVersion\":\"audit.k8s.io/v1\",\"metadata\":{},\"items\":[");
    for (index, event) in events.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
        let event = event.trim_ascii_end();
        out.extend_from_slice(event.get(TYPE.len()..).unwrap_or_default());
    }
    out.extend_from_slice(b"]}\n");
    out.into()
}

fn status(value: &Value) -> Status<'_> {
    let field = |name: &str| value.get(name).filter(|v| !v.is_null() && *v != "");
    Status {
        metadata: Empty {},
        status: field("status"),
        message: field("message"),
        reason: field("reason"),
        details: field("details"),
        code: value["code"].as_u64().unwrap_or_default(),
    }
}

fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

pub fn shortened_user_agent(agent: &str) -> String {
    if agent.len() <= USER_AGENT_BYTES_MAX {
        return agent.to_string();
    }
    let mut end = USER_AGENT_BYTES_MAX;
    while !agent.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...TRUNCATED", &agent[..end])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event() -> Event {
        Event {
            level: Level::RequestResponse,
            audit_id: "id".into(),
            request_uri: "/api/v1/namespaces/a/secrets?x=%22".into(),
            verb: "create".into(),
            user: Some(User { name: "u".into(), groups: vec!["g".into()], ..User::default() }),
            impersonated: None,
            source_ips: vec!["127.0.0.1".into()],
            user_agent: "kubectl".into(),
            object: Some(ObjectReference { resource: "secrets".into(), version: "v1".into(), ..Default::default() }),
            status: Some(json!({ "code": 201 })),
            request_object: Some(Bytes::from_static(b"{\"a\":1}\n")),
            response_object: None,
            received: "2026-01-02T03:04:05.678Z".parse().unwrap(),
            annotations: BTreeMap::from([("authorization.k8s.io/decision".into(), "allow".into())]),
        }
    }

    const HEAD: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"id","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/secrets?x=%22","verb":"create","user":{"username":"u","groups":["g"]},"sourceIPs":["127.0.0.1"],"userAgent":"kubectl","objectRef":{"resource":"secrets","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":201},"#;
    const TIMES: &str = r#""requestReceivedTimestamp":"2026-01-02T03:04:05.678000Z","stageTimestamp":"2026-01-02T03:04:06.000001Z","annotations":{"#;

    #[test]
    fn fields_come_in_upstreams_order() {
        let (event, at) = (event(), "2026-01-02T03:04:06.000001Z".parse().unwrap());
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let allow = r#""authorization.k8s.io/decision":"allow"}}"#;
        let json = event.json(Stage::ResponseComplete, at);
        assert_eq!(text(json.clone()), format!("{HEAD}\"requestObject\":{{\"a\":1}},{TIMES}{allow}\n"));
        let truncated = event.truncated_json(Stage::ResponseComplete, at);
        assert_eq!(text(truncated), format!("{HEAD}{TIMES}\"audit.k8s.io/truncated\":\"true\",{allow}\n"));
        let list: Value = serde_json::from_slice(&event_list(&[json.clone(), json])).unwrap();
        assert_eq!(list["items"][1]["auditID"], "id");
        assert_eq!((&list["kind"], list["items"][0].get("kind")), (&json!("EventList"), None));
    }

    #[test]
    fn the_old_format_is_a_line() {
        let line = event().legacy_line(Stage::RequestReceived);
        let expected = "2026-01-02T03:04:05.678Z AUDIT: id=\"id\" stage=\"RequestReceived\" ip=\"127.0.0.1\" \
            method=\"create\" user=\"u\" groups=\"\\\"g\\\"\" as=\"<self>\" asgroups=\"<lookup>\" user-agent=\"kubectl\" \
            namespace=\"<none>\" uri=\"/api/v1/namespaces/a/secrets?x=%22\" response=\"201\"\n";
        assert_eq!(String::from_utf8_lossy(&line), expected);
        assert_eq!(shortened_user_agent(&"é".repeat(600)), format!("{}...TRUNCATED", "é".repeat(512)));
    }
}
