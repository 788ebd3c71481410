//! `/healthz`, `/livez`, `/readyz`: whether the server is alive and whether it should get requests.
//! Read by load balancers, kubelets and people.
//! Invariant: never says yes before the bootstrap objects are stored, and no longer once shutdown has begun.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::StatusCode;

use api::ApiError;

use crate::{
    call::Call,
    pipeline::ApiServer,
    registry::not_found_path,
    respond::{Reply, content_response},
};

#[derive(Default)]
pub struct Health {
    bootstrapped: AtomicBool,
    stopping: AtomicBool,
}

impl Health {
    pub fn bootstrapped(&self) {
        self.bootstrapped.store(true, Ordering::Release);
    }

    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub fn is_ready(&self) -> bool {
        self.bootstrapped.load(Ordering::Acquire) && !self.stopping.load(Ordering::Acquire)
    }
}

type Check = (&'static str, fn(&ApiServer) -> bool);

const ALWAYS: [Check; 4] = [
    ("ping", |_| true),
    ("log", |_| true),
    ("etcd", |_| true),
    ("poststarthook/bootstrap-controller", |s| s.health.bootstrapped.load(Ordering::Acquire)),
];
const READY_ONLY: [Check; 2] =
    [("informer-sync", |_| true), ("shutdown", |s| !s.health.stopping.load(Ordering::Acquire))];

pub fn serve(server: &Arc<ApiServer>, call: &Call) -> Result<Reply, ApiError> {
    let path = call.info.path.trim_matches('/');
    let (endpoint, single) = path.split_once('/').unwrap_or((path, ""));
    let ready: &[Check] = if endpoint == "readyz" { &READY_ONLY } else { &[] };
    let all: Vec<&Check> = ALWAYS.iter().chain(ready).collect();
    if !single.is_empty() {
        let check = all.iter().find(|(name, _)| *name == single).ok_or_else(not_found_path)?;
        return Ok(answer(check.1(server), "ok".into()));
    }
    let excluded: Vec<&str> = call.query.all("exclude").collect();
    let mut text = String::new();
    let mut healthy = true;
    for (name, check) in all {
        if excluded.contains(name) {
            text.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        let ok = check(server);
        healthy &= ok;
        text.push_str(&if ok { format!("[+]{name} ok\n") } else { format!("[-]{name} failed: reason withheld\n") });
    }
    let verdict = if healthy { "passed" } else { "failed" };
    text.push_str(&format!("{endpoint} check {verdict}\n"));
    let short = healthy && !call.query.flag("verbose") && call.query.get("verbose").is_none();
    Ok(answer(healthy, if short { "ok".into() } else { text }))
}

fn answer(healthy: bool, text: String) -> Reply {
    let status = if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    Reply::Raw(content_response(status, text.into(), "text/plain; charset=utf-8"))
}
