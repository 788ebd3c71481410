//! Tables for `pod_actions`: a pod, what runs of it, what the probes said, and the actions that follow.
//! Every case goes through `check`, so a case is data.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::*;
use crate::{pod::pod_spec::Kind, runtime::runtime_status::SandboxStatus};

/// Probe results by container name; ids in these tests are names.
#[derive(Default)]
struct Said {
    liveness: Vec<(&'static str, ProbeResult)>,
    startup: Vec<(&'static str, ProbeResult)>,
}

impl Probes for Said {
    fn liveness(&self, id: &str) -> Option<ProbeResult> {
        self.liveness.iter().find(|(name, _)| *name == id).map(|(_, r)| *r)
    }
    fn startup(&self, id: &str) -> Option<ProbeResult> {
        self.startup.iter().find(|(name, _)| *name == id).map(|(_, r)| *r)
    }
}

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec})).unwrap()
}

fn sandbox(ready: bool, attempt: u32) -> SandboxStatus {
    SandboxStatus {
        id: format!("s{attempt}"),
        ready,
        attempt,
        created_at: i64::from(attempt),
        host_network: false,
        ips: vec!["10.0.0.1".into()],
    }
}

/// "name:running", "name:exit3", "name:created", "name:unknown"; a "!" at the end gives it another definition, and "@1"
/// puts it into the sandbox of that attempt instead of the first.
fn observed(pod: &Pod, sandboxes: Vec<SandboxStatus>, containers: &[&str]) -> PodRuntimeStatus {
    let containers = containers.iter().map(|text| {
        let (text, attempt) = text.split_once('@').unwrap_or((text, "0"));
        let (name, state) = text.trim_end_matches('!').split_once(':').unwrap();
        let (state, exit_code) = match state {
            "running" => (State::Running, 0),
            "created" => (State::Created, 0),
            "unknown" => (State::Unknown, 0),
            exit => (State::Exited, exit.strip_prefix("exit").unwrap().parse().unwrap()),
        };
        let (kind, container) = pod_spec::find_container(pod, name).unwrap();
        ContainerStatus {
            id: name.into(),
            name: name.into(),
            sandbox_id: format!("s{attempt}"),
            state,
            created_at: 1,
            started_at: 1,
            finished_at: 0,
            exit_code,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            hash: container_hash(&container) + u64::from(text.ends_with('!')),
            restart_count: 0,
            kind: if kind == Kind::Init { Kind::Init } else { kind },
            grace_period_seconds: None,
            resources: None,
            user: None,
        }
    });
    PodRuntimeStatus { sandboxes, containers: containers.collect() }
}

/// The actions in short: "kill-pod", "sandbox1", "init0", "start1", "ephemeral0", "kill-a", "update-a", "update-pod".
fn short(actions: &PodActions) -> String {
    let mut words: Vec<String> = Vec::new();
    if actions.kill_pod {
        words.push("kill-pod".into());
    }
    if actions.create_sandbox {
        words.push(format!("sandbox{}", actions.attempt));
    }
    words.extend(actions.kill.iter().map(|kill| format!("kill-{}", kill.name)));
    words.extend(actions.start_init.iter().map(|i| format!("init{i}")));
    words.extend(actions.start.iter().map(|i| format!("start{i}")));
    words.extend(actions.start_ephemeral.iter().map(|i| format!("ephemeral{i}")));
    words.extend(actions.update.iter().map(|update| format!("update-{}", update.name)));
    if actions.update_pod_limits {
        words.push("update-pod".into());
    }
    words.join(" ")
}

#[track_caller]
fn check(spec: &Value, sandboxes: Vec<SandboxStatus>, containers: &[&str], said: Said, expected: &str) {
    let pod = pod(spec.clone());
    let status = observed(&pod, sandboxes, containers);
    let actuated = Actuated { containers: &HashMap::new(), pod_limits: None, node_memory_bytes: 0 };
    assert_eq!(short(&pod_actions(&pod, &status, &said, &actuated)), expected, "{containers:?}");
}

