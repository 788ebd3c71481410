//! Two clusters with nothing but a data directory each, beside whatever else runs: ports and ranges are found.

use std::collections::BTreeSet;

use e2e::{Cluster, KEEP, Kubectl, Options};

fn of_defaults() -> Cluster {
    let mut cluster = Cluster::prepare(Options::default());
    let data = cluster.data.display().to_string();
    cluster.arguments =
        ["--data-dir", &data, "--node-name", "node-1"].into_iter().chain(KEEP).map(Into::into).collect();
    cluster.started()
}

fn kubelet_port(kubectl: &Kubectl) -> String {
    let port = "jsonpath={.items[0].status.daemonEndpoints.kubeletEndpoint.Port}";
    kubectl.run(&["get", "nodes", "-o", port])
}

#[test]
fn a_second_cluster_gets_ports_and_ranges_of_its_own() {
    let clusters = [of_defaults(), of_defaults()];
    let mut seen = BTreeSet::new();
    for cluster in &clusters {
        let kubectl = cluster.kubectl();
        let server = kubectl.run(&["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"]);
        let address = kubectl.run(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"]);
        let range = kubectl.run(&["get", "nodes", "-o", "jsonpath={.items[0].spec.podCIDR}"]);
        for fact in [server, address, range, format!("kubelet {}", kubelet_port(&kubectl))] {
            assert!(seen.insert(fact.clone()), "both have {fact}");
        }
        // Each kubelet is reached by its own API server.
        kubectl.run(&["get", "--raw", "/api/v1/nodes/node-1/proxy/healthz"]);
    }
    // The same after a restart, though nobody says so.
    let before = kubelet_port(&clusters[1].kubectl());
    assert!(clusters[1].down(false).status.success());
    assert!(clusters[1].up().status.success());
    assert_eq!(kubelet_port(&clusters[1].kubectl()), before);
}
