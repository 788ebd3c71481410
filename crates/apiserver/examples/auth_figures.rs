//! How long a permission and an identity take: `cargo run --release --example auth_figures`.
//! Prints the figures; whoever runs it compares them with the limits.
//! Invariant: measures the code that serves requests, over objects that went through the server.

use std::{error::Error, sync::Arc, time::Duration};

use apiserver::{
    ApiServer, Config,
    authn::{
        TokenAuthenticator, User,
        service_account::{Keys, ServiceAccountTokens},
    },
    authz::{Attributes, rbac::Rbac},
    body,
};
use env::Env;
use http::{Method, Request};
use serde_json::{Value, json};

const ROLES: usize = 1000;
const BINDINGS: usize = 5000;
const ROUNDS: usize = 20_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let env = Env::real();
    let config = Config::in_process(rcgen::KeyPair::generate()?.serialize_pem());
    let keys = Arc::new(Keys::new(&config.service_accounts)?);
    let store = Arc::new(store::MemoryStore::new(env.clone()));
    let server = ApiServer::new(config, store, env.clone()).await?;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for i in 0..ROLES {
        let rule = json!({ "apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list"] });
        let role = json!({ "metadata": { "name": format!("r{i}") }, "rules": [rule] });
        post(&server, &format!("{rbac}/clusterroles"), role).await?;
    }
    for i in 0..BINDINGS {
        let binding = json!({
            "metadata": { "name": format!("b{i}") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("r{}", i % ROLES) },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": format!("u{}", i % 500) }],
        });
        post(&server, &format!("{rbac}/clusterrolebindings"), binding).await?;
    }
    server.cluster.cache.wait_until_fresh().await?;
    let decider = Rbac::new(&server.cluster);
    for (what, verb) in [("an RBAC permission", "get"), ("an RBAC refusal", "delete")] {
        let attributes = Attributes {
            user: User::new("u7", &["dev", "ops"]),
            is_resource: true,
            verb: verb.into(),
            resource: "services".into(),
            namespace: "default".into(),
            ..Attributes::default()
        };
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = env.monotonic();
            std::hint::black_box(decider.decide(&attributes));
            times.push(env.monotonic() - start);
        }
        report(what, times);
    }

    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    post(&server, accounts, json!({ "metadata": { "name": "robot" } })).await?;
    let issued = post(&server, &format!("{accounts}/robot/token"), json!({ "spec": {} })).await?;
    let token = issued["status"]["token"].as_str().unwrap_or_default().to_string();
    let tokens = ServiceAccountTokens::new(keys.clone(), server.cluster.clone());
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = env.monotonic();
        std::hint::black_box(tokens.token(&token, &keys.audiences).await?);
        times.push(env.monotonic() - start);
    }
    report("a verified ServiceAccount token", times);
    Ok(())
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    println!("{what}: median {:?}, p99 {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
}

async fn post(server: &Arc<ApiServer>, path: &str, object: Value) -> Result<Value, Box<dyn Error>> {
    let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    let user = User::new("admin", &["system:masters"]);
    let request = ApiServer::in_process_request(user, request.body(body::full(object.to_string()))?);
    let response = server.handle(request).await;
    let status = response.status();
    let bytes = body::read_all(response.into_body(), 1 << 20).await?;
    match status.is_success() {
        true => Ok(serde_json::from_slice(&bytes)?),
        false => Err(String::from_utf8_lossy(&bytes).into()),
    }
}
