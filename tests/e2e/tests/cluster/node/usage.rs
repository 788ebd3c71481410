//! What nodes and pods use: `kubectl top`, `metrics.k8s.io` and the kubelet's own pages.

use e2e::eventually;

use super::{apply, phase};
use crate::kubectl;

#[test]
fn top_works_with_nothing_installed() {
    let ns = kubectl().namespace("top");
    apply(
        &ns,
        "
apiVersion: v1
kind: Pod
metadata: {name: busy, labels: {load: high}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: spin, image: IMAGE, command: [sh, -c, 'while true; do :; done'], resources: {limits: {cpu: 200m}}}
  - {name: idle, image: IMAGE, command: [sleep, '1000']}
---
apiVersion: v1
kind: Pod
metadata: {name: quiet}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: idle, image: IMAGE, command: [sleep, '1000']}]
",
    );
    phase(&ns, "busy", "Running");
    phase(&ns, "quiet", "Running");
    let nodes = eventually("the node is measured", || {
        let said = ns.try_run(&["top", "node"], "");
        if said.ok { Ok(said.stdout) } else { Err(said) }
    });
    let header: Vec<&str> = nodes.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"], "{nodes}");
    assert!(nodes.lines().nth(1).is_some_and(|line| line.starts_with("e2e ") && line.contains("Mi")), "{nodes}");
    let milli = |text: &str| text.trim_end_matches('m').parse::<u32>().unwrap_or(0);
    eventually("the busy pod is seen", || {
        let pods = ns.try_run(&["top", "pod"], "").stdout;
        let rows: Vec<Vec<&str>> = pods.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        let of = |name: &str| rows.iter().find(|row| row[0] == name).map(|row| milli(row[1]));
        match (of("busy"), of("quiet")) {
            (Some(busy), Some(quiet)) if busy >= 50 && quiet < busy => Ok(()),
            _ => Err(pods),
        }
    });
    eventually("both containers are seen", || {
        let said = ns.try_run(&["top", "pod", "busy", "--containers"], "").stdout;
        let names: Vec<&str> = said.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
        if names == ["idle", "spin"] { Ok(()) } else { Err(said) }
    });
    let chosen = ns.run(&["top", "pod", "-l", "load=high", "--no-headers"]);
    assert_eq!(chosen.lines().count(), 1, "{chosen}");
    let table = ns.run(&["get", "pods.metrics.k8s.io"]);
    let header: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["NAME", "CPU", "MEMORY", "WINDOW"], "{table}");
    let one = ns.json(&["get", "pods.metrics.k8s.io", "busy"]);
    assert_eq!((one["kind"].as_str(), one["metadata"]["labels"]["load"].as_str()), (Some("PodMetrics"), Some("high")));
    assert!(ns.refused(&["get", "pods.metrics.k8s.io", "nobody"], "").contains("not found"));
    assert!(ns.run(&["api-resources", "--api-group=metrics.k8s.io"]).contains("NodeMetrics"));
    ns.run(&["create", "serviceaccount", "viewer"]);
    ns.run(&["create", "rolebinding", "viewer", "--clusterrole=view", &format!("--serviceaccount={}:viewer", ns.name)]);
    let viewer = format!("--as=system:serviceaccount:{}:viewer", ns.name);
    eventually("the role is bound", || {
        let said = ns.try_run(&["top", "pod", &viewer], "");
        if said.ok { Ok(()) } else { Err(said) }
    });
    assert!(ns.refused(&["top", "node", &viewer], "").contains("forbidden"));
}

