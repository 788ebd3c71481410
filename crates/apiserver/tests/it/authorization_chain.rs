//! Chains of authorizers from a file: several webhooks, conditions, failure policies, selectors, and a reload.

use std::sync::{Arc, Mutex};

use env::Env;
use futures::FutureExt;
use serde_json::{Value, json};
use store::MemoryStore;

use crate::{
    harness::{Server, server_on},
    outside::{json_response, serve},
};

/// A webhook that notes what it is asked and decides by the user's name; its kubeconfig is written to `path`.
async fn webhook(path: &std::path::Path) -> Arc<Mutex<Vec<Value>>> {
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let noting = asked.clone();
    let handler = Arc::new(move |request: http::Request<bytes::Bytes>| {
        let review: Value = serde_json::from_slice(request.body()).unwrap();
        noting.lock().unwrap().push(review.clone());
        let status = match review["spec"]["user"].as_str().unwrap() {
            "allowed" => json!({ "allowed": true }),
            "denied" => json!({ "allowed": false, "denied": true, "reason": "never" }),
            "broken" => json!({ "allowed": "perhaps" }),
            _ => json!({ "allowed": false }),
        };
        async move { json_response(200, &json!({ "status": status })) }.boxed()
    });
    let (port, ca) = serve("authorizer", None, handler).await;
    let kubeconfig = json!({
        "clusters": [{ "name": "a", "cluster": {
            "server": format!("https://127.0.0.1:{port}/authorize"),
            "certificate-authority-data": base64::Engine::encode(&base64::prelude::BASE64_STANDARD, ca),
        } }],
        "contexts": [{ "name": "a", "context": { "cluster": "a" } }], "current-context": "a",
    });
    std::fs::write(path, kubeconfig.to_string()).unwrap();
    asked
}

fn link(name: &str, kubeconfig: &std::path::Path, policy: &str, conditions: &[&str]) -> Value {
    let conditions: Vec<Value> = conditions.iter().map(|c| json!({ "expression": c })).collect();
    json!({ "type": "Webhook", "name": name, "webhook": {
        "timeout": "30s", "subjectAccessReviewVersion": "v1", "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": policy, "connectionInfo": { "type": "KubeConfigFile", "kubeConfigFile": kubeconfig },
        "matchConditions": conditions, "cacheAuthorizedRequests": false, "cacheUnauthorizedRequests": false,
    } })
}

fn file(links: Vec<Value>) -> String {
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration", "authorizers": links,
    })
    .to_string()
}

