//! Keeps the route table true: Ingresses, Gateways and Secrets make it anew, EndpointSlices only change backends.
//! Reads informers, calls `model`, `gateway` and `backends`, and says what is wrong in Events and conditions.
//! Nothing here waits for a write, so that endpoints that go are not used for longer than it takes to be told.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use client::{EventRecorder, Informer, InformerFactory, ListParams, ObjectChange, ObjectSubscription, reference};
use env::Env;
use futures::future::BoxFuture;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    discovery::v1::EndpointSlice,
    networking::v1::{Ingress, IngressClass},
};
use rustls::sign::CertifiedKey;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    backends::{self, Backend, BackendKey, Backends},
    certificates,
    gateway::{
        self, Built, Cluster, GatewayAddresses, GatewayLoadBalancers, GatewayObjects, GatewayStatusWriter,
        PortListeners,
    },
    ingress_class,
    model::{self, CertificateProblem, IngressPorts, Lookup, Problem},
    routes::{RouteTable, SharedTable},
    upstream_tls::{UpstreamTls, UpstreamTlsSettings},
};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const BY_SERVICE: &str = "service";
const COMPONENT: &str = "minke-ingress";
/// Many objects come at once; one table holds them all.
const BATCH_INTERVAL: Duration = Duration::from_millis(10);

pub struct Controller {
    table: SharedTable,
    ports: IngressPorts,
    objects: Objects,
    gateways: Gateways,
    events: EventRecorder,
    /// What has been said already.
    said: HashSet<Problem>,
    env: Env,
}

/// The part of the controller that knows the Gateway API.
pub struct Gateways {
    pub objects: GatewayObjects,
    pub ports: PortListeners,
    pub status: GatewayStatusWriter,
    pub addresses: Vec<IpAddr>,
    /// Where each has an address of its own.
    pub balancers: Option<GatewayLoadBalancers>,
    pub built: Built,
}

/// What routes are made of.
struct Objects {
    ingresses: Informer<Ingress>,
    classes: Informer<IngressClass>,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    secrets: Informer<Secret>,
    backends: Backends,
    /// By Secret, with the version that was read.
    certificates: HashMap<String, (Option<String>, Result<Arc<CertifiedKey>, CertificateProblem>)>,
    upstream_tls: HashMap<UpstreamTlsSettings, Arc<UpstreamTls>>,
}

/// What has changed since the last look.
#[derive(Default)]
struct Changes {
    routes: bool,
    /// Services themselves, not only what is behind them.
    service_objects: bool,
    services: HashSet<String>,
}

struct Subscriptions {
    ingresses: ObjectSubscription,
    classes: ObjectSubscription,
    services: ObjectSubscription,
    slices: ObjectSubscription,
    secrets: ObjectSubscription,
    gateways: Arc<Notify>,
}

impl Controller {
    pub fn new(
        table: SharedTable,
        ports: IngressPorts,
        gateways: Gateways,
        informers: InformerFactory,
        env: Env,
    ) -> Self {
        let slices = informers.informer::<EndpointSlice>();
        slices.add_index(BY_SERVICE, |slice| service_of_slice(slice).into_iter().collect());
        let events = EventRecorder::new(informers.client().clone(), env.clone(), COMPONENT, "");
        let objects = Objects {
            ingresses: informers.informer(),
            classes: informers.informer(),
            services: informers.informer(),
            slices,
            secrets: informers.informer_with(ListParams::fields("type=kubernetes.io/tls")),
            backends: Backends::default(),
            certificates: HashMap::new(),
            upstream_tls: HashMap::new(),
        };
        Self { table, ports, objects, gateways, events, said: HashSet::new(), env }
    }

