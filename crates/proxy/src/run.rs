//! The runner: watches Services and EndpointSlices, applies what the pure core says, repairs what others break.
//! Puts `model`, `rules`, `ruleset` and `render` to work; publishes through `applied_state`.
//! Invariant: one transaction at a time (type: `sync` has the one `&mut Proxy`). What is published as applied is in the
//! kernel: `publish` follows the transaction.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use client::{
    EventRecorder, Informer, InformerFactory, ListParams, ObjectChange, ObjectSubscription, read_once, reference,
};
use env::Env;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use metrics::{Family, Metrics};
use netfilter::{Nft, NftError, NftEvent, NftMonitor, TableRepair, set_elements::ElementWriter};
use tokio_util::sync::CancellationToken;

use crate::{
    applied_state::AppliedState,
    configuration::ProxyMode,
    conntrack::{Conntrack, ConntrackLimits},
    iptables::IptablesTables,
    model::{NodeConfig, PodUid, State},
    nftables::{elements, render, session_affinity},
    proxy_health::{ProxyHealth, serve_proxy_health},
    proxy_metrics::{
        self, ENDPOINT_CHANGES, ENDPOINT_CHANGES_PENDING, FAILURES, FAMILIES, FULL_SYNC_DURATION, LAST_QUEUED,
        LAST_SYNC, PARTIAL_SYNC_DURATION, PROGRAMMING, SERVICE_CHANGES, SYNC_DURATION,
    },
    rules::{Family as IpFamily, Frontend, NO_SERVICE, service_rules},
    ruleset::{Changes, Ruleset},
    service_health::ServiceHealth,
};

#[derive(Clone)]
pub struct ProxyConfig {
    pub node: NodeConfig,
    /// The name of our nftables tables, in families ip and ip6.
    pub table: String,
    pub applied_state: AppliedState,
    /// Where `/healthz` and `/livez` answer.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` answers.
    pub metrics: Option<SocketAddr>,
    /// What it shows.
    pub registry: Metrics,
    /// What to set of the kernel's connection tracking; `None`: nothing.
    pub conntrack: Option<ConntrackLimits>,
    pub mode: ProxyMode,
    /// In mode iptables, where nobody tells who changes rules, all are written this often.
    pub iptables_sync_period: Duration,
}

/// As upstream's.
const IPTABLES_SYNC_PERIOD: Duration = Duration::from_secs(30);

impl ProxyConfig {
    pub fn new(node: NodeConfig) -> Self {
        Self {
            node,
            table: "minke-proxy".to_owned(),
            applied_state: AppliedState::default(),
            healthz: None,
            metrics: None,
            registry: Metrics::default(),
            conntrack: None,
            mode: ProxyMode::default(),
            iptables_sync_period: IPTABLES_SYNC_PERIOD,
        }
    }
}

/// Takes all rules away. Stopping does not: rules stay while the proxy restarts.
pub async fn remove(table: &str) -> Result<(), NftError> {
    Nft::default().apply([render::delete_tables(table)]).await
}

/// Where the EndpointSlice controller says since when a change is on its way.
const LAST_CHANGE_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Every packet enters it first. It is looked for to learn whether the tables are there.
const FIRST_CHAIN: &str = "prerouting";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What the kernel tells of nftables, where those are used.
async fn next_event(monitor: &mut Option<NftMonitor>) -> Option<std::io::Result<NftEvent>> {
    Some(monitor.as_mut()?.next().await)
}

/// Runs until `shutdown`. Needs the right to change the network of the namespace it is in.
pub fn run(
    config: ProxyConfig,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), NftError>> {
    Box::pin(run_until(config, informers, env, shutdown))
}

