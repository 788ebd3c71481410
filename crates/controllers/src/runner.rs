//! The one runner of all controllers: informers feed a queue of keys, workers reconcile them, failures back off.
//! Rows of `descriptors` are made with `Setup` and run here.
//! No worker starts before every cache it reads has been filled; a panic is one key's failure, or one change's.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use api::{ApiError, Resource};
use async_trait::async_trait;
use client::{
    Change, Client, EventRecorder, Informer, InformerFactory, ListParams, ObjectChange, ObjectInformer, WorkQueue,
};
use env::Env;
use futures::{FutureExt, future::BoxFuture};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    Config,
    common::{gated_kinds, resources::Resources},
    descriptors::{CONTROLLERS, ControllerDescriptor},
};

/// When to look again although nothing changed.
pub type Outcome = Result<Option<Duration>, ApiError>;
pub type Queue = WorkQueue<String>;

#[async_trait]
pub trait Controller: Send + Sync + 'static {
    async fn reconcile(&self, key: &str) -> Outcome;
}

/// What every controller gets.
#[derive(Clone)]
pub struct Context {
    pub config: Arc<Config>,
    /// Under the controller's own service account, where those are used.
    pub client: Client,
    /// Shared by all controllers, under the controller manager's identity, as upstream's.
    pub informers: InformerFactory,
    pub env: Env,
    pub shutdown: CancellationToken,
    pub resources: Resources,
}

impl Context {
    /// The kind that a controller behind a feature gate is for; it is not made where the server does not have it.
    pub fn gated_kind(&self, plural: &str) -> Arc<Resource> {
        let found = gated_kinds::find(self.resources.gated(), plural);
        found.unwrap_or_else(|| panic!("{plural} is not served")).clone()
    }

    pub fn recorder(&self, component: &str) -> EventRecorder {
        EventRecorder::new(self.client.clone(), self.env.clone(), component, "")
    }
}

/// The making of one controller: its queue, and the informers that it must wait for.
pub struct Setup {
    pub context: Context,
    pub queue: Queue,
    caches: Vec<ObjectInformer>,
}

impl Setup {
    fn new(context: Context, queue: &'static str) -> Self {
        let queue = Queue::measured(context.env.clone(), context.config.metrics.clone(), queue);
        Self { context, queue, caches: Vec::new() }
    }

    /// An informer that is filled before the first reconcile.
    pub fn informer<K>(&mut self) -> Informer<K>
    where
        K: k8s_openapi::Resource + DeserializeOwned + Send + Sync + 'static,
    {
        let informer = self.context.informers.informer_with::<K>(ListParams::default());
        self.caches.push(informer.objects().clone());
        informer
    }

    /// One more cache to wait for.
    pub fn wait_for(&mut self, informer: &ObjectInformer) {
        self.caches.push(informer.clone());
    }

    /// Turns each change into keys.
    pub fn on<K>(&self, informer: &Informer<K>, mut map: impl FnMut(&Change<K>, &Queue) + Send + 'static)
    where
        K: DeserializeOwned + Send + Sync + 'static,
    {
        let (mut changes, queue) = (informer.subscribe(), self.queue.clone());
        self.pump(async move {
            while let Some(change) = changes.next().await {
                guarded(&change.key, || map(&change, &queue));
            }
        });
    }

    /// The same for objects that are read as they are, whatever their kind.
    pub fn on_objects(&self, informer: &ObjectInformer, mut map: impl FnMut(&ObjectChange, &Queue) + Send + 'static) {
        let (mut changes, queue) = (informer.subscribe(), self.queue.clone());
        self.pump(async move {
            while let Some(change) = changes.next().await {
                guarded(&change.key, || map(&change, &queue));
            }
        });
    }

    /// Every change adds its own key.
    pub fn on_keys<K>(&self, informer: &Informer<K>)
    where
        K: DeserializeOwned + Send + Sync + 'static,
    {
        self.on_objects(informer.objects(), |change, queue| queue.add(change.key.clone()));
    }

    fn pump(&self, work: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.context.shutdown.clone();
        self.context.env.spawn(async move {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = work => {}
            }
        });
    }
}

