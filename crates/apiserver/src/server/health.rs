//! `/healthz`, `/livez`, `/readyz`: whether the server is alive and whether it should get requests; `/metrics/slis` counts it.
//! Read by load balancers, kubelets and people.
//! Never says yes before the bootstrap objects are stored, and no longer once shutdown has begun.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::metrics::{CONTENT_TYPE, Metrics, slis};
use http::StatusCode;
use parking_lot::Mutex;

use api::ApiError;

use crate::{
    handlers::respond::{Reply, content_response},
    registry::not_found_path,
    request::{call::Call, query::Query},
    server::{pipeline::ApiServer, write_health::WriteHealth},
};

#[derive(Default)]
pub struct Health {
    bootstrapped: AtomicBool,
    stopping: AtomicBool,
    hooks: Mutex<BTreeSet<&'static str>>,
    pub(crate) writes: Arc<WriteHealth>,
    slis: Metrics,
}

impl Health {
    pub fn bootstrapped(&self) {
        self.bootstrapped.store(true, Ordering::Release);
    }

    pub fn hook_started(&self, name: &'static str) {
        self.hooks.lock().insert(name);
    }

    pub fn has_hook_started(&self, name: &str) -> bool {
        self.hooks.lock().contains(name)
    }

    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub fn is_ready(&self) -> bool {
        self.bootstrapped.load(Ordering::Acquire) && !self.stopping.load(Ordering::Acquire)
    }
}

/// Of a health check that asks others.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

type Check = (&'static str, Kind);

/// What a check looks at.
#[derive(Clone, Copy)]
enum Kind {
    /// True as long as anybody answers.
    Alive,
    Store,
    /// Whether it takes writes.
    Writes,
    Bootstrapped,
    /// The row of `post_start_hooks` that the check is named after has started.
    Hook,
    NotStopping,
    /// The key management services that encrypt what is stored.
    KmsProviders,
}

/// Upstream's names. What a hook without a row does is done before the server calls itself bootstrapped.
const ALWAYS: &[Check] = &[
    ("ping", Kind::Alive),
    ("log", Kind::Alive),
    ("etcd", Kind::Store),
    ("poststarthook/start-apiserver-admission-initializer", Kind::Bootstrapped),
    ("poststarthook/generic-apiserver-start-informers", Kind::Bootstrapped),
    ("poststarthook/start-apiextensions-informers", Kind::Bootstrapped),
    ("poststarthook/start-apiextensions-controllers", Kind::Hook),
    ("poststarthook/crd-informer-synced", Kind::Bootstrapped),
    ("poststarthook/bootstrap-controller", Kind::Hook),
    ("poststarthook/start-system-namespaces-controller", Kind::Hook),
    ("poststarthook/start-legacy-token-tracking-controller", Kind::Hook),
    ("poststarthook/start-service-ip-repair-controllers", Kind::Hook),
    ("poststarthook/start-kubernetes-service-cidr-controller", Kind::Hook),
    ("poststarthook/rbac/bootstrap-roles", Kind::Hook),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Kind::Hook),
    ("poststarthook/priority-and-fairness-config-producer", Kind::Hook),
    ("poststarthook/start-cluster-authentication-info-controller", Kind::Hook),
    ("poststarthook/start-kube-apiserver-identity-lease-controller", Kind::Hook),
    ("poststarthook/start-kube-apiserver-identity-lease-garbage-collector", Kind::Bootstrapped),
    ("poststarthook/start-kube-aggregator-informers", Kind::Bootstrapped),
    ("poststarthook/apiservice-registration-controller", Kind::Bootstrapped),
    ("poststarthook/apiservice-status-local-available-controller", Kind::Bootstrapped),
    ("poststarthook/apiservice-status-remote-available-controller", Kind::Hook),
    ("poststarthook/kube-apiserver-autoregistration", Kind::Hook),
    ("poststarthook/apiservice-openapi-controller", Kind::Bootstrapped),
    ("autoregister-completion", Kind::Bootstrapped),
];
/// Only where something is encrypted at rest.
const ENCRYPTING: [Check; 1] = [("kms-providers", Kind::KmsProviders)];
/// A server that can only read gets no requests, but is not restarted either.
const READY_ONLY: [Check; 3] =
    [("etcd-readiness", Kind::Writes), ("informer-sync", Kind::Alive), ("shutdown", Kind::NotStopping)];

