//! DRA drivers that are registered: which of their endpoints to call, and when one has gone for good.
//! One of the handlers of the plugin watcher; used by `manager`.
//! A driver may have several endpoints while it is being replaced. ResourceSlices of one that has gone are deleted, so
//! that no pod is sent here for its devices.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use client::{Client, ListParams};
use env::Env;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use k8s_openapi::{api::resource::v1::ResourceSlice, apimachinery::pkg::apis::meta::v1::DeleteOptions};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::{
    claim_info::ClaimInfoCache,
    health::{DeviceName, Health, HealthCache},
    messages::{DraService, NODE_WATCH_RESOURCES, NodeWatchResourcesRequest, NodeWatchResourcesResponse, SERVICES},
};
use crate::{
    HealthListener,
    grpc::PluginChannel,
    registration::{PluginHandler, messages::PluginInfo},
};

/// How long a driver may be away, for instance while it restarts, before its ResourceSlices go.
pub const WIPING_DELAY: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RECONNECT_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
const WIPE_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
const TASKS_MAX: usize = 256;

/// What a driver is called over.
#[derive(Clone)]
pub struct DriverClient {
    pub channel: PluginChannel,
    pub service: &'static DraService,
}

struct DriverEndpoint {
    endpoint: String,
    client: DriverClient,
    is_connected: bool,
    stop: CancellationToken,
}

#[derive(Default)]
struct Driver {
    /// The newest last.
    endpoints: Vec<DriverEndpoint>,
    /// Cancelled when the driver is back in time.
    pending_wipe: Option<CancellationToken>,
}

/// How the devices of all drivers are, and who wants to know.
pub struct DriverHealth {
    claims: Arc<Mutex<ClaimInfoCache>>,
    cache: Mutex<HealthCache>,
    listener: HealthListener,
}

impl DriverHealth {
    pub fn new(claims: Arc<Mutex<ClaimInfoCache>>, listener: HealthListener) -> Self {
        Self { claims, cache: Mutex::default(), listener }
    }

    pub fn get(&self, driver: &str, pool: &str, device: &str, now: Duration) -> Health {
        self.cache.lock().get(driver, pool, device, now)
    }

    fn tell(&self, driver: &str, changed: &[DeviceName]) {
        let users = self.claims.lock().users_of(driver, changed);
        users.iter().for_each(|uid| (self.listener)(uid));
    }

    fn forget(&self, driver: &str) {
        let known = self.cache.lock().forget(driver);
        self.tell(driver, &known);
    }

    /// Takes in what the driver says, as long as it says something. One that lacks the service is left alone.
    async fn follow(&self, driver: &str, channel: &PluginChannel, env: &Env) {
        let mut backoff = RECONNECT_BACKOFF;
        loop {
            let request = NodeWatchResourcesRequest {};
            let stream =
                channel.stream::<_, NodeWatchResourcesResponse>(NODE_WATCH_RESOURCES, request, CONNECT_TIMEOUT);
            let ended = match stream.await {
                Ok(mut stream) => loop {
                    match stream.message().await {
                        Ok(Some(NodeWatchResourcesResponse { devices })) => {
                            backoff.reset();
                            let changed = self.cache.lock().update(driver, devices, env.monotonic());
                            self.tell(driver, &changed);
                        }
                        Ok(None) => break None,
                        Err(error) => break Some(error.into()),
                    }
                },
                Err(error) => Some(error),
            };
            self.forget(driver);
            if let Some(error) = ended {
                if error.code == Code::Unimplemented {
                    return futures::future::pending().await;
                }
                tracing::info!(driver, %error, "a DRA driver says no more of the health of its devices");
            }
            env.sleep(backoff.next_delay()).await;
        }
    }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("DRA driver {0} is not registered")]
pub struct NotRegistered(pub String);

pub struct DraDrivers {
    client: Client,
    env: Env,
    node_name: String,
    wiping_delay: Duration,
    health: Option<Arc<DriverHealth>>,
    drivers: Mutex<BTreeMap<String, Driver>>,
    tasks: mpsc::Sender<BoxFuture<'static, ()>>,
    to_run: Mutex<Option<mpsc::Receiver<BoxFuture<'static, ()>>>>,
}

