//! Tables for `pod_status`: what runs, and the phase, states and conditions that follow.
//! Every case goes through `check`.

use serde_json::{Value, json};

use super::*;
use crate::{
    pod::pod_actions::container_hash,
    runtime::runtime_status::{ContainerStatus, SandboxStatus, State},
};

/// Everything is started; ready are all but those named.
struct Unready(&'static [&'static str]);

impl Readiness for Unready {
    fn started(&self, _: &str) -> bool {
        true
    }
    fn ready(&self, id: &str) -> bool {
        !self.0.contains(&id)
    }
}

fn observe(pod: &Pod, containers: &[&str]) -> PodRuntimeStatus {
    let containers = containers.iter().map(|text| {
        let (name, state) = text.split_once(':').unwrap();
        let (kind, container) = pod_spec::find_container(pod, name).unwrap();
        let (state, exit_code) = match state {
            "running" => (State::Running, 0),
            "created" => (State::Created, 0),
            exit => (State::Exited, exit.strip_prefix("exit").unwrap().parse().unwrap()),
        };
        ContainerStatus {
            id: name.into(),
            name: name.into(),
            sandbox_id: "s".into(),
            state,
            created_at: 1,
            started_at: 2_000_000_000,
            finished_at: if state == State::Exited { 3_000_000_000 } else { 0 },
            exit_code,
            reason: if exit_code == 0 { "Completed" } else { "Error" }.into(),
            message: String::new(),
            image: "i".into(),
            image_id: "sha256:i".into(),
            hash: container_hash(&container),
            restart_count: 1,
            kind,
            grace_period_seconds: None,
            resources: None,
            user: (name == "a").then(|| cri::v1::LinuxContainerUser {
                uid: 1000,
                gid: 3,
                supplemental_groups: vec![3, 4],
            }),
        }
    });
    let sandbox = SandboxStatus {
        id: "s".into(),
        ready: true,
        attempt: 0,
        created_at: 1,
        host_network: false,
        ips: vec!["10.0.0.9".into()],
    };
    PodRuntimeStatus { sandboxes: vec![sandbox], containers: containers.collect() }
}

struct Case {
    spec: Value,
    status: Value,
    containers: &'static [&'static str],
    unready: &'static [&'static str],
    reasons: &'static [(&'static str, &'static str)],
    terminal: bool,
    failure: Option<&'static str>,
    rejected: bool,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            spec: json!({}),
            status: json!({}),
            containers: &[],
            unready: &[],
            reasons: &[],
            terminal: false,
            failure: None,
            rejected: false,
        }
    }
}

#[track_caller]
fn check(case: Case, phase: &str, expected: &[(&str, Value)]) {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u", "generation": 3},
        "spec": case.spec, "status": case.status}))
    .unwrap();
    let reasons = case
        .reasons
        .iter()
        .map(|(name, reason)| (name.to_string(), WaitingReason { reason: reason.to_string(), message: "why".into() }))
        .collect();
    let runtime =
        if case.containers == ["nothing"] { PodRuntimeStatus::default() } else { observe(&pod, case.containers) };
    let failure =
        case.failure.map(|reason| PodFailure { reason: reason.into(), message: "why".into(), rejected: case.rejected });
    let status = generate(&Input {
        in_effect: &|_| None,
        resource_health: &|_| Vec::new(),
        resizes: &Default::default(),
        pod: &pod,
        runtime: &runtime,
        previous: pod.status.as_ref().unwrap(),
        readiness: &Unready(case.unready),
        reasons: &reasons,
        runtime_name: "containerd",
        host_ips: &["192.0.2.1".into()],
        recursive_read_only: false,
        terminal: case.terminal,
        failure: failure.as_ref(),
        now: Timestamp::from_second(100).unwrap(),
    });
    assert_eq!(status.phase.as_deref(), Some(phase), "{status:?}");
    let mut value = serde_json::to_value(&status).unwrap();
    let conditions = value["conditions"].as_array().unwrap().clone();
    for condition in conditions {
        let kind = condition["type"].as_str().unwrap().to_string();
        value["is"][kind] = condition;
    }
    for (pointer, wanted) in expected {
        assert_eq!(value.pointer(pointer).unwrap_or(&Value::Null), wanted, "{pointer} of {value:#}");
    }
}

fn two(policy: &str) -> Value {
    json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]})
}

