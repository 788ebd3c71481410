//! ResourceQuotas: what counts against them from its making to its end, and what they themselves are told.
//! Run by the cluster of `main`; admission in the API server charges, the controller gives back.
//! As in `main`, every test ends quiet.

use std::{collections::BTreeMap, time::Duration};

use client::{ListParams, Patch};
use http::Request;
use k8s_openapi::{
    api::{
        apps::v1::ReplicaSet,
        core::v1::{
            ConfigMap, PersistentVolumeClaim, Pod, ReplicationController, ResourceQuota, ResourceQuotaStatus, Secret,
            Service,
        },
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::DeleteOptions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Cluster, config, template};

fn texts(amounts: Option<BTreeMap<String, Quantity>>) -> BTreeMap<String, String> {
    amounts.into_iter().flatten().map(|(name, quantity)| (name, quantity.0)).collect()
}

/// Makes a quota; its status comes without anything else happening.
async fn quota(cluster: &Cluster, name: &str, spec: Value) {
    cluster.create::<ResourceQuota>(json!({ "metadata": { "name": name }, "spec": spec })).await;
    cluster.env.sleep(Duration::from_secs(5)).await;
    let found = cluster.api::<ResourceQuota>().get(name).await.unwrap();
    let (hard, status) = (found.spec.unwrap().hard, found.status.unwrap());
    assert_eq!(status.hard, hard);
    assert_eq!(status.used.unwrap().len(), hard.unwrap().len());
}

#[track_caller]
fn check(status: &ResourceQuotaStatus, expected: &[(&str, &str)], when: &str) {
    let used = texts(status.used.clone());
    for (name, amount) in expected {
        assert_eq!(used.get(*name).map(String::as_str), Some(*amount), "{name} {when}");
    }
}

async fn status(cluster: &Cluster, quota: &str) -> ResourceQuotaStatus {
    cluster.api::<ResourceQuota>().get(quota).await.unwrap().status.unwrap()
}

/// Counts as soon as it is made, also when all is counted anew, and no longer once it is gone.
async fn is_counted<K>(cluster: &Cluster, object: Value, with: &[(&str, &str)], without: &[(&str, &str)])
where
    K: k8s_openapi::Resource + Serialize + DeserializeOwned,
{
    let name = object["metadata"]["name"].as_str().unwrap().to_string();
    check(&status(cluster, "q").await, without, &format!("before {name}"));
    cluster.create::<K>(object).await;
    check(&status(cluster, "q").await, with, &format!("with {name}"));
    cluster.settle().await;
    check(&status(cluster, "q").await, with, &format!("with {name}, counted anew"));
    cluster.delete::<K>(&name, "Background").await;
    cluster.settle().await;
    check(&status(cluster, "q").await, without, &format!("after {name}"));
}

#[tokio::test(start_paused = true)]
async fn objects_are_counted_from_their_making_to_their_end() {
    let cluster = Cluster::start(config()).await;
    let hard = json!({ "services": "3", "services.nodeports": "1", "services.loadbalancers": "1", "secrets": "5",
        "configmaps": "5", "replicationcontrollers": "5", "count/replicasets.apps": "5", "resourcequotas": "1" });
    quota(&cluster, "q", json!({ "hard": hard })).await;
    check(&status(&cluster, "q").await, &[("resourcequotas", "1"), ("services", "0")], "of itself");
    let second: ResourceQuota = serde_json::from_value(json!({ "metadata": { "name": "q2" }, "spec": {} })).unwrap();
    let refused = cluster.api::<ResourceQuota>().create(&second).await.unwrap_err();
    assert!(refused.message.contains("exceeded quota: q, requested: resourcequotas=1"), "{}", refused.message);

    let plain = |name: &str| json!({ "metadata": { "name": name } });
    is_counted::<ConfigMap>(&cluster, plain("map"), &[("configmaps", "2")], &[("configmaps", "1")]).await;
    is_counted::<Secret>(&cluster, plain("secret"), &[("secrets", "1")], &[("secrets", "0")]).await;
    let rc = json!({ "metadata": { "name": "rc" }, "spec": { "replicas": 0, "selector": { "app": "web" },
        "template": template("a:1") } });
    let name = "replicationcontrollers";
    is_counted::<ReplicationController>(&cluster, rc, &[(name, "1")], &[(name, "0")]).await;
    let rs = json!({ "metadata": { "name": "rs" }, "spec": { "replicas": 0,
        "selector": { "matchLabels": { "app": "web" } }, "template": template("a:1") } });
    let name = "count/replicasets.apps";
    is_counted::<ReplicaSet>(&cluster, rs, &[(name, "1")], &[(name, "0")]).await;

    let service = |name: &str, kind: &str| json!({ "metadata": { "name": name }, "spec": { "type": kind, "ports": [{ "port": 80 }] } });
    cluster.create::<Service>(service("plain", "ClusterIP")).await;
    let with = [("services", "2"), ("services.nodeports", "1"), ("services.loadbalancers", "0")];
    let without = [("services", "1"), ("services.nodeports", "0"), ("services.loadbalancers", "0")];
    is_counted::<Service>(&cluster, service("node-port", "NodePort"), &with, &without).await;
    let with = [("services", "2"), ("services.nodeports", "1"), ("services.loadbalancers", "1")];
    is_counted::<Service>(&cluster, service("balancer", "LoadBalancer"), &with, &without).await;
    // A balancer needs a node port too, and there is none left.
    cluster.create::<Service>(service("node-port", "NodePort")).await;
    let balancer: Service = serde_json::from_value(service("balancer", "LoadBalancer")).unwrap();
    let refused = cluster.api::<Service>().create(&balancer).await.unwrap_err();
    assert!(refused.message.contains("exceeded quota: q, requested: services.nodeports=1"), "{}", refused.message);
    for name in ["plain", "node-port"] {
        cluster.delete::<Service>(name, "Background").await;
    }
    cluster.settle().await;
    check(&status(&cluster, "q").await, &[("services", "0"), ("services.nodeports", "0")], "at the end");
}

fn pod(name: &str, resources: Value) -> Value {
    let mut pod = template("a:1");
    pod["metadata"]["name"] = name.into();
    pod["spec"]["containers"][0]["resources"] = resources;
    pod
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_asks_for_is_charged_and_given_back() {
    let cluster = Cluster::start(config()).await;
    let hard = json!({ "pods": "5", "cpu": "1", "memory": "500Mi", "ephemeral-storage": "50Gi",
        "requests.example.com/dongle": "3" });
    quota(&cluster, "q", json!({ "hard": hard })).await;
    let asks = |cpu: &str, memory: &str, storage: &str, dongles: &str| {
        let requests =
            json!({ "cpu": cpu, "memory": memory, "ephemeral-storage": storage, "example.com/dongle": dongles });
        json!({ "requests": requests, "limits": { "example.com/dongle": dongles } })
    };
    cluster.create::<Pod>(pod("first", asks("500m", "252Mi", "30Gi", "2"))).await;
    let one = [
        ("pods", "1"),
        ("cpu", "500m"),
        ("memory", "252Mi"),
        ("ephemeral-storage", "30Gi"),
        ("requests.example.com/dongle", "2"),
    ];
    check(&status(&cluster, "q").await, &one, "with the first");
    for (asked, exceeded) in [
        (asks("600m", "100Mi", "1Gi", "0"), "cpu=600m"),
        (asks("100m", "100Mi", "1Gi", "2"), "requests.example.com/dongle=2"),
    ] {
        let second: Pod = serde_json::from_value(pod("second", asked)).unwrap();
        let refused = cluster.api::<Pod>().create(&second).await.unwrap_err();
        let words = format!("exceeded quota: q, requested: {exceeded}");
        assert!(refused.code == 403 && refused.message.contains(&words), "{}", refused.message);
    }
    // What it asks for cannot be changed by an update, so neither can the charge.
    cluster.settle().await;
    let mut changed = cluster.api::<Pod>().get("first").await.unwrap();
    let requests = changed.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap().requests.as_mut().unwrap();
    requests.insert("cpu".into(), Quantity("100m".into()));
    let refused = cluster.api::<Pod>().replace("first", &changed).await.unwrap_err();
    assert!(
        refused.code == 422 && refused.message.contains("pod updates may not change fields"),
        "{}",
        refused.message
    );
    check(&status(&cluster, "q").await, &one, "after a change that was refused");
    cluster.delete::<Pod>("first", "Background").await;
    cluster.settle().await;
    let none = one.map(|(name, _)| (name, "0"));
    check(&status(&cluster, "q").await, &none, "after the first");
}

#[tokio::test(start_paused = true)]
async fn what_was_charged_is_what_is_counted_anew() {
    let cluster = Cluster::start(config()).await;
    let hard = json!({ "requests.cpu": "5", "limits.cpu": "5", "limits.memory": "1Gi", "hugepages-2Mi": "8Mi" });
    quota(&cluster, "q", json!({ "hard": hard })).await;
    let mut asks = pod("p", json!({ "requests": { "cpu": "1" }, "limits": { "cpu": "1" } }));
    asks["spec"]["resources"] = json!({ "requests": { "cpu": "2", "hugepages-2Mi": "4Mi" },
        "limits": { "cpu": "3", "hugepages-2Mi": "4Mi" } });
    let with = [("requests.cpu", "2"), ("limits.cpu", "3"), ("limits.memory", "0"), ("hugepages-2Mi", "4Mi")];
    is_counted::<Pod>(&cluster, asks, &with, &with.map(|(name, _)| (name, "0"))).await;
    let classes = json!([{ "scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"] }]);
    let scoped = json!({ "hard": { "persistentvolumeclaims": "5" }, "scopeSelector": { "matchExpressions": classes } });
    cluster.delete::<ResourceQuota>("q", "Background").await;
    quota(&cluster, "q", scoped).await;
    let claim = |name: &str, class: Option<&str>| {
        json!({ "metadata": { "name": name }, "spec": { "accessModes": ["ReadWriteOnce"],
            "volumeAttributesClassName": class, "resources": { "requests": { "storage": "1Gi" } } } })
    };
    cluster.create::<PersistentVolumeClaim>(claim("plain", None)).await;
    let name = "persistentvolumeclaims";
    is_counted::<PersistentVolumeClaim>(&cluster, claim("gold", Some("gold")), &[(name, "1")], &[(name, "0")]).await;
    cluster.delete::<PersistentVolumeClaim>("plain", "Background").await;
    cluster.settle().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_go_is_charged_no_longer_than_its_grace() {
    let cluster = Cluster::start(config()).await;
    quota(&cluster, "q", json!({ "hard": { "pods": "1", "count/pods": "5" } })).await;
    let mut held = pod("held", json!({}));
    held["spec"]["containers"][0]["image"] = "held:1".into();
    let mut kept = pod("kept", json!({}));
    kept["metadata"]["finalizers"] = json!(["example.com/hold"]);
    // How long each is charged: until its time to end has passed twice, or until its kubelet is done with it.
    for (name, stuck, charged) in [("held", held, 60), ("kept", kept, 0)] {
        cluster.create::<Pod>(stuck).await;
        cluster.settle().await;
        check(&status(&cluster, "q").await, &[("pods", "1"), ("count/pods", "1")], &format!("while {name} runs"));
        cluster.delete::<Pod>(name, "Background").await;
        let around = Duration::from_secs(10);
        if let Some(before) = Duration::from_secs(charged).checked_sub(around) {
            cluster.env.sleep(before).await;
            check(
                &status(&cluster, "q").await,
                &[("pods", "1"), ("count/pods", "1")],
                &format!("while {name} may end"),
            );
        }
        cluster.env.sleep(2 * around).await;
        assert!(cluster.api::<Pod>().get(name).await.unwrap().metadata.deletion_timestamp.is_some());
        check(&status(&cluster, "q").await, &[("pods", "0"), ("count/pods", "1")], &format!("after {name}'s grace"));
        cluster.patch::<Pod>(name, json!({ "metadata": { "finalizers": null } })).await;
        let now = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        cluster.api::<Pod>().delete(name, &now).await.ok();
        cluster.settle().await;
        check(&status(&cluster, "q").await, &[("pods", "0"), ("count/pods", "0")], &format!("when {name} is gone"));
    }
}

#[tokio::test(start_paused = true)]
async fn scopes_tell_pods_apart() {
    let limits =
        json!({ "limits": { "cpu": "1", "memory": "400Mi" }, "requests": { "cpu": "500m", "memory": "200Mi" } });
    let amounts = json!({ "pods": "5", "requests.cpu": "1", "requests.memory": "500Mi", "limits.cpu": "2",
        "limits.memory": "1Gi" });
    let charged = [
        ("pods", "1"),
        ("requests.cpu", "500m"),
        ("requests.memory", "200Mi"),
        ("limits.cpu", "1"),
        ("limits.memory", "400Mi"),
    ];
    let mut ending = pod("p", limits.clone());
    ending["spec"]["activeDeadlineSeconds"] = 3600.into();
    for (scopes, hard, pods, charged) in [
        (["Terminating", "NotTerminating"], amounts, [ending, pod("p", limits.clone())], &charged[..]),
        (
            ["BestEffort", "NotBestEffort"],
            json!({ "pods": "5" }),
            [pod("p", json!({})), pod("p", limits)],
            &charged[..1],
        ),
    ] {
        let cluster = Cluster::start(config()).await;
        for scope in scopes {
            quota(&cluster, &scope.to_lowercase(), json!({ "hard": hard, "scopes": [scope] })).await;
        }
        for (at, pod) in pods.into_iter().enumerate() {
            let [mine, other] = [scopes[at], scopes[1 - at]].map(str::to_lowercase);
            let none: Vec<_> = charged.iter().map(|(name, _)| (*name, "0")).collect();
            cluster.create::<Pod>(pod).await;
            for when in ["as it is made", "counted anew"] {
                check(&status(&cluster, &mine).await, charged, &format!("{mine}, {when}"));
                check(&status(&cluster, &other).await, &none, &format!("{other}, {when}"));
                cluster.settle().await;
            }
            cluster.delete::<Pod>("p", "Background").await;
            cluster.settle().await;
            check(&status(&cluster, &mine).await, &none, &format!("{mine}, after its end"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_gets_a_deadline_changes_its_scope() {
    let cluster = Cluster::start(config()).await;
    for scope in ["Terminating", "NotTerminating"] {
        quota(&cluster, &scope.to_lowercase(), json!({ "hard": { "pods": "1" }, "scopes": [scope] })).await;
    }
    cluster.create::<Pod>(pod("p", json!({}))).await;
    check(&status(&cluster, "notterminating").await, &[("pods", "1")], "without a deadline");
    cluster.patch::<Pod>("p", json!({ "spec": { "activeDeadlineSeconds": 3600 } })).await;
    // Sooner than everything is counted anew.
    cluster.env.sleep(Duration::from_secs(60)).await;
    check(&status(&cluster, "notterminating").await, &[("pods", "0")], "with a deadline");
    check(&status(&cluster, "terminating").await, &[("pods", "1")], "with a deadline");
}

#[tokio::test(start_paused = true)]
async fn quotas_are_changed_listed_and_go() {
    let cluster = Cluster::start(config()).await;
    let labeled = |name: &str| {
        json!({ "metadata": { "name": name, "labels": { "of": "two" } },
            "spec": { "hard": { "cpu": "1", "memory": "500Mi" } } })
    };
    cluster.create::<ResourceQuota>(labeled("one")).await;
    cluster.create::<ResourceQuota>(labeled("two")).await;
    quota(&cluster, "other", json!({ "hard": { "pods": "1" } })).await;
    let quotas = cluster.api::<ResourceQuota>();
    let mut one = quotas.get("one").await.unwrap();
    let hard = one.spec.as_mut().unwrap().hard.as_mut().unwrap();
    hard.insert("cpu".into(), Quantity("2".into()));
    hard.insert("memory".into(), Quantity("1Gi".into()));
    let updated = quotas.replace("one", &one).await.unwrap().spec.unwrap().hard;
    assert_eq!(texts(updated), [("cpu", "2"), ("memory", "1Gi")].map(|(k, v)| (k.into(), v.into())).into());
    cluster.settle().await;
    assert_eq!(texts(status(&cluster, "one").await.hard)["cpu"], "2");
    cluster
        .patch::<ResourceQuota>(
            "two",
            json!({ "metadata": { "labels": { "patched": "yes" } },
        "spec": { "hard": { "memory": "750Mi" } } }),
        )
        .await;
    let everywhere = cluster.client.api::<ResourceQuota>();
    let found = everywhere.list(&ListParams::labels("patched=yes")).await.unwrap().items;
    assert_eq!(found.len(), 1);
    let hard = texts(found[0].spec.clone().unwrap().hard);
    assert_eq!((hard["memory"].as_str(), hard["cpu"].as_str()), ("750Mi", "1"));

    cluster.delete::<ResourceQuota>("one", "Background").await;
    assert!(quotas.find("one").await.unwrap().is_none());
    quotas.delete_collection(&ListParams::labels("of=two"), &DeleteOptions::default()).await.unwrap();
    let left: Vec<_> = everywhere.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(left.iter().filter_map(|q| q.metadata.name.as_deref()).collect::<Vec<_>>(), ["other"]);
    cluster.settle().await;
}

#[tokio::test(start_paused = true)]
async fn the_status_is_written_and_comes_back() {
    let cluster = Cluster::start(config()).await;
    quota(&cluster, "q", json!({ "hard": { "cpu": "500m", "memory": "500Mi" } })).await;
    let quotas = cluster.api::<ResourceQuota>();
    let amounts = |cpu: &str, memory: &str| -> BTreeMap<String, String> {
        [("cpu", cpu), ("memory", memory)].map(|(name, amount)| (name.to_string(), amount.to_string())).into()
    };
    let mut found = quotas.get("q").await.unwrap();
    let hard = found.spec.clone().unwrap().hard;
    found.status = Some(ResourceQuotaStatus { hard: hard.clone(), used: None });
    let updated = quotas.replace_status("q", &found).await.unwrap();
    assert_eq!(updated.status.unwrap().hard, hard);

    cluster.patch::<ResourceQuota>("q", json!({ "spec": { "hard": { "cpu": "1", "memory": "1Gi" } } })).await;
    let patch = async |cpu: &str, memory: &str| {
        let patch = Patch::Merge(json!({ "status": { "hard": { "cpu": cpu, "memory": memory } } }));
        quotas.patch_status("q", &patch).await.unwrap()
    };
    let patched = patch("1", "1Gi").await;
    assert_eq!(texts(patched.status.unwrap().hard), amounts("1", "1Gi"));
    let path = "/api/v1/namespaces/d/resourcequotas/q/status";
    let read = cluster.client.request(Request::get(path).body(Default::default()).unwrap()).await.unwrap();
    let read: ResourceQuota = serde_json::from_slice(&read).unwrap();
    assert_eq!(
        (texts(read.status.unwrap().hard), texts(read.spec.unwrap().hard)),
        (amounts("1", "1Gi"), amounts("1", "1Gi"))
    );
    cluster.settle().await;
    // What somebody says of the status changes no spec, and is put right when all is counted anew.
    let wrong = patch("2", "2Gi").await;
    assert_eq!(texts(wrong.status.unwrap().hard), amounts("2", "2Gi"));
    assert_eq!(texts(wrong.spec.unwrap().hard), amounts("1", "1Gi"));
    cluster.env.sleep(Duration::from_secs(360)).await;
    let found = quotas.get("q").await.unwrap();
    assert_eq!(texts(found.spec.unwrap().hard), amounts("1", "1Gi"));
    assert_eq!(texts(found.status.unwrap().hard), amounts("1", "1Gi"));
    cluster.settle().await;
}