/// What an access review says: allowed, denied, or neither.
async fn decision(s: &Server, user: &str, more: Value) -> String {
    let mut attributes = json!({ "namespace": "default", "verb": "list", "resource": "secrets" });
    for (name, value) in more.as_object().unwrap() {
        attributes[name] = value.clone();
    }
    let review = json!({ "spec": { "user": user, "resourceAttributes": attributes } });
    let answer = s.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review).await.expect(201);
    let status = &answer["status"];
    match (status["allowed"].as_bool(), status["denied"].as_bool()) {
        (Some(true), _) => "allowed".into(),
        (_, Some(true)) => format!("denied {}", status["reason"].as_str().unwrap_or_default()),
        _ => "neither".into(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_of_webhooks() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (first, second) = (webhook(&at("first")).await, webhook(&at("second")).await);
    let gone = at("gone");
    let dead = std::fs::read_to_string(at("first")).unwrap().replace("127.0.0.1:", "127.0.0.1:1");
    // Port 1, where nobody listens.
    let (head, tail) = dead.split_once("127.0.0.1:1").unwrap();
    let tail = tail.trim_start_matches(|c: char| c.is_ascii_digit());
    std::fs::write(&gone, format!("{head}127.0.0.1:1{tail}")).unwrap();
    let path = at("authorization.yaml");
    let links = vec![
        link("first", &at("first"), "Deny", &["has(request.resourceAttributes)", "request.user != 'second'"]),
        link("second", &at("second"), "NoOpinion", &["request.user in ['second', 'allowed', 'denied']"]),
        json!({ "type": "RBAC", "name": "rbac" }),
    ];
    std::fs::write(&path, file(links)).unwrap();
    let env = Env::real();
    let config_file = path.clone();
    let s = server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
        config.authorization.config_file = Some(config_file);
    })
    .await;
    let check = async |user: &str, more: Value, expected: &str| {
        assert_eq!(decision(&s, user, more).await, expected, "{user}");
    };
    check("allowed", json!({}), "allowed").await;
    check("denied", json!({}), "denied never").await;
    check("broken", json!({}), "denied ").await;
    check("other", json!({}), "neither").await;
    assert!(second.lock().unwrap().is_empty(), "only asked about its own");
    let seen = first.lock().unwrap().len();
    check("second", json!({}), "neither").await;
    assert_eq!((first.lock().unwrap().len(), second.lock().unwrap().len()), (seen, 1));

    // Selectors go on to the webhook, however they are written.
    let fields = json!({ "requirements": [{ "key": "spec.nodeName", "operator": "In", "values": ["n"] }] });
    let more = json!({ "fieldSelector": fields, "labelSelector": { "rawSelector": "app in (a,b)" } });
    check("other", more, "neither").await;
    let last = first.lock().unwrap().last().unwrap()["spec"]["resourceAttributes"].clone();
    assert_eq!(last["fieldSelector"], fields);
    let labels = json!({ "requirements": [{ "key": "app", "operator": "In", "values": ["a", "b"] }] });
    assert_eq!(last["labelSelector"], labels);
    let wrong = json!({ "spec": { "user": "u", "resourceAttributes": { "verb": "list", "fieldSelector": {} } } });
    let wrong = s.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", wrong).await;
    assert_eq!(wrong.code, 422, "{}", wrong.value);
    // So do those of requests.
    let user = apiserver::authn::User::new("other", &[]);
    let request = http::Request::get("/api/v1/secrets?labelSelector=app%3Da&fieldSelector=metadata.name%3Dx");
    let request = request.body(apiserver::body::empty()).unwrap();
    let answer = s.api.handle(apiserver::ApiServer::in_process_request(user, request)).await;
    assert_eq!(answer.status(), 403);
    let last = first.lock().unwrap().last().unwrap()["spec"]["resourceAttributes"].clone();
    assert_eq!(last["labelSelector"]["requirements"][0]["values"], json!(["a"]), "{last}");
    assert_eq!(last["fieldSelector"]["requirements"][0]["key"], "metadata.name", "{last}");

    // A new file takes over without a restart; what can't be asked has no opinion, or denies.
    let metric = async |status: &str| {
        let page = s.get("/metrics").await;
        let text = String::from_utf8_lossy(&page.bytes).into_owned();
        let name = "apiserver_authorization_config_controller_automatic_reloads_total";
        let shown = format!("status=\"{status}\"}} ");
        let line = text.lines().find(|line| line.starts_with(name) && line.contains(&shown));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let replaced = async |text: String, status: &str| {
        let before = metric(status).await;
        std::fs::write(&path, text).unwrap();
        while metric(status).await == before {
            env::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    replaced(file(vec![link("gone", &gone, "Deny", &["request.what"])]), "failure").await;
    check("allowed", json!({}), "allowed").await;
    replaced(file(vec![link("gone", &gone, "NoOpinion", &[])]), "success").await;
    check("allowed", json!({}), "neither").await;
    replaced(file(vec![link("gone", &gone, "Deny", &[])]), "success").await;
    check("allowed", json!({}), "denied ").await;
    replaced(file(vec![json!({ "type": "AlwaysAllow", "name": "all" })]), "success").await;
    check("nobody", json!({}), "allowed").await;
    // What was counted outlives the files.
    let text = String::from_utf8_lossy(&s.get("/metrics").await.bytes).into_owned();
    for line in [
        "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"first\",type=\"Webhook\"}",
        "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"all\",type=\"AlwaysAllow\"}",
        "apiserver_authorization_webhook_evaluations_total{name=\"second\",result=\"success\"}",
        "apiserver_authorization_webhook_evaluations_fail_open_total{name=\"gone\",result=\"error\"} 1",
        "apiserver_authorization_match_condition_exclusions_total{type=\"Webhook\",name=\"second\"}",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line}\n{text}");
    }
}
