//! Command lines that need a terminal: what both programs show, what is typed, and how they end.
//! The terminal must be left as it was found.

use std::{
    io::{Read, Write},
    os::fd::AsFd,
    process::{Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use e2e::{BUSYBOX, Kubectl};
use nix::{
    pty::{Winsize, openpty},
    sys::termios::{LocalFlags, tcgetattr},
};

use super::{Pair, ended};

/// How long a program may take to show what is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// A line, and what is typed once what stands before it was shown.
type Dialog = (&'static str, &'static [(&'static str, &'static str)]);

const INTERRUPT: &str = "\u{3}";

const DIALOGS: &[Dialog] = &[
    ("exec -it talker -- sh", &[("# ", "echo $((40 + 2))\n"), ("42", ""), ("# ", "exit 7\n")]),
    ("exec -it talker -c nope -- sh", &[]),
    ("exec -t talker -- echo seen", &[]),
    ("attach -it talker", &[("", "\n"), ("# ", "echo $((40 + 2))\n"), ("42", ""), ("# ", "exit\n")]),
    ("delete cm conf --interactive", &[("y/n", "n\n")]),
    ("delete cm conf --interactive", &[("y/n", "y\n")]),
    ("get cm -w -l team=nobody --request-timeout=1s", &[]),
    ("get svc front -w -o name", &[("front", INTERRUPT)]),
    ("logs -f speaker", &[("spoken", INTERRUPT)]),
    ("wait --for=condition=Never pod/speaker", &[("", INTERRUPT)]),
    ("port-forward pod/speaker 0:80", &[("Forwarding from [::1]", INTERRUPT)]),
    ("proxy --port=0", &[("Starting to serve", INTERRUPT)]),
    ("rollout status deploy/waits", &[("Waiting", INTERRUPT)]),
];

fn pods() -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: talker}}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Always
  containers: [{{name: c, image: {BUSYBOX}, command: [sh], stdin: true, tty: true}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: speaker}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{{name: c, image: {BUSYBOX}, command: [sh, -c, 'echo spoken; sleep 3600']}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: waits}}
spec:
  selector: {{matchLabels: {{app: waits}}}}
  template:
    metadata: {{labels: {{app: waits}}}}
    spec: {{schedulerName: nobody, containers: [{{name: c, image: {BUSYBOX}}}]}}
"
    )
}

/// Holds a dialog; everything shown, how the program ended, and whether the terminal echoes again.
fn hold(kubectl: &Kubectl, words: &[&str], dialog: &[(&str, &str)]) -> String {
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(&size, None).expect("a pseudo-terminal");
    let inner = kubectl.command(words);
    // A session of its own, so that what is typed can interrupt it.
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait"]).arg(inner.get_program()).args(inner.get_args()).env("TERM", "xterm");
    let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
    command.stdin(end()).stdout(end()).stderr(end());
    let mut child = command.spawn().expect("setsid runs");
    drop(command);
    let (sender, receiver) = mpsc::sync_channel::<Vec<u8>>(64);
    let mut reader = std::fs::File::from(pty.master.try_clone().expect("a descriptor"));
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count) = reader.read(&mut bytes) {
            if count == 0 || sender.send(bytes[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut writer = std::fs::File::from(pty.master);
    let (mut shown, mut seen) = (String::new(), 0);
    let failed = |shown: &str, what: &str| -> ! { panic!("kubectl {}: no {what:?} in:\n{shown}", words.join(" ")) };
    for (expected, typed) in dialog {
        while !shown[seen..].contains(expected) {
            match receiver.recv_timeout(PATIENCE) {
                Ok(bytes) => shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => failed(&shown, expected),
            }
        }
        seen += shown[seen..].find(expected).unwrap_or(0) + expected.len();
        writer.write_all(typed.as_bytes()).expect("the terminal takes it");
    }
    let status = child.wait().expect("an end");
    let echoes = tcgetattr(pty.slave.as_fd()).is_ok_and(|t| t.local_flags.contains(LocalFlags::ECHO));
    drop(pty.slave);
    while let Ok(bytes) = receiver.recv_timeout(Duration::from_secs(1)) {
        shown.push_str(&String::from_utf8_lossy(&bytes));
    }
    format!("{} echo {echoes}\n{}", ended(status), shown.replace('\r', ""))
}

#[test]
fn dialogs_are_those_of_stock_kubectl() {
    let pair = Pair::new();
    for namespace in [&pair.ours, &pair.stocks] {
        namespace.apply(&pods());
        namespace.run(&["wait", "--for=condition=Ready", "pod/talker", "pod/speaker", "--timeout=180s"]);
    }
    let mut different = Vec::new();
    for (line, dialog) in DIALOGS {
        let words = pair.words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let [found, wanted] = pair.programs().map(|(program, namespace)| {
            let text = hold(&program, &words, dialog);
            let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
            format!("{first}\n{}", ports(&pair.same(rest, namespace)))
        });
        if found != wanted {
            different.push(format!("== kubectl {line}\n-- ours\n{found}-- stock\n{wanted}"));
        }
    }
    assert!(different.is_empty(), "{} dialogs differ\n{}", different.len(), different.join("\n"));
}

/// Ports that the system chose are not those it chose for the other.
fn ports(text: &str) -> String {
    let chosen = |word: &str| match word.rsplit_once(':') {
        Some((host, port)) if port.len() == 5 && port.bytes().all(|b| b.is_ascii_digit()) => format!("{host}:PORT"),
        _ => word.to_string(),
    };
    let line = |line: &str| line.split(' ').map(chosen).collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(line).collect()
}