    /// Returns when the first table is there, with what keeps it true until `shutdown`.
    pub async fn follow(mut self, shutdown: CancellationToken) -> BoxFuture<'static, ()> {
        let objects = &self.objects;
        objects.ingresses.synced().await;
        objects.classes.synced().await;
        objects.services.synced().await;
        objects.slices.synced().await;
        objects.secrets.synced().await;
        self.gateways.objects.first_lists().await;
        let objects = &self.objects;
        let mut subscriptions = Subscriptions {
            ingresses: objects.ingresses.objects().subscribe(),
            classes: objects.classes.objects().subscribe(),
            services: objects.services.objects().subscribe(),
            slices: objects.slices.objects().subscribe(),
            secrets: objects.secrets.objects().subscribe(),
            gateways: self.gateways.objects.changed(),
        };
        // They begin with what is there, which the first table has.
        subscriptions.drain(&mut Changes::default());
        self.rebuild();
        Box::pin(async move {
            while let Some(Some(mut changes)) = shutdown.run_until_cancelled(subscriptions.next()).await {
                self.apply_endpoints(&mut changes);
                // A route may be waiting for the Service.
                let statuses = &self.gateways.built.statuses;
                let waits = !statuses.routes.is_empty() || self.gateways.balancers.is_some();
                changes.routes |= changes.service_objects && waits;
                if changes.routes {
                    self.env.sleep(BATCH_INTERVAL).await;
                    subscriptions.drain(&mut changes);
                    self.apply_endpoints(&mut changes);
                    self.rebuild();
                }
            }
        })
    }

    fn apply_endpoints(&mut self, changes: &mut Changes) {
        for service in changes.services.drain() {
            for backend in self.objects.backends.of_service(&service) {
                let state = self.objects.resolve(&backend.key);
                // What is said about the Ingresses that name it has changed too.
                changes.routes |= state.problem != backend.state().problem;
                backend.set(state);
            }
        }
    }

    fn rebuild(&mut self) {
        let ours: Vec<Arc<Ingress>> =
            self.objects.ingresses.list().into_iter().filter(|ingress| self.objects.is_ours(ingress)).collect();
        let (mut table, problems) = model::build(&ours, self.ports, &mut self.objects);
        let is_built = self.gateways.build(&mut self.objects);
        self.gateways.add_to(&mut table);
        self.table.store(table);
        if is_built {
            self.gateways.ports.serve();
            if let Some(balancers) = &self.gateways.balancers {
                balancers.update(self.gateways.built.balancers.clone());
            }
            self.gateways.status.update(&self.gateways.built.statuses, &self.gateways.objects);
        }
        self.objects.forget_unused();
        self.say(problems);
    }

    /// Each problem once, until it is gone.
    fn say(&mut self, problems: Vec<Problem>) {
        let now: HashSet<Problem> = problems.into_iter().collect();
        for problem in now.difference(&self.said) {
            if let Some(ingress) = self.objects.ingresses.get(&problem.ingress) {
                self.events.warning(&reference(&*ingress), problem.reason, problem.message.clone());
            }
        }
        self.said = now;
    }
}

impl Gateways {
    /// False when not everything is known, and the former tables stand.
    fn build(&mut self, objects: &mut Objects) -> bool {
        self.objects.refresh();
        if !self.objects.is_synced() {
            return false;
        }
        let snapshot = self.objects.snapshot();
        let mut cluster = GatewayCluster {
            objects,
            gateway: &self.objects,
            ports: &mut self.ports,
            balancers: self.balancers.as_ref(),
        };
        self.built = gateway::build(&snapshot, &self.addresses, &mut cluster);
        true
    }

    fn add_to(&self, table: &mut RouteTable) {
        for (port, gateway) in &self.built.ports {
            // Ingresses have their ports in any case, and shake hands there.
            let only_passthrough = !table.ports.contains_key(port) && self.built.only_passthrough.contains(port);
            let entry = table.ports.entry(*port).or_default();
            (entry.gateway, entry.only_passthrough) = (gateway.clone(), only_passthrough);
        }
    }
}

/// All that Gateways and their routes point at.
struct GatewayCluster<'a> {
    objects: &'a mut Objects,
    gateway: &'a GatewayObjects,
    ports: &'a mut PortListeners,
    balancers: Option<&'a GatewayLoadBalancers>,
}

impl Lookup for GatewayCluster<'_> {
    fn backend(&mut self, key: &BackendKey) -> Arc<Backend> {
        self.objects.backend(key)
    }

    fn certificate(&mut self, secret: &str) -> Result<Arc<CertifiedKey>, CertificateProblem> {
        self.objects.certificate(secret)
    }

    fn upstream_tls(&mut self, settings: &UpstreamTlsSettings) -> Result<Arc<UpstreamTls>, String> {
        self.objects.upstream_tls(settings)
    }
}

