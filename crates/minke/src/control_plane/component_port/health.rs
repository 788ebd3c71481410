//! `/healthz`, `/livez` and `/readyz` of a controller manager or scheduler that runs alone, check by check.
//! Asked by the port for every request to one of them.
//! Why a check failed is told only at its own path, to those who may see it.

use apiserver::{Query, health::report};
use client::{InformerFactory, Reachability};
use controllers::Caches;
use http::StatusCode;
use metrics::Metrics;
use tokio_util::sync::CancellationToken;

/// `Err` says what is wrong.
type Verdict = Result<(), &'static str>;
type Check = (&'static str, Box<dyn Fn() -> Verdict + Send + Sync>);

pub struct Health {
    healthz: Vec<Check>,
    livez: Vec<Check>,
    readyz: Vec<Check>,
    /// How the checks went.
    pub slis: Metrics,
}

fn pass(name: &'static str) -> Check {
    (name, Box::new(|| Ok(())))
}

/// Who leads and can't renew its lease no longer leads, long before upstream's check of the same name would fail.
fn election(elects: bool) -> Option<Check> {
    elects.then(|| pass("leaderElection"))
}

impl Health {
    fn new(elects: bool, shutdown: &CancellationToken, synced: Check, reachability: Reachability) -> Self {
        let shutdown = shutdown.clone();
        // A component that can't ask the API server does nothing, whatever else is well.
        let connection = move || -> Check {
            let reachability = reachability.clone();
            let check = move || match reachability.problem() {
                None => Ok(()),
                Some(_) => Err("the API server can't be asked: the log says why"),
            };
            ("api-server-connection", Box::new(check))
        };
        let stopping = move || if shutdown.is_cancelled() { Err("process is shutting down") } else { Ok(()) };
        let readyz =
            election(elects).into_iter().chain([("shutdown", Box::new(stopping) as Box<_>), synced, connection()]);
        Self {
            healthz: vec![election(elects).unwrap_or_else(|| pass("ping")), connection()],
            livez: vec![pass("ping")],
            readyz: readyz.collect(),
            slis: Metrics::default(),
        }
    }

    /// Ready once it knows the cluster, whether or not it leads.
    pub fn of_scheduler(
        elects: bool,
        shutdown: &CancellationToken,
        informers: InformerFactory,
        reachability: Reachability,
    ) -> Self {
        let synced = move || match informers.is_synced() {
            true => Ok(()),
            false => Err("handlers are not fully synchronized"),
        };
        Self::new(elects, shutdown, ("sched-handler-sync", Box::new(synced)), reachability)
    }

    /// One that waits to lead has nothing to know yet: it is ready to.
    pub fn of_controllers(
        elects: bool,
        shutdown: &CancellationToken,
        caches: Caches,
        reachability: Reachability,
    ) -> Self {
        let synced = move || match caches.are_filled().unwrap_or(elects) {
            true => Ok(()),
            false => Err("informers not started yet or not synced"),
        };
        Self::new(elects, shutdown, ("informer-sync", Box::new(synced)), reachability)
    }

    /// `None` where there is no such path.
    pub fn answer(&self, path: &str, query: &str) -> Option<(StatusCode, String)> {
        let (name, single) = path.strip_prefix('/')?.split_once('/').unwrap_or((path.get(1..)?, ""));
        let checks = match name {
            "healthz" => &self.healthz,
            "livez" => &self.livez,
            "readyz" => &self.readyz,
            _ => return None,
        };
        if single.is_empty() {
            let query = Query::parse(query);
            let verdict = |(name, check): &Check| {
                let excluded = query.all("exclude").any(|other| other == *name);
                (*name, if excluded { None } else { Some(check().is_ok()) })
            };
            let verdicts: Vec<_> = checks.iter().map(verdict).collect();
            let (healthy, text) = report(name, &query, &self.slis, &verdicts);
            return Some((if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }, text));
        }
        let (_, check) = checks.iter().find(|(known, _)| *known == single)?;
        Some(match check() {
            Ok(()) => (StatusCode::OK, "ok".into()),
            Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {why}\n")),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;

    #[test]
    fn ready_is_not_the_same_as_alive() {
        let (synced, shutdown) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let seen = synced.clone();
        let check = move || if seen.load(Ordering::Relaxed) { Ok(()) } else { Err("not yet") };
        let health = Health::new(true, &shutdown, ("sched-handler-sync", Box::new(check)), Reachability::default());
        let check = |path: &str, query: &str, code: u16, body: &str| {
            let (found, text) = health.answer(path, query).expect("a known path");
            assert_eq!((found.as_u16(), text.as_str()), (code, body), "{path}?{query}");
        };
        check("/healthz", "", 200, "ok");
        let healthy = "[+]leaderElection ok\n[+]api-server-connection ok\nhealthz check passed\n";
        check("/healthz", "verbose", 200, healthy);
        check("/livez", "verbose=1", 200, "[+]ping ok\nlivez check passed\n");
        let failed = "[+]leaderElection ok\n[+]shutdown ok\n[-]sched-handler-sync failed: reason withheld\n\
                      [+]api-server-connection ok\nreadyz check failed\n";
        check("/readyz", "", 500, failed);
        check("/readyz", "exclude=sched-handler-sync", 200, "ok");
        let excluded = "[+]leaderElection excluded: ok\n[+]shutdown ok\n[+]sched-handler-sync excluded: ok\n\
                        [+]api-server-connection ok\n\
                        warn: some health checks cannot be excluded: no matches for \"other\"\nreadyz check passed\n";
        check("/readyz", "verbose&exclude=sched-handler-sync&exclude=other&exclude=leaderElection", 200, excluded);
        check("/readyz/sched-handler-sync", "", 500, "internal server error: not yet\n");
        synced.store(true, Ordering::Relaxed);
        check("/readyz", "", 200, "ok");
        check("/readyz/sched-handler-sync", "", 200, "ok");
        shutdown.cancel();
        check("/readyz/shutdown", "", 500, "internal server error: process is shutting down\n");
        check("/healthz", "", 200, "ok");
        for path in ["/readyz/other", "/metrics", "/"] {
            assert!(health.answer(path, "").is_none(), "{path}");
        }
    }

    #[test]
    fn controllers_that_wait_to_lead_are_ready() {
        let shutdown = CancellationToken::new();
        for (elects, code) in [(true, 200), (false, 500)] {
            let health = Health::of_controllers(elects, &shutdown, Caches::default(), Reachability::default());
            assert_eq!(health.answer("/readyz", "").map(|(code, _)| code.as_u16()), Some(code));
        }
    }
}
