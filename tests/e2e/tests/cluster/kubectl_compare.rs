//! Our kubectl against stock kubectl 1.35: the same command lines on the same cluster, output and exit code compared.
//! Ages, times and identities are made equal first; everything else must be.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use e2e::{Kubectl, minke};

use crate::kubectl;

/// Each program runs them in a namespace of its own, so a line may change what later ones look at.
const LINES: &[&str] = &[
    "get pods",
    "get deploy",
    "get nodes",
    "get nodes -o wide",
    "get cm",
    "get cm conf",
    "get cm conf -o yaml",
    "get cm conf -o json",
    "get cm conf -o kyaml",
    "get cm conf -o name",
    "get cm conf -o jsonpath={.data}",
    "get cm conf -o jsonpath={.data.absent}",
    "get cm conf -o go-template={{.metadata.name}}",
    "get cm conf -o custom-columns=N:.metadata.name,V:.data.a",
    "get cm conf -o bogus",
    "get cm conf --show-labels",
    "get cm conf -L team",
    "get cm --no-headers",
    "get cm --sort-by=.metadata.name",
    "get cm --sort-by=.metadata.creationTimestamp",
    "get cm -l team=blue",
    "get cm -l team=green",
    "get cm --field-selector=metadata.name=conf",
    "get cm,svc",
    "get cm/conf svc/front",
    "get cm conf nope",
    "get cm nope --ignore-not-found",
    "get svc front -o yaml",
    "get svc -o wide",
    "get ns default -o name",
    "get foo",
    "get foo.example.com",
    "get deploy.v1.apps",
    "get deployments.apps web",
    "get deploy web -o jsonpath={.spec.replicas}",
    "get all",
    "get",
    "get --nope",
    "get cm -x",
    "get --raw /healthz",
    "get --raw /nope",
    "get pods nope",
    "get pods a/b c",
    "describe cm conf",
    "describe svc front",
    "describe cm nope",
    "api-versions",
    "api-resources",
    "api-resources -o wide",
    "api-resources -o name --namespaced=false",
    "api-resources --sort-by=nope",
    "auth can-i get pods",
    "auth can-i get pods --as=nobody",
    "auth whoami",
    "version -o nope",
    "cluster-info",
    "apply -f FILE --dry-run=client",
    "apply -f FILE --dry-run=server",
    "apply -f FILE",
    "apply -f nope.yaml",
    "apply",
    "apply view-last-applied cm conf",
    "create -f FILE",
    "create -f FILE --dry-run=client -o name",
    "create configmap x --from-literal=a=b --dry-run=client -o yaml",
    "create configmap conf --from-literal=a=b",
    "create configmap",
    "create deployment d --image=nginx --dry-run=client -o yaml",
    "create deployment d",
    "create role r --verb=get --resource=pods --dry-run=client -o yaml",
    "create rolebinding r --role=r --user=u --dry-run=client -o yaml",
    "create job j --image=busybox --dry-run=client -o yaml",
    "create service nodeport s --tcp=80:8080 --dry-run=client -o yaml",
    "create token nope",
    "run p --image=nginx --dry-run=client -o yaml",
    "run p",
    "expose deploy web --port=80 --dry-run=client -o yaml",
    "autoscale deploy web --max=3 --dry-run=client",
    "set image deploy/web c=example.test/other --dry-run=server",
    "set env deploy/web --list",
    "set env deploy/web A=b --dry-run=client -o name",
    "set resources deploy web --limits=cpu=1 --dry-run=server",
    "explain configmaps",
    "explain pods.spec.containers.image",
    "explain nope",
    "debug",
    "completion",
    "diff -f FILE",
    "label cm conf team=red",
    "label cm conf team=blue --overwrite",
    "label cm conf team=blue",
    "label cm conf team",
    "label cm conf --list",
    "annotate cm conf note=one --overwrite",
    "annotate cm conf note-",
    "patch cm conf -p {\"data\":{\"a\":\"b\"}}",
    "patch cm conf --type=json -p [{\"op\":\"test\",\"path\":\"/data/a\",\"value\":\"nope\"}]",
    "patch cm conf",
    "patch cm conf -p x --type=bogus",
    "scale deploy web --replicas=0",
    "scale deploy web --replicas=1 --current-replicas=5",
    "scale deploy web",
    "rollout status deploy/web",
    "rollout history deploy/web",
    "rollout pause deploy/web",
    "rollout pause deploy/web",
    "rollout resume deploy/web",
    "rollout resume deploy/web",
    "rollout status cm/conf",
    "wait --for=jsonpath={.data.a}=b cm/conf",
    "wait --for=condition=Available deploy/web",
    "wait --for=delete cm/nope",
    "wait --for=nonsense cm/conf",
    "delete cm nope",
    "delete cm nope --ignore-not-found",
    "delete cm conf --dry-run=client",
    "delete cm conf --dry-run=server -o name",
    "delete cm",
    "delete cm --all --selector=a=b",
    "logs",
    "logs nope",
    "exec nope -- ls",
    "exec",
    "cordon nope",
    "taint node nope a=b:NoSchedule",
    "config view",
    "config current-context",
    "config get-contexts",
    "config get-clusters",
    "config get-users",
    "config use-context nope",
    "events --for cm/conf",
    "certificate approve",
];