fn two(policy: &str) -> Value {
    json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]})
}

#[test]
fn sandboxes() {
    let check = |policy, sandboxes, containers: &[&str], expected| {
        check(&two(policy), sandboxes, containers, Said::default(), expected);
    };
    check("Always", vec![], &[], "kill-pod sandbox0 start0 start1");
    check("Always", vec![sandbox(true, 0)], &[], "start0 start1");
    check("Always", vec![sandbox(false, 0)], &["a:exit0", "b:exit1"], "kill-pod sandbox1 start0 start1");
    check("OnFailure", vec![sandbox(false, 0)], &["a:exit0", "b:exit1"], "kill-pod sandbox1 start1");
    check("OnFailure", vec![sandbox(false, 0)], &["a:exit0", "b:exit0"], "kill-pod");
    check("Never", vec![sandbox(false, 0)], &["a:exit0", "b:exit1"], "kill-pod");
    check("Never", vec![sandbox(false, 0)], &[], "kill-pod sandbox1 start0 start1");
    check("Always", vec![sandbox(true, 1), sandbox(true, 0)], &[], "kill-pod sandbox2 start0 start1");
    let mut elsewhere = sandbox(true, 0);
    elsewhere.host_network = true;
    check("Always", vec![elsewhere], &["a:running", "b:running"], "kill-pod sandbox1 start0 start1");
    let mut no_address = sandbox(true, 0);
    no_address.ips.clear();
    check("Always", vec![no_address], &[], "kill-pod sandbox1 start0 start1");
}

#[test]
fn restart_policies() {
    let check = |policy, containers: &[&str], expected| {
        check(&two(policy), vec![sandbox(true, 0)], containers, Said::default(), expected);
    };
    check("Always", &["a:running", "b:running"], "");
    check("Always", &["a:exit0", "b:running"], "start0");
    check("OnFailure", &["a:exit0", "b:running"], "");
    check("OnFailure", &["a:exit2", "b:running"], "start0");
    check("OnFailure", &["a:exit0", "b:exit0"], "kill-pod");
    check("Never", &["a:exit2", "b:running"], "");
    check("Never", &["a:exit2", "b:exit0"], "kill-pod");
    check("Always", &["a:unknown", "b:running"], "kill-a start0");
    check("Always", &["a:created", "b:running"], "start0");
    check("Never", &["a:running!", "b:running"], "kill-a start0");
}

#[test]
fn probes() {
    let failed = |name| Said { liveness: vec![(name, ProbeResult::Failure)], ..Default::default() };
    let both = ["a:running", "b:running"];
    check(&two("Always"), vec![sandbox(true, 0)], &both, failed("a"), "kill-a start0");
    check(&two("Never"), vec![sandbox(true, 0)], &both, failed("a"), "kill-a");
    let startup = Said { startup: vec![("b", ProbeResult::Failure)], ..Default::default() };
    check(&two("OnFailure"), vec![sandbox(true, 0)], &both, startup, "kill-b start1");
    let fine = Said { liveness: vec![("a", ProbeResult::Success)], startup: vec![("a", ProbeResult::Success)] };
    check(&two("Always"), vec![sandbox(true, 0)], &both, fine, "");
}

#[test]
fn init_containers_run_one_after_the_other() {
    let spec = |policy: &str| {
        json!({"restartPolicy": policy, "containers": [{"name": "a"}],
            "initContainers": [{"name": "i"}, {"name": "j"}, {"name": "k"}]})
    };
    let check = |policy, containers: &[&str], expected| {
        check(&spec(policy), vec![sandbox(true, 0)], containers, Said::default(), expected);
    };
    check("Always", &[], "init0");
    check("Always", &["i:running"], "");
    check("Always", &["i:created"], "init0");
    check("Always", &["i:exit0"], "init1");
    check("Always", &["i:exit0", "j:exit0"], "init2");
    check("Always", &["j:exit0"], "init2");
    check("Always", &["i:exit0", "j:exit3"], "init1");
    check("Never", &["i:exit0", "j:exit3"], "kill-pod");
    check("OnFailure", &["i:unknown"], "kill-i init0");
    check("Never", &["i:unknown"], "kill-pod");
    check("Always", &["i:exit0", "j:exit0", "k:exit0"], "start0");
    check("Always", &["k:exit0"], "start0");
    check("Always", &["a:running"], "");
    check("Always", &["k:exit0", "a:exit1"], "start0");
    check("Never", &["k:exit0", "a:exit1"], "kill-pod");
}