async fn run_until(
    config: ProxyConfig,
    informers: InformerFactory,
    env: Env,
    shutdown: CancellationToken,
) -> Result<(), NftError> {
    let recorder = EventRecorder::new(informers.client().clone(), env.clone(), "kube-proxy", &config.node.node_name);
    let metrics = config.registry.clone();
    let proxy_health = ProxyHealth::new(env.clone(), metrics.clone());
    if let Some(address) = config.metrics {
        let served = proxy_metrics::serve(address, metrics.clone(), env.clone());
        let until = shutdown.clone();
        env.spawn(async move { until.run_until_cancelled(served).await });
    }
    let own = ListParams::fields(format!("metadata.name={}", config.node.node_name));
    let own = informers.informer_with::<Node>(own);
    if let Some(address) = config.healthz {
        let name = config.node.node_name.clone();
        let served = serve_proxy_health(address, proxy_health.clone(), own.clone(), name, recorder.clone());
        let until = shutdown.clone();
        env.spawn(async move { until.run_until_cancelled(served).await });
    }
    let services = informers.informer::<Service>();
    let slices = informers.informer::<EndpointSlice>();
    // Not waited for: an API server of an older release has none.
    let ranges = informers.informer::<ServiceCIDR>();
    let synced = async { tokio::join!(services.synced(), slices.synced()) };
    tokio::select! {
        _ = synced => {}
        () = shutdown.cancelled() => return Ok(()),
    }
    if config.node.localhost_node_ports {
        let path = "/proc/sys/net/ipv4/conf/all/route_localnet";
        if let Err(error) = fs::write(path, "1") {
            tracing::warn!(%error, path, "failed to allow NodePorts on 127.0.0.1");
        }
    }
    if let Some(limits) = &config.conntrack {
        limits.apply();
    }
    let conntrack = Conntrack::default();
    let (ending, until) = (conntrack.clone(), shutdown.clone());
    env.spawn(async move { until.run_until_cancelled(ending.run()).await });
    let (kernel, monitor) = match config.mode {
        ProxyMode::Iptables => (Kernel::Iptables(Box::default()), None),
        ProxyMode::Nftables => nftables(&config)?,
        ProxyMode::Best => match probe(&config).await {
            Ok(nftables) => nftables,
            Err(error) => {
                tracing::warn!(%error, "there are no nftables on this machine; using iptables");
                (Kernel::Iptables(Box::default()), None)
            }
        },
    };
    let proxy = Proxy {
        health: ServiceHealth::new(
            env.clone(),
            config.node.node_name.clone(),
            proxy_health.clone(),
            services.clone(),
            recorder.clone(),
        ),
        services: services.clone(),
        slices: slices.clone(),
        recorder,
        proxy_health,
        config,
        conntrack,
        env,
        kernel,
        state: State::default(),
        ruleset: Ruleset::default(),
        dirty: BTreeSet::new(),
        published: HashMap::new(),
        newest: 0,
        repair: TableRepair::default(),
        metrics,
        moved: BTreeSet::new(),
        triggers: Vec::new(),
    };
    let watched = [services.objects(), slices.objects(), ranges.objects(), own.objects()];
    proxy.run(watched.map(|objects| objects.subscribe()), monitor, shutdown).await;
    Ok(())
}

/// What rules are written with.
enum Kernel {
    Nftables { nft: Nft, elements: ElementWriter },
    Iptables(Box<IptablesTables>),
}

fn nftables(config: &ProxyConfig) -> Result<(Kernel, Option<NftMonitor>), NftError> {
    let elements = ElementWriter::open()?;
    let nft = Nft::with_port_id(elements.port_id()?);
    let monitor = NftMonitor::open(&config.table, nft.clone())?;
    Ok((Kernel::Nftables { nft, elements }, Some(monitor)))
}

/// nftables, if this machine takes rules.
async fn probe(config: &ProxyConfig) -> Result<(Kernel, Option<NftMonitor>), NftError> {
    let opened = nftables(config)?;
    Nft::default().run(&["list", "tables"], None).await?;
    Ok(opened)
}

