//! How controller managers and schedulers are started, and who the people of the simulation are.
//! Called by `Simulation` at the start and after crashes, and by `bootstrapped`.
//! Components run under the users that `minke` gives them; nobody is in system:masters.

use client::{Client, InformerFactory, LeaderElection, lead};
use env::Env;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Of the workload and the checkers' clients: a group that RBAC knows, unlike system:masters.
pub const ADMINS: &str = "sim:admins";
pub const MANAGER_LEASE: &str = "kube-controller-manager";
pub const SCHEDULER_LEASE: &str = "kube-scheduler";

/// As kubeadm does for its own group.
pub async fn make_admins(masters: &Client) {
    let binding = json!({ "metadata": { "name": ADMINS },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": ADMINS }] });
    let binding = serde_json::from_value(binding).expect("a constant object");
    masters.api::<ClusterRoleBinding>().create(&binding).await.expect("the server is healthy");
}

/// With an identity, they run only while it holds the Lease.
pub fn start_controllers(client: Client, env: Env, identity: Option<String>) {
    let config = controllers::Config {
        cluster_cidrs: vec!["10.244.0.0/16".parse().expect("a constant range")],
        root_ca_pem: Some("none".into()),
        ..controllers::Config::default()
    };
    let never = CancellationToken::new();
    let part = env.clone();
    part.spawn(async move {
        let start = |term: CancellationToken| {
            let informers = InformerFactory::new(client.clone(), env.clone(), term.clone());
            controllers::run(config.clone(), client.clone(), informers, env.clone(), term)
        };
        match identity {
            None => start(never).await,
            Some(identity) => lead(&LeaderElection::new(MANAGER_LEASE, identity), &client, &env, &never, start).await,
        }
    });
}

pub fn start_scheduler(client: Client, env: Env, identity: Option<String>) {
    let never = CancellationToken::new();
    let informers = InformerFactory::new(client.clone(), env.clone(), never.clone());
    let mut config = scheduler::Config::default();
    if identity.is_some() {
        let election = scheduler::LeaderElectionConfig { identity, ..Default::default() };
        config.leader_election = Some(election);
    }
    let scheduling = scheduler::run(config, client, informers, env.clone(), never);
    env.spawn(async move { scheduling.await.map_err(|e| e.to_string()).expect("the scheduler runs") });
}
