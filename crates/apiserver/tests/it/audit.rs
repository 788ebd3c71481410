//! What is recorded of requests, in the log and at a webhook.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use apiserver::Config;
use base64::{Engine, prelude::BASE64_STANDARD};
use env::Env;
use futures::{FutureExt, StreamExt};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use store::MemoryStore;

use crate::{harness::*, outside};

pub struct Recorded {
    pub server: Server,
    folder: tempfile::TempDir,
}

impl Recorded {
    pub async fn start(rules: &str, change: impl FnOnce(&mut Config, &Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("policy.yaml");
        std::fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
        let env = Env::real();
        let configure = |config: &mut Config| {
            config.audit.policy_file = Some(policy);
            config.audit.log.path = Some(folder.path().join("audit.log"));
            change(config, folder.path());
        };
        let server = server_on(Arc::new(MemoryStore::new(env.clone())), env, configure).await;
        Self { server, folder }
    }

    pub fn log(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap()
    }

    pub fn events(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Of requests from outside of the process whose path begins so, as `stage verb code`.
    pub fn stages(&self, path: &str) -> Vec<String> {
        let of = |e: &&Value| e["requestURI"].as_str().unwrap().starts_with(path) && e["userAgent"] != "minke";
        let show = |e: &Value| {
            let code = e["responseStatus"]["code"].as_u64().unwrap_or_default();
            format!("{} {} {code}", e["stage"].as_str().unwrap(), e["verb"].as_str().unwrap())
        };
        self.events().iter().filter(of).map(show).collect()
    }
}

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn requests_are_recorded_as_deep_as_the_policy_says() {
    let rules = "omitManagedFields: true\nrules:\n\
        - {level: None, users: ['system:apiserver']}\n\
        - {level: Metadata, resources: [{group: '', resources: [secrets]}]}\n\
        - {level: RequestResponse, resources: [{group: '', resources: [configmaps]}], omitStages: [RequestReceived]}\n\
        - {level: None}\n";
    let r = Recorded::start(rules, |_, _| {}).await;
    let s = &r.server;
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "k": "hunter2" } });
    let made = s.post(SECRETS, secret).await;
    let audit_id = made.headers["audit-id"].to_str().unwrap().to_string();
    made.expect(201);
    s.get(&format!("{SECRETS}/s")).await.expect(200);
    let wrong = json!({ "metadata": { "name": "t" }, "stringData": { "k": ["hunter2"] }, "data": "hunter2" });
    s.post(SECRETS, wrong).await.expect(400);
    s.create_config_map("c").await.expect(201);
    let patch = json!({ "data": { "k": "w" } });
    s.patch("merge-patch", &format!("{CONFIG_MAPS}/c"), patch.clone()).await.expect(200);
    s.get(CONFIG_MAPS).await.expect(200);
    s.delete(&format!("{CONFIG_MAPS}/c"), json!({ "gracePeriodSeconds": 0 })).await.expect(200);
    s.get(&format!("{CONFIG_MAPS}/c")).await.expect(404);
    s.get("/version").await.expect(200);
    assert_eq!(r.stages("/version"), Vec::<String>::new());
    assert_eq!(
        r.stages(SECRETS),
        [
            "RequestReceived create 0",
            "ResponseComplete create 201",
            "RequestReceived get 0",
            "ResponseComplete get 200",
            "RequestReceived create 0",
            "ResponseComplete create 400",
        ]
    );
    assert!(!r.text().contains("hunter2") && !r.text().contains("aHVudGVyMg"), "a Secret is not in the record");
    let events = r.events();
    let of_secrets = |e: &&Value| e["objectRef"]["resource"] == "secrets";
    let created = events.iter().filter(of_secrets).nth(1).unwrap();
    assert_eq!(created["auditID"], audit_id.as_str());
    let groups = json!(["system:masters", "system:authenticated"]);
    assert_eq!((&created["user"]["username"], &created["user"]["groups"]), (&json!("admin"), &groups));
    let reference = json!({ "resource": "secrets", "namespace": "default", "name": "s", "apiVersion": "v1" });
    assert_eq!(created["objectRef"], reference);
    assert_eq!(created["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!(created["annotations"]["authorization.k8s.io/reason"], "");
    assert_eq!(created.get("requestObject"), None);

    let maps: Vec<_> = events.iter().filter(|e| e["requestURI"].as_str().unwrap().starts_with(CONFIG_MAPS)).collect();
    let shown: Vec<_> = maps.iter().map(|e| (e["verb"].as_str().unwrap(), &e["responseStatus"]["code"])).collect();
    let expected = [("create", 201), ("patch", 200), ("list", 200), ("delete", 200), ("get", 404)];
    assert_eq!(shown, expected.map(|(verb, code)| (verb, Box::leak(Box::new(json!(code))) as &Value)));
    assert_eq!(maps[0]["requestObject"]["data"], json!({ "k": "v" }));
    assert_eq!(maps[0]["requestObject"]["kind"], "ConfigMap");
    assert!(maps[0]["responseObject"]["metadata"]["uid"].is_string());
    assert_eq!(maps[0]["responseObject"]["metadata"].get("managedFields"), None);
    assert_eq!(maps[1]["requestObject"], patch);
    assert_eq!(maps[2]["responseObject"]["kind"], "ConfigMapList");
    assert_eq!(maps[3]["requestObject"]["gracePeriodSeconds"], 0);
    assert_eq!(maps[3]["responseStatus"]["status"], "Success");
    assert_eq!(maps[4]["responseStatus"]["reason"], "NotFound");
    assert_eq!(maps[4]["responseObject"]["message"], "configmaps \"c\" not found");
    let page = s.get("/metrics").await;
    let page = String::from_utf8_lossy(&page.bytes).into_owned();
    for line in ["apiserver_audit_event_total ", "apiserver_audit_level_total{level=\"Metadata\"} 3"] {
        assert!(page.contains(line), "{line}: {page}");
    }
}

#[tokio::test]
async fn watches_refusals_and_clients_that_leave_are_recorded() {
    let r = Recorded::start("rules: [{level: None, users: ['system:apiserver']}, {level: Metadata}]", |_, _| {}).await;
    let s = &r.server;
    let path = format!("{CONFIG_MAPS}?watch=1");
    let mut response = s.raw("GET", &path, &[], Vec::new()).await;
    s.create_config_map("a").await.expect(201);
    response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(r.stages(&path), ["RequestReceived watch 0", "ResponseStarted watch 200"]);
    drop(response);
    let ended = ["RequestReceived watch 0", "ResponseStarted watch 200", "ResponseComplete watch 200"];
    assert_eq!(r.stages(&path), ended);

    let stranger = [("authorization", "Bearer nobody's")];
    s.anonymous().send("GET", "/api/v1/nodes", &stranger, Vec::new()).await.expect(401);
    assert_eq!(r.stages("/api/v1/nodes"), ["ResponseStarted list 401"]);
    s.anonymous().get("/api/v1/pods").await.expect(403);
    let refused = r.events().into_iter().rfind(|e| e["requestURI"] == "/api/v1/pods").unwrap();
    assert_eq!((&refused["stage"], &refused["responseStatus"]["code"]), (&json!("ResponseComplete"), &json!(403)));
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(refused["user"]["username"], "system:anonymous");
    let headers = [("impersonate-user", "jane"), ("x-forwarded-for", "10.1.2.3"), ("user-agent", "curl")];
    s.send("GET", "/api/v1/services", &headers, Vec::new()).await.expect(403);
    let acted = r.events().into_iter().rfind(|e| e["requestURI"] == "/api/v1/services").unwrap();
    assert_eq!((&acted["user"]["username"], &acted["impersonatedUser"]["username"]), (&json!("admin"), &json!("jane")));
    assert_eq!((&acted["sourceIPs"], &acted["userAgent"]), (&json!(["10.1.2.3"]), &json!("curl")));

    // A body that does not come, and then its sender is gone.
    let body = apiserver::body::stream(futures::stream::pending());
    let request = s.request("POST", CONFIG_MAPS, &[("content-type", "application/json")], Vec::new()).map(|_| body);
    let before = r.stages(CONFIG_MAPS).len();
    assert!(s.api.handle(request).now_or_never().is_none(), "it waits for its body");
    let left = r.stages(CONFIG_MAPS);
    assert_eq!(left[before..], ["RequestReceived create 0", "ResponseComplete create 200"]);
}

#[tokio::test]
async fn no_request_is_lost_from_a_blocking_log() {
    let rules = "omitStages: [RequestReceived]\nrules: [{level: None, users: ['system:apiserver']}, {level: Metadata}]";
    let r = Recorded::start(rules, |config, _| config.audit.log.max_size_megabytes = 1).await;
    let one = async |n: usize| r.server.create_config_map(&format!("c-{n}")).await.expect(201);
    futures::stream::iter(0..2000).map(one).buffer_unordered(64).count().await;
    let files = std::fs::read_dir(r.folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let logs = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("audit"));
    let texts: Vec<_> = logs.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    assert!(texts.len() > 1, "the log is set aside");
    let lines = texts.iter().flat_map(|text| text.lines()).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut names: Vec<_> =
        lines.filter(|e| e["verb"] == "create").map(|e| e["objectRef"]["name"].as_str().unwrap().to_string()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 2000);
}

#[tokio::test]
async fn a_log_that_cannot_be_written_stops_requests_only_if_it_is_to() {
    let rules = "rules: [{level: None, users: ['system:apiserver']}, {level: Metadata}]";
    // A device that is always full.
    let full = |mode: &'static str| {
        move |config: &mut Config, _: &Path| {
            config.audit.log.path = Some("/dev/full".into());
            config.audit.log.batch.mode = mode.into();
        }
    };
    let lenient = Recorded::start(rules, full("blocking")).await;
    lenient.server.create_config_map("a").await.expect(201);
    let strict = Recorded::start(rules, full("blocking-strict")).await;
    strict.server.create_config_map("a").await.refused(500, "InternalError", "failed to store audit event");
    let anything = strict.server.as_admin("GET", "/metrics", Value::Null).await;
    assert_eq!(anything.code, 500, "not even this");
}

