//! Nobody gets in who shouldn't.

use std::process::Command;

use e2e::{Cluster, eventually};

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

/// kubectl finds the token, the CA and the address of the API by itself when it runs in a pod.
#[test]
fn a_pod_calls_the_api_with_its_token() {
    let ns = kubectl().namespace("tokens");
    let clients = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients");
    let clients = clients.canonicalize().expect("target/clients is missing: tools/kubectl brings it");
    let program = clients.join("kubectl-1.35");
    assert!(program.exists(), "{} is missing: tools/kubectl brings it", program.display());
    let manifest = format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: caller}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: caller
    image: {image}
    command: [sleep, "3600"]
    volumeMounts: [{{name: clients, mountPath: /clients}}, {{name: vault, mountPath: /vault}}]
  volumes:
  - {{name: clients, hostPath: {{path: {}}}}}
  - name: vault
    projected: {{sources: [{{serviceAccountToken: {{audience: vault, path: token, expirationSeconds: 600}}}}]}}
"#,
        clients.display(),
        image = e2e::BUSYBOX
    );
    ns.apply(&manifest);
    ns.run(&["wait", "--for=condition=Ready", "pod/caller", "--timeout=180s"]);
    let inside = "/var/run/secrets/kubernetes.io/serviceaccount";
    for file in ["token", "ca.crt", "namespace"] {
        let held = ns.run(&["exec", "caller", "--", "cat", &format!("{inside}/{file}")]);
        assert!(!held.trim().is_empty(), "{file} is empty");
    }
    let call = |arguments: &[&str]| {
        let mut whole = vec!["exec", "caller", "--", "env", "HOME=/tmp", "/clients/kubectl-1.35"];
        whole.extend(arguments);
        ns.try_run(&whole, "")
    };
    let who = call(&["auth", "whoami"]);
    assert!(who.ok && who.stdout.contains(":default") && who.stdout.contains("system:serviceaccount:"), "{who:?}");
    assert!(who.stdout.contains("authentication.kubernetes.io/pod-name"), "{who:?}");
    let refused = call(&["get", "pods"]);
    assert!(!refused.ok && refused.stderr.contains("cannot list resource \"pods\""), "{refused:?}");
    let account = ns.run(&["get", "pod", "caller", "-o", "jsonpath={.metadata.namespace}"]);
    ns.run(&[
        "create",
        "rolebinding",
        "view",
        "--clusterrole=view",
        &format!("--serviceaccount={}:default", account.trim()),
    ]);
    eventually("the role is bound", || {
        let allowed = call(&["get", "pods"]);
        if allowed.ok && allowed.stdout.contains("caller") { Ok(()) } else { Err(allowed) }
    });
    // A token for someone else is not good here.
    let vault = ns.run(&["exec", "caller", "--", "cat", "/vault/token"]);
    let other = call(&["get", "pods", "--token", vault.trim()]);
    assert!(!other.ok && other.stderr.contains("Unauthorized"), "{other:?}");
}
