//! Stock kubectl of several versions over TLS: those `tools/kubectl` brought, or the one on the PATH.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    listening::{Listening, start},
    minimal,
};

/// The programs to try, oldest first.
fn programs() -> Vec<PathBuf> {
    let clients = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/clients");
    let found = std::fs::read_dir(clients).into_iter().flatten().flatten().map(|e| e.path());
    let named = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("kubectl-1."));
    let mut found: Vec<_> = found.filter(named).collect();
    found.sort();
    if found.is_empty() {
        let on_path = PathBuf::from("kubectl");
        match Command::new(&on_path).arg("help").output() {
            Ok(_) => found.push(on_path),
            Err(_) => println!("skipped: kubectl is not installed; tools/kubectl brings it"),
        }
    }
    found
}

pub struct Kubectl {
    pub program: PathBuf,
    pub server: Arc<Listening>,
}

impl Kubectl {
    /// Not yet started, as an administrator or whoever the token is for.
    pub fn prepare(&self, arguments: &[&str], token: Option<&str>) -> Command {
        let path = |name: &str| self.server.path(name).display().to_string();
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("KUBECONFIG", path("none"))
            .env("HOME", self.server.path("home"))
            .arg(format!("--server={}", self.server.url()))
            .arg(format!("--certificate-authority={}", path("ca.pem")));
        match token {
            Some(token) => command.arg(format!("--token={token}")),
            None => command
                .arg(format!("--client-certificate={}", path("admin.pem")))
                .arg(format!("--client-key={}", path("admin-key.pem"))),
        };
        command
    }

