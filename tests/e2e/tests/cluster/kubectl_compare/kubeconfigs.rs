//! `kubectl config` of ours against stock kubectl 1.35: each changes a file of its own, and both read it alike.
//! No server is asked.

use std::path::Path;

use e2e::{Kubectl, minke};

use super::{run, stock};

/// In this order: each changes what the next ones see.
const LINES: &[&str] = &[
    "config view",
    "config view -o json",
    "config view -o kyaml",
    "config view -o name",
    "config view --raw -o json",
    "config view --flatten",
    "config view --minify",
    "config view --minify --context=two -o json",
    "config view -o jsonpath={.users[*].name}",
    "config get-contexts two",
    "config get-contexts nope",
    "config get-contexts -o name",
    "config get-contexts --no-headers",
    "config set-cluster other --server=https://x.test --insecure-skip-tls-verify",
    "config set-cluster other --tls-server-name=n --proxy-url=http://p:1",
    "config set-cluster other --certificate-authority=nope --embed-certs",
    "config set-credentials third --token=t",
    "config set-credentials third --username=a --password=b",
    "config set-credentials third --token=t --username=a",
    "config set-credentials fourth --exec-command=foo --exec-arg=a,b --exec-env=A=B --exec-api-version=client.authentication.k8s.io/v1",
    "config set-credentials fourth --exec-env=A-",
    "config set-credentials fifth --auth-provider=oidc --auth-provider-arg=client-id=foo",
    "config set-credentials fifth --client-certificate=nope --embed-certs",
    "config set-context three --cluster=c1 --user=first --namespace=n",
    "config set-context --current --namespace=other",
    "config set-context",
    "config set-context three --current",
    "config rename-context three four",
    "config rename-context three four",
    "config rename-context one four",
    "config use-context four",
    "config delete-context four",
    "config delete-context four",
    "config delete-cluster other",
    "config delete-cluster other",
    "config delete-user fifth",
    "config delete-user fifth",
    "config set users.first.token zzz",
    "config set contexts.one.namespace nn",
    "config set clusters.c1.insecure-skip-tls-verify maybe",
    "config set users.first.client-key-data cert --set-raw-bytes=true",
    "config set a.b.c.d e",
    "config unset users.second",
    "config unset users.second",
    "config unset current-context",
    "config unset nope",
    "config view --raw",
    "config view --raw -o json",
];

const FILE: &str = "kind: Config
apiVersion: v1
clusters: [{name: c1, cluster: {server: 'https://127.0.0.1:1', certificate-authority-data: Zm9v}}]
contexts:
- {name: one, context: {cluster: c1, user: first, namespace: n1}}
- {name: two, context: {cluster: c1, user: second}}
users: [{name: first, user: {token: t}}, {name: second, user: {username: a, password: b}}]
current-context: one
";

#[test]
fn kubeconfigs_are_shown_and_changed_as_by_stock_kubectl() {
    let folder = tempfile::tempdir().expect("a directory");
    let link = folder.path().join("kubectl");
    std::os::unix::fs::symlink(std::fs::canonicalize(minke()).expect("minke"), &link).expect("a link");
    let side = |name: &str, program: &Path| {
        let file = folder.path().join(name);
        std::fs::write(&file, FILE).expect("a file");
        (Kubectl::new(&file).with_program(program), file.display().to_string())
    };
    let (ours, stocks) = (side("ours.yaml", &link), side("stock.yaml", &stock()));
    let mut different = Vec::new();
    for line in LINES {
        let answer =
            |(kubectl, file): &(Kubectl, String)| run(kubectl, line, "", Path::new("")).replace(file, "KUBECONFIG");
        let (found, wanted) = (answer(&ours), answer(&stocks));
        if found != wanted {
            different.push(format!("== kubectl {line}\n-- ours\n{found}-- stock\n{wanted}"));
        }
    }
    assert!(different.is_empty(), "{} of {} lines differ\n{}", different.len(), LINES.len(), different.join("\n"));
}
