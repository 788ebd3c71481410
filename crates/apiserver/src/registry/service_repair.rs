//! Puts right what does not fit the Services: addresses and ports that nobody holds, and held ones nobody wrote down.
//! Looks at everything at every start, and at each IPAddress when it changed; `service` keeps both right by itself.
//! A Service is never changed; what is removed is looked at in the store first.

use std::{collections::HashMap, ops::RangeInclusive, sync::Arc, time::Duration};

use async_trait::async_trait;

use api::ApiError;
use store::{Compare, Operation, Outcome, Range, Revision, Transaction};

use super::{
    node_port_range::{self, NodePortRange},
    service::{Held, MANAGED_BY, NODE_PORTS, holdings},
};
use crate::{
    post_start_hooks::ControlLoop,
    server::pipeline::ApiServer,
    storage,
    storage::{cluster::Cluster, watch_cache::store_error},
};

/// Changes looked at together.
const BATCH_CHANGES: usize = 64;

#[derive(Default)]
pub struct ServiceRepair {
    /// Up to where changes of addresses were looked at; none before everything was.
    seen: Option<Revision>,
}

#[async_trait]
impl ControlLoop for ServiceRepair {
    async fn prepare(&mut self, server: &Arc<ApiServer>) -> Result<(), ApiError> {
        let now = server.cluster.cache.revision();
        repair(&server.cluster, &server.config.node_ports).await?;
        self.seen = Some(now);
        Ok(())
    }

    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        match &mut self.seen {
            Some(seen) => catch_up(server, seen).await?,
            None => self.prepare(server).await?,
        }
        Ok(None)
    }
}

/// Looks at every address that changed after `seen`.
async fn catch_up(server: &ApiServer, seen: &mut Revision) -> Result<(), ApiError> {
    let cluster = &server.cluster;
    let now = cluster.cache.revision();
    let Ok(mut position) = cluster.resource("ipaddresses").subscribe(*seen) else {
        repair(cluster, &server.config.node_ports).await?;
        *seen = now;
        return Ok(());
    };
    while let Ok(events) = position.ready(BATCH_CHANGES) {
        let Some(last) = events.last().map(|e| e.revision) else { return Ok(()) };
        for event in &events {
            if let Some(entry) = event.new.as_ref().or(event.old.as_ref()) {
                settle(cluster, &entry.object, event.new.is_some()).await?;
            }
        }
        *seen = last;
    }
    Ok(())
}

/// Whether an address is written down must be what its Service says.
async fn settle(cluster: &Arc<Cluster>, address: &api::Object, is_written: bool) -> Result<(), ApiError> {
    let Some((thing, (holder, revision))) = entry(address) else { return Ok(()) };
    let Some((namespace, name)) = holder.split_once('/') else { return Ok(()) };
    let holds = |service: &api::Object| holdings(&service.value()).contains(&thing);
    if cluster.get("services", namespace, name).is_some_and(|s| holds(&s)) == is_written {
        return Ok(());
    }
    // Our sight of the Service may be a moment behind that of the address.
    let own = storage::builtin_key("services", &holder);
    let record = cluster.store.get(&own).await.map_err(store_error)?;
    let service = record.map(|r| storage::decode(&r.value, r.mod_revision)).transpose()?.filter(holds);
    match (is_written, service) {
        (false, Some(service)) => {
            tracing::info!(?thing, holder, "writing down again what a service holds");
            write_down(cluster, &thing, &service, 0).await
        }
        (true, None) => give_back(cluster, &thing, &holder, revision).await,
        _ => Ok(()),
    }
}

async fn write_down(cluster: &Cluster, thing: &Held, service: &api::Object, now: Revision) -> Result<(), ApiError> {
    let put =
        Operation::Put { key: thing.key(), value: thing.value(&service.value(), &cluster.env), ttl_seconds: None };
    // Only if the Service is still what it was: otherwise whoever changed it took care.
    let own = storage::builtin_key("services", &service.key());
    let same = Compare { key: own, mod_revision: service.meta.resource_version };
    write(cluster, vec![same, Compare { key: thing.key(), mod_revision: now }], put).await
}

async fn give_back(cluster: &Cluster, thing: &Held, holder: &str, revision: Revision) -> Result<(), ApiError> {
    tracing::info!(?thing, holder, "giving back what no service holds");
    let unchanged = Compare { key: thing.key(), mod_revision: revision };
    write(cluster, vec![unchanged], Operation::Delete { key: thing.key() }).await
}

/// What is written down: who has it, and since which revision.
type Written = HashMap<Held, (String, Revision)>;

