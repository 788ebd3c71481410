//! `describe`: what upstream's describers say about an object and what belongs to it.
//! `DESCRIBERS` is the table, one row per kind; kinds without a row are described by `generic`.
//! Neighbours: the verb reads the object and what `queries` names; `fields`, `sections` and `writer` are shared parts.
//! A describer is a pure function of the object, what was read for it, the time and the zone.

mod autoscaling;
mod certificates;
mod config;
mod containers;
pub mod fields;
mod generic;
mod jobs;
mod namespace;
mod networking;
mod node;
mod pod;
mod policy;
mod rbac;
pub mod sections;
mod services;
mod storage;
#[cfg(test)]
mod tests;
mod volumes;
mod workloads;
pub mod writer;

use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;

use crate::object_reader::{ObjectReader, Query};
use fields::{list, name, namespace as namespace_of, string};
use writer::Writer;

/// What a description depends on besides the objects.
pub struct Context {
    pub now: Timestamp,
    pub zone: TimeZone,
}

/// What was read for a description: the answers to its queries in their order, and the object's events.
#[derive(Default)]
pub struct Related {
    pub answers: Vec<Result<Vec<Value>, String>>,
    /// Absent with `--show-events=false`.
    pub events: Option<Vec<Value>>,
}

impl Related {
    /// The objects of one answer; none if it failed.
    fn objects(&self, query: usize) -> &[Value] {
        match self.answers.get(query) {
            Some(Ok(objects)) => objects,
            _ => &[],
        }
    }
}

/// A pod template alone, with tabs where columns would be: `rollout history` aligns none.
pub fn pod_template(template: &Value, now: Timestamp) -> String {
    let mut w = Writer::new();
    pod::template(&mut w, template, &Context { now, zone: TimeZone::system() });
    w.unaligned()
}

type Describe = fn(&mut Writer, &Value, &Related, &Context) -> Result<(), String>;

struct Describer {
    group: &'static str,
    kind: &'static str,
    /// What else has to be read.
    queries: fn(&Value) -> Vec<Query>,
    describe: Describe,
    has_events: bool,
}

const fn row(
    group: &'static str,
    kind: &'static str,
    queries: fn(&Value) -> Vec<Query>,
    describe: Describe,
) -> Describer {
    Describer { group, kind, queries, describe, has_events: true }
}

const fn without_events(
    group: &'static str,
    kind: &'static str,
    queries: fn(&Value) -> Vec<Query>,
    describe: Describe,
) -> Describer {
    Describer { group, kind, queries, describe, has_events: false }
}

fn nothing(_: &Value) -> Vec<Query> {
    Vec::new()
}

const DESCRIBERS: &[Describer] = &[
    row("", "Pod", nothing, pod::describe),
    row("", "ReplicationController", workloads::pods_of_labels, workloads::replication_controller),
    without_events("", "Secret", nothing, config::secret),
    row("", "Service", services::endpoint_slices, services::service),
    row("", "ServiceAccount", nothing, config::service_account),
    row("", "Node", node::queries, node::describe),
    without_events("", "LimitRange", nothing, namespace::limit_range),
    without_events("", "ResourceQuota", nothing, namespace::resource_quota),
    row("", "PersistentVolume", nothing, storage::persistent_volume),
    row("", "PersistentVolumeClaim", storage::pods_of_namespace, storage::persistent_volume_claim),
    without_events("", "Namespace", namespace::queries, namespace::describe),
    row("", "Endpoints", nothing, services::endpoints),
    row("", "ConfigMap", nothing, config::config_map),
    row("discovery.k8s.io", "EndpointSlice", nothing, services::endpoint_slice),
    row("autoscaling", "HorizontalPodAutoscaler", nothing, autoscaling::describe),
    row("networking.k8s.io", "Ingress", networking::backends, networking::ingress),
    row("networking.k8s.io", "IngressClass", nothing, networking::ingress_class),
    row("networking.k8s.io", "ServiceCIDR", nothing, networking::service_cidr),
    row("networking.k8s.io", "IPAddress", nothing, networking::ip_address),
    without_events("networking.k8s.io", "NetworkPolicy", nothing, networking::network_policy),
    row("batch", "Job", nothing, jobs::job),
    row("batch", "CronJob", nothing, jobs::cron_job),
    row("apps", "StatefulSet", workloads::pods_of_selector, workloads::stateful_set),
    row("apps", "Deployment", workloads::replica_sets, workloads::deployment),
    row("apps", "DaemonSet", workloads::pods_of_selector, workloads::daemon_set),
    row("apps", "ReplicaSet", workloads::pods_of_selector, workloads::replica_set),
    row("certificates.k8s.io", "CertificateSigningRequest", nothing, certificates::describe),
    row("storage.k8s.io", "StorageClass", nothing, storage::storage_class),
    row("storage.k8s.io", "CSINode", nothing, storage::csi_node),
    row("storage.k8s.io", "VolumeAttributesClass", nothing, storage::volume_attributes_class),
    row("policy", "PodDisruptionBudget", nothing, policy::pod_disruption_budget),
    without_events("rbac.authorization.k8s.io", "Role", nothing, rbac::role),
    without_events("rbac.authorization.k8s.io", "ClusterRole", nothing, rbac::role),
    without_events("rbac.authorization.k8s.io", "RoleBinding", nothing, rbac::binding),
    without_events("rbac.authorization.k8s.io", "ClusterRoleBinding", nothing, rbac::binding),
    row("scheduling.k8s.io", "PriorityClass", nothing, policy::priority_class),
];

