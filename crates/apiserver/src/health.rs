//! `/healthz`, `/livez`, `/readyz`: whether the server is alive and whether it should get requests; `/metrics/slis` counts it.
//! Read by load balancers, kubelets and people.
//! Invariant: never says yes before the bootstrap objects are stored, and no longer once shutdown has begun.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::metrics::{CONTENT_TYPE, Metrics, Text, process, slis};
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
    slis: Metrics,
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

/// Of a health check that asks others.
const PATIENCE: Duration = Duration::from_secs(2);

type Check = (&'static str, Kind);

/// What a check looks at.
#[derive(Clone, Copy)]
enum Kind {
    /// True as long as anybody answers.
    Alive,
    Store,
    Bootstrapped,
    NotStopping,
}

/// Upstream's names. What its hooks do one by one is done here before the server calls itself bootstrapped.
const ALWAYS: &[Check] = &[
    ("ping", Kind::Alive),
    ("log", Kind::Alive),
    ("etcd", Kind::Store),
    ("poststarthook/start-apiserver-admission-initializer", Kind::Bootstrapped),
    ("poststarthook/generic-apiserver-start-informers", Kind::Bootstrapped),
    ("poststarthook/start-apiextensions-informers", Kind::Bootstrapped),
    ("poststarthook/start-apiextensions-controllers", Kind::Bootstrapped),
    ("poststarthook/crd-informer-synced", Kind::Bootstrapped),
    ("poststarthook/bootstrap-controller", Kind::Bootstrapped),
    ("poststarthook/start-system-namespaces-controller", Kind::Bootstrapped),
    ("poststarthook/start-service-ip-repair-controllers", Kind::Bootstrapped),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Kind::Bootstrapped),
    ("poststarthook/start-cluster-authentication-info-controller", Kind::Bootstrapped),
    ("poststarthook/start-kube-aggregator-informers", Kind::Bootstrapped),
    ("poststarthook/apiservice-registration-controller", Kind::Bootstrapped),
    ("poststarthook/apiservice-status-local-available-controller", Kind::Bootstrapped),
    ("poststarthook/apiservice-status-remote-available-controller", Kind::Bootstrapped),
    ("poststarthook/kube-apiserver-autoregistration", Kind::Bootstrapped),
    ("poststarthook/apiservice-openapi-controller", Kind::Bootstrapped),
    ("autoregister-completion", Kind::Bootstrapped),
];
const READY_ONLY: [Check; 2] = [("informer-sync", Kind::Alive), ("shutdown", Kind::NotStopping)];

impl Kind {
    async fn holds(self, server: &ApiServer) -> bool {
        let health = &server.health;
        match self {
            Self::Alive => true,
            Self::Store => {
                let answered = server.cluster.env.timeout(PATIENCE, server.cluster.store.revision()).await;
                matches!(answered, Some(Ok(_)))
            }
            Self::Bootstrapped => health.bootstrapped.load(Ordering::Acquire),
            Self::NotStopping => !health.stopping.load(Ordering::Acquire),
        }
    }
}

pub async fn serve(server: &Arc<ApiServer>, call: &Call) -> Result<Reply, ApiError> {
    let path = call.info.path.trim_matches('/');
    let (endpoint, single) = path.split_once('/').unwrap_or((path, ""));
    let ready: &[Check] = if endpoint == "readyz" { &READY_ONLY } else { &[] };
    let all: Vec<&Check> = ALWAYS.iter().chain(ready).collect();
    if !single.is_empty() {
        let check = all.iter().find(|(name, _)| *name == single).ok_or_else(not_found_path)?;
        let ok = check.1.holds(server).await;
        return Ok(answer(ok, if ok { "ok".into() } else { format!("internal server error: {single} failed\n") }));
    }
    let excluded: Vec<&str> = call.query.all("exclude").collect();
    let mut text = String::new();
    let mut healthy = true;
    for (name, check) in all {
        if excluded.contains(name) {
            text.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        let ok = check.holds(server).await;
        slis::observe(&server.health.slis, name, endpoint, ok);
        healthy &= ok;
        text.push_str(&if ok { format!("[+]{name} ok\n") } else { format!("[-]{name} failed: reason withheld\n") });
    }
    let verdict = if healthy { "passed" } else { "failed" };
    text.push_str(&format!("{endpoint} check {verdict}\n"));
    let short = healthy && !call.query.flag("verbose") && call.query.get("verbose").is_none();
    Ok(answer(healthy, if short { "ok".into() } else { text }))
}

/// How the checks went so far.
pub fn serve_slis(server: &ApiServer) -> Reply {
    let mut out = Text::default();
    server.health.slis.render(&mut out);
    process(&mut out);
    Reply::Raw(content_response(StatusCode::OK, out.finish().into(), CONTENT_TYPE))
}

fn answer(healthy: bool, text: String) -> Reply {
    let status = if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    Reply::Raw(content_response(status, text.into(), "text/plain; charset=utf-8"))
}