/// When the pod or Service changed that made this slice change.
fn trigger(slice: &EndpointSlice) -> Option<Timestamp> {
    slice.metadata.annotations.as_ref()?.get(LAST_CHANGE_TRIGGER_TIME)?.parse().ok()
}

struct Proxy {
    config: ProxyConfig,
    env: Env,
    kernel: Kernel,
    conntrack: Conntrack,
    state: State,
    ruleset: Ruleset,
    dirty: BTreeSet<String>,
    /// What `applied_state` was last told of the Services that changed since.
    published: HashMap<String, Vec<(PodUid, bool)>>,
    /// The newest EndpointSlice that the state knows.
    newest: u64,
    health: ServiceHealth,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    recorder: EventRecorder,
    proxy_health: ProxyHealth,
    repair: TableRepair,
    metrics: Metrics,
    /// UDP frontends whose flows have to be looked at once the rules are written.
    moved: BTreeSet<Frontend>,
    /// What changes that are not in the rules yet were triggered by, as their EndpointSlices say.
    triggers: Vec<Timestamp>,
}

impl Proxy {
    async fn run(
        mut self,
        [mut services, mut slices, mut ranges, mut own]: [ObjectSubscription; 4],
        mut monitor: Option<NftMonitor>,
        shutdown: CancellationToken,
    ) {
        loop {
            // Everything that is already here goes into one transaction. Where we are comes first: hints are read by it.
            while let Some(change) = own.try_next() {
                self.own_node(&change);
            }
            while let Some(change) = services.try_next() {
                self.service(&change);
            }
            while let Some(change) = slices.try_next() {
                self.slice(&change);
            }
            while let Some(change) = ranges.try_next() {
                self.range(&change);
            }
            if self.repair.retry_in(self.env.monotonic()).is_none() {
                self.sync(monitor.as_mut()).await;
            }
            let rewrite = self.config.iptables_sync_period;
            let until = self.repair.retry_in(self.env.monotonic());
            tokio::select! {
                change = services.next() => match change {
                    Some(change) => self.service(&change),
                    None => return,
                },
                change = slices.next() => match change {
                    Some(change) => self.slice(&change),
                    None => return,
                },
                change = ranges.next() => match change {
                    Some(change) => self.range(&change),
                    None => return,
                },
                change = own.next() => match change {
                    Some(change) => self.own_node(&change),
                    None => return,
                },
                Some(event) = next_event(&mut monitor), if self.repair.is_watching() => self.nft_event(event).await,
                () = self.env.sleep(rewrite), if monitor.is_none() => self.repair.require_full(),
                () = self.env.sleep(until.unwrap_or_default()), if until.is_some() => self.repair.retry_now(),
                () = shutdown.cancelled() => return,
            }
        }
    }

    fn service(&mut self, change: &ObjectChange) {
        self.metrics.count(&SERVICE_CHANGES, &[]);
        let service = change.new.as_deref().and_then(read_once::<Service>);
        if self.state.apply_service(&change.key, service.as_ref()) {
            self.dirty.insert(change.key.clone());
        }
    }

    fn slice(&mut self, change: &ObjectChange) {
        self.metrics.count(&ENDPOINT_CHANGES, &[]);
        let slice = change.new.as_deref().and_then(read_once::<EndpointSlice>);
        // Those of the first list may be old; they say nothing about us.
        if !self.repair.is_full_needed() {
            self.triggers.extend(slice.as_ref().and_then(trigger));
        }
        self.newest = self.newest.max(change.new.as_ref().map_or(0, |object| object.meta.resource_version));
        self.dirty.extend(self.state.apply_slice(&change.key, slice.as_ref(), &self.config.node));
    }

    fn range(&mut self, change: &ObjectChange) {
        let range = change.new.as_deref().and_then(read_once::<ServiceCIDR>);
        if self.state.apply_service_cidr(&change.key, range.as_ref()) {
            self.dirty.insert(NO_SERVICE.to_owned());
        }
    }

