//! Puts right what does not fit the Services: addresses and ports that nobody holds, and held ones nobody wrote down.
//! Run at every start, and a while after an IPAddress changed; `service` keeps both right by itself.
//! Invariant: a Service is never changed; what is removed is looked at in the store first.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use api::ApiError;
use store::{Compare, Operation, Range, Revision, Transaction};

use super::service::{Held, MANAGED_BY, NODE_PORTS, holdings};
use crate::{cluster::Cluster, storage, watch_cache::store_error};

/// How long a change may stay wrong; many changes are looked at together.
const SETTLE: Duration = Duration::from_secs(60);

/// Repairs now, and again after changes for as long as the cluster is there.
pub async fn follow(cluster: &Arc<Cluster>) -> Result<(), ApiError> {
    repair(cluster).await?;
    let mut changes = cluster.resource("ipaddresses").changes();
    let (weak, env) = (Arc::downgrade(cluster), cluster.env.clone());
    changes.borrow_and_update();
    cluster.env.spawn(async move {
        while changes.changed().await.is_ok() {
            env.sleep(SETTLE).await;
            changes.borrow_and_update();
            let Some(cluster) = Weak::upgrade(&weak) else { return };
            if let Err(error) = repair(&cluster).await {
                tracing::warn!(error = %error.message, "failed to repair the addresses of services");
            }
        }
    });
    Ok(())
}

/// What is written down: who has it, and since which revision.
type Written = HashMap<Held, (String, Revision)>;

async fn repair(cluster: &Arc<Cluster>) -> Result<(), ApiError> {
    cluster.cache.wait_until_fresh().await?;
    let mut written = addresses(cluster);
    written.extend(ports(cluster).await?);
    let mut held: HashMap<Held, Arc<api::Object>> = HashMap::new();
    for service in cluster.list("services", "") {
        for thing in holdings(&service.value()) {
            if let Some(other) = held.insert(thing, service.clone()) {
                tracing::error!(?thing, service = service.key(), other = other.key(), "held by two services");
            }
        }
    }
    for (thing, service) in &held {
        let revision = match written.get(thing) {
            Some((holder, _)) if *holder == service.key() => continue,
            Some((_, revision)) => *revision,
            None => 0,
        };
        let put =
            Operation::Put { key: thing.key(), value: thing.value(&service.value(), &cluster.env), ttl_seconds: None };
        // Only if the Service is still what it was: otherwise whoever changed it took care.
        let own = format!("{}services/{}", storage::ROOT, service.key());
        let same = Compare { key: own, mod_revision: service.meta.resource_version };
        write(cluster, vec![same, Compare { key: thing.key(), mod_revision: revision }], put).await?;
    }
    for (thing, (holder, revision)) in written.iter().filter(|(thing, _)| !held.contains_key(thing)) {
        let record = cluster.store.get(&format!("{}services/{holder}", storage::ROOT)).await.map_err(store_error)?;
        let service = record.map(|r| storage::decode(&r.value, r.mod_revision)).transpose()?;
        if service.is_some_and(|s| holdings(&s.value()).contains(thing)) {
            continue;
        }
        tracing::info!(?thing, holder, "giving back what no service holds");
        let unchanged = Compare { key: thing.key(), mod_revision: *revision };
        write(cluster, vec![unchanged], Operation::Delete { key: thing.key() }).await?;
    }
    Ok(())
}

async fn write(cluster: &Cluster, compare: Vec<Compare>, operation: Operation) -> Result<(), ApiError> {
    let transaction = Transaction { compare, operations: vec![operation] };
    cluster.store.transact(transaction).await.map(drop).map_err(store_error)
}

/// The addresses that are ours to give; other IPAddress objects are somebody else's business.
fn addresses(cluster: &Cluster) -> Written {
    let ours = cluster.list("ipaddresses", "").into_iter();
    let ours = ours.filter(|o| o.meta.labels.get(MANAGED_BY.0).is_some_and(|by| by == MANAGED_BY.1));
    let entry = |object: Arc<api::Object>| {
        let value = object.value();
        let parent = &value["spec"]["parentRef"];
        let text = |field: &str| parent[field].as_str().unwrap_or_default();
        let holder = match text("resource") {
            "services" => format!("{}/{}", text("namespace"), text("name")),
            _ => String::new(),
        };
        Some((Held::Address(object.meta.name.parse().ok()?), (holder, object.meta.resource_version)))
    };
    ours.filter_map(entry).collect()
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