#[test]
fn another_sandbox_is_initialized_anew() {
    let spec = json!({"restartPolicy": "Always", "containers": [{"name": "a"}],
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, {"name": "k"}]});
    let check = |containers: &[&str], expected| {
        check(&spec, vec![sandbox(true, 1), sandbox(false, 0)], containers, Said::default(), expected);
    };
    check(&["i:exit0", "s:exit0", "k:exit0", "a:exit1"], "init0");
    check(&["i:running@1", "s:exit0", "k:exit0", "a:exit1"], "");
    check(&["i:exit0@1", "s:exit0", "k:exit0", "a:exit1"], "init1");
    check(&["i:exit0@1", "s:running@1", "k:exit0", "a:exit1"], "init2");
    check(&["i:exit0@1", "s:running@1", "k:exit0@1", "a:exit1"], "start0");
}

#[test]
fn sidecars_start_in_order_and_come_back() {
    let spec = |policy: &str| {
        json!({"restartPolicy": policy, "containers": [{"name": "a"}], "initContainers": [
            {"name": "i"},
            {"name": "s", "restartPolicy": "Always", "startupProbe": {"tcpSocket": {"port": 1}}},
            {"name": "t", "restartPolicy": "Always", "livenessProbe": {"tcpSocket": {"port": 1}}}]})
    };
    let started = || Said { startup: vec![("s", ProbeResult::Success)], ..Default::default() };
    let check = |policy, containers: &[&str], said, expected| {
        check(&spec(policy), vec![sandbox(true, 0)], containers, said, expected);
    };
    check("Always", &[], Said::default(), "init0");
    check("Always", &["i:exit0"], Said::default(), "init1");
    check("Always", &["i:exit0", "s:running"], Said::default(), "");
    check("Always", &["i:exit0", "s:running"], started(), "init2");
    check("Always", &["i:exit0", "s:running", "t:running"], started(), "start0");
    let failed = Said { startup: vec![("s", ProbeResult::Failure)], ..Default::default() };
    check("Always", &["i:exit0", "s:running"], failed, "kill-s init1");
    check("Never", &["s:exit1", "t:running", "a:running"], started(), "init1");
    let dead = Said { liveness: vec![("t", ProbeResult::Failure)], ..started() };
    check("Never", &["s:running", "t:running", "a:running"], dead, "kill-t init2");
    check("Never", &["a:running"], started(), "init1 init2");
    check("Never", &["s:exit0", "t:running", "a:exit0"], started(), "kill-pod");
}

#[test]
fn ephemeral_containers_run_once() {
    let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}],
        "ephemeralContainers": [{"name": "d", "image": "x"}, {"name": "e", "image": "x"}]});
    let check = |containers: &[&str], expected| {
        check(&spec, vec![sandbox(true, 0)], containers, Said::default(), expected);
    };
    check(&["i:running"], "ephemeral0 ephemeral1");
    check(&["i:exit0", "a:running", "d:exit1"], "ephemeral1");
    check(&["i:exit0", "a:running", "d:exit0", "e:running"], "");
}

