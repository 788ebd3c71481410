//! Puts an API server together: store, cache, identities, permissions, admission, then what every cluster has.
//! Neighbours: `config`, which says how; `pipeline`, which then answers; `post_start_hooks`, the loops that begin here.
//! Nothing is served before the cache is loaded and the first objects are written.

use std::sync::Arc;

use futures::future::BoxFuture;

use api::{
    ApiError, Resource,
    feature_gates::{MUTATING_ADMISSION_POLICY, SIZE_BASED_LIST_COST_ESTIMATE},
};
use env::Env;
use store::Store;

use crate::{
    admission, aggregator,
    audit::Audit,
    authn::{
        self,
        service_account::{Keys, ServiceAccountTokens},
    },
    authz,
    discovery::served::ServedResources,
    filters::in_flight::InFlight,
    flow_control::FlowControl,
    handlers::{console, debug},
    metrics::{self, Measured, Metrics},
    metrics_api, openapi, post_start_hooks,
    registry::{Allocations, Registry},
    server::{config::Config, health, loopback::Loopback, pipeline::ApiServer, reload::ReloadMetrics, reload_events},
    storage::{
        self,
        cluster::Cluster,
        encryption::EncryptedStore,
        watch_cache::{WatchCache, store_error},
    },
};

impl ApiServer {
    /// Loads the cache, writes what every cluster has, and is then ready to serve.
    pub fn new(config: Config, store: Arc<dyn Store>, env: Env) -> BoxFuture<'static, Result<Arc<Self>, ApiError>> {
        Box::pin(Self::load(config, store, env))
    }

    async fn load(config: Config, store: Arc<dyn Store>, env: Env) -> Result<Arc<Self>, ApiError> {
        let config = Arc::new(config);
        let limits = config.limits.watch_cache.clone();
        let metrics = Arc::new(Metrics::default());
        let audit = Audit::new(&config.audit, &metrics.audit, &env).map_err(ApiError::internal)?;
        let operations = metrics.operations.clone();
        let health = health::Health::default();
        let writes = health.writes.clone();
        let reloads = ReloadMetrics::new(&format!("{}:{}", config.advertise_address, config.port));
        metrics.also(reloads.metrics.clone());
        let store: Arc<dyn Store> = Arc::new(Measured { inner: store, operations, writes, env: env.clone() });
        let media = config.media_type_in(store.is_shared());
        let encrypted = EncryptedStore::new(config.encryption_providers.as_ref(), media, store, &env, &reloads).await;
        let encrypted = encrypted.map_err(ApiError::internal)?;
        let store: Arc<dyn Store> = encrypted.clone();
        if store.get(storage::UNFINISHED_MIGRATION).await.map_err(store_error)?.is_some() {
            let what = "the store holds a half-done migration: finish it with `minke store migrate`";
            return Err(ApiError::internal(what));
        }
        let moved = storage::migrate_keys(&*store).await.map_err(store_error)?;
        if moved > 0 {
            tracing::info!(moved, "moved objects from the keys of an older version");
        }
        let cache = WatchCache::start(store.clone(), limits, env.clone()).await.map_err(store_error)?;
        // Without these the server would let through what they forbid.
        for resource in api::kinds::builtin().iter().filter(|r| r.group == "admissionregistration.k8s.io") {
            encrypted.check_prefix(&storage::prefix(resource))?;
        }
        let gated = api::kinds::gated().iter().filter(|(gate, _)| match *gate {
            MUTATING_ADMISSION_POLICY => admission::mutates_by_policy(&config),
            gate => config.feature_gates.enabled(gate),
        });
        // Nothing of ours asks for older forms.
        let is_wanted = |r: &Resource| !api::kinds::is_older_form(r) || config.runtime_config.serves_resource(r);
        let gated = gated.map(|(_, resource)| resource.clone()).filter(|resource| is_wanted(resource)).collect();
        let served = ServedResources::of(gated, |resource| config.runtime_config.serves_resource(resource));
        let cluster = Arc::new(Cluster { env: env.clone(), store, encrypted, cache, served });
        metrics.also(metrics::feature_gates(&config.feature_gates));
        let keys = Arc::new(Keys::new(&config.service_accounts).map_err(ApiError::internal)?);
        let tokens = Arc::new(ServiceAccountTokens::new(keys, cluster.clone()));
        metrics.also(tokens.metrics.clone());
        let authentication = authn::chain(&config, &cluster, tokens.clone(), &reloads).map_err(ApiError::internal)?;
        let authentication = Arc::new(authentication);
        let authorizer = Arc::new(authz::chain(&config, &cluster, &reloads).map_err(ApiError::internal)?);
        let loopback = Loopback::default();
        metrics.also_shown_by({
            let decisions = authorizer.decisions.clone();
            move |out| decisions.render(out)
        });
        let admission = admission::Chain::new(&config, &cluster, &authorizer, &loopback).map_err(ApiError::internal)?;
        metrics.also(admission.metrics.clone());
        metrics.also_shown_by({
            let durations = admission.durations.clone();
            move |out| durations.render(out)
        });
        let by_size = config.feature_gates.enabled(SIZE_BASED_LIST_COST_ESTIMATE);
        let flow_control = FlowControl::new(&config.limits, by_size, &cluster);
        let registry = Registry {
            watches: flow_control.watches.clone(),
            allocations: Allocations::new(&config, &cluster),
            admission,
            authorizer: authorizer.clone(),
            authentication: authentication.clone(),
            tokens,
            cluster: cluster.clone(),
            config: config.clone(),
            metrics: metrics.clone(),
        };
        let server = Arc::new(Self {
            in_flight: InFlight::new(&config.limits),
            flow_control,
            audit,
            metrics,
            health,
            openapi: openapi::Documents::default(),
            extensions: aggregator::Extensions::default(),
            metrics_api: metrics_api::MetricsApi::default(),
            debug: debug::DebugHandlers::default(),
            console: console::Console::default(),
            registry,
            authentication,
            authorizer,
            cluster,
            config,
            env,
        });
        loopback.connect(&server);
        server.load_what_was_unreadable();
        reload_events::start(&server, reloads.failures());
        post_start_hooks::start(&server).await?;
        server.registry.resume_initializers();
        if server.config.limits.priority_and_fairness {
            server.flow_control.start();
        }
        server.health.bootstrapped();
        Ok(server)
    }

    /// What can't be decrypted is no part of the cache: all is loaded again once it can.
    fn load_what_was_unreadable(&self) {
        let encrypted = Arc::downgrade(&self.cluster.encrypted);
        self.cluster.cache.on_load(move || {
            if let Some(encrypted) = encrypted.upgrade() {
                encrypted.loaded();
            }
        });
        let cache = Arc::downgrade(&self.cluster.cache);
        self.cluster.encrypted.on_recovery(move || {
            if let Some(cache) = cache.upgrade() {
                cache.reload();
            }
        });
    }
}
