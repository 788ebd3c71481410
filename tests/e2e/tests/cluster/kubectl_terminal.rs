//! Our kubectl under a pseudo-terminal: what keys and signals do, and how the terminal is left.
//! How a command ends at Ctrl-C is compared with stock kubectl 1.35.

use std::{
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
};

use e2e::{BUSYBOX, Kubectl, Namespace, Terminal, minke};

use crate::{kubectl, kubectl_compare::stock};

const CTRL_C: &str = "\x03";

struct Ours {
    ns: Namespace,
    folder: tempfile::TempDir,
}

impl Ours {
    /// A namespace with a pod `box` that has a shell.
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let link = folder.path().join("kubectl");
        std::os::unix::fs::symlink(std::fs::canonicalize(minke()).expect("minke"), link).expect("a link");
        let ns = kubectl().namespace(name);
        ns.run(&["run", "box", "--image", BUSYBOX, "--restart=Never", "--", "sh", "-c", "echo begun; sleep 100000"]);
        ns.run(&["wait", "--for=condition=Ready", "pod/box", "--timeout=180s"]);
        Self { ns, folder }
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("kubectl")
    }

    fn start(&self, arguments: &[&str]) -> Terminal {
        self.with(&self.program(), arguments)
    }

    fn with(&self, program: &Path, arguments: &[&str]) -> Terminal {
        let kubectl: Kubectl = self.ns.with_program(program);
        Terminal::start(&kubectl.command(arguments))
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
        path.display().to_string()
    }
}

#[test]
fn a_shell_has_the_terminal_and_gives_it_back() {
    let ours = Ours::new("shell");
    let mut shell = ours.start(&["exec", "-it", "box", "--", "sh"]);
    shell.becomes_raw();
    shell.press("stty size; echo sum-$((40+2))\r");
    shell.shows("30 100");
    shell.shows("sum-42");
    // Ctrl-C is for what runs in the container.
    shell.press("sleep 100000; echo interrupted-$?\r");
    shell.shows("sleep 100000;");
    shell.press(CTRL_C);
    shell.press("echo still-$((1+1))\r");
    shell.shows("still-2");
    shell.press("exit 7\r");
    assert_eq!(shell.end().code(), Some(7), "{}", shell.text());
    assert!(shell.is_cooked(), "{}", shell.text());
}

#[test]
fn a_session_that_a_signal_ends_gives_the_terminal_back() {
    let ours = Ours::new("signalled");
    let overrides = format!(
        r#"{{"spec":{{"terminationGracePeriodSeconds":1,"containers":[{{"name":"p","image":"{BUSYBOX}","command":["sh"],"stdin":true,"tty":true}}]}}}}"#
    );
    ours.ns.run(&["run", "p", "--image", BUSYBOX, "--overrides", &overrides]);
    ours.ns.run(&["wait", "--for=condition=Ready", "pod/p", "--timeout=180s"]);
    let new = ["run", "made", "-it", "--image", BUSYBOX, "--restart=Never", "--", "sh"];
    for line in [&["exec", "-it", "box", "--", "sh"][..], &["attach", "-it", "p"], &new] {
        let mut session = ours.start(line);
        session.becomes_raw();
        session.press("echo here-$((1+2))\r");
        session.shows("here-3");
        let process = nix::unistd::Pid::from_raw(session.id() as i32);
        nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM).expect("it runs");
        let ended = session.end();
        assert_eq!((ended.code(), session.is_cooked()), (Some(1), true), "{line:?}\n{}", session.text());
    }
}

#[test]
fn an_editor_that_ends_badly_leaves_the_terminal_as_it_was() {
    let ours = Ours::new("edited");
    ours.ns.run(&["create", "configmap", "conf", "--from-literal=a=b"]);
    let editor = ours.script("editor", "#!/bin/sh\nstty raw -echo\nexit 9\n");
    let kubectl = ours.ns.with_program(&ours.program());
    let mut command = kubectl.command(&["edit", "configmap/conf"]);
    let mut session = Terminal::start(command.env("KUBE_EDITOR", editor));
    assert_eq!(session.end().code(), Some(1));
    session.shows("there was a problem with the editor");
    assert!(session.is_cooked(), "{}", session.text());
}

#[test]
fn the_live_view_leaves_the_screen_at_ctrl_c() {
    let ours = Ours::new("live");
    let (enter, leave) = ("\x1b[?1049h", "\x1b[?1049l");
    for signal in [None, Some(nix::sys::signal::Signal::SIGTERM)] {
        let mut view = ours.start(&["live-top"]);
        view.shows(enter);
        view.shows("NODE");
        match signal {
            None => view.press(CTRL_C),
            Some(signal) => {
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(view.id() as i32), signal).expect("it runs");
            }
        }
        let code = view.end().code();
        assert_eq!(code, Some(i32::from(signal.is_some())), "{}", view.text());
        view.shows(leave);
        assert!(view.is_cooked());
    }
}

/// Lines that go on until they are interrupted, and what they print when they have begun to wait.
const WAITING: &[(&str, &str)] = &[
    ("get configmaps -w -v=6", "watch=true"),
    ("events -w -v=6", "watch=true"),
    ("wait pod/box --for=condition=Never --timeout=10m -v=6", "watch=true"),
    ("rollout status deploy/none -v=6", "watch=true"),
    ("delete configmap held -v=6", "watch=true"),
    ("logs -f box", "begun"),
    ("exec -i box -- sh -c 'echo begun; cat'", "begun"),
    ("attach box", "If you don't see a command prompt"),
    ("port-forward box :80", "Forwarding from"),
    ("proxy --port=0", "Starting to serve"),
];

#[test]
fn ctrl_c_ends_a_command_as_it_ends_kubectl() {
    let ours = Ours::new("interrupted");
    ours.ns.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: held, finalizers: [example.test/held]}}\n---\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: none}}\nspec:\n  replicas: 1\n  \
         selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    \
         spec: {{containers: [{{name: c, image: {BUSYBOX}, command: [sleep, '100000'], \
         readinessProbe: {{exec: {{command: ['false']}}}}}}]}}\n"
    ));
    let mut different = Vec::new();
    for (line, begun) in WAITING {
        let words: Vec<&str> = match line.split_once(" -- ") {
            Some((before, command)) => {
                let script = command.trim_start_matches("sh -c ").trim_matches('\'');
                before.split(' ').chain(["--", "sh", "-c", script]).collect()
            }
            None => line.split(' ').collect(),
        };
        let ended = |program: &Path| {
            let mut session = ours.with(program, &words);
            session.shows(begun);
            session.press(CTRL_C);
            let ended = session.end();
            (ended.code(), ended.signal(), session.is_cooked())
        };
        let (found, wanted) = (ended(&ours.program()), ended(&stock()));
        if found != wanted {
            different.push(format!("kubectl {line}: ours {found:?}, stock {wanted:?}"));
        }
    }
    ours.ns.run(&["patch", "configmap", "held", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#]);
    assert!(different.is_empty(), "{}", different.join("\n"));
}