/// The containers that `had` names run with those resources; the others have what they are to have.
#[track_caller]
fn check_resize(spec: &Value, containers: &[&str], said: Said, had: &[(&str, Value)], expected: &str) -> PodActions {
    let node_memory_bytes = 8 << 30;
    let pod = pod(spec.clone());
    let status = observed(&pod, vec![sandbox(true, 0)], containers);
    let mut before = pod.clone();
    let spec = before.spec.as_mut().unwrap();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if let Some((_, resources)) = had.iter().find(|(name, _)| *name == container.name) {
            container.resources = Some(serde_json::from_value(resources.clone()).unwrap());
        }
    }
    let actuated = resizable_containers(&before).map(|(kind, container)| {
        (container.name.clone(), ActuatedResources::wanted(&before, container, kind, node_memory_bytes))
    });
    let actuated = actuated.collect();
    let pod_limits = Some(crate::runtime::container_config::resources::pod_limits(&before));
    let actuated = Actuated { containers: &actuated, pod_limits, node_memory_bytes };
    let actions = pod_actions(&pod, &status, &said, &actuated);
    assert_eq!(short(&actions), expected, "{containers:?} {had:?}");
    assert_eq!(actions.resize(), !had.is_empty() && !expected.is_empty() && expected != "kill-pod", "{actions:?}");
    actions
}

fn limits(cpu: &str, memory: &str) -> Value {
    json!({"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": cpu, "memory": memory}})
}

#[test]
fn resizes_are_in_place_unless_the_policy_asks_for_a_restart() {
    let restart = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"},
        {"resourceName": "cpu", "restartPolicy": "NotRequired"}]);
    // Whatever the pod's own restart policy says.
    let spec = json!({"restartPolicy": "Never",
        "containers": [{"name": "a", "image": "i", "resources": limits("2", "2Gi"), "resizePolicy": restart},
            {"name": "b", "image": "i", "resources": limits("1", "1Gi")}],
        "initContainers": [{"name": "i", "image": "i", "resources": limits("1", "1Gi")},
            {"name": "s", "image": "i", "restartPolicy": "Always", "resources": limits("1", "1Gi"),
                "resizePolicy": restart}]});
    let running = ["i:exit0", "s:running", "a:running", "b:running"];
    let check = |containers: &[&str], said, had: &[(&str, Value)], expected| {
        check_resize(&spec, containers, said, had, expected)
    };
    let none = Said::default;
    check(&running, none(), &[], "");
    check(&running, none(), &[("a", limits("2000m", "2048Mi"))], "");
    check(&running, none(), &[("a", limits("1", "2Gi"))], "update-a update-pod");
    check(&running, none(), &[("b", limits("1", "2Gi"))], "update-b update-pod");
    let actions = check(&running, none(), &[("a", limits("2", "1Gi"))], "kill-a start0 update-pod");
    assert_eq!(actions.kill[0].message, "Container a resize requires restart");
    assert_eq!(actions.kill[0].reason, KillReason::Resized);
    let all = [("a", limits("2", "1Gi")), ("b", limits("2", "1Gi")), ("s", limits("1", "2Gi"))];
    check(&running, none(), &all, "kill-a kill-s init1 start0 update-b update-pod");
    // One that is not running gets what it is to have when it is started.
    check(&["s:running", "a:exit1", "b:running"], none(), &[("a", limits("1", "2Gi"))], "update-pod");
    // One that is killed for another reason is not resized besides.
    let failed = Said { liveness: vec![("a", ProbeResult::Failure)], ..Said::default() };
    check(&running, failed, &[("a", limits("1", "1Gi"))], "kill-a update-pod");
    // A pod that has ended, or gets another sandbox, is not resized.
    let ended = check(&["s:running", "a:exit0", "b:exit0"], none(), &[("s", limits("2", "1Gi"))], "kill-pod");
    assert!(ended.update.is_empty() && !ended.update_pod_limits);
}

/// Those of upstream's own test and of its kubelet: a container that either has started is left alone by the other.
#[test]
fn the_hash_of_a_container_is_upstreams() {
    let check = |name: &str, image: &str, expected: u64| {
        let container = Container { name: name.into(), image: Some(image.into()), ..Container::default() };
        assert_eq!(container_hash(&container), expected, "{name} {image}");
    };
    check("test_container", "foo/image:v1", 0x8e45_cbd0);
    check("foo", "bar", 0x11a6_d6d6);
}
