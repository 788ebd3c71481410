//! Random workloads on random faults. Every run prints its seed; a failing one goes into `KNOWN`.

use client::{ListParams, Patch};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::DeleteOptions,
};
use serde_json::json;
use sim::{Faults, Simulation, violations};

/// Seeds that once found a bug.
const KNOWN: &[u64] = &[];
/// How many others are tried.
const TRIED: u64 = 4;

fn deployment(name: &str, replicas: u64, version: u64) -> Patch {
    let labels = json!({ "app": name });
    let config = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "namespace": "default" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [
                { "name": "c", "image": format!("none:{version}"), "resources": { "requests": { "cpu": "100m" } } }] } } },
    });
    Patch::Apply { manager: "workload".into(), force: true, config }
}

/// Changes of every kind in random order, then a long rest, then the checks.
async fn run(seed: u64, faults: Faults) {
    println!("seed {seed} with {faults:?}");
    let simulation = Simulation::start(seed, 3, faults).await;
    let (admin, env) = (&simulation.admin, &simulation.env);
    let deployments = admin.namespaced::<Deployment>("default");
    let pods = admin.namespaced::<Pod>("default");
    for step in 0..25 {
        let name = format!("d{}", env.random_u64() % 3);
        match env.random_u64() % 5 {
            0..3 => {
                let patch = deployment(&name, env.random_u64() % 8, env.random_u64() % 3);
                deployments.patch(&name, &patch).await.unwrap_or_else(|e| panic!("seed {seed} step {step}: {e}"));
            }
            3 => {
                let list = pods.list(&ListParams::default()).await.expect("a list").items;
                if let Some(pod) = list.first().and_then(|p| p.metadata.name.clone()) {
                    // It may be gone by now, which is what we want anyway.
                    pods.delete(&pod, &DeleteOptions::default()).await.ok();
                }
            }
            _ => {
                let options =
                    DeleteOptions { propagation_policy: Some("Background".into()), ..DeleteOptions::default() };
                deployments.delete(&name, &options).await.ok();
            }
        }
        simulation.pass(env.random_u64() % 5).await;
    }
    simulation.pass(300).await;
    let found = violations(admin).await.expect("lists");
    assert!(found.is_empty(), "seed {seed}: {found:#?}");
}

#[tokio::test(start_paused = true)]
async fn without_faults_everything_comes_true() {
    for seed in 0..TRIED {
        run(seed, Faults::default()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_faults_everything_still_comes_true() {
    let faults = Faults { refused: 0.05, answer_lost: 0.05, watch_broken: 0.02 };
    for seed in (0..TRIED).chain(KNOWN.iter().copied()) {
        run(seed, faults).await;
    }
}
