//! A backup is restored under running clients: old watches get 410, everybody converges on what the backup holds, and the
//! API servers agree on who they are.

use std::time::Duration;

use client::ListParams;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Endpoints},
    discovery::v1::EndpointSlice,
};
use serde_json::json;
use sim::{Bootstrapped, Simulation, Topology, clients::watch_client::untold_for};

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap()
}

#[tokio::test(start_paused = true)]
async fn everybody_converges_on_a_restored_backup() {
    let topology = Topology { nodes: 1, api_servers: 3, candidates: 2 };
    let simulation = Simulation::start(1, topology, &Bootstrapped::make()).await;
    let (env, maps) = (simulation.env.clone(), simulation.admin.namespaced::<ConfigMap>("default"));
    let views = simulation.start_watch_clients();
    let kept = maps.create(&config_map("kept")).await.unwrap().metadata.resource_version;
    env.sleep(Duration::from_secs(30)).await;
    simulation.back_up().await;
    let lost = maps.create(&config_map("lost")).await.unwrap().metadata.resource_version.unwrap();
    env.sleep(Duration::from_secs(5)).await;
    assert!(simulation.restore(3).await);
    simulation.heal().await;
    env.sleep(Duration::from_secs(120)).await;

    let found = maps.list(&ListParams::default()).await.unwrap();
    let names: Vec<_> = found.items.iter().filter_map(|map| map.metadata.name.as_deref()).collect();
    assert!(names.contains(&"kept") && !names.contains(&"lost"), "{names:?}");
    assert_eq!(maps.get("kept").await.unwrap().metadata.resource_version, kept, "objects keep their versions");
    let resource = api::kinds::find("", "v1", "configmaps").unwrap();
    let resumed = simulation.admin.transport().watch(resource, None, &ListParams::default(), &lost).await;
    let refused = match resumed {
        Ok(mut events) => futures::StreamExt::next(&mut events).await.unwrap().unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(refused.code, 410, "{refused}");
    assert_eq!(untold_for(Duration::from_secs(20), &env, &views).await, []);
    assert_eq!(simulation.oracle.take_violations(), []);
}

/// Servers that start at once know different sets of servers for a moment. Each used to write its own over the other's.
#[tokio::test(start_paused = true)]
async fn api_servers_on_one_store_agree_on_their_endpoints() {
    let topology = Topology { nodes: 1, api_servers: 3, candidates: 1 };
    let simulation = Simulation::start(1, topology, &Bootstrapped::make()).await;
    let env = simulation.env.clone();
    env.sleep(Duration::from_secs(30)).await;
    simulation.back_up().await;
    // Long enough for the keys by which servers know each other to end.
    assert!(simulation.restore(30).await);
    simulation.heal().await;
    env.sleep(Duration::from_secs(60)).await;
    let endpoints = simulation.admin.namespaced::<Endpoints>("default").get("kubernetes").await.unwrap();
    let slice = simulation.admin.namespaced::<EndpointSlice>("default").get("kubernetes").await.unwrap();
    let told: Vec<_> = endpoints.subsets.iter().flatten().flat_map(|s| s.addresses.iter().flatten()).collect();
    let told: Vec<_> = told.into_iter().map(|address| address.ip.as_str()).collect();
    let sliced: Vec<_> = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).collect();
    assert_eq!(told, ["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    assert_eq!(sliced, ["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    let written = simulation.oracle.epoch().log.lock().resource("endpoints").commits.len();
    assert!(written <= 12, "{written} writes until three servers agreed");
}