/// Whoever wrote the object must not make a controller deaf to all others.
fn guarded(key: &str, map: impl FnOnce()) {
    if std::panic::catch_unwind(AssertUnwindSafe(map)).is_err() {
        tracing::error!(key, "a controller panicked over a change");
    }
}

/// Runs the enabled controllers until `shutdown`.
pub fn run(
    config: Config,
    client: Client,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let gated = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            gated = gated_kinds::served(&client, &env, &config.feature_gates) => gated,
        };
        let resources = Resources::new(&informers).with_gated(gated);
        let context = Context { config: Arc::new(config), client, informers, env, shutdown, resources };
        run_table(CONTROLLERS, context).await;
    })
}

pub(crate) async fn run_table(table: &[ControllerDescriptor], context: Context) {
    let (mut running, mut caches) = (Vec::new(), Vec::new());
    for row in table {
        let has_kinds = |gate| context.resources.gated().iter().any(|(of, _)| *of == gate);
        if !context.config.enabled(row.name, row.on_by_default) || !row.gate.is_none_or(has_kinds) {
            continue;
        }
        let client = context.config.client_for(row.service_account, &context.client);
        let workers = context.config.workers.get(row.name).copied().unwrap_or(row.workers);
        let mut setup = Setup::new(Context { client, ..context.clone() }, row.queue);
        let controller = (row.make)(&mut setup);
        caches.extend(setup.caches.iter().cloned());
        running.push(context.env.spawn(run_one(row.name, workers, setup, controller)));
    }
    context.config.caches.set(caches);
    context.shutdown.cancelled().await;
    for task in running {
        if let Err(error) = task.await {
            tracing::error!(%error, "a controller did not end well");
        }
    }
}

async fn run_one(name: &'static str, workers: usize, setup: Setup, controller: Arc<dyn Controller>) {
    let Setup { context, queue, caches } = setup;
    for cache in &caches {
        cache.synced().await;
    }
    tracing::debug!(controller = name, "started");
    let workers: Vec<_> = (0..workers)
        .map(|_| context.env.spawn(work(name, queue.clone(), controller.clone(), context.shutdown.clone())))
        .collect();
    context.shutdown.cancelled().await;
    queue.close();
    for worker in workers {
        if let Err(error) = worker.await {
            tracing::error!(controller = name, %error, "a worker did not end well");
        }
    }
}

async fn work(name: &'static str, queue: Queue, controller: Arc<dyn Controller>, shutdown: CancellationToken) {
    while let Some(key) = queue.get().await {
        let span = tracing::info_span!("reconcile", controller = name, key);
        let attempt = AssertUnwindSafe(controller.reconcile(&key).instrument(span.clone())).catch_unwind();
        let outcome = tokio::select! {
            biased;
            outcome = attempt => outcome,
            () = shutdown.cancelled() => return,
        };
        let outcome = outcome.unwrap_or_else(|_| Err(ApiError::internal("the controller panicked")));
        span.in_scope(|| finish(&queue, key.clone(), outcome));
        queue.done(&key);
    }
}

/// Decides when the key is looked at again.
fn finish(queue: &Queue, key: String, outcome: Outcome) {
    match outcome {
        Ok(again) => {
            queue.forget(&key);
            if let Some(delay) = again {
                queue.add_after(key, delay);
            }
        }
        Err(error) => {
            // Another writer was first: the cache will show it, so this is no news to anyone. Nor is that something has
            // just been deleted, unless it is missed again.
            let is_gone = error.is_not_found() && queue.failures(&key) == 0;
            if error.is_conflict() || error.is_already_exists() || is_gone {
                tracing::debug!(%error, "trying again");
            } else {
                tracing::warn!(failures = queue.failures(&key), %error, "reconcile failed");
            }
            queue.add_rate_limited(key);
        }
    }
}