impl DraDrivers {
    /// With `health`, drivers are asked how their devices are.
    pub fn new(
        client: Client,
        env: Env,
        node_name: &str,
        wiping_delay: Duration,
        health: Option<Arc<DriverHealth>>,
    ) -> Arc<Self> {
        let (tasks, to_run) = mpsc::channel(TASKS_MAX);
        let (drivers, to_run) = (Mutex::default(), Mutex::new(Some(to_run)));
        Arc::new(Self { client, env, node_name: node_name.into(), wiping_delay, health, drivers, tasks, to_run })
    }

    /// Runs for as long as the node does. ResourceSlices of before the start go: drivers that are still here make them
    /// anew.
    pub async fn run(self: Arc<Self>) {
        let Some(mut to_run) = self.to_run.lock().take() else { return };
        let mut running = FuturesUnordered::new();
        running.push(self.clone().wipe(None).boxed());
        loop {
            tokio::select! {
                Some(task) = to_run.recv() => running.push(task),
                Some(()) = running.next() => {}
            }
        }
    }

    fn start(&self, task: BoxFuture<'static, ()>) {
        if self.tasks.try_send(task).is_err() {
            tracing::error!("too many DRA drivers come and go at once");
        }
    }

    /// The newest endpoint that lives, or else the newest.
    pub fn get(&self, name: &str) -> Result<DriverClient, NotRegistered> {
        let drivers = self.drivers.lock();
        let endpoints = drivers.get(name).map(|driver| driver.endpoints.as_slice()).unwrap_or_default();
        let living = endpoints.iter().rev().find(|endpoint| endpoint.is_connected).or(endpoints.last());
        living.map(|endpoint| endpoint.client.clone()).ok_or_else(|| NotRegistered(name.into()))
    }

    /// Keeps a connection to the endpoint, by which it is known that the driver lives.
    async fn monitor(self: Arc<Self>, name: String, endpoint: String, stop: CancellationToken) {
        let mut backoff = RECONNECT_BACKOFF;
        let watch = async {
            loop {
                let shown = format!("DRA driver {name}");
                let connected =
                    PluginChannel::connect_watched(&shown, &endpoint, self.env.clone(), CONNECT_TIMEOUT).await;
                if let Ok((channel, ended)) = connected {
                    self.set_connected(&name, &endpoint, &stop, Some(channel.clone()));
                    tokio::select! {
                        () = ended.cancelled() => {}
                        () = self.follow_health(&name, &channel) => {}
                    }
                    tracing::info!(driver = name, endpoint, "the connection to a DRA driver has ended");
                    self.set_connected(&name, &endpoint, &stop, None);
                    backoff.reset();
                }
                self.env.sleep(backoff.next_delay()).await;
            }
        };
        tokio::select! {
            () = watch => {}
            () = stop.cancelled() => {}
        }
    }

    async fn follow_health(&self, name: &str, channel: &PluginChannel) {
        match &self.health {
            Some(health) => health.follow(name, channel, &self.env).await,
            None => futures::future::pending().await,
        }
    }

    fn set_connected(
        self: &Arc<Self>,
        name: &str,
        endpoint: &str,
        stop: &CancellationToken,
        channel: Option<PluginChannel>,
    ) {
        // Another of the same name has its own monitor.
        if stop.is_cancelled() {
            return;
        }
        {
            let mut drivers = self.drivers.lock();
            let endpoints = drivers.get_mut(name).map(|driver| driver.endpoints.as_mut_slice()).unwrap_or_default();
            let Some(found) = endpoints.iter_mut().find(|found| found.endpoint == endpoint) else { return };
            found.is_connected = channel.is_some();
            if let Some(channel) = channel {
                found.client.channel = channel;
            }
        }
        self.sync(name);
    }

    /// Wipes the ResourceSlices of a driver that stays away.
    fn sync(self: &Arc<Self>, name: &str) {
        let pending = {
            let mut drivers = self.drivers.lock();
            let driver = drivers.entry(name.into()).or_default();
            if driver.endpoints.iter().any(|endpoint| endpoint.is_connected) {
                driver.pending_wipe.take().inspect(CancellationToken::cancel);
                return;
            }
            if let Some(health) = &self.health {
                health.forget(name);
            }
            if driver.pending_wipe.is_some() {
                return;
            }
            let pending = CancellationToken::new();
            driver.pending_wipe = Some(pending.clone());
            pending
        };
        let (drivers, name) = (self.clone(), name.to_string());
        let wipe = async move {
            let wipe = async {
                drivers.env.sleep(drivers.wiping_delay).await;
                drivers.clone().wipe(Some(name.clone())).await;
            };
            tokio::select! {
                () = wipe => drivers.wiped(&name, &pending),
                () = pending.cancelled() => {}
            }
        };
        self.start(wipe.boxed());
    }

