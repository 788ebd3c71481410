//! The API server's own control loops, and what must be there before it is ready: one row each, by the names of upstream's
//! post-start hooks, all run by one runner.
//! Started by `server::pipeline`; `server::health` shows each row at `/healthz/poststarthook/<name>`.
//! Everything a row writes goes through the pipeline, as `system:apiserver` in `system:masters`: upstream's loopback
//! identity, which nothing outside of this process can have. What upstream's controller manager does is done by
//! `controllers`, under accounts of their own; the one row that needs this crate's CEL has its account here.

mod bootstrap;
mod flow_control;
mod identity_lease;
mod kubernetes_service;
mod storage_versions;

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use env::Env;
use futures::{FutureExt, future, future::BoxFuture};
use tokio::sync::watch;
use tracing::Instrument;

use api::{
    ApiError,
    feature_gates::{API_SERVER_IDENTITY, STORAGE_VERSION_API},
};

use crate::{
    aggregator,
    aggregator::builtin_api_services,
    authz::rbac,
    crd,
    registry::service_repair,
    server::{config::Config, pipeline::ApiServer},
};

/// After a look that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The name of this server's identity Lease.
pub use identity_lease::identity;

pub struct PostStartHook {
    pub name: &'static str,
    /// Resources (plural names) whose changes are looked at. None: there is no loop, only `ControlLoop::prepare`.
    pub watches: &'static [&'static str],
    pub make: fn() -> Box<dyn ControlLoop>,
    /// There only with this feature gate.
    pub gate: Option<&'static str>,
}

impl PostStartHook {
    fn is_on(&self, config: &Config) -> bool {
        self.gate.is_none_or(|gate| config.feature_gates.enabled(gate))
    }
}

#[async_trait]
pub trait ControlLoop: Send {
    /// Before the server is ready: what fails here ends the start.
    async fn prepare(&mut self, _: &Arc<ApiServer>) -> Result<(), ApiError> {
        Ok(())
    }

    /// Looks at everything it is for; says when to look again although nothing changed.
    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError>;

    /// Whether a change of this resource is a reason to look now.
    fn is_woken_by(&self, _plural: &str) -> bool {
        true
    }

    /// How long to wait after a change for what comes with it.
    fn settle_interval(&self) -> Duration {
        Duration::ZERO
    }
}

type Step = for<'a> fn(&'a Arc<ApiServer>) -> BoxFuture<'a, Result<(), ApiError>>;

/// What is only prepared.
struct Once(Step);

#[async_trait]
impl ControlLoop for Once {
    async fn prepare(&mut self, server: &Arc<ApiServer>) -> Result<(), ApiError> {
        (self.0)(server).await
    }

    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        (self.0)(server).await.map(|()| None)
    }
}

const fn hook(
    name: &'static str,
    watches: &'static [&'static str],
    make: fn() -> Box<dyn ControlLoop>,
) -> PostStartHook {
    PostStartHook { name, watches, make, gate: None }
}

/// In the order in which they are prepared.
pub const HOOKS: &[PostStartHook] = &[
    hook("start-system-namespaces-controller", &[], || Box::new(Once(|s| Box::pin(bootstrap::namespaces(s))))),
    hook("rbac/bootstrap-roles", &[], || Box::new(Once(|s| Box::pin(rbac::bootstrap::run(s))))),
    hook("priority-and-fairness-config-producer", flow_control::WATCHES, || Box::new(flow_control::FlowControl)),
    hook("scheduling/bootstrap-system-priority-classes", &[], || {
        Box::new(Once(|s| Box::pin(bootstrap::priority_classes(s))))
    }),
    hook("start-kubernetes-service-cidr-controller", &[], || Box::new(Once(|s| Box::pin(bootstrap::service_cidr(s))))),
    hook("start-legacy-token-tracking-controller", &[], || {
        Box::new(Once(|s| Box::pin(bootstrap::legacy_token_tracking(s))))
    }),
    hook("bootstrap-controller", kubernetes_service::WATCHES, || Box::new(kubernetes_service::Keeper::default())),
    PostStartHook {
        gate: Some(API_SERVER_IDENTITY),
        ..hook("start-kube-apiserver-identity-lease-controller", identity_lease::WATCHES, || {
            Box::new(identity_lease::IdentityLease::default())
        })
    },
    PostStartHook {
        gate: Some(STORAGE_VERSION_API),
        ..hook("built-in-resources-storage-version-updater", storage_versions::WATCHES, || {
            Box::new(storage_versions::StorageVersions)
        })
    },
    hook("start-cluster-authentication-info-controller", &[], || {
        Box::new(Once(|s| Box::pin(bootstrap::authentication(s))))
    }),
    hook(
        "start-service-ip-repair-controllers",
        &["ipaddresses"],
        || Box::new(service_repair::ServiceRepair::default()),
    ),
    hook("start-apiextensions-controllers", &["customresourcedefinitions"], || Box::new(crd::Definitions)),
    hook("apiservice-status-remote-available-controller", aggregator::WATCHES, || {
        Box::new(aggregator::Availability::default())
    }),
    hook("kube-apiserver-autoregistration", &["customresourcedefinitions"], || {
        Box::new(builtin_api_services::Registration)
    }),
];

