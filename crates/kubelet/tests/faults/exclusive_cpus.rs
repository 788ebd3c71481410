//! The static policy of the CPU manager on a whole node: who runs where, across restarts, refusals and resizes.
//! The runtime is asked what it was told.

use resource_managers::CpuSet;
use serde_json::{Value, json};

use crate::{
    fake_api::pod_path,
    harness::{Node, condition, free_port, pod},
};

fn ready(pod: &Value) -> bool {
    condition(pod, "Ready") == "True"
}

/// A node that keeps CPU 0 for the system. `None` where there is no other, or no control groups can be made.
fn static_node(name: &str) -> Option<Node> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("left out: needs two processors");
        return None;
    }
    Node::start_with(name, |_, config| {
        config.managers.cpu_policy = "static".into();
        config.managers.reserved_cpus = CpuSet::from_iter([0]);
        config.reserved.cpu_milli = 1000;
        config.read_only_port = free_port();
    })
}

fn guaranteed(name: &str, cpu: &str) -> Value {
    let amounts = json!({"cpu": cpu, "memory": "64Mi"});
    pod(json!({"name": name, "resources": {"requests": amounts, "limits": amounts}}))
}

fn cpus(node: &Node, container: &str) -> CpuSet {
    let resources = node.runtime.resources(container).unwrap_or_default();
    CpuSet::parse(&resources.cpuset_cpus).unwrap()
}

#[tokio::test(start_paused = true)]
async fn shared_containers_leave_exclusive_cpus() {
    let Some(mut node) = static_node("exclusive") else { return };
    node.api.create_pod("shared", pod(json!({"name": "shared"})));
    node.wait("shared", "ready", ready).await;
    let all = cpus(&node, "shared");
    assert!(all.contains(0) && all.len() >= 2, "{all}");
    node.api.create_pod("own", guaranteed("own", "1"));
    node.wait("own", "ready", ready).await;
    let own = cpus(&node, "own");
    assert!(own.len() == 1 && !own.contains(0), "{own}");
    assert_eq!(node.runtime.resources("own").unwrap().cpu_quota, -1, "nothing slows it down");
    node.until("moved", || cpus(&node, "shared") == all.difference(&own)).await;
    node.counted("kubelet_cpu_manager_exclusive_cpu_allocation_count 1").await;
    // This runtime does not tell its configuration.
    node.counted("kubelet_cri_losing_support{version=\"1.36.0\"} 1").await;
    node.counted("kubelet_cpu_manager_pinning_requests_total 1").await;
    let file = node.directory.path().join("kubelet/cpu_manager_state");
    let kept = || std::fs::read_to_string(&file).unwrap();
    assert!(kept().contains(&format!("\"own\":\"{own}\"")), "{}", kept());

    node.restart().await;
    node.api.create_pod("late", pod(json!({"name": "late"})));
    node.wait("late", "ready", ready).await;
    node.counted("kubelet_cpu_manager_exclusive_cpu_allocation_count 1").await;
    assert_eq!(cpus(&node, "late"), all.difference(&own));

    node.api.delete_pod("own", 1);
    node.until("given back", || cpus(&node, "shared") == all && cpus(&node, "late") == all).await;
    node.until("forgotten", || !kept().contains("\"own\"")).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_cannot_have_their_cpus_are_refused() {
    let Some(node) = static_node("refused") else { return };
    node.api.create_pod("many", guaranteed("many", "9999"));
    let message = "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request: requested=9999, \
                   available=";
    node.wait("many", "refused", |pod| {
        let status = &pod["status"];
        status["phase"] == "Failed"
            && status["reason"] == "UnexpectedAdmissionError"
            && status["message"].as_str().unwrap_or_default().starts_with(message)
    })
    .await;
    node.counted("kubelet_cpu_manager_pinning_errors_total 1").await;
    node.api.create_pod("own", guaranteed("own", "1"));
    node.wait("own", "ready", ready).await;
    let mut object = node.api.pod("own").unwrap();
    let amounts = json!({"cpu": "500m", "memory": "64Mi"});
    object["spec"]["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    object["metadata"]["generation"] = 2.into();
    node.api.put(&pod_path("own"), object);
    node.event("ResizeInfeasible", "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy").await;
    node.counted("kubelet_pod_infeasible_resizes_total{reason_detail=\"guaranteed_pod_cpu_manager_static_policy\"} 1")
        .await;
    node.stop().await;
}
