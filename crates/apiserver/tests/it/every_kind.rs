//! Every verb on every kind, in JSON, YAML and protobuf, as our own discovery announces them.
//! `minimal` has an object of each.
//! A kind that is served and not in the table of `minimal` fails the test.

use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::{
    harness::{Answer, Server, default_account, server},
    minimal,
};

/// One row of a discovery document.
struct Row {
    group: String,
    version: String,
    plural: String,
    kind: String,
    namespaced: bool,
    verbs: Vec<String>,
}

impl Row {
    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    fn collection(&self) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let place = if self.namespaced { "/namespaces/default" } else { "" };
        format!("{root}/{}{place}/{}", self.api_version(), self.plural)
    }

    fn object(&self, i: usize) -> (String, Value) {
        let (name, mut object) = minimal::object(&self.group, &self.plural, i)
            .unwrap_or_else(|| panic!("no minimal object of {} {}", self.api_version(), self.plural));
        object["apiVersion"] = self.api_version().into();
        object["kind"] = self.kind.as_str().into();
        object["metadata"] = json!({ "name": name, "labels": { "every": "kind" } });
        (name, object)
    }

    fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

async fn rows(s: &Server) -> Vec<Row> {
    let mut paths = vec!["/api/v1".to_string()];
    for group in s.get("/apis").await.expect(200)["groups"].as_array().unwrap() {
        let versions = group["versions"].as_array().unwrap();
        let is_stable = |v: &&Value| !v["version"].as_str().unwrap().contains("beta");
        for version in versions.iter().filter(is_stable) {
            paths.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    let mut rows = Vec::new();
    for path in paths {
        let (group, version) = match path.strip_prefix("/apis/") {
            Some(both) => both.split_once('/').unwrap(),
            None => ("", "v1"),
        };
        for resource in s.get(&path).await.expect(200)["resources"].as_array().unwrap() {
            let text = |field: &str| resource[field].as_str().unwrap_or_default().to_string();
            if text("name").contains('/') {
                continue;
            }
            rows.push(Row {
                group: group.to_string(),
                version: version.to_string(),
                plural: text("name"),
                kind: text("kind"),
                namespaced: resource["namespaced"] == true,
                verbs: resource["verbs"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter_map(|v| v.as_str().map(str::to_string))
                    .collect(),
            });
        }
    }
    rows
}

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Json,
    Yaml,
    Protobuf,
}

impl Format {
    fn media(self) -> &'static str {
        match self {
            Format::Json => "application/json",
            Format::Yaml => "application/yaml",
            Format::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    fn encode(self, value: &Value) -> Vec<u8> {
        match self {
            Format::Json => value.to_string().into_bytes(),
            Format::Yaml => api::codec::encode(value, api::codec::ContentType::Yaml).unwrap(),
            Format::Protobuf => api::codec::encode(value, api::codec::ContentType::Protobuf).unwrap(),
        }
    }

    fn decode(self, bytes: &[u8]) -> Value {
        let content = match self {
            Format::Json => return serde_json::from_slice(bytes).unwrap(),
            Format::Yaml => api::codec::ContentType::Yaml,
            Format::Protobuf => {
                assert!(bytes.starts_with(b"k8s\0"), "{:?}", String::from_utf8_lossy(bytes));
                api::codec::ContentType::Protobuf
            }
        };
        api::codec::decode(bytes, content, None).unwrap().value
    }
}

struct Speaker<'a> {
    server: &'a Server,
    format: Format,
}

impl Speaker<'_> {
    async fn send(&self, method: &str, path: &str, body: Option<&Value>, code: u16) -> Value {
        let headers = [("accept", self.format.media()), ("content-type", self.format.media())];
        let sent = body.map(|b| self.format.encode(b)).unwrap_or_default();
        let answer: Answer = self.server.send(method, path, &headers, sent).await;
        assert_eq!(answer.code, code, "{method} {path}: {}", String::from_utf8_lossy(&answer.bytes));
        assert_eq!(answer.headers["content-type"], self.format.media(), "{method} {path}");
        self.format.decode(&answer.bytes)
    }

    /// Annotates the newest version. Controllers in the server may write in between; then it is taken again.
    async fn update(&self, path: &str) -> Value {
        let headers = [("accept", self.format.media()), ("content-type", self.format.media())];
        for _ in 0..10 {
            let mut changed = self.send("GET", path, None, 200).await;
            changed["metadata"]["annotations"]["updated"] = "yes".into();
            let answer = self.server.send("PUT", path, &headers, self.format.encode(&changed)).await;
            if answer.code == 200 {
                return self.format.decode(&answer.bytes);
            }
            assert_eq!(answer.code, 409, "PUT {path}: {}", String::from_utf8_lossy(&answer.bytes));
        }
        panic!("{path} never stands still");
    }

    /// Patches are JSON or YAML whoever sends them; the answer is in our format.
    async fn patch(&self, kind: &str, path: &str, patch: &Value) -> Value {
        let headers = [("accept", self.format.media()), ("content-type", kind)];
        let answer = self.server.send("PATCH", path, &headers, patch.to_string().into_bytes()).await;
        assert_eq!(answer.code, 200, "{kind} {path}: {}", String::from_utf8_lossy(&answer.bytes));
        self.format.decode(&answer.bytes)
    }

    /// The first event of a watch that begins with what is there.
    async fn watch(&self, path: &str) -> Vec<u8> {
        // Watches are not served as YAML.
        let media = if self.format == Format::Yaml { Format::Json.media() } else { self.format.media() };
        let accept = format!("{media};stream=watch");
        let accept = if self.format == Format::Protobuf { accept.as_str() } else { media };
        let response = self.server.raw("GET", path, &[("accept", accept)], Vec::new()).await;
        assert_eq!(response.status(), 200, "{path}");
        let mut body = response.into_body();
        let frame = env::timeout(std::time::Duration::from_secs(60), body.frame()).await;
        let frame = frame.expect("an event in time").expect("an event").expect("a whole event");
        frame.into_data().expect("data").to_vec()
    }
}

async fn all_verbs(s: &Server, row: &Row, format: Format, i: usize) {
    let speaker = Speaker { server: s, format };
    let collection = row.collection();
    let (name, object) = row.object(i);
    let path = format!("{collection}/{name}");
    let at = |what: &str| format!("{what} {path} as {}", format.media());

    let made = speaker.send("POST", &collection, Some(&object), 201).await;
    assert_eq!(made["metadata"]["name"], name.as_str(), "{}", at("create"));
    assert_eq!((&made["kind"], &made["apiVersion"]), (&object["kind"], &object["apiVersion"]), "{}", at("create"));
    s.api.cluster.cache.wait_until_fresh().await.unwrap();
    let found = speaker.send("GET", &path, None, 200).await;
    assert_eq!(found["metadata"]["uid"], made["metadata"]["uid"], "{}", at("get"));
    let list = speaker.send("GET", &format!("{collection}?labelSelector=every%3Dkind"), None, 200).await;
    let listed = list["items"].as_array().unwrap().iter().any(|o| o["metadata"]["name"] == name.as_str());
    assert!(listed, "{}", at("list"));
    assert_eq!(list["kind"], format!("{}List", row.kind), "{}", at("list"));
    if row.can("watch") {
        let query = format!("watch=1&resourceVersion=0&fieldSelector=metadata.name%3D{name}");
        let event = speaker.watch(&format!("{collection}?{query}")).await;
        assert!(event.windows(5).any(|w| w == b"ADDED"), "{}", at("watch"));
        assert!(event.windows(name.len()).any(|w| w == name.as_bytes()), "{}", at("watch"));
    }

    let updated = speaker.update(&path).await;
    assert_eq!(updated["metadata"]["annotations"]["updated"], "yes", "{}", at("update"));
    for (kind, patch) in [
        ("application/json-patch+json", json!([{ "op": "add", "path": "/metadata/annotations/json", "value": "yes" }])),
        ("application/merge-patch+json", json!({ "metadata": { "annotations": { "merge": "yes" } } })),
        ("application/strategic-merge-patch+json", json!({ "metadata": { "annotations": { "strategic": "yes" } } })),
    ] {
        let patched = speaker.patch(kind, &path, &patch).await;
        let key = kind.trim_start_matches("application/").split('-').next().unwrap();
        assert_eq!(patched["metadata"]["annotations"][key], "yes", "{}", at(kind));
    }
    let applied = json!({ "apiVersion": object["apiVersion"], "kind": object["kind"],
        "metadata": { "name": name, "annotations": { "applied": "yes" } } });
    let applied = speaker.patch("application/apply-patch+yaml", &format!("{path}?fieldManager=test"), &applied).await;
    assert_eq!(applied["metadata"]["annotations"]["applied"], "yes", "{}", at("apply"));
    let managers = applied["metadata"]["managedFields"].as_array().unwrap();
    assert!(managers.iter().any(|m| m["manager"] == "test" && m["operation"] == "Apply"), "{}", at("apply"));

    let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0 });
    speaker.send("DELETE", &path, Some(&options), 200).await;
    gone(s, &path).await;

    // Once more, for the deletion of many.
    let (name, object) = row.object(i + 10);
    speaker.send("POST", &collection, Some(&object), 201).await;
    if row.can("deletecollection") {
        let many = format!("{collection}?labelSelector=every%3Dkind");
        let list = speaker.send("DELETE", &many, Some(&options), 200).await;
        assert!(list["kind"].as_str().unwrap().ends_with("List"), "{}: {list}", at("deletecollection"));
    } else {
        speaker.send("DELETE", &format!("{collection}/{name}"), Some(&options), 200).await;
    }
    gone(s, &format!("{collection}/{name}")).await;
}