    pub fn command(&self, arguments: &[&str], input: &str, token: Option<&str>) -> (bool, String) {
        let mut child = self
            .prepare(arguments, token)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    #[track_caller]
    pub fn ok(&self, arguments: &str, input: &str, expected: &str) -> String {
        let words: Vec<_> = arguments.split_whitespace().collect();
        let (ok, text) = self.command(&words, input, None);
        assert!(ok && text.contains(expected), "{} {arguments}: {text}", self.program.display());
        text
    }

    #[track_caller]
    pub fn refused(&self, arguments: &str, input: &str, expected: &str) {
        let words: Vec<_> = arguments.split_whitespace().collect();
        let (ok, text) = self.command(&words, input, None);
        assert!(!ok && text.contains(expected), "{} {arguments}: {text}", self.program.display());
    }
}

/// Runs `steps` with every kubectl there is, each against a server of its own.
pub async fn with_every_kubectl(steps: fn(&Kubectl)) {
    for program in programs() {
        let kubectl = Kubectl { program, server: Arc::new(start().await) };
        env::spawn_blocking(move || steps(&kubectl)).await.unwrap();
    }
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_unchanged() {
    with_every_kubectl(|kubectl| {
        let steps: [(&str, &str, &str); 14] = [
            ("apply -f -", DEPLOYMENT, "deployment.apps/web created"),
            ("apply -f -", DEPLOYMENT, "deployment.apps/web unchanged"),
            ("get deploy", "", "0/3"),
            ("apply --server-side --force-conflicts -f -", DEPLOYMENT, "serverside-applied"),
            ("scale deploy web --replicas=5", "", "scaled"),
            ("get deploy web -o jsonpath={.spec.replicas}", "", "5"),
            ("patch deploy web -p {\"spec\":{\"paused\":true}}", "", "patched"),
            ("label deploy web a=b", "", "labeled"),
            ("get deploy -l a=b -o name", "", "deployment.apps/web"),
            ("explain deployment.spec.replicas", "", "FIELD: replicas <integer>"),
            ("api-resources --no-headers", "", "configmaps"),
            ("describe deploy web", "", "Replicas:"),
            ("auth can-i create pods", "", "yes"),
            ("delete deploy web", "", "\"web\" deleted"),
        ];
        for (arguments, input, expected) in steps {
            kubectl.ok(arguments, input, expected);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_asks_who_may_do_what() {
    with_every_kubectl(|kubectl| {
        kubectl.ok("auth whoami", "", "system:masters");
        kubectl.ok("auth can-i --list", "", "*.*");
        kubectl.ok("create serviceaccount robot", "", "created");
        let token = kubectl.ok("create token robot --duration=10m", "", "ey");
        let as_robot = |arguments: &[&str]| kubectl.command(arguments, "", Some(token.trim()));
        let (ok, text) = as_robot(&["auth", "whoami"]);
        assert!(ok && text.contains("system:serviceaccount:default:robot"), "{text}");
        let (ok, text) = as_robot(&["get", "pods"]);
        let expected = "User \"system:serviceaccount:default:robot\" cannot list resource \"pods\"";
        assert!(!ok && text.contains(expected), "{text}");
        let (ok, text) = as_robot(&["auth", "can-i", "list", "pods"]);
        assert!(!ok && text.starts_with("no"), "{text}");
        kubectl.ok("create rolebinding r --clusterrole=view --serviceaccount=default:robot", "", "created");
        // Decisions may be a moment behind; a read is not, and they are no further behind than it.
        kubectl.ok("get rolebinding r", "", "ClusterRole/view");
        let (ok, text) = as_robot(&["auth", "can-i", "list", "pods"]);
        assert!(ok && text.starts_with("yes"), "{text}");
        let (ok, text) = as_robot(&["auth", "can-i", "--list"]);
        assert!(ok && text.contains("deployments.apps") && !text.contains("secrets"), "{text}");
        let (ok, text) = as_robot(&["get", "pods"]);
        assert!(ok && text.contains("No resources found"), "{text}");
        let (ok, text) = kubectl.command(&["get", "pods"], "", Some("ey.wrong.token"));
        assert!(!ok && text.contains("Unauthorized"), "{text}");
        kubectl.ok("auth can-i create pods --as=eve --as-group=system:masters", "", "yes");
        let words = ["auth", "can-i", "create", "pods", "--as=eve"];
        assert!(!kubectl.command(&words, "", None).0);
    })
    .await;
}

/// The one pair of client and kind that does not fit: this kubectl describes the kind by its beta version alone, which
/// upstream 1.35 serves only when told to.
const DESCRIBED_IN_BETA: (&str, &str) = ("kubectl-1.33", "VolumeAttributesClass");

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_handles_every_kind() {
    with_every_kubectl(|kubectl| {
        let objects = minimal::all(1);
        let list = |objects: &[Value]| json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
        let whole = list(&objects);
        let count = |text: &str, word: &str| text.lines().filter(|l| l.contains(word)).count();
        let made = kubectl.ok("create -f -", &whole, "created");
        assert_eq!(count(&made, "created"), objects.len(), "{made}");
        let found = kubectl.ok("get -f - -o name", &whole, "every-");
        assert_eq!(found.lines().filter(|l| !l.starts_with("Warning")).count(), objects.len(), "{found}");
        kubectl.ok("get -f - -o wide", &whole, "every-");
        let labeled = kubectl.ok("label -f - more=labels", &whole, "labeled");
        assert_eq!(count(&labeled, "labeled"), objects.len(), "{labeled}");
        let applied = kubectl.ok("apply --server-side --force-conflicts -f -", &whole, "serverside-applied");
        assert_eq!(count(&applied, "serverside-applied"), objects.len(), "{applied}");
        let applied = kubectl.ok("apply -f -", &whole, "every-");
        assert_eq!(count(&applied, "configured") + count(&applied, "unchanged"), objects.len(), "{applied}");
        let (client, kind) = DESCRIBED_IN_BETA;
        let is_client = kubectl.program.ends_with(client);
        let known: Vec<Value> = objects.iter().filter(|o| !is_client || o["kind"] != kind).cloned().collect();
        let described = kubectl.ok("describe -f -", &list(&known), "Name:");
        assert!(count(&described, "Name:") >= known.len(), "{described}");
        let gone = kubectl.ok("delete -f - --wait=false --force --grace-period=0", &whole, "deleted");
        assert_eq!(count(&gone, "deleted"), objects.len(), "{gone}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_is_explained_to_the_last_field() {
    let Some(program) = programs().pop() else { return };
    let kubectl = Kubectl { program, server: Arc::new(start().await) };
    env::spawn_blocking(move || {
        let names = kubectl.ok("api-resources -o name --api-group=", "", "pods");
        let named = names.lines().map(str::to_string);
        for resource in named.chain(["deployments.apps".into(), "resourceclaims.resource.k8s.io".into()]) {
            let text = kubectl.ok(&format!("explain --recursive {resource}"), "", "FIELDS:");
            assert!(text.contains("metadata\t<ObjectMeta>"), "{resource}: {text}");
        }
    })
    .await
    .unwrap();
}