const GENERIC: Describer = row("", "", nothing, generic::describe);

fn describer(object: &Value) -> &'static Describer {
    let group = match string(&object["apiVersion"]).split_once('/') {
        Some((group, _)) => group,
        None => "",
    };
    let kind = string(&object["kind"]);
    DESCRIBERS.iter().find(|row| row.group == group && row.kind == kind).unwrap_or(&GENERIC)
}

/// Reads what belongs to the object and describes it.
pub async fn describe<R: ObjectReader>(
    object: &Value,
    reader: &R,
    context: &Context,
    show_events: bool,
) -> Result<String, String> {
    let row = describer(object);
    let mut related = Related::default();
    for query in (row.queries)(object) {
        related.answers.push(reader.read(query).await);
    }
    if show_events && row.has_events {
        let mut events = Vec::new();
        for query in event_queries(object) {
            events.extend(reader.read(query).await.unwrap_or_default());
        }
        related.events = Some(events);
    }
    render(object, &related, context)
}

/// The description from what was read.
pub fn render(object: &Value, related: &Related, context: &Context) -> Result<String, String> {
    let mut writer = Writer::new();
    (describer(object).describe)(&mut writer, object, related, context)?;
    if let Some(events) = &related.events {
        sections::events(&mut writer, events, context);
    }
    Ok(writer.finish())
}

/// How the events of an object are found. A node's kubelet names the node where others give its UID.
pub fn event_queries(object: &Value) -> Vec<Query> {
    let kind = string(&object["kind"]);
    let meta = &object["metadata"];
    let mirrored = string(&meta["annotations"]["kubernetes.io/config.mirror"]);
    let uid = match (kind, mirrored) {
        ("Pod", mirrored) if !mirrored.is_empty() => mirrored,
        _ => string(&meta["uid"]),
    };
    let mut uids = vec![uid];
    if kind == "Node" {
        uids.push(name(object));
    }
    let namespace = namespace_of(object);
    let query = |uid: &str| {
        let mut selector = format!("involvedObject.name={},involvedObject.namespace={namespace}", name(object));
        // Events of a pod are found whatever kind their writer gave.
        if kind != "Pod" {
            selector.push_str(&format!(",involvedObject.kind={kind}"));
        }
        if !uid.is_empty() {
            selector.push_str(&format!(",involvedObject.uid={uid}"));
        }
        Query::list("v1", "events", namespace).fields(selector)
    };
    uids.into_iter().map(query).collect()
}

/// How many pods of a list are in each phase, of those that one owner controls.
fn pod_phases(pods: &[Value], uid: &str) -> [usize; 4] {
    let owned = |pod: &&Value| fields::controller(pod).is_some_and(|owner| string(&owner["uid"]) == uid);
    let owned: Vec<&Value> = pods.iter().filter(owned).collect();
    ["Running", "Pending", "Succeeded", "Failed"]
        .map(|phase| owned.iter().filter(|pod| string(&pod["status"]["phase"]) == phase).count())
}

/// Whether a list is empty or absent.
fn is_empty(value: &Value) -> bool {
    list(value).is_empty()
}