    fn wiped(&self, name: &str, pending: &CancellationToken) {
        let mut drivers = self.drivers.lock();
        let Some(driver) = drivers.get_mut(name).filter(|_| !pending.is_cancelled()) else { return };
        driver.pending_wipe = None;
        if driver.endpoints.is_empty() {
            drivers.remove(name);
        }
    }

    /// Deletes ResourceSlices of this node, of one driver or of all, again until it is done.
    async fn wipe(self: Arc<Self>, driver: Option<String>) {
        let node = format!("spec.nodeName={}", self.node_name);
        let selector = match &driver {
            Some(driver) => format!("{node},spec.driver={driver}"),
            None => node,
        };
        let mut backoff = WIPE_BACKOFF;
        let (params, options) = (ListParams::fields(selector), DeleteOptions::default());
        loop {
            match self.client.api::<ResourceSlice>().delete_collection(&params, &options).await {
                Ok(()) => return,
                Err(error) if error.is_not_found() => return,
                Err(error) => tracing::warn!(%error, driver, "failed to delete ResourceSlices; will try again"),
            }
            self.env.sleep(backoff.next_delay()).await;
        }
    }

    pub fn add(self: &Arc<Self>, name: &str, endpoint: &str, services: &[String]) -> Result<(), String> {
        let service = chosen_service(name, endpoint, services)?;
        let shown = format!("DRA driver {name}");
        let channel = PluginChannel::new(&shown, endpoint, self.env.clone());
        let channel = channel.map_err(|error| {
            format!("create gRPC connection to DRA driver {name} plugin at endpoint {endpoint}: {error}")
        })?;
        let stop = CancellationToken::new();
        let (client, is_connected) = (DriverClient { channel, service }, false);
        let added = DriverEndpoint { endpoint: endpoint.into(), client, is_connected, stop: stop.clone() };
        {
            let mut drivers = self.drivers.lock();
            let endpoints = &mut drivers.entry(name.into()).or_default().endpoints;
            // The same place again: the driver was restarted.
            endpoints.extract_if(.., |old| old.endpoint == endpoint).for_each(|old| old.stop.cancel());
            endpoints.push(added);
        }
        self.start(self.clone().monitor(name.into(), endpoint.into(), stop).boxed());
        self.sync(name);
        Ok(())
    }

    pub fn remove(self: &Arc<Self>, name: &str, endpoint: &str) {
        {
            let mut drivers = self.drivers.lock();
            let Some(driver) = drivers.get_mut(name) else { return };
            driver.endpoints.extract_if(.., |old| old.endpoint == endpoint).for_each(|old| old.stop.cancel());
        }
        self.sync(name);
    }
}

fn chosen_service(name: &str, endpoint: &str, services: &[String]) -> Result<&'static DraService, String> {
    let chosen = services.iter().find_map(|service| SERVICES.iter().find(|ours| ours.name == service));
    let why = || match services {
        [] => "empty list of supported gRPC services (aka supported versions)".into(),
        services => {
            let quoted = |names: Vec<&str>| names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(" ");
            format!(
                "none of services supported by the plugin ([{}]) are supported by the kubelet ([{}])",
                quoted(services.iter().map(String::as_str).collect()),
                quoted(SERVICES.iter().map(|service| service.name).collect())
            )
        }
    };
    let refused =
        || format!("invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: {}", why());
    chosen.ok_or_else(refused)
}

/// The drivers, as the plugin watcher hands them over.
pub struct DraPluginHandler(pub Arc<DraDrivers>);

#[async_trait]
impl PluginHandler for DraPluginHandler {
    fn validate(&self, info: &PluginInfo) -> Result<(), String> {
        if info.name.is_empty() {
            return Err("DRA driver name is empty".into());
        }
        chosen_service(&info.name, &info.endpoint, &info.supported_versions).map(drop)
    }

    async fn register(&self, info: &PluginInfo, endpoint: &str) -> Result<(), String> {
        self.0.add(&info.name, endpoint, &info.supported_versions)
    }

    async fn deregister(&self, name: &str, endpoint: &str, _is_last: bool) -> Result<(), String> {
        self.0.remove(name, endpoint);
        Ok(())
    }
}
