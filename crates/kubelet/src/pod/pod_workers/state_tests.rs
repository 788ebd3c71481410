//! The table of a pod worker's states: what happened, the states it went through and what is done in the last.
//! Every row goes through `check`, so a row is data; `check` refuses a step back and a longer grace period.

use serde_json::{Value, json};

use super::{PodWorkerEvent::*, *};

fn pod(changes: Value) -> Arc<Pod> {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
        "spec": {"containers": [{"name": "a"}], "terminationGracePeriodSeconds": 30}});
    merge(&mut pod, changes);
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn merge(into: &mut Value, changes: Value) {
    match (into, changes) {
        (Value::Object(into), Value::Object(changes)) => {
            changes.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, changes) => *into = changes,
    }
}

fn plain() -> Arc<Pod> {
    pod(json!({}))
}

fn deleted(grace_period_seconds: i64) -> Arc<Pod> {
    pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": grace_period_seconds}}))
}

fn phase(phase: &str) -> Arc<Pod> {
    pod(json!({"status": {"phase": phase}}))
}

fn manifest(image: &str) -> Arc<Pod> {
    pod(json!({"metadata": {"annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {"containers": [{"name": "a", "image": image}]}}))
}

fn eviction(grace_period_seconds: i64) -> PodWorkerEvent {
    let (reason, message) = ("Evicted".to_string(), "low".to_string());
    Evicted(Eviction { reason, disruption_message: None, message, grace_period_seconds })
}

fn failure(reason: &str) -> PodFailure {
    PodFailure { reason: reason.into(), message: "why".into(), rejected: reason == "OutOfcpu" }
}

/// "syncing", "terminating Deleted 30", "terminating Evicted 0 Evicted", "terminated Holding", "finished"; with
/// "removed" or "recreated" when no source has it, or has it again.
fn short(state: &PodWorkerState) -> String {
    let shown = |presence: &Presence| match presence {
        Presence::Present => "",
        Presence::Removed => " removed",
        Presence::Recreated(_) => " recreated",
    };
    match state {
        PodWorkerState::Syncing { .. } => "syncing".into(),
        PodWorkerState::Terminating { cause, grace_period_seconds, failure, presence, .. } => {
            let reason = failure.as_ref().map_or(String::new(), |failure| format!(" {}", failure.reason));
            format!("terminating {cause:?} {grace_period_seconds}{reason}{}", shown(presence))
        }
        PodWorkerState::Terminated { presence, step, .. } => format!("terminated {step:?}{}", shown(presence)),
        PodWorkerState::Finished { presence, .. } => format!("finished{}", shown(presence)),
    }
}

fn rank(state: &PodWorkerState) -> (u8, i64) {
    match state {
        PodWorkerState::Syncing { .. } => (0, 0),
        PodWorkerState::Terminating { grace_period_seconds, .. } => (1, -grace_period_seconds),
        PodWorkerState::Terminated { .. } => (2, 0),
        PodWorkerState::Finished { .. } => (3, 0),
    }
}

#[track_caller]
fn check(first: Arc<Pod>, steps: &[(PodWorkerEvent, &str)], work: Work) -> PodWorkerState {
    let mut state = PodWorkerState::new(first);
    for (event, expected) in steps {
        let before = state.clone();
        state = state.transition(event.clone());
        assert_eq!(short(&state), *expected, "after {event:?}");
        assert!(rank(&before) <= rank(&state), "{before:?} -> {state:?}");
    }
    assert_eq!(state.work(), work, "{state:?}");
    state
}

#[test]
fn pods_begin_where_the_api_says_they_are() {
    let check = |pod: Arc<Pod>, expected: &str| assert_eq!(short(&PodWorkerState::new(pod)), expected);
    check(plain(), "syncing");
    check(phase("Running"), "syncing");
    // A kubelet that was restarted finds what was deleted, or ended, meanwhile.
    check(deleted(20), "terminating Deleted 20");
    check(deleted(0), "terminating Deleted 0");
    check(phase("Failed"), "terminating TerminalPhase 30");
    check(phase("Succeeded"), "terminating TerminalPhase 30");
    let mirrored = json!({"metadata": {"annotations": {"kubernetes.io/config.source": "file"}},
        "status": {"phase": "Failed"}});
    check(pod(mirrored), "syncing");
}

#[test]
fn a_deleted_pod_goes_step_by_step() {
    let steps = [
        (Updated(plain()), "syncing"),
        (Updated(deleted(20)), "terminating Deleted 20"),
        (Stopped, "terminated Holding"),
        (CleanedUp, "terminated Retained"),
        (DeletedFromApi, "terminated DeletedFromApi"),
        (RemovedFromRuntime, "finished"),
        (Updated(plain()), "finished"),
    ];
    let works = [
        Work::SyncPod,
        Work::SyncTerminatingPod,
        Work::SyncTerminatedPod,
        Work::DeleteFromApi,
        Work::RemoveFromRuntime,
        Work::Done,
        Work::Done,
    ];
    for (length, work) in works.into_iter().enumerate() {
        let state = check(plain(), &steps[..=length], work);
        assert_eq!(state.is_released(), length >= 3, "{state:?}");
        assert_eq!(state.cancels_sync(), length >= 1, "{state:?}");
    }
}

#[test]
fn completed_pods_stay_until_they_are_deleted() {
    let ended =
        [(Completed, "terminating Completed 30"), (Stopped, "terminated Holding"), (CleanedUp, "terminated Retained")];
    check(plain(), &ended, Work::AwaitDeletion);
    let then = |event, expected| [&ended[..], &[(event, expected)]].concat();
    check(plain(), &then(Updated(phase("Succeeded")), "terminated Retained"), Work::AwaitDeletion);
    check(plain(), &then(Updated(deleted(0)), "terminated Retained"), Work::DeleteFromApi);
    check(plain(), &then(Removed, "terminated Retained removed"), Work::RemoveFromRuntime);
    check(plain(), &then(eviction(0), "terminated Retained"), Work::AwaitDeletion);
    check(manifest("1"), &then(Updated(manifest("2")), "terminated Retained"), Work::AwaitDeletion);
}

#[test]
fn grace_periods_only_shrink() {
    let check = |steps: &[(PodWorkerEvent, &str)], forced: bool| {
        let state = check(plain(), steps, Work::SyncTerminatingPod);
        assert_eq!(state.is_forced(), forced, "{state:?}");
    };
    let begun = (Updated(deleted(30)), "terminating Deleted 30");
    check(&[begun.clone(), (Updated(deleted(5)), "terminating Deleted 5")], false);
    check(&[begun.clone(), (Updated(deleted(60)), "terminating Deleted 30")], false);
    check(&[begun.clone(), (Updated(deleted(0)), "terminating Deleted 0")], true);
    // The API let go of it.
    check(&[begun.clone(), (Removed, "terminating Deleted 0 removed")], true);
    check(&[(Removed, "terminating Removed 0 removed")], true);
    check(&[(Completed, "terminating Completed 30"), (Updated(deleted(1)), "terminating Completed 1")], false);
    check(&[begun.clone(), (eviction(10), "terminating Deleted 10")], false);
    check(&[begun, (eviction(60), "terminating Deleted 30")], false);
    // The node's own grace period replaces the pod's, and a deletion can only shorten it.
    let evicted = (eviction(60), "terminating Evicted 60 Evicted");
    check(&[evicted.clone(), (eviction(0), "terminating Evicted 60 Evicted")], false);
    check(&[evicted.clone(), (Updated(plain()), "terminating Evicted 60 Evicted")], false);
    check(&[evicted, (Updated(deleted(30)), "terminating Evicted 30 Evicted")], false);
    check(&[(eviction(0), "terminating Evicted 0 Evicted")], false);
}

#[test]
fn what_the_node_decides_is_told_in_the_status() {
    let rejected = Rejected(failure("OutOfcpu"));
    let late = DeadlineExceeded(failure("DeadlineExceeded"));
    let state = check(
        plain(),
        &[(rejected.clone(), "terminating Rejected 30 OutOfcpu"), (eviction(9), "terminating Rejected 9 OutOfcpu")],
        Work::SyncTerminatingPod,
    );
    assert!(state.cancels_sync());
    for (event, expected) in [
        (late.clone(), "terminating DeadlineExceeded 30 DeadlineExceeded"),
        (rejected, "terminating Rejected 30 OutOfcpu"),
        (Completed, "terminating Completed 30"),
        (Updated(phase("Failed")), "terminating TerminalPhase 30"),
    ] {
        let state = check(plain(), &[(event, expected)], Work::SyncTerminatingPod);
        assert!(!state.cancels_sync(), "a sync that found the end itself comes to its own: {state:?}");
    }
    let steps = [
        (Updated(deleted(30)), "terminating Deleted 30"),
        (late, "terminating Deleted 30 DeadlineExceeded"),
        (Completed, "terminating Deleted 30 DeadlineExceeded"),
    ];
    check(plain(), &steps, Work::SyncTerminatingPod);
}

#[test]
fn static_pods_that_come_back_begin_anew() {
    let gone = (Removed, "terminating Removed 30 removed");
    let back = (Updated(manifest("2")), "terminating Removed 30 recreated");
    let ended = |presence: &str| -> Vec<(PodWorkerEvent, String)> {
        vec![
            (Stopped, format!("terminated Holding{presence}")),
            (CleanedUp, format!("terminated Retained{presence}")),
            (RemovedFromRuntime, format!("finished{presence}")),
        ]
    };
    let run = |first: &[(PodWorkerEvent, &str)], presence: &str| {
        let end = ended(presence);
        let end = end.iter().map(|(event, expected)| (event.clone(), expected.as_str()));
        check(manifest("1"), &first.iter().cloned().chain(end).collect::<Vec<_>>(), Work::Done)
    };
    run(std::slice::from_ref(&gone), " removed");
    let state = run(&[gone.clone(), back.clone()], " recreated");
    let finished = PodWorkerState::Finished { pod: manifest("1"), presence: Presence::Recreated(manifest("2")) };
    assert_eq!(state, finished, "it ended as it was defined before");
    // Also when it comes back at the last moment.
    assert_eq!(
        short(&run(std::slice::from_ref(&gone), " removed").transition(Updated(manifest("2")))),
        "finished recreated"
    );
    run(&[gone.clone(), back, (Removed, "terminating Removed 30 removed")], " removed");
    // An API pod that is removed never comes back under its UID.
    let late = (Updated(plain()), "terminating Removed 0 removed");
    check(plain(), &[(Removed, "terminating Removed 0 removed"), late], Work::SyncTerminatingPod);
}

#[test]
fn what_cannot_happen_changes_nothing() {
    for event in [Stopped, CleanedUp, DeletedFromApi, RemovedFromRuntime] {
        check(plain(), &[(event, "syncing")], Work::SyncPod);
    }
    for event in [CleanedUp, DeletedFromApi, RemovedFromRuntime] {
        let begun = (Updated(deleted(3)), "terminating Deleted 3");
        check(plain(), &[begun, (event, "terminating Deleted 3")], Work::SyncTerminatingPod);
    }
}

#[test]
fn working_pods_are_counted_by_how_far_they_are() {
    let check = |pod: Arc<Pod>, events: Vec<PodWorkerEvent>, expected: [&str; 3]| {
        let state = events.into_iter().fold(PodWorkerState::new(pod), PodWorkerState::transition);
        assert_eq!(state.labels(), expected, "{state:?}");
    };
    check(plain(), vec![], ["sync", "desired", ""]);
    check(manifest("a"), vec![], ["sync", "desired", "true"]);
    check(deleted(30), vec![], ["terminating", "desired", ""]);
    check(plain(), vec![Removed], ["terminating", "orphan", ""]);
    check(manifest("a"), vec![Removed, Stopped], ["terminated", "orphan", "true"]);
    check(manifest("a"), vec![Removed, Updated(manifest("a"))], ["terminating", "desired", "true"]);
}
