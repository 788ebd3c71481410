//! Which events bring back a pod that a plugin turned down: one table for all plugins that filter.
//! Beside `testing`, whose fixtures it uses.
//! A plugin without rows fails the test.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::{
    registry::Registry,
    testing::{cluster, labelled, named_pod, node, pod, sized},
};
use crate::{
    cluster::Cluster,
    framework::{ClusterEvent, NodeChange, QueueingHint},
    pod_info::PendingPod,
    scheduler::event_handlers::node_change,
};

type Happening = (Cluster, ClusterEvent);

fn read(node: &Value) -> Arc<Node> {
    Arc::new(serde_json::from_value(node.clone()).unwrap())
}

/// In a cluster of this node alone.
fn added(now: Value) -> Happening {
    let name = now["metadata"]["name"].as_str().unwrap().to_string();
    (cluster(&[now], vec![]), ClusterEvent::Node { name, change: NodeChange::ADDED, was: None })
}

fn became(was: Value, now: Value) -> Happening {
    let name = now["metadata"]["name"].as_str().unwrap().to_string();
    let change = node_change(&read(&was), &read(&now));
    (cluster(&[now], vec![]), ClusterEvent::Node { name, change, was: Some(read(&was)) })
}

fn lost(was: Value) -> Happening {
    (Cluster::default(), ClusterEvent::NodeGone(read(&was)))
}

fn bare(event: ClusterEvent) -> Happening {
    (Cluster::default(), event)
}

fn placed(pod: PendingPod) -> Happening {
    bare(ClusterEvent::PodPlaced(pod.info()))
}

fn gone(pod: PendingPod) -> Happening {
    bare(ClusterEvent::PodGone(pod.info()))
}

fn changed(was: PendingPod, now: PendingPod) -> Happening {
    bare(ClusterEvent::PodChanged { was: was.info(), now: now.info() })
}

fn claim(key: &str) -> Happening {
    bare(ClusterEvent::Claim(key.into()))
}

/// A claim of the pod that wants claim `data`, before and after; by what its status says of an allocation.
fn resource_claim(name: &str, was: Option<bool>, now: Option<bool>) -> Happening {
    let claim = |has: bool| {
        let mut claim = json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {}});
        if has {
            claim["status"] = json!({"allocation": {}});
        }
        Arc::new(serde_json::from_value(claim).unwrap())
    };
    let (was, now) = (was.map(claim), now.map(claim));
    let mut cluster = Cluster::default();
    cluster.devices.set_claim(
        "default/data",
        Some(Arc::new(
            serde_json::from_value(json!({"metadata": {"uid": "data"},
        "spec": {}}))
            .unwrap(),
        )),
    );
    (cluster, ClusterEvent::ResourceClaim { was, now })
}

fn with_devices() -> PendingPod {
    pod(json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "data"}]}))
}

fn with_spec(mut node: Value, spec: Value) -> Value {
    node["spec"] = spec;
    node
}

fn tainted(keys: &[&str]) -> Value {
    let taints: Vec<_> = keys.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
    with_spec(node("n"), json!({"taints": taints}))
}

fn zone(value: &str) -> Value {
    labelled("n", &[("zone", value)])
}

fn asking(cpu: &str, more: Value) -> PendingPod {
    let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    pod(spec)
}

/// Node `n` has 4 cpus, of which a pod takes `taken`; another pod on it just went.
fn room_left(taken: &str) -> Happening {
    let event = gone(asking("1", json!({"nodeName": "n"}))).1;
    (cluster(&[sized("n", "4", "8Gi")], vec![("n", asking(taken, json!({})))]), event)
}

fn port(number: i32) -> PendingPod {
    pod(json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": number}]}]}))
}

fn claiming(name: &str) -> PendingPod {
    pod(json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}))
}

fn disk(name: &str) -> PendingPod {
    pod(json!({"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": name}}]}))
}

fn app(namespace: &str, name: &str) -> PendingPod {
    named_pod(namespace, "o", json!({"app": name}), json!({"nodeName": "n"}))
}

fn spread() -> PendingPod {
    let constraint = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "p"}}});
    pod(json!({"topologySpreadConstraints": [constraint]}))
}

/// Wants to be near `db` by rack, or away from it by zone.
fn near(kinds: &[(&str, &str)]) -> PendingPod {
    let mut affinity = json!({});
    for (kind, key) in kinds {
        let term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": "db"}}});
        affinity[kind] = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    }
    pod(json!({"affinity": affinity}))
}