    /// In another zone the hints of the slices that are already here have another meaning. A Node that is gone is where
    /// it was.
    fn own_node(&mut self, change: &ObjectChange) {
        if change.key != self.config.node.node_name {
            return;
        }
        let Some(node) = change.new.as_deref().and_then(read_once::<Node>) else { return };
        let zone = node.metadata.labels.and_then(|mut labels| labels.remove(ZONE)).filter(|zone| !zone.is_empty());
        if zone == self.config.node.zone {
            return;
        }
        self.config.node.zone = zone;
        let mut slices = self.slices.objects().subscribe();
        while let Some(change) = slices.try_next() {
            let slice = change.new.as_deref().and_then(read_once::<EndpointSlice>);
            self.dirty.extend(self.state.apply_slice(&change.key, slice.as_ref(), &self.config.node));
        }
    }

    async fn nft_event(&mut self, event: std::io::Result<NftEvent>) {
        let Kernel::Nftables { elements, .. } = &mut self.kernel else { return };
        let find = elements.find_chain(IpFamily::V4.number(), &self.config.table, FIRST_CHAIN);
        match self.repair.is_needed_after(event, find, &self.env).await {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(table = %self.config.table, "somebody else changed our nftables rules; writing them anew");
            }
            Err(error) => {
                tracing::error!(%error, "failed to read nftables notifications; foreign changes will go unnoticed");
            }
        }
    }

    /// Brings the kernel to what the state says.
    async fn sync(&mut self, monitor: Option<&mut NftMonitor>) {
        let mut changes = Changes::default();
        let (began, full) = (self.env.monotonic(), self.repair.is_full_needed());
        let something = !self.dirty.is_empty() || full;
        self.metrics.set(&ENDPOINT_CHANGES_PENDING, &[], self.dirty.len() as f64);
        if something {
            self.proxy_health.queued();
            self.set(&LAST_QUEUED, self.env.now());
        }
        for key in &self.dirty {
            if !self.published.contains_key(key) {
                let told = self.ruleset.service(key).map(|rules| rules.pods.clone());
                self.published.insert(key.clone(), told.unwrap_or_default());
            }
            let rules = service_rules(key, &self.state, &self.config.node, self.ruleset.service(key));
            self.ruleset.replace_into(key, rules, &mut changes);
            if full {
                // All of it will be written; gathered here it would be large at the first start.
                changes = changes.outside_of_transaction();
            }
        }
        self.moved.append(&mut changes.moved);
        self.report_clashes(std::mem::take(&mut changes.clashes));
        if something && !self.write_rules(&changes, monitor).await {
            return;
        }
        self.publish();
        if something {
            self.count_sync(self.env.monotonic() - began, full);
        }
        let moved = std::mem::take(&mut self.moved);
        if !moved.is_empty() {
            self.conntrack.keep_only(moved.into_iter().map(|frontend| (frontend, self.ruleset.flows(frontend))));
        }
    }

    /// Whether the kernel has the rules of now.
    async fn write_rules(&mut self, changes: &Changes, monitor: Option<&mut NftMonitor>) -> bool {
        if !changes.is_empty()
            && !self.repair.is_full_needed()
            && let Err(error) = self.write(changes).await
        {
            tracing::warn!(%error, "an incremental change was refused; writing all rules anew");
            FAMILIES.iter().for_each(|family| self.metrics.count(&FAILURES, &[family]));
            self.repair.require_full();
        }
        if !self.repair.is_full_needed() {
            return true;
        }
        if let Err(error) = self.write_all(monitor).await {
            tracing::error!(%error, "failed to write the Service rules; will try again");
            FAMILIES.iter().for_each(|family| self.metrics.count(&FAILURES, &[family]));
            return false;
        }
        // Whatever went on while the rules were not ours, or not there.
        self.moved.extend(self.ruleset.udp_frontends());
        self.config.applied_state.count_full_write();
        true
    }

    async fn write_all(&mut self, monitor: Option<&mut NftMonitor>) -> Result<(), NftError> {
        match (&mut self.kernel, monitor) {
            (Kernel::Nftables { nft, elements }, Some(monitor)) => {
                let clients = session_affinity::saved_clients(nft, &self.ruleset, &self.config.table).await;
                let text = render::full_tables(&self.ruleset, &self.config.node, &self.config.table).chain([clients]);
                let find = elements.find_chain(IpFamily::V4.number(), &self.config.table, FIRST_CHAIN);
                self.repair.write(monitor, nft.apply(text), find, &self.env).await
            }
            (Kernel::Iptables(tables), _) => {
                let written = tables.write(&self.state, &self.config.node, true).await;
                match &written {
                    Ok(()) => self.repair.written(self.env.monotonic()),
                    Err(_) => self.repair.failed(self.env.monotonic()),
                }
                written
            }
            (Kernel::Nftables { .. }, None) => Err(NftError::Refused("nobody tells of changes to the rules".into())),
        }
    }

    /// Elements alone go straight to the kernel; chains and sets by way of `nft`.
    async fn write(&mut self, changes: &Changes) -> Result<(), NftError> {
        match &mut self.kernel {
            Kernel::Nftables { elements, .. } if elements::only_elements(changes) => {
                let written = elements.apply(&self.config.table, elements::lists(changes).into_iter()).await;
                written.map_err(|error| NftError::Refused(error.to_string()))
            }
            Kernel::Nftables { nft, .. } => nft.apply([render::transaction(changes, &self.config.table)]).await,
            Kernel::Iptables(tables) => tables.write(&self.state, &self.config.node, false).await,
        }
    }

    fn set(&self, family: &'static Family, at: Timestamp) {
        let seconds = at.as_millisecond() as f64 / 1000.0;
        FAMILIES.iter().for_each(|of| self.metrics.set(family, &[of], seconds));
    }

    fn count_sync(&mut self, took: Duration, full: bool) {
        let now = self.env.now();
        self.metrics.set(&ENDPOINT_CHANGES_PENDING, &[], 0.0);
        self.set(&LAST_SYNC, now);
        let which = if full { &FULL_SYNC_DURATION } else { &PARTIAL_SYNC_DURATION };
        let triggers = std::mem::take(&mut self.triggers);
        for family in FAMILIES {
            self.metrics.observe(&SYNC_DURATION, &[family], took.as_secs_f64());
            self.metrics.observe(which, &[family], took.as_secs_f64());
        }
        for triggered in triggers {
            let age = (now.as_millisecond() - triggered.as_millisecond()).max(0) as f64 / 1000.0;
            FAMILIES.iter().for_each(|family| self.metrics.observe(&PROGRAMMING, &[family], age));
        }
    }

    fn report_clashes(&self, clashes: Vec<(Arc<str>, Arc<str>, Frontend)>) {
        for (service, first, Frontend { ip, protocol, port }) in clashes {
            let at = format!("{} port {port} of {ip}", protocol.name().to_uppercase());
            tracing::warn!(%service, %first, %at, "two Services claim one address; the first keeps it");
            if let Some(object) = self.services.get(&service) {
                let message = format!("{at} is already served for Service {first}, which keeps it on this node");
                self.recorder.warning(&reference(&*object), "AddressInUse", message);
            }
        }
    }

    fn publish(&mut self) {
        self.proxy_health.updated();
        for key in std::mem::take(&mut self.dirty) {
            let old = self.published.remove(&key).unwrap_or_default();
            let rules = self.ruleset.service(&key);
            self.config.applied_state.replace(&old, rules.map(|rules| rules.pods.as_slice()).unwrap_or_default());
            self.health.set(&key, rules.and_then(|rules| rules.health));
        }
        self.published.shrink_to(0);
        self.config.applied_state.publish(self.newest);
    }
}
