//! Who may depend on whom.
//! Neighbours: `testkit::dependencies` asks cargo.

use testkit::dependencies;

/// Dependencies point one way. Only `minke`, `in_process`, `sim`, `fuzz` and tests see both the server and its clients.
const ALLOWED: &[(&str, &[&str])] = &[
    ("env", &[]),
    ("serve", &["env"]),
    ("api", &["env"]),
    ("cel", &["env", "api"]),
    ("device-allocation", &["api", "cel"]),
    ("store", &["env", "api"]),
    ("apiserver", &["env", "serve", "api", "cel", "store", "metrics"]),
    ("client", &["env", "api", "metrics"]),
    ("controllers", &["env", "api", "cel", "client", "metrics"]),
    ("scheduler", &["env", "api", "client", "device-allocation", "metrics"]),
    ("cri", &["env"]),
    ("cni", &["env", "netfilter"]),
    ("netfilter", &["env"]),
    ("metrics", &["env", "serve"]),
    ("cadvisor", &["env", "serve", "metrics"]),
    ("node-plugins", &["env", "api", "client", "metrics"]),
    ("resource-managers", &["api"]),
    (
        "kubelet",
        &["env", "serve", "api", "client", "cri", "cni", "metrics", "cadvisor", "node-plugins", "resource-managers"],
    ),
    ("proxy", &["env", "serve", "api", "client", "metrics", "netfilter"]),
    ("network-policy", &["env", "serve", "api", "client", "metrics", "netfilter"]),
    ("dns", &["env", "serve", "api", "client", "metrics"]),
    ("ingress", &["env", "serve", "api", "client", "metrics"]),
    ("image", &[]),
    ("registry", &["env", "serve"]),
    ("cli", &["env", "api", "client"]),
    ("console", &[]),
    ("testkit", &[]),
    ("e2e", &["env", "api", "client", "image", "node-plugins"]),
];

#[test]
fn dependencies_point_one_way() {
    let found = dependencies();
    for (name, uses) in &found {
        if ["minke", "sim", "in-process", "fuzz"].contains(&name.as_str()) {
            continue;
        }
        let (_, allowed) =
            ALLOWED.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name} has no row in ALLOWED"));
        for used in uses {
            assert!(allowed.contains(&used.as_str()), "{name} must not depend on {used}");
        }
    }
    assert!(found.len() >= ALLOWED.len(), "cargo metadata shows every crate");
}
