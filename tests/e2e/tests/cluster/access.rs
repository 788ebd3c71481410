//! Nobody gets in who shouldn't.

use std::process::Command;

use e2e::Cluster;

use crate::kubectl;

fn server() -> String {
    let config = kubectl().run(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"]);
    config.trim().to_string()
}

#[test]
fn anonymous_requests_get_no_data() {
    for path in ["/api/v1/namespaces", "/api/v1/secrets", "/apis/apps/v1/deployments", "/api/v1/nodes"] {
        let output = Command::new("curl")
            .args(["-sk", "-o", "/dev/null", "-w", "%{http_code}"])
            .arg(format!("{}{path}", server()))
            .output();
        let code = String::from_utf8(output.expect("curl is missing: apt-get install curl").stdout).expect("text");
        assert!(code == "401" || code == "403", "{path} answered {code}");
    }
    let plain = server().replace("https://", "http://");
    let output = Command::new("curl")
        .args(["-s", "--max-time", "5"])
        .arg(format!("{plain}/api/v1/secrets"))
        .output()
        .expect("curl");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("SecretList"), "plain HTTP must not be served");
}

#[test]
fn private_files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let data = Cluster::shared().data.clone();
    let mut checked = 0;
    for entry in std::fs::read_dir(data.join("pki")).expect("a pki directory").flatten() {
        if entry.path().extension().is_some_and(|e| e == "key") {
            let mode = entry.metadata().expect("metadata").permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{}", entry.path().display());
            checked += 1;
        }
    }
    assert!(checked > 3, "only {checked} keys were found");
    let mode = std::fs::metadata(data.join("admin.kubeconfig")).expect("a kubeconfig").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
}

#[test]
fn errors_are_upstreams_words() {
    let ns = kubectl().namespace("errors");
    let check = |arguments: &[&str], input: &str, text: &str| {
        let said = ns.refused(arguments, input);
        assert!(said.contains(text), "expected {text:?} in {said:?}");
    };
    check(&["get", "pod", "nobody"], "", "Error from server (NotFound): pods \"nobody\" not found");
    check(&["get", "widgets"], "", "the server doesn't have a resource type \"widgets\"");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: []}\n";
    check(&["create", "-f", "-"], pod, "spec.containers: Required value");
    let unknown = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndatta: {}\n";
    check(&["create", "-f", "-"], unknown, "unknown field \"datta\"");
    ns.run(&["create", "configmap", "twice"]);
    check(&["create", "configmap", "twice"], "", "configmaps \"twice\" already exists");
}
