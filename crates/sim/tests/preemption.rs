//! Preemption with everything real but the nodes: API server, controllers and scheduler in one thread.

use std::time::Duration;

use client::{ListParams, Patch};
use k8s_openapi::{
    api::{
        apps::v1::ReplicaSet,
        core::v1::{Namespace, Pod},
        scheduling::v1::PriorityClass,
    },
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::{Value, json};
use sim::{Bootstrapped, Simulation, Topology};

/// Three nodes with 8 CPUs each.
async fn cluster() -> Simulation {
    let simulation = Simulation::start(1, Topology::single(3), &Bootstrapped::make()).await;
    let namespace = json!({ "metadata": { "name": "d" } });
    simulation.admin.api::<Namespace>().create(&serde_json::from_value(namespace).unwrap()).await.unwrap();
    for (name, value) in [("low", 1), ("high", 1000)] {
        let class = json!({ "metadata": { "name": name }, "value": value });
        simulation.admin.api::<PriorityClass>().create(&serde_json::from_value(class).unwrap()).await.unwrap();
    }
    simulation.env.sleep(Duration::from_secs(10)).await;
    simulation
}

fn pod_spec(class: &str, cpu: &str) -> Value {
    json!({ "priorityClassName": class, "terminationGracePeriodSeconds": 1, "containers": [
        { "name": "c", "image": "good:0", "resources": { "requests": { "cpu": cpu } } }] })
}

async fn replica_set(simulation: &Simulation, class: &str, replicas: i32, cpu: &str) {
    let labels = json!({ "app": class });
    let set = json!({ "metadata": { "name": class }, "spec": { "replicas": replicas, "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": pod_spec(class, cpu) } } });
    simulation.admin.namespaced::<ReplicaSet>("d").create(&serde_json::from_value(set).unwrap()).await.unwrap();
    simulation.env.sleep(Duration::from_secs(60)).await;
}

async fn ready(simulation: &Simulation, class: &str) -> i32 {
    let set = simulation.admin.namespaced::<ReplicaSet>("d").get(class).await.unwrap();
    set.status.and_then(|s| s.ready_replicas).unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn important_replica_sets_take_the_place_of_others() {
    let simulation = cluster().await;
    replica_set(&simulation, "low", 6, "3").await;
    assert_eq!(ready(&simulation, "low").await, 6);
    // Two fit on a node; 2 CPUs are left on each.
    replica_set(&simulation, "high", 2, "5").await;
    assert_eq!(ready(&simulation, "high").await, 2);
    assert_eq!(ready(&simulation, "low").await, 4, "one had to go from each of two nodes");
    let pods = simulation.admin.namespaced::<Pod>("d").list(&ListParams::labels("app=low")).await.unwrap().items;
    let waiting = pods.iter().filter(|p| p.spec.as_ref().is_some_and(|s| s.node_name.is_none())).count();
    assert_eq!((pods.len(), waiting), (6, 2), "their successors wait");
}

#[tokio::test(start_paused = true)]
async fn critical_pods_take_the_place_of_others() {
    let simulation = cluster().await;
    replica_set(&simulation, "low", 3, "6").await;
    let pods = simulation.admin.namespaced::<Pod>("d");
    let names: Vec<String> = {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().filter_map(|p| p.metadata.name).collect()
    };
    // Held, so that what is written on a victim can be read.
    for name in &names {
        let hold = Patch::Merge(json!({ "metadata": { "finalizers": ["example.com/hold"] } }));
        pods.patch(name, &hold).await.unwrap();
    }
    let critical = json!({ "metadata": { "name": "critical" }, "spec": pod_spec("system-cluster-critical", "4") });
    let system = simulation.admin.namespaced::<Pod>("kube-system");
    system.create(&serde_json::from_value(critical).unwrap()).await.unwrap();
    simulation.env.sleep(Duration::from_secs(30)).await;
    let mut victims = Vec::new();
    for name in &names {
        let pod = pods.get(name).await.unwrap();
        if pod.metadata.deletion_timestamp.is_some() {
            let conditions = pod.status.unwrap().conditions.unwrap_or_default();
            let target = conditions.into_iter().find(|c| c.type_ == "DisruptionTarget").expect("says why");
            assert_eq!((target.status.as_str(), target.reason.as_deref()), ("True", Some("PreemptionByScheduler")));
            victims.push(name.clone());
        }
    }
    assert_eq!(victims.len(), 1);
    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    for name in &names {
        pods.patch(name, &release).await.unwrap();
    }
    simulation.env.sleep(Duration::from_secs(60)).await;
    let critical = system.get("critical").await.unwrap();
    assert!(critical.spec.unwrap().node_name.is_some());
    system.delete("critical", &DeleteOptions::default()).await.unwrap();
}