impl Cluster for GatewayCluster<'_> {
    fn service(&self, key: &str) -> Option<Arc<Service>> {
        self.objects.services.get(key)
    }

    fn config_map(&self, key: &str) -> Option<Arc<ConfigMap>> {
        self.gateway.config_map(key)
    }

    fn namespace_labels(&self, name: &str) -> BTreeMap<String, String> {
        self.gateway.namespace(name).and_then(|namespace| namespace.metadata.labels.clone()).unwrap_or_default()
    }

    fn listen(&mut self, gateway: &str, port: u16, tls: bool) -> Result<u16, String> {
        self.ports.open(gateway, port, tls)
    }

    fn addresses(&self, gateway: &str) -> GatewayAddresses {
        match self.balancers.map(|balancers| balancers.addresses(gateway)) {
            None => GatewayAddresses::Shared,
            Some(Some(addresses)) => GatewayAddresses::Own(addresses),
            Some(None) => GatewayAddresses::Taken,
        }
    }
}

impl Objects {
    fn is_ours(&self, ingress: &Ingress) -> bool {
        let class = ingress_class::of_ingress(ingress).and_then(|class| self.classes.get(class));
        class.is_some_and(|class| ingress_class::is_ours(&class))
    }

    fn resolve(&self, key: &BackendKey) -> backends::BackendState {
        let service_key = key.service_key();
        let slices = self.slices.by_index(BY_SERVICE, &service_key);
        backends::resolve(key, self.services.get(&service_key).as_deref(), &slices)
    }

    fn forget_unused(&mut self) {
        self.backends.retain_used();
        let secrets = &self.secrets;
        self.certificates.retain(|key, _| secrets.objects().get(key).is_some());
        self.upstream_tls.retain(|_, tls| Arc::strong_count(tls) > 1);
    }
}

impl Lookup for Objects {
    fn backend(&mut self, key: &BackendKey) -> Arc<Backend> {
        let mut backends = std::mem::take(&mut self.backends);
        let backend = backends.get(key, || self.resolve(key));
        self.backends = backends;
        backend
    }

    fn certificate(&mut self, secret: &str) -> Result<Arc<CertifiedKey>, CertificateProblem> {
        let Some(object) = self.secrets.get(secret) else { return Err(CertificateProblem::Missing) };
        let version = &object.metadata.resource_version;
        if let Some((_, parsed)) = self.certificates.get(secret).filter(|(read, _)| read == version) {
            return parsed.clone();
        }
        let part = |name: &str| object.data.as_ref().and_then(|data| data.get(name)).map_or(&[][..], |part| &part.0);
        let parsed = certificates::parse(part("tls.crt"), part("tls.key")).map_err(CertificateProblem::Bad);
        self.certificates.insert(secret.to_string(), (version.clone(), parsed.clone()));
        parsed
    }

    // Connections of one are used again.
    fn upstream_tls(&mut self, settings: &UpstreamTlsSettings) -> Result<Arc<UpstreamTls>, String> {
        if let Some(known) = self.upstream_tls.get(settings) {
            return Ok(known.clone());
        }
        let made = Arc::new(UpstreamTls::new(settings)?);
        self.upstream_tls.insert(settings.clone(), made.clone());
        Ok(made)
    }
}

impl Subscriptions {
    /// Everything that has changed by now, once something has. `None` when the informers have stopped.
    async fn next(&mut self) -> Option<Changes> {
        let mut changes = Changes::default();
        tokio::select! {
            Some(_) = self.ingresses.next() => changes.routes = true,
            Some(_) = self.classes.next() => changes.routes = true,
            Some(_) = self.secrets.next() => changes.routes = true,
            Some(change) = self.services.next() => changes.service(change),
            () = self.gateways.notified() => changes.routes = true,
            Some(change) = self.slices.next() => changes.slice(change),
            else => return None,
        }
        self.drain(&mut changes);
        Some(changes)
    }

    fn drain(&mut self, changes: &mut Changes) {
        for subscription in [&mut self.ingresses, &mut self.classes, &mut self.secrets] {
            while subscription.try_next().is_some() {
                changes.routes = true;
            }
        }
        while let Some(change) = self.services.try_next() {
            changes.service(change);
        }
        while let Some(change) = self.slices.try_next() {
            changes.slice(change);
        }
    }
}

impl Changes {
    fn service(&mut self, change: ObjectChange) {
        self.services.insert(change.key);
        self.service_objects = true;
    }

    fn slice(&mut self, change: ObjectChange) {
        let both = [change.old, change.new];
        self.services.extend(both.iter().flatten().filter_map(|slice| service_of_slice(slice)));
    }
}

fn service_of_slice(slice: &api::Object) -> Option<String> {
    let name = slice.meta.labels.get(SERVICE_NAME)?;
    Some(format!("{}/{name}", slice.meta.namespace.as_deref().unwrap_or_default()))
}