impl Kind {
    async fn holds(self, name: &str, server: &ApiServer) -> bool {
        let health = &server.health;
        match self {
            Self::Alive => true,
            Self::Store => {
                let answered = server.cluster.env.timeout(CHECK_TIMEOUT, server.cluster.store.revision()).await;
                matches!(answered, Some(Ok(_)))
            }
            Self::Writes => health.writes.holds(&*server.cluster.store, &server.cluster.env).await,
            Self::Hook => health.has_hook_started(name.trim_start_matches("poststarthook/")),
            Self::Bootstrapped => health.bootstrapped.load(Ordering::Acquire),
            Self::KmsProviders => match server.cluster.encrypted.healthy().await {
                Ok(()) => true,
                Err(error) => {
                    tracing::warn!(error, "a key management service is not healthy");
                    false
                }
            },
            Self::NotStopping => !health.stopping.load(Ordering::Acquire),
        }
    }
}

pub async fn serve(server: &Arc<ApiServer>, call: &Call) -> Result<Reply, ApiError> {
    let path = call.info.path.trim_matches('/');
    let (endpoint, single) = path.split_once('/').unwrap_or((path, ""));
    let ready: &[Check] = if endpoint == "readyz" { &READY_ONLY } else { &[] };
    let kms: &[Check] = if server.config.encryption_providers.is_some() { &ENCRYPTING } else { &[] };
    let all: Vec<&Check> = ALWAYS.iter().chain(kms).chain(ready).collect();
    if !single.is_empty() {
        let check = all.iter().find(|(name, _)| *name == single).ok_or_else(not_found_path)?;
        let ok = check.1.holds(check.0, server).await;
        return Ok(answer(ok, if ok { "ok".into() } else { format!("internal server error: {single} failed\n") }));
    }
    let mut verdicts = Vec::new();
    for (name, check) in all {
        let excluded = call.query.all("exclude").any(|other| other == *name);
        verdicts.push((*name, if excluded { None } else { Some(check.holds(name, server).await) }));
    }
    let (healthy, text) = report(endpoint, &call.query, &server.health.slis, &verdicts);
    Ok(answer(healthy, text))
}

/// What an endpoint says of its checks, and whether all of them passed. One without a verdict was excluded.
pub fn report(endpoint: &str, query: &Query, slis: &Metrics, verdicts: &[(&str, Option<bool>)]) -> (bool, String) {
    let mut text = String::new();
    for (name, verdict) in verdicts {
        if let Some(passed) = verdict {
            slis::observe(slis, name, endpoint, *passed);
        }
        text.push_str(&match verdict {
            None => format!("[+]{name} excluded: ok\n"),
            Some(true) => format!("[+]{name} ok\n"),
            Some(false) => format!("[-]{name} failed: reason withheld\n"),
        });
    }
    let unknown = |other: &&str| !verdicts.iter().any(|(name, _)| name == other);
    let unknown: BTreeSet<String> = query.all("exclude").filter(unknown).map(|other| format!("{other:?}")).collect();
    if !unknown.is_empty() {
        let unknown = Vec::from_iter(unknown).join(",");
        text.push_str(&format!("warn: some health checks cannot be excluded: no matches for {unknown}\n"));
    }
    match verdicts.iter().all(|(_, verdict)| *verdict != Some(false)) {
        false => (false, format!("{text}{endpoint} check failed\n")),
        true if query.get("verbose").is_none() => (true, "ok".into()),
        true => (true, format!("{text}{endpoint} check passed\n")),
    }
}

/// How the checks went so far.
pub fn serve_slis(server: &ApiServer) -> Reply {
    Reply::Raw(content_response(StatusCode::OK, server.health.slis.page().into(), CONTENT_TYPE))
}

fn answer(healthy: bool, text: String) -> Reply {
    let status = if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    Reply::Raw(content_response(status, text.into(), "text/plain; charset=utf-8"))
}
