//! Our kubectl against stock kubectl 1.35: the same command lines on the same cluster, output and exit code compared.
//! Ages, times and identities are made equal first; everything else must be.

mod documents;
mod kubeconfigs;
mod lines;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use documents::DOCUMENTS;
use e2e::{Kubectl, minke};
use lines::{CHANGES, LINES};

use crate::kubectl;

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

const SHARED_RETRIES: usize = 5;

pub fn stock() -> PathBuf {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/kubectl-1.35");
    assert!(clients.exists(), "stock kubectl is missing: tools/install test");
    clients
}

/// Runs a line; its exit code and everything it printed, with what may differ made equal.
fn run(kubectl: &Kubectl, line: &str, file: &str, folder: &Path) -> String {
    let folder = folder.display().to_string();
    let words: Vec<String> = line.split(' ').map(|word| word.replace("FILE", file).replace("DIR", &folder)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
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
    check(LINES);
}

#[test]
fn changes_end_as_with_stock_kubectl() {
    check(CHANGES);
}

#[track_caller]
fn check(lines: &[&str]) {
    let folder = tempfile::tempdir().expect("a directory");
    let link = folder.path().join("kubectl");
    std::os::unix::fs::symlink(std::fs::canonicalize(minke()).expect("minke"), &link).expect("a link");
    let documents = folder.path().join("documents");
    std::fs::create_dir(&documents).expect("a directory");
    for (name, text) in DOCUMENTS {
        std::fs::write(documents.join(name), text).expect("a file");
    }
    let file = folder.path().join("objects.yaml");
    std::fs::write(&file, MANIFEST).expect("a file");
    let file = file.display().to_string();
    let (ours, stocks) = (kubectl().namespace("ours"), kubectl().namespace("stock"));
    for ns in [&ours, &stocks] {
        ns.run(&["wait", "--for=create", "configmap/kube-root-ca.crt"]);
    }
    // Times of creation have seconds: what the namespaces came with is older than what follows, in both.
    std::thread::sleep(Duration::from_millis(1100));
    for ns in [&ours, &stocks] {
        ns.run(&["apply", "-f", &file]);
        ns.run(&["rollout", "status", "deploy/web"]);
    }
    let mut different = Vec::new();
    for line in lines {
        let both = || {
            let found = run(&ours.with_program(&link), line, &file, &documents).replace(&ours.name, "NS");
            (found, run(&stocks.with_program(&stock()), line, &file, &documents).replace(&stocks.name, "NS"))
        };
        let (mut found, mut wanted) = both();
        // What belongs to the whole cluster may have changed from one to the other: other tests run beside this one.
        for _ in 0..SHARED_RETRIES {
            if found == wanted || !["get nodes", "api-"].iter().any(|shared| line.starts_with(shared)) {
                break;
            }
            (found, wanted) = both();
        }
        if found != wanted {
            different.push(format!("== kubectl {line}\n-- ours\n{found}-- stock\n{wanted}"));
        }
    }
    assert!(different.is_empty(), "{} of {} lines differ\n{}", different.len(), lines.len(), different.join("\n"));
}