/// Not there, or only waiting for those who hold it.
async fn gone(s: &Server, path: &str) {
    let answer = s.get(path).await;
    assert!(
        answer.code == 404 || answer.value["metadata"]["deletionTimestamp"].is_string(),
        "{path}: {}",
        answer.value
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_on_every_kind_in_every_format() {
    let s = server().await;
    default_account(&s).await;
    let rows = rows(&s).await;
    let mut stored = 0;
    for row in &rows {
        let is_stored = row.can("get") && row.can("create");
        stored += usize::from(is_stored);
        for (i, format) in [Format::Json, Format::Yaml, Format::Protobuf].into_iter().enumerate() {
            if is_stored {
                all_verbs(&s, row, format, i + 1).await;
            } else {
                not_stored(&s, row, format).await;
            }
        }
    }
    assert!(stored >= 57, "only {stored} kinds are stored");
    for row in rows.iter().filter(|r| r.can("get") && r.can("create")) {
        for verb in ["list", "watch", "update", "patch", "delete"] {
            assert!(row.can(verb), "{} {} cannot {verb}", row.api_version(), row.plural);
        }
    }
}

/// Kinds that are asked, and the one that is only read.
async fn not_stored(s: &Server, row: &Row, format: Format) {
    let speaker = Speaker { server: s, format };
    if !row.can("create") {
        let list = speaker.send("GET", &row.collection(), None, 200).await;
        assert_eq!(list["kind"], format!("{}List", row.kind));
        return;
    }
    let mut question = minimal::question(&row.plural);
    question["apiVersion"] = row.api_version().into();
    question["kind"] = row.kind.as_str().into();
    if row.plural == "bindings" {
        let pods = "/api/v1/namespaces/default/pods";
        s.send("DELETE", &format!("{pods}/every-bound?gracePeriodSeconds=0"), &[], Vec::new()).await;
        let (_, mut pod) = minimal::object("", "pods", 0).unwrap();
        pod["metadata"] = json!({ "name": "every-bound" });
        s.post(pods, pod).await.expect(201);
        speaker.send("POST", &row.collection(), Some(&question), 201).await;
        assert_eq!(s.get(&format!("{pods}/every-bound")).await.expect(200)["spec"]["nodeName"], "n");
        return;
    }
    let answer = speaker.send("POST", &row.collection(), Some(&question), 201).await;
    assert_eq!(answer["kind"], row.kind.as_str());
    assert!(answer["status"].is_object(), "{answer}");
}
