//! Stock kubectl, run as a user would.
//! Used by every test.
//! Never looks at minke's own state; what kubectl shows is what counts.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use serde_json::Value;

#[derive(Debug, Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    program: PathBuf,
    namespace: Option<String>,
}

#[derive(Debug)]
pub struct Output {
    pub ok: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Kubectl {
    pub fn new(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_path_buf(), program: "kubectl".into(), namespace: None }
    }

    /// Another kubectl than the one on PATH.
    pub fn with_program(&self, program: &Path) -> Self {
        Self { program: program.to_path_buf(), ..self.clone() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        command.args(arguments);
        command
    }

    /// Runs it, whatever comes of it.
    pub fn try_run(&self, arguments: &[&str], input: &str) -> Output {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl is missing: apt-get install kubernetes-client");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("kubectl reads its input");
        let output = child.wait_with_output().expect("kubectl ends");
        Output {
            ok: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs it and expects success; returns what it printed.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        self.run_with(arguments, "")
    }

    #[track_caller]
    pub fn run_with(&self, arguments: &[&str], input: &str) -> String {
        let output = self.try_run(arguments, input);
        assert!(output.ok, "kubectl {} failed:\n{}{}", arguments.join(" "), output.stdout, output.stderr);
        output.stdout
    }

    /// Runs it and expects a refusal; returns what it said.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str], input: &str) -> String {
        let output = self.try_run(arguments, input);
        assert!(!output.ok, "kubectl {} succeeded:\n{}", arguments.join(" "), output.stdout);
        output.stderr
    }

    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        self.run_with(&["apply", "-f", "-"], manifest)
    }

    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = self.run(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("not JSON ({e}): {text}"))
    }

    /// Started and left running, with its output piped.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl is missing: apt-get install kubernetes-client")
    }

    /// A fresh namespace, removed when the test ends.
    pub fn namespace(&self, name: &str) -> Namespace {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.run(&["create", "namespace", &name]);
        let kubectl = Self { namespace: Some(name.clone()), ..self.clone() };
        kubectl.has_account();
        Namespace { kubectl, name }
    }

    /// Waits for the account that pods run as: a controller makes it, and without it none is accepted.
    pub fn has_account(&self) {
        eventually("a default ServiceAccount", || {
            let found = self.try_run(&["get", "serviceaccount", "default"], "");
            if found.ok { Ok(()) } else { Err(found) }
        });
    }
}

/// Dereferences to a kubectl that works in the namespace.
pub struct Namespace {
    kubectl: Kubectl,
    pub name: String,
}

impl std::ops::Deref for Namespace {
    type Target = Kubectl;
    fn deref(&self) -> &Kubectl {
        &self.kubectl
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.kubectl.try_run(&["delete", "namespace", &self.name, "--wait=false"], "");
    }
}

/// Tries until it gives something, for what has no event to wait for. Panics with the last state after three minutes,
/// however long one attempt takes: a slow machine with other work is no reason to fail.
#[track_caller]
pub fn eventually<T, S: std::fmt::Debug>(what: &str, mut attempt: impl FnMut() -> Result<T, S>) -> T {
    let (late, patience) = (Arc::new(AtomicBool::new(false)), Duration::from_secs(180));
    let timer = late.clone();
    std::thread::spawn(move || {
        std::thread::sleep(patience);
        timer.store(true, Ordering::Relaxed);
    });
    let mut last = None;
    while !late.load(Ordering::Relaxed) {
        match attempt() {
            Ok(value) => return value,
            Err(state) => last = Some(state),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{what} did not happen within three minutes; last seen: {last:?}")
}