fn rows() -> Vec<(&'static str, PendingPod, Happening, bool)> {
    let plain = || pod(json!({}));
    let cordoned = || with_spec(node("n"), json!({"unschedulable": true}));
    let to = |name: &str| pod(json!({"nodeName": name}));
    let in_zone = || pod(json!({"nodeSelector": {"zone": "1"}}));
    let keeps_away = || near(&[("podAntiAffinity", "zone")]);
    let both = || near(&[("podAffinity", "rack"), ("podAntiAffinity", "zone")]);
    let by_rack = || near(&[("podAffinity", "rack")]);
    let mut rows = vec![
        ("NodeName", to("n"), added(node("n")), true),
        ("NodeName", to("m"), added(node("n")), false),
        ("NodeName", to("n"), became(node("n"), zone("1")), false),
        ("NodeUnschedulable", plain(), added(node("n")), true),
        ("NodeUnschedulable", plain(), added(cordoned()), false),
        ("NodeUnschedulable", plain(), became(cordoned(), node("n")), true),
        ("NodeUnschedulable", plain(), became(node("n"), cordoned()), false),
        ("TaintToleration", plain(), became(tainted(&["k"]), node("n")), true),
        ("TaintToleration", plain(), became(tainted(&["k", "l"]), tainted(&["l"])), false),
        ("TaintToleration", plain(), became(node("n"), zone("1")), false),
        ("NodeAffinity", in_zone(), became(node("n"), zone("1")), true),
        ("NodeAffinity", in_zone(), became(node("n"), zone("2")), false),
        ("NodeAffinity", in_zone(), added(zone("1")), true),
        ("NodeAffinity", in_zone(), became(tainted(&["k"]), node("n")), false),
        ("NodePorts", port(80), gone(port(80)), true),
        ("NodePorts", port(80), gone(port(81)), false),
        ("NodePorts", port(80), added(node("n")), true),
        ("NodePorts", port(80), became(node("n"), zone("1")), false),
        ("NodeResourcesFit", asking("2", json!({})), added(sized("n", "4", "8Gi")), true),
        ("NodeResourcesFit", asking("2", json!({})), added(sized("n", "1", "8Gi")), false),
        ("NodeResourcesFit", asking("2", json!({})), became(sized("n", "1", "8Gi"), sized("n", "4", "8Gi")), true),
        ("NodeResourcesFit", asking("2", json!({})), became(node("n"), zone("1")), false),
        ("NodeResourcesFit", asking("2", json!({})), room_left("1"), true),
        ("NodeResourcesFit", asking("2", json!({})), room_left("3"), false),
        ("VolumeRestrictions", claiming("data"), gone(claiming("data")), true),
        ("VolumeRestrictions", claiming("data"), gone(claiming("other")), false),
        ("VolumeRestrictions", disk("data"), gone(disk("data")), true),
        ("VolumeRestrictions", disk("data"), gone(disk("other")), false),
        ("VolumeRestrictions", claiming("data"), claim("default/data"), true),
        ("VolumeRestrictions", claiming("data"), added(node("n")), true),
        ("NodeVolumeLimits", claiming("data"), gone(claiming("other")), true),
        ("NodeVolumeLimits", claiming("data"), gone(plain()), false),
        ("NodeVolumeLimits", claiming("data"), bare(ClusterEvent::CsiNode), true),
        ("NodeVolumeLimits", claiming("data"), bare(ClusterEvent::VolumeAttachmentGone), true),
        ("NodeVolumeLimits", claiming("data"), became(node("n"), zone("1")), false),
        ("DynamicResources", with_devices(), resource_claim("data", None, Some(false)), true),
        ("DynamicResources", with_devices(), resource_claim("data", Some(false), Some(true)), true),
        ("DynamicResources", with_devices(), resource_claim("data", Some(false), Some(false)), false),
        ("DynamicResources", with_devices(), resource_claim("other", None, Some(false)), false),
        ("DynamicResources", with_devices(), resource_claim("other", Some(false), Some(true)), false),
        ("DynamicResources", with_devices(), resource_claim("other", Some(true), Some(false)), true),
        ("DynamicResources", with_devices(), resource_claim("other", Some(true), None), true),
        ("DynamicResources", with_devices(), bare(ClusterEvent::ResourceSlice), true),
        ("DynamicResources", with_devices(), bare(ClusterEvent::DeviceClass), true),
        ("DynamicResources", with_devices(), added(node("n")), true),
        ("DynamicResources", with_devices(), became(node("n"), zone("1")), true),
        ("DynamicResources", with_devices(), became(tainted(&["k"]), node("n")), false),
        ("DynamicResources", with_devices(), gone(with_devices()), true),
        ("DynamicResources", with_devices(), gone(plain()), false),
        ("PodTopologySpread", spread(), placed(app("default", "p")), true),
        ("PodTopologySpread", spread(), placed(app("default", "q")), false),
        ("PodTopologySpread", spread(), placed(app("other", "p")), false),
        ("PodTopologySpread", spread(), gone(app("default", "p")), true),
        ("PodTopologySpread", spread(), changed(app("default", "p"), app("default", "q")), true),
        ("PodTopologySpread", spread(), changed(app("default", "q"), app("default", "p")), true),
        ("PodTopologySpread", spread(), changed(app("default", "q"), app("default", "r")), false),
        ("PodTopologySpread", spread(), changed(app("other", "p"), app("other", "q")), false),
        ("PodTopologySpread", spread(), added(zone("1")), true),
        ("PodTopologySpread", spread(), added(node("n")), false),
        ("PodTopologySpread", spread(), became(zone("1"), zone("2")), true),
        ("PodTopologySpread", spread(), became(zone("1"), node("n")), true),
        ("PodTopologySpread", spread(), became(tainted(&["k"]), node("n")), false),
        ("PodTopologySpread", spread(), lost(zone("1")), true),
        ("PodTopologySpread", spread(), lost(node("n")), false),
        ("InterPodAffinity", by_rack(), placed(app("default", "db")), true),
        ("InterPodAffinity", by_rack(), placed(app("default", "web")), false),
        ("InterPodAffinity", by_rack(), changed(app("default", "web"), app("default", "db")), true),
        ("InterPodAffinity", by_rack(), changed(app("default", "db"), app("default", "web")), false),
        ("InterPodAffinity", by_rack(), added(labelled("n", &[("rack", "1")])), true),
        ("InterPodAffinity", by_rack(), added(zone("1")), false),
        ("InterPodAffinity", by_rack(), lost(labelled("n", &[("rack", "1")])), false),
        ("InterPodAffinity", keeps_away(), gone(app("default", "db")), true),
        ("InterPodAffinity", keeps_away(), gone(app("default", "web")), false),
        ("InterPodAffinity", keeps_away(), placed(app("default", "web")), false),
        ("InterPodAffinity", keeps_away(), changed(app("default", "db"), app("default", "web")), true),
        ("InterPodAffinity", keeps_away(), added(node("n")), true),
        ("InterPodAffinity", keeps_away(), lost(zone("1")), true),
        ("InterPodAffinity", both(), became(zone("1"), node("n")), true),
        ("InterPodAffinity", both(), became(node("n"), zone("1")), false),
        ("InterPodAffinity", named_pod("default", "o", json!({"app": "db"}), json!({})), gone(keeps_away()), true),
        ("InterPodAffinity", keeps_away(), bare(ClusterEvent::Namespace), true),
    ];
    for plugin in ["VolumeBinding", "VolumeZone"] {
        rows.extend([
            (plugin, claiming("data"), claim("default/data"), true),
            (plugin, claiming("data"), claim("default/other"), false),
            (plugin, claiming("data"), bare(ClusterEvent::Volume), true),
            (plugin, claiming("data"), bare(ClusterEvent::StorageClass), true),
            (plugin, claiming("data"), became(node("n"), zone("1")), true),
            (plugin, claiming("data"), became(tainted(&["k"]), node("n")), false),
            (plugin, claiming("data"), gone(plain()), false),
        ]);
    }
    rows
}

#[test]
fn events_that_help_and_those_that_do_not() {
    let (registry, mut tested) = (Registry::default(), BTreeSet::new());
    for (name, pod, (cluster, event), expected) in rows() {
        let plugin = (registry.find(name).unwrap().new)(&Value::Null).unwrap().enqueue_extensions.unwrap();
        let expected = QueueingHint::queue_if(expected);
        assert_eq!(plugin.queueing_hint(&cluster, &pod, &event), expected, "{name}: {event:#?}");
        tested.insert(name);
    }
    let filters = registry.rows().iter().filter(|row| (row.new)(&Value::Null).unwrap().filter.is_some());
    assert_eq!(tested, filters.map(|row| row.name).collect());
}