#[test]
fn the_kubelet_tells_its_numbers() {
    let ns = kubectl().namespace("pages");
    apply(
        &ns,
        "{apiVersion: v1, kind: Pod, metadata: {name: page}, spec: {terminationGracePeriodSeconds: 0, \
         containers: [{name: c, image: IMAGE, command: [sleep, '1000'], \
         readinessProbe: {exec: {command: ['true']}, periodSeconds: 1}}]}}",
    );
    super::until(&ns, "page", "is ready", |pod| super::container(pod, "c")["ready"] == true);
    let get = |path: &str| ns.run(&["get", "--raw", &format!("/api/v1/nodes/e2e/proxy{path}")]);
    let labels = format!("{{container=\"c\",namespace=\"{}\",pod=\"page\"}}", ns.name);
    let resource = get("/metrics/resource");
    for name in
        ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds"]
    {
        assert!(resource.contains(&format!("{name}{labels} ")), "{name} is missing in\n{resource}");
    }
    for name in ["node_cpu_usage_seconds_total ", "pod_cpu_usage_seconds_total{", "resource_scrape_error 0"] {
        assert!(resource.contains(name), "{name} is missing in\n{resource}");
    }
    let cadvisor = get("/metrics/cadvisor");
    let of_pod = format!("namespace=\"{}\",pod=\"page\"", ns.name);
    for (name, container) in [
        ("container_memory_usage_bytes", "c"),
        ("container_processes", "c"),
        ("container_spec_cpu_shares", "c"),
        ("container_network_receive_bytes_total", ""),
    ] {
        let container = format!("container=\"{container}\",id=\"/");
        let fits = |line: &str| line.starts_with(name) && line.contains(&container) && line.contains(&of_pod);
        assert!(cadvisor.lines().any(fits), "{name} is missing in\n{cadvisor}");
    }
    let counted = get("/metrics");
    for name in [
        "kubelet_node_name{node=\"e2e\"} 1",
        "kubelet_running_pods ",
        "kubelet_running_containers{container_state=\"running\"} ",
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} ",
        "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"start_container\",le=\"0.005\"} ",
        "kubelet_pod_start_duration_seconds_count ",
        "kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"} ",
        "kubelet_pleg_relist_duration_seconds_count ",
        "kubelet_started_pods_total ",
        "kubelet_started_containers_total{container_type=\"container\"} ",
        "kubelet_http_requests_total{method=\"GET\",path=\"metrics\",server_type=\"readwrite\",long_running=\"false\"} ",
        "volume_manager_total_volumes{plugin_name=\"kubernetes.io/projected\",state=\"actual_state_of_world\"} ",
        "storage_operation_duration_seconds_count{volume_plugin=\"kubernetes.io/projected\",operation_name=\"volume_mount\",",
        "process_resident_memory_bytes ",
    ] {
        assert!(counted.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{counted}");
    }
    let probed = format!(
        "prober_probe_total{{probe_type=\"Readiness\",result=\"successful\",container=\"c\",pod=\"page\",namespace=\"{}\",",
        ns.name
    );
    let probes = get("/metrics/probes");
    assert!(probes.lines().any(|line| line.starts_with(&probed)), "{probed} is missing in\n{probes}");
    let summary: serde_json::Value = serde_json::from_str(&get("/stats/summary")).expect("a document");
    let pods = summary["pods"].as_array().cloned().unwrap_or_default();
    let page = pods.iter().find(|p| p["podRef"]["name"] == "page" && p["podRef"]["namespace"] == ns.name.as_str());
    assert!(page.is_some_and(|p| p["memory"]["workingSetBytes"].as_u64().unwrap_or(0) > 0), "{summary}");
    assert!(page.is_some_and(|p| p["network"]["interfaces"][0]["rxBytes"].is_u64()), "{summary}");
    assert!(page.is_some_and(|p| p["process_stats"]["process_count"].as_u64() >= Some(2)), "{summary}");
    let system = summary["node"]["systemContainers"].as_array().cloned().unwrap_or_default();
    for name in ["kubelet", "runtime", "pods"] {
        let found = system.iter().find(|container| container["name"] == name);
        assert!(found.is_some_and(|c| c["memory"]["rssBytes"].as_u64() > Some(0)), "{name}: {system:?}");
    }
    assert!(summary["node"]["memory"]["rssBytes"].as_u64() > Some(0), "{summary}");
    let little: serde_json::Value =
        serde_json::from_str(&get("/stats/summary?only_cpu_and_memory=true")).expect("a document");
    assert!(little["node"]["cpu"].is_object() && little["node"]["fs"].is_null(), "{little}");
    assert!(get("/pods").contains("\"name\":\"page\""));
}