#[test]
fn phases() {
    let case = |policy: &str, containers| Case { spec: two(policy), containers, ..Default::default() };
    check(case("Always", &[]), "Pending", &[("/containerStatuses/0/state/waiting/reason", json!("ContainerCreating"))]);
    check(case("Always", &["a:running"]), "Pending", &[]);
    check(case("Always", &["a:running", "b:running"]), "Running", &[("/podIP", json!("10.0.0.9"))]);
    check(case("Always", &["a:exit1", "b:exit1"]), "Running", &[]);
    check(case("Never", &["a:exit0", "b:exit0"]), "Succeeded", &[("/is/Ready/reason", json!("PodCompleted"))]);
    check(case("Never", &["a:exit0", "b:exit1"]), "Failed", &[("/is/Ready/reason", json!("PodFailed"))]);
    check(case("OnFailure", &["a:exit0", "b:exit1"]), "Running", &[]);
    check(case("OnFailure", &["a:exit0", "b:exit0"]), "Succeeded", &[]);
    let over = |containers| Case { terminal: true, ..case("Always", containers) };
    check(over(&["a:exit0", "b:exit1"]), "Failed", &[]);
    check(over(&["a:exit0", "b:exit0"]), "Succeeded", &[]);
    check(over(&["nothing"]), "Failed", &[]);
    let before =
        Case { status: json!({"phase": "Failed", "reason": "Evicted"}), ..case("Always", &["a:running", "b:running"]) };
    check(before, "Failed", &[("/reason", json!("Evicted"))]);
}

#[test]
fn what_the_node_decides_is_told_when_nothing_runs_any_more() {
    let case = |containers, terminal| Case {
        spec: two("Always"),
        status: json!({"phase": "Running"}),
        containers,
        terminal,
        failure: Some("DeadlineExceeded"),
        ..Default::default()
    };
    let unready = ("/is/Ready/reason", json!("PodFailed"));
    check(case(&["a:running", "b:exit0"], false), "Running", &[unready.clone(), ("/reason", Value::Null)]);
    let over = [unready.clone(), ("/reason", json!("DeadlineExceeded")), ("/message", json!("why"))];
    check(case(&["a:exit0", "b:exit0"], true), "Failed", &over);
    // Nobody waits for the sandbox.
    check(case(&["a:exit0", "b:exit0"], false), "Failed", &over);
    // A failed start is no better: what else runs must end first.
    let mut spec = two("Never");
    spec["initContainers"] = json!([{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]);
    let failed = |containers| Case { spec: spec.clone(), containers, ..Default::default() };
    let pending = |containers| Case { status: json!({"phase": "Pending"}), ..failed(containers) };
    check(pending(&["s:running", "i:exit1"]), "Pending", std::slice::from_ref(&unready));
    check(pending(&["s:exit0", "i:exit1"]), "Failed", &[unready]);
}

#[test]
fn rejected_pods_show_why_and_no_containers() {
    let none = [("/containerStatuses", Value::Null), ("/initContainerStatuses", Value::Null)];
    let mut spec = two("Always");
    spec["initContainers"] = json!([{"name": "i"}]);
    let nothing = || Case { spec: spec.clone(), containers: &["nothing"], terminal: true, ..Default::default() };
    let rejected = Case { rejected: true, failure: Some("OutOfcpu"), ..nothing() };
    check(rejected, "Failed", &[&none[..], &[("/reason", json!("OutOfcpu"))]].concat());
    let before = Case { status: json!({"phase": "Failed", "reason": "OutOfcpu"}), ..nothing() };
    check(before, "Failed", &[&none[..], &[("/reason", json!("OutOfcpu"))]].concat());
}

#[test]
fn what_never_came_to_an_end_ends_with_its_pod() {
    let lost = || json!("ContainerStatusUnknown");
    let (app, init) = ("/containerStatuses/0/state", "/initContainerStatuses/0/state");
    let at = |place: &'static str, more: &'static str| -> &'static str { format!("{place}{more}").leak() };
    let over = |spec: Value, containers| Case { spec, containers, terminal: true, ..Default::default() };
    check(over(two("Always"), &["nothing"]), "Failed", &[(at(app, "/terminated/reason"), lost())]);
    check(over(two("Always"), &["a:exit3"]), "Failed", &[(at(app, "/terminated/exitCode"), json!(3))]);
    let mut spec = two("Always");
    spec["initContainers"] = json!([{"name": "i"}, {"name": "j"}]);
    let waits = (at(app, "/waiting/reason"), json!("PodInitializing"));
    let second = ("/initContainerStatuses/1/state/waiting/reason", json!("PodInitializing"));
    let first = (at(init, "/terminated/reason"), lost());
    check(over(spec.clone(), &["nothing"]), "Failed", &[first, waits.clone(), second.clone()]);
    check(over(spec.clone(), &["i:exit1"]), "Failed", &[(at(init, "/terminated/exitCode"), json!(1)), waits, second]);
    check(over(spec, &["i:exit0", "j:exit0"]), "Failed", &[(at(app, "/terminated/reason"), lost())]);
}

#[test]
fn last_words_of_all_containers_fit() {
    let word = "ä".repeat(3000);
    let ended = |name: &str| {
        json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "message": word}}})
    };
    let mut spec = two("Never");
    spec["initContainers"] = json!([{"name": "i"}]);
    let status = json!({"containerStatuses": [ended("a"), ended("b")], "initContainerStatuses": [ended("i")]});
    let fits = json!("ä".repeat(2048));
    let places = [
        ("/containerStatuses/1/state/terminated/message", fits.clone()),
        ("/initContainerStatuses/0/state/terminated/message", fits),
    ];
    check(Case { spec, status, containers: &["nothing"], ..Default::default() }, "Failed", &places);
}