/// Prepares all of `HOOKS`, and starts the loops among them.
pub async fn start(server: &Arc<ApiServer>) -> Result<(), ApiError> {
    let mut prepared = Vec::new();
    for hook in HOOKS.iter().filter(|hook| hook.is_on(&server.config)) {
        // From before the first look, so that no change after it is missed.
        let changes = hook.watches.iter().map(|plural| (*plural, server.cluster.resource(plural).changes())).collect();
        let mut control = (hook.make)();
        control.prepare(server).await?;
        prepared.push((hook, control, changes));
    }
    for (hook, control, changes) in prepared {
        if !hook.watches.is_empty() {
            let (weak, env) = (Arc::downgrade(server), server.cluster.env.clone());
            let span = tracing::info_span!("post_start_hook", name = hook.name);
            server.cluster.env.spawn(run(hook, control, changes, weak, env).instrument(span));
        }
        server.health.hook_started(hook.name);
    }
    Ok(())
}

type Changes = Vec<(&'static str, watch::Receiver<u64>)>;

/// For as long as the server lives. A failure is tried again; a panic is too, from the beginning.
async fn run(
    hook: &'static PostStartHook,
    mut control: Box<dyn ControlLoop>,
    mut changes: Changes,
    server: Weak<ApiServer>,
    env: Env,
) {
    loop {
        changes.iter_mut().for_each(|(_, changes)| drop(changes.borrow_and_update()));
        let Some(server) = server.upgrade() else { return };
        let synced = AssertUnwindSafe(control.sync(&server)).catch_unwind().await;
        drop(server);
        let wait = match synced {
            Ok(Ok(wait)) => wait,
            Ok(Err(error)) => {
                tracing::warn!(error = %error.message, "failed; will try again");
                Some(RETRY_INTERVAL)
            }
            Err(_) => {
                tracing::error!("panicked; will begin again");
                control = (hook.make)();
                Some(RETRY_INTERVAL)
            }
        };
        let waking = changes.iter_mut().filter(|(plural, _)| control.is_woken_by(plural));
        let changed = future::select_all(waking.map(|(_, changes)| changes.changed().boxed()));
        let changed = match wait {
            Some(wait) => env.timeout(wait, changed).await,
            None => Some(changed.await),
        };
        match changed {
            Some((Err(_), ..)) => return,
            Some(_) if !control.settle_interval().is_zero() => env.sleep(control.settle_interval()).await,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static LOOKS: AtomicUsize = AtomicUsize::new(0);

    /// Panics first, fails next, and is well from then on.
    struct Toy;

    #[async_trait]
    impl ControlLoop for Toy {
        async fn sync(&mut self, _: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
            match LOOKS.fetch_add(1, Ordering::Relaxed) {
                0 => panic!("as it should"),
                1 => Err(ApiError::internal("as it should")),
                _ => Ok(None),
            }
        }
    }

    static TOY: PostStartHook = hook("toy", &["configmaps"], || Box::new(Toy));

    /// A row is all that a loop needs: it is woken by changes, goes on after a failure or a panic, and ends with its server.
    #[tokio::test(start_paused = true)]
    async fn a_loop_goes_on_after_failures_and_ends_with_the_server() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let server = ApiServer::new(Config::in_process(key), store, env.clone()).await.unwrap();
        let changes = vec![("configmaps", server.cluster.resource("configmaps").changes())];
        let running = env::spawn(run(&TOY, (TOY.make)(), changes, Arc::downgrade(&server), env.clone()));
        env.sleep(Duration::from_secs(10)).await;
        assert_eq!(LOOKS.load(Ordering::Relaxed), 3);
        let map = serde_json::json!({ "metadata": { "name": "m" } });
        let path = "/api/v1/namespaces/default/configmaps";
        crate::server::loopback::send(&server, http::Method::POST, path, &map).await.unwrap();
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(LOOKS.load(Ordering::Relaxed), 4);
        for hook in HOOKS.iter().filter(|hook| hook.is_on(&server.config)) {
            assert!(server.health.has_hook_started(hook.name), "{}", hook.name);
        }
        // Every check that is named after a row finds it.
        crate::server::loopback::send(&server, http::Method::GET, "/readyz", &serde_json::Value::Null).await.unwrap();
        drop(server);
        running.await.unwrap();
    }
}