#[tokio::test]
async fn policies_that_make_no_sense_stop_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Everything}]\n").unwrap();
    let mut config = Config::in_process(rcgen::KeyPair::generate().unwrap().serialize_pem());
    config.audit.policy_file = Some(policy.clone());
    config.audit.log.path = Some("-".into());
    let env = Env::real();
    let error = apiserver::ApiServer::new(config, Arc::new(MemoryStore::new(env.clone())), env).await.err().unwrap();
    let text = error.to_string();
    for part in ["loading audit policy file", "rules[0].level: Unsupported value", &policy.display().to_string()] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn a_webhook_gets_batches_and_every_event_once_it_answers() {
    let received: Arc<Mutex<(usize, Vec<Value>)>> = Arc::default();
    let heard = received.clone();
    let handler: outside::Handler = Arc::new(move |request| {
        let mut heard = heard.lock();
        heard.0 += 1;
        // The first batch fails and comes again.
        let code = if heard.0 == 1 { 503 } else { 200 };
        if code == 200 {
            heard.1.push(serde_json::from_slice(request.body()).unwrap());
        }
        let answer = http::Response::builder().status(code).body(http_body_util::Full::default()).unwrap();
        Box::pin(async { answer })
    });
    let (port, ca) = outside::serve("localhost", None, handler).await;
    let ca = BASE64_STANDARD.encode(ca);
    let rules = "omitStages: [RequestReceived]\nrules:\n- {level: None, users: ['system:apiserver']}\n\
        - {level: Request, resources: [{group: '', resources: [configmaps]}]}\n";
    let r = Recorded::start(rules, |config, folder| {
        let kubeconfig = folder.join("webhook.yaml");
        let text = json!({
            "clusters": [{ "name": "c", "cluster": { "server": format!("https://127.0.0.1:{port}/audit"), "certificate-authority-data": ca } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "c",
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let webhook = &mut config.audit.webhook;
        webhook.config_file = Some(kubeconfig);
        webhook.initial_backoff = Duration::from_millis(10);
        webhook.batch.max_size = 2;
        webhook.truncate.enabled = true;
        webhook.truncate.max_event_bytes = 4000;
    })
    .await;
    r.server.create_config_map("a").await.expect(201);
    let mut large = config_map("b");
    large["data"]["k"] = "x".repeat(10_000).into();
    r.server.post(CONFIG_MAPS, large).await.expect(201);
    let items = async {
        loop {
            let items: Vec<Value> =
                received.lock().1.iter().flat_map(|list| list["items"].as_array().unwrap().clone()).collect();
            if items.len() == 2 {
                return items;
            }
            env::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut items = env::timeout(Duration::from_secs(120), items).await.expect("both events arrive");
    items.sort_by_key(|item| item["objectRef"]["name"].to_string());
    assert_eq!(items[0]["requestObject"]["data"]["k"], "v");
    assert_eq!(items[1].get("requestObject"), None);
    assert_eq!(items[1]["annotations"]["audit.k8s.io/truncated"], "true");
    assert_eq!(received.lock().1[0]["kind"], "EventList");
    assert!(r.events().iter().any(|e| e["requestObject"]["data"]["k"].as_str().is_some_and(|k| k.len() == 10_000)));
}