#[test]
fn states_and_reasons() {
    let case = |containers| Case { spec: two("Always"), containers, ..Default::default() };
    check(
        Case { reasons: &[("a", "CrashLoopBackOff")], ..case(&["a:exit3", "b:running"]) },
        "Running",
        &[
            ("/containerStatuses/0/state/waiting/reason", json!("CrashLoopBackOff")),
            ("/containerStatuses/0/lastState/terminated/exitCode", json!(3)),
            ("/containerStatuses/0/restartCount", json!(1)),
            ("/containerStatuses/0/ready", json!(false)),
            ("/containerStatuses/1/containerID", json!("containerd://b")),
            ("/containerStatuses/0/user/linux", json!({"uid": 1000, "gid": 3, "supplementalGroups": [3, 4]})),
            ("/containerStatuses/1/user", Value::Null),
            ("/is/ContainersReady/message", json!("containers with unready status: [a]")),
            ("/is/Ready/observedGeneration", json!(3)),
        ],
    );
    check(
        Case { reasons: &[("a", "ErrImagePull")], ..case(&["b:running"]) },
        "Pending",
        &[("/containerStatuses/0/state/waiting/message", json!("why"))],
    );
    // The runtime forgot a container that ran.
    let status = json!({"containerStatuses": [{"name": "a", "state": {"running": {}}, "restartCount": 2, "image": "",
        "imageID": "", "ready": true}]});
    check(
        Case { status, ..case(&["b:running"]) },
        "Running",
        &[
            ("/containerStatuses/0/lastState/terminated/reason", json!("ContainerStatusUnknown")),
            ("/containerStatuses/0/restartCount", json!(3)),
        ],
    );
}

#[test]
fn initialization() {
    let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"},
        {"name": "s", "restartPolicy": "Always"}]});
    let case = |containers| Case { spec: spec.clone(), containers, ..Default::default() };
    check(
        case(&["i:running"]),
        "Pending",
        &[
            ("/is/Initialized/status", json!("False")),
            ("/is/Initialized/message", json!("containers with incomplete status: [i s]")),
            ("/containerStatuses/0/state/waiting/reason", json!("PodInitializing")),
        ],
    );
    check(
        case(&["i:exit0", "s:running", "a:running"]),
        "Running",
        &[("/is/Initialized/status", json!("True")), ("/is/Ready/status", json!("True"))],
    );
    let never = {
        let mut spec = spec.clone();
        spec["restartPolicy"] = "Never".into();
        spec
    };
    check(Case { spec: never, ..case(&["i:exit1"]) }, "Failed", &[]);
}

#[test]
fn readiness_and_transition_times() {
    let running = || Case { spec: two("Always"), containers: &["a:running", "b:running"], ..Default::default() };
    check(Case { unready: &["b"], ..running() }, "Running", &[("/is/Ready/reason", json!("ContainersNotReady"))]);
    let status = json!({"conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:07Z"},
        {"type": "ContainersReady", "status": "False", "lastTransitionTime": "1970-01-01T00:00:07Z"},
        {"type": "example.com/gate", "status": "False"}]});
    check(
        Case { status: status.clone(), ..running() },
        "Running",
        &[
            ("/is/Ready/lastTransitionTime", json!("1970-01-01T00:00:07Z")),
            ("/is/ContainersReady/lastTransitionTime", json!("1970-01-01T00:01:40Z")),
            ("/conditions/0/type", json!("example.com/gate")),
        ],
    );
    let mut spec = two("Always");
    spec["readinessGates"] = json!([{"conditionType": "example.com/gate"}, {"conditionType": "example.com/none"}]);
    check(
        Case { spec, status, ..running() },
        "Running",
        &[
            ("/is/Ready/reason", json!("ReadinessGatesNotReady")),
            (
                "/is/Ready/message",
                json!(
                    "the status of pod readiness gate \"example.com/gate\" is not \"True\", but False, \
                       corresponding condition of pod readiness gate \"example.com/none\" does not exist."
                ),
            ),
            ("/is/ContainersReady/status", json!("True")),
        ],
    );
}

#[test]
fn statuses_are_in_the_order_of_names_but_those_of_init_containers() {
    let named = |names: [&str; 2]| names.map(|name| json!({"name": name, "image": "i"}));
    let spec = json!({"containers": named(["web", "app"]), "initContainers": named(["z", "b"]),
        "ephemeralContainers": named(["y", "c"])});
    let expected = [
        ("/containerStatuses/0/name", json!("app")),
        ("/containerStatuses/1/name", json!("web")),
        ("/initContainerStatuses/0/name", json!("z")),
        ("/initContainerStatuses/1/name", json!("b")),
        ("/ephemeralContainerStatuses/0/name", json!("c")),
        ("/ephemeralContainerStatuses/1/name", json!("y")),
    ];
    check(Case { spec, ..Default::default() }, "Pending", &expected);
}
