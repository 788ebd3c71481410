//! Jobs that are suspended, resumed and resized over and over under faults. Nobody else touches their pods, and these
//! all end well: so none may fail, whatever the controller itself had to take away.

use std::time::Duration;

use client::{ListParams, Patch};
use env::Env;
use k8s_openapi::api::{batch::v1::Job, core::v1::Namespace};
use serde_json::{Value, json};
use sim::{Bootstrapped, Faults, Simulation, Topology};

const SEEDS: u64 = 6;
const STEPS: usize = 25;
/// Simulated.
const PATIENCE: Duration = Duration::from_secs(3600);

fn job(name: &str, mode: &str, completions: i32) -> Job {
    let spec = json!({ "completions": completions, "parallelism": 3, "completionMode": mode, "backoffLimit": 0,
        "template": { "spec": { "restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
            "containers": [{ "name": "c", "image": "ends:0" }] } } });
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
}

fn change(env: &Env) -> Value {
    match env.random_u64() % 3 {
        0 => json!({ "parallelism": env.random_u64() % 5 }),
        n => json!({ "suspend": n == 1 }),
    }
}

async fn play(seed: u64, bootstrapped: &Bootstrapped) {
    let simulation = Simulation::start(seed, Topology::single(3), bootstrapped).await;
    let (env, admin) = (simulation.env.clone(), simulation.admin.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "d" } })).unwrap();
    admin.api::<Namespace>().create(&namespace).await.unwrap();
    env.sleep(Duration::from_secs(10)).await;
    // One seed without faults shows that it's not their doing.
    simulation.network.injector.set(if seed == 0 { Faults::default() } else { Faults::drawn(&env) });
    let jobs = admin.namespaced::<Job>("d");
    let all = [("a", "NonIndexed", 6), ("b", "NonIndexed", 1), ("c", "Indexed", 6), ("e", "Indexed", 9)];
    for (name, mode, completions) in all {
        jobs.create(&job(name, mode, completions)).await.unwrap();
    }
    for _ in 0..STEPS {
        let (name, _, _) = all[(env.random_u64() % all.len() as u64) as usize];
        let patch = Patch::Merge(json!({ "spec": change(&env) }));
        jobs.patch(name, &patch).await.unwrap();
        env.sleep(Duration::from_millis(env.random_u64() % 8000)).await;
    }
    simulation.heal().await;
    for (name, _, _) in all {
        let go = Patch::Merge(json!({ "spec": { "suspend": false, "parallelism": 3 } }));
        jobs.patch(name, &go).await.unwrap();
    }
    let healed = env.monotonic();
    loop {
        env.sleep(Duration::from_secs(20)).await;
        let found = jobs.list(&ListParams::default()).await.unwrap().items;
        let statuses: Vec<_> = found.into_iter().map(|j| j.status.unwrap_or_default()).collect();
        let failed = statuses.iter().any(|s| s.failed.is_some());
        assert!(!failed, "seed {seed}: {statuses:#?}");
        let complete = |s: &k8s_openapi::api::batch::v1::JobStatus| {
            s.conditions.iter().flatten().any(|c| c.type_ == "Complete" && c.status == "True")
        };
        if statuses.iter().all(complete) {
            let succeeded: Vec<_> = statuses.iter().map(|s| s.succeeded.unwrap_or(0)).collect();
            assert_eq!(succeeded, all.map(|(_, _, completions)| completions), "seed {seed}");
            return;
        }
        assert!(env.monotonic() - healed < PATIENCE, "seed {seed}: {statuses:#?}");
    }
}

#[test]
fn what_a_job_takes_away_itself_has_not_failed() {
    let bootstrapped = Bootstrapped::make();
    for seed in 0..SEEDS {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().unwrap().block_on(play(seed, &bootstrapped));
    }
}