const MANIFEST: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: conf, labels: {team: blue}}
data: {a: b}
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {selector: {app: web}, clusterIP: None, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: example.test/none}]}
";

fn stock() -> PathBuf {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/kubectl-1.35");
    if clients.exists() { clients } else { "kubectl".into() }
}

/// Runs a line; its exit code and everything it printed, with what may differ made equal.
fn run(kubectl: &Kubectl, line: &str, file: &str) -> String {
    let words: Vec<&str> = line.split(' ').map(|word| if word == "FILE" { file } else { word }).collect();
    let output = kubectl.command(&words).stdin(Stdio::null()).output().expect("kubectl runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("exit {:?}\n{}{}", output.status.code(), same(&text(&output.stdout)), same(&text(&output.stderr)))
}

/// Without ages, times, versions of objects, and how far columns stand apart because of them.
fn same(text: &str) -> String {
    let is_age = |word: &str| {
        word.ends_with(['s', 'm', 'h', 'd'])
            && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
            && word.starts_with(|c: char| c.is_ascii_digit())
    };
    let is_time = |word: &str| {
        let word = word.trim_matches(['"', ',', '\'']);
        word.len() >= 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T'
    };
    let is_uid = |word: &str| word.len() >= 36 && word.matches('-').count() == 4 && !word.contains('/');
    let lines = text.lines().filter(|line| !line.contains("memcache.go") && !line.contains("resourceVersion"));
    // The other program's name, and diff's temporary files.
    let lines =
        lines.filter(|line| !line.starts_with("--- ") && !line.starts_with("+++ ") && !line.starts_with("diff "));
    let line = |line: &str| -> String {
        let line = line.replace("kubectl-1.35", "kubectl");
        let words = line
            .split_whitespace()
            .map(|word| if is_age(word) || is_time(word) || is_uid(word) { "AGE" } else { word });
        words.collect::<Vec<_>>().join(" ")
    };
    lines.map(|l| format!("{}\n", line(l))).collect()
}

#[test]
fn command_lines_end_as_with_stock_kubectl() {
    let folder = tempfile::tempdir().expect("a directory");
    let link = folder.path().join("kubectl");
    std::os::unix::fs::symlink(std::fs::canonicalize(minke()).expect("minke"), &link).expect("a link");
    let file = folder.path().join("objects.yaml");
    std::fs::write(&file, MANIFEST).expect("a file");
    let file = file.display().to_string();
    let (ours, stocks) = (kubectl().namespace("ours"), kubectl().namespace("stock"));
    for ns in [&ours, &stocks] {
        ns.run(&["apply", "-f", &file]);
        ns.run(&["rollout", "status", "deploy/web"]);
    }
    let mut different = Vec::new();
    for line in LINES {
        let found = run(&ours.with_program(&link), line, &file).replace(&ours.name, "NS");
        let wanted = run(&stocks.with_program(&stock()), line, &file).replace(&stocks.name, "NS");
        if found != wanted {
            different.push(format!("== kubectl {line}\n-- ours\n{found}-- stock\n{wanted}"));
        }
    }
    assert!(different.is_empty(), "{} of {} lines differ\n{}", different.len(), LINES.len(), different.join("\n"));
}
