//! Under whose name controllers act, and what that name may do: the real authorizer over the bootstrap policy.
//! Every other test of `main` runs under the same identities, and fails where a role lacks a rule.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::{ConfigMap, Node, Secret},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use serde_json::json;

use super::{Cluster, config};

/// The accounts that hold a role of their own, whatever namespace it is in.
#[tokio::test(start_paused = true)]
async fn every_account_holds_a_role_of_its_own() {
    let feature_gates = api::feature_gates::FeatureGates::parse(super::gated::GATES).unwrap();
    let cluster = Cluster::start(controllers::Config { feature_gates, ..config() }).await;
    let mut bound = BTreeSet::new();
    let everywhere = client::ListParams::default();
    for binding in cluster.client.api::<ClusterRoleBinding>().list(&everywhere).await.unwrap().items {
        bound.extend(
            binding.subjects.unwrap_or_default().into_iter().map(|s| (s.kind, s.name, binding.role_ref.name.clone())),
        );
    }
    for binding in cluster.client.api::<RoleBinding>().list(&everywhere).await.unwrap().items {
        bound.extend(
            binding.subjects.unwrap_or_default().into_iter().map(|s| (s.kind, s.name, binding.role_ref.name.clone())),
        );
    }
    let mut accounts = 0;
    for account in controllers::service_accounts() {
        let holds =
            |prefix: &str| bound.contains(&("ServiceAccount".into(), account.into(), format!("{prefix}{account}")));
        assert!(holds("system:controller:") || holds("minke:controller:"), "{account}");
        accounts += 1;
    }
    assert!(accounts > 30, "{accounts}");
    let masters = bound.iter().filter(|(_, _, role)| role == "cluster-admin").collect::<Vec<_>>();
    assert_eq!(masters.len(), 1, "{masters:?}");
}

#[tokio::test(start_paused = true)]
async fn an_account_may_do_its_own_work_and_nothing_else() {
    let cluster = Cluster::start(config()).await;
    let ttl = in_process::service_account_client(&cluster.server, "ttl-controller");
    let patch = client::Patch::Merge(json!({ "metadata": { "annotations": { "a": "b" } } }));
    ttl.api::<Node>().patch("n", &patch).await.unwrap();
    let refused = ttl.namespaced::<Secret>("d").get("x").await.unwrap_err();
    assert_eq!(refused.code, 403, "{refused}");
    let user = "User \"system:serviceaccount:kube-system:ttl-controller\" cannot get resource \"secrets\"";
    assert!(refused.message.contains(user), "{refused}");
    let dns = in_process::service_account_client(&cluster.server, "cluster-dns-controller");
    let map: ConfigMap = serde_json::from_value(json!({ "metadata": { "name": "m" } })).unwrap();
    assert_eq!(dns.namespaced::<ConfigMap>("kube-system").create(&map).await.unwrap_err().code, 403);
    let manager = in_process::client(&cluster.server, "system:kube-controller-manager", &[]);
    let role: ClusterRole = serde_json::from_value(json!({ "metadata": { "name": "r" } })).unwrap();
    assert_eq!(manager.api::<ClusterRole>().create(&role).await.unwrap_err().code, 403);
    let role: Role = serde_json::from_value(json!({ "metadata": { "name": "r" } })).unwrap();
    assert_eq!(manager.namespaced::<Role>("d").create(&role).await.unwrap_err().code, 403);
}

/// The bootstrap policy has them as the controller would make them; it alone follows later changes, and can be turned off.
#[tokio::test(start_paused = true)]
async fn aggregated_roles_are_right_at_the_start_and_then_the_controllers() {
    for (controllers, collected) in [(vec!["*"], true), (vec!["*", "-clusterrole-aggregation-controller"], false)] {
        let mut config = config();
        config.controllers = controllers.iter().map(|c| c.to_string()).collect();
        let cluster = Cluster::start(config).await;
        cluster.settle().await;
        for name in ["admin", "edit", "view"] {
            let role = cluster.api::<ClusterRole>().get(name).await.unwrap();
            assert!(role.rules.unwrap().len() > 10, "{name}");
            let managers = role.metadata.managed_fields.unwrap_or_default();
            assert_eq!(managers.len(), 1, "{name} was written by the API server alone: {managers:?}");
        }
        let widgets = json!({ "metadata": { "name": "widgets", "labels": { "rbac.authorization.k8s.io/aggregate-to-view": "true" } },
            "rules": [{ "apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["list"] }] });
        cluster.create::<ClusterRole>(widgets).await;
        cluster.settle().await;
        let view = cluster.api::<ClusterRole>().get("view").await.unwrap();
        let has = view.rules.unwrap().iter().any(|r| r.resources.iter().flatten().any(|r| r == "widgets"));
        assert_eq!(has, collected, "{controllers:?}");
    }
}
