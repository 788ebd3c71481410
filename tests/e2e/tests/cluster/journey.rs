//! One Pod all the way, as a user of stock kubectl sees it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::Command,
};

use e2e::eventually;

use crate::{kubectl, web};

#[test]
fn a_deployment_from_apply_to_delete() {
    let ns = kubectl().namespace("journey");
    let applied = ns.apply(&web("web", 2));
    assert!(applied.contains("deployment.apps/web created"), "{applied}");
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);

    let pods = ns.run(&["get", "pods", "-o", "wide"]);
    let header = pods.lines().next().unwrap_or_default();
    let columns: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(&columns[..7], ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"], "{pods}");
    for line in pods.lines().skip(1) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(&cells[1..4], ["1/1", "Running", "0"], "{pods}");
        assert!(cells[5].starts_with("10.18."), "{pods}");
        assert_eq!(cells[6], "e2e", "{pods}");
    }
    let name = pods.lines().nth(1).and_then(|l| l.split_whitespace().next()).expect("a pod").to_string();

    eventually("every event is told", || {
        let described = ns.run(&["describe", "pod", &name]);
        let told = ["Scheduled", "Pulled", "Created", "Started"].iter().all(|reason| described.contains(reason));
        if told { Ok(()) } else { Err(described) }
    });
    assert_eq!(ns.run(&["exec", &name, "--", "hostname"]).trim(), name);
    assert_eq!(ns.run_with(&["exec", "-i", &name, "--", "cat"], "through stdin\n"), "through stdin\n");
    let failed = ns.refused(&["exec", &name, "--", "sh", "-c", "exit 7"], "");
    assert!(failed.contains("exit code 7"), "{failed}");

    ns.run(&["scale", "deployment/web", "--replicas=3"]);
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    assert_eq!(ns.json(&["get", "deployment", "web"])["status"]["readyReplicas"], 3);

    ns.run(&["set", "env", "deployment/web", "VERSION=2"]);
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    let sets = ns.json(&["get", "replicasets", "-l", "app=web"]);
    assert_eq!(sets["items"].as_array().map(Vec::len), Some(2), "{sets}");

    ns.run(&["delete", "deployment/web", "service/web", "--timeout=180s"]);
    eventually("the pods are gone", || {
        let left = ns.run(&["get", "pods", "-o", "name"]);
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    });
}

#[test]
fn logs_follow_what_the_container_says() {
    let ns = kubectl().namespace("logs");
    let command = r#"["sh","-c","i=0; while true; do echo line-$i; i=$((i+1)); sleep 0.2; done"]"#;
    ns.run(&["run", "talker", "--image", e2e::BUSYBOX, "--restart=Never", "--overrides",
        &format!(r#"{{"apiVersion":"v1","spec":{{"terminationGracePeriodSeconds":0,"containers":[{{"name":"talker","image":"{}","command":{command}}}]}}}}"#, e2e::BUSYBOX)]);
    ns.run(&["wait", "--for=condition=Ready", "pod/talker", "--timeout=180s"]);
    let mut follow = ns.spawn(&["logs", "-f", "talker"]);
    let lines = BufReader::new(follow.stdout.take().expect("piped")).lines();
    let seen: Vec<String> = lines.take(5).map(|l| l.expect("a line")).collect();
    follow.kill().expect("kubectl runs");
    follow.wait().expect("kubectl ends");
    assert_eq!(seen, ["line-0", "line-1", "line-2", "line-3", "line-4"]);
    let tail = ns.run(&["logs", "talker", "--tail=1", "--timestamps"]);
    assert!(tail.contains("T") && tail.contains("line-"), "{tail}");
    assert!(ns.refused(&["logs", "talker", "-c", "nobody"], "").contains("nobody"));
}

#[test]
fn exec_with_a_terminal() {
    let ns = kubectl().namespace("tty");
    ns.run(&["run", "shell", "--image", e2e::BUSYBOX, "--restart=Never", "--", "sleep", "1000"]);
    ns.run(&["wait", "--for=condition=Ready", "pod/shell", "--timeout=180s"]);
    let inner = ns.command(&["exec", "-it", "shell", "--", "sh", "-c", "test -t 0 && echo a terminal"]);
    let words: Vec<String> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|w| format!("'{}'", w.to_string_lossy()))
        .collect();
    let output = Command::new("script").args(["-qec", &words.join(" "), "/dev/null"]).output().expect("script runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("a terminal"), "{text}");
    ns.run(&["delete", "pod", "shell", "--grace-period=0", "--force"]);
}

#[test]
fn port_forward_reaches_the_container() {
    let ns = kubectl().namespace("forward");
    ns.apply(&web("web", 1));
    ns.run(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    let mut forward = ns.spawn(&["port-forward", "deployment/web", ":8080"]);
    let mut lines = BufReader::new(forward.stdout.take().expect("piped")).lines();
    let line = lines.next().expect("kubectl says where it listens").expect("a line");
    let port: u16 =
        line.split("127.0.0.1:").nth(1).and_then(|r| r.split(' ').next()).and_then(|p| p.parse().ok()).expect("a port");
    for _ in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("kubectl listens");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains("200 OK") && answer.contains("web-"), "{answer}");
    }
    forward.kill().expect("kubectl runs");
    forward.wait().expect("kubectl ends");
}

#[test]
fn deletion_is_graceful_and_can_be_forced() {
    let ns = kubectl().namespace("grace");
    ns.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: polite}}
spec:
  terminationGracePeriodSeconds: 20
  containers:
  - name: c
    image: {image}
    command: [sh, -c, "trap 'echo bye; sleep 1; exit 0' TERM; echo up; while true; do sleep 0.1; done"]
---
apiVersion: v1
kind: Pod
metadata: {{name: stubborn}}
spec:
  terminationGracePeriodSeconds: 600
  containers:
  - name: c
    image: {image}
    command: [sh, -c, "trap '' TERM; while true; do sleep 0.1; done"]
"#,
        image = e2e::BUSYBOX
    ));
    ns.run(&["wait", "--for=condition=Ready", "pod/polite", "pod/stubborn", "--timeout=180s"]);
    let mut follow = ns.spawn(&["logs", "-f", "polite"]);
    let mut lines = BufReader::new(follow.stdout.take().expect("piped")).lines().map(|line| line.expect("a line"));
    // Only now is somebody there to hear what it says, and it ready to say it.
    assert_eq!(lines.next().as_deref(), Some("up"));
    ns.run(&["delete", "pod", "polite", "--wait=false"]);
    let pod = ns.try_run(&["get", "pod", "polite", "-o", "json"], "");
    assert!(!pod.ok || pod.stdout.contains("deletionTimestamp"), "{pod:?}");
    // Logs end with the container.
    let said: Vec<String> = lines.collect();
    follow.wait().expect("kubectl ends");
    assert!(said.iter().any(|line| line == "bye"), "{said:?}");
    ns.run(&["delete", "pod", "stubborn", "--grace-period=0", "--force"]);
    eventually("both are gone", || {
        let left = ns.run(&["get", "pods", "-o", "name"]);
        if left.trim().is_empty() { Ok(()) } else { Err(left) }
    });
}