async fn repair(cluster: &Arc<Cluster>, node_ports: &RangeInclusive<u16>) -> Result<(), ApiError> {
    cluster.cache.wait_until_fresh().await?;
    let shared = cluster.store.is_shared();
    let mut written = addresses(cluster);
    if !shared {
        written.extend(ports(cluster).await?);
    }
    let mut held: HashMap<Held, Arc<api::Object>> = HashMap::new();
    for service in cluster.list("services", "") {
        for thing in holdings(&service.value()) {
            if let Some(other) = held.insert(thing, service.clone()) {
                tracing::error!(?thing, service = service.key(), other = other.key(), "held by two services");
            }
        }
    }
    for (thing, service) in held.iter().filter(|(thing, _)| !shared || matches!(thing, Held::Address(_))) {
        let revision = match written.get(thing) {
            Some((holder, _)) if *holder == service.key() => continue,
            Some((_, revision)) => *revision,
            None => 0,
        };
        write_down(cluster, thing, service, revision).await?;
    }
    for (thing, (holder, revision)) in written.iter().filter(|(thing, _)| !held.contains_key(thing)) {
        let record = cluster.store.get(&storage::builtin_key("services", holder)).await.map_err(store_error)?;
        let service = record.map(|r| storage::decode(&r.value, r.mod_revision)).transpose()?;
        if service.is_some_and(|s| holdings(&s.value()).contains(thing)) {
            continue;
        }
        give_back(cluster, thing, holder, *revision).await?;
    }
    if shared {
        repair_port_range(cluster, node_ports, held.keys()).await?;
    }
    Ok(())
}

/// The bitmap that upstream's servers read has at least the ports that Services hold, and is of our range.
async fn repair_port_range(
    cluster: &Cluster,
    ports: &RangeInclusive<u16>,
    held: impl Iterator<Item = &Held> + Clone,
) -> Result<(), ApiError> {
    let held = held.filter_map(|thing| match thing {
        Held::Port(port) => Some(*port),
        Held::Address(_) => None,
    });
    loop {
        let record = cluster.store.get(node_port_range::KEY).await.map_err(store_error)?;
        let known = record.as_ref().and_then(|record| NodePortRange::read(Some(record), ports).ok());
        let in_range = |port: &u16| ports.contains(port);
        if known.as_ref().is_some_and(|known| held.clone().filter(in_range).all(|port| known.has(port))) {
            return Ok(());
        }
        let mut range = known.unwrap_or_else(|| NodePortRange::new(ports));
        held.clone().for_each(|port| range.set(port, true));
        let (compare, put) = range.write(Some(record.map_or(0, |record| record.mod_revision)));
        let transaction = Transaction { compare: vec![compare], operations: vec![put] };
        if let Outcome::Done { .. } = cluster.store.transact(transaction).await.map_err(store_error)? {
            return Ok(());
        }
    }
}

async fn write(cluster: &Cluster, compare: Vec<Compare>, operation: Operation) -> Result<(), ApiError> {
    let transaction = Transaction { compare, operations: vec![operation] };
    cluster.store.transact(transaction).await.map(drop).map_err(store_error)
}

fn addresses(cluster: &Cluster) -> Written {
    cluster.list("ipaddresses", "").iter().filter_map(|address| entry(address)).collect()
}

/// An address that is ours to give; other IPAddress objects are somebody else's business.
fn entry(address: &api::Object) -> Option<(Held, (String, Revision))> {
    address.meta.labels.get(MANAGED_BY.0).filter(|by| *by == MANAGED_BY.1)?;
    let value = address.value();
    let parent = &value["spec"]["parentRef"];
    let text = |field: &str| parent[field].as_str().unwrap_or_default();
    let holder = match text("resource") {
        "services" => format!("{}/{}", text("namespace"), text("name")),
        _ => String::new(),
    };
    Some((Held::Address(address.meta.name.parse().ok()?), (holder, address.meta.resource_version)))
}

async fn ports(cluster: &Cluster) -> Result<Written, ApiError> {
    let range = Range { start: NODE_PORTS.into(), end: store::prefix_end(NODE_PORTS), limit: 0, revision: None };
    let page = cluster.store.range(range).await.map_err(store_error)?;
    let entry = |record: store::Record| {
        let port = record.key.strip_prefix(NODE_PORTS)?.parse().ok()?;
        let holder = String::from_utf8_lossy(&record.value).into_owned();
        Some((Held::Port(port), (holder, record.mod_revision)))
    };
    Ok(page.records.into_iter().filter_map(entry).collect())
}
