//! How long a permission and an identity take: `cargo run --release --example auth_figures [FIGURES]`.
//! Run by `make bench` with what `api_figures` wrote; prints each figure beside its limit.
//! Measures the code that serves requests, over objects that went through the server.

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
        report(&format!("{what}, {ROLES} roles, {BINDINGS} bindings: p99"), percentile(&mut times, 99), "20 us");
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
    report("a cached ServiceAccount token: p99", percentile(&mut times, 99), "5 us");
    let identity = percentile(&mut times, 50);

    // The same token sent with a request for one object, against what identity and permission take of it.
    let binding = json!({
        "metadata": { "name": "robot" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
        "subjects": [{ "kind": "ServiceAccount", "namespace": "default", "name": "robot" }],
    });
    post(&server, &format!("{rbac}/clusterrolebindings"), binding).await?;
    let object = json!({ "metadata": { "name": "c" }, "data": { "text": "x".repeat(1024) } });
    post(&server, "/api/v1/namespaces/default/configmaps", object).await?;
    server.cluster.cache.wait_until_fresh().await?;
    let robot = User::new("system:serviceaccount:default:robot", &["system:serviceaccounts"]);
    let attributes = Attributes {
        user: robot,
        is_resource: true,
        verb: "get".into(),
        resource: "configmaps".into(),
        namespace: "default".into(),
        name: "c".into(),
        ..Attributes::default()
    };
    let (mut decisions, mut requests) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    for _ in 0..ROUNDS {
        let start = env.monotonic();
        std::hint::black_box(decider.decide(&attributes));
        decisions.push(env.monotonic() - start);
        let request = Request::get("/api/v1/namespaces/default/configmaps/c");
        let request = request.header("authorization", format!("Bearer {token}")).body(body::empty())?;
        let start = env.monotonic();
        let response = server.handle(request).await;
        if response.status() != 200 {
            return Err(format!("GET answered {}", response.status()).into());
        }
        body::read_all(response.into_body(), 1 << 20).await?;
        requests.push(env.monotonic() - start);
    }
    let chain = identity + percentile(&mut decisions, 50);
    share("identity and permission of the handling of a GET", chain, percentile(&mut requests, 50), "");
    // With TLS and HTTP, as `api_figures` measured it.
    if let Some(file) = std::env::args().nth(1) {
        let figures: Value = serde_json::from_slice(&std::fs::read(file)?)?;
        let whole = figures["-get server µs"].as_f64().ok_or("no figure of a GET")?;
        share("identity and permission of a GET", chain, Duration::from_secs_f64(whole / 1e6), "< 15 %");
    }
    Ok(())
}

fn share(what: &str, part: Duration, whole: Duration, limit: &str) {
    let share = part.as_secs_f64() / whole.as_secs_f64() * 100.0;
    println!("{what:<60} {:>10}   {limit}", format!("{share:.1} %"));
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[times.len() * percent / 100]
}

fn report(what: &str, time: Duration, limit: &str) {
    println!("{what:<60} {:>10}   < {limit}", format!("{:.1} us", time.as_secs_f64() * 1e6));
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
