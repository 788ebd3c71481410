//! Table tests of the job core, and a small world that runs jobs to their end.
//! Beside `plan`, which it tests.
//! Every finished pod is counted once, whatever order things are seen in.

use serde_json::json;

use super::*;
use crate::job::failures;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

/// Carries plans out as the server would.
struct World {
    job: Job,
    pods: Vec<Pod>,
    clock: i64,
    events: Vec<String>,
    backoff: Option<Backoff>,
}

impl World {
    fn new(spec: serde_json::Value) -> Self {
        let mut job = json!({ "metadata": { "name": "j", "namespace": "d", "uid": "j" }, "spec": spec });
        job["spec"]["template"] = json!({ "spec": { "containers": [], "restartPolicy": "Never" } });
        let job = serde_json::from_value(job).unwrap();
        Self { job, pods: Vec::new(), clock: 0, events: Vec::new(), backoff: None }
    }

    fn step(&mut self) -> Plan {
        let pods: Vec<_> = self.pods.iter().cloned().map(Arc::new).collect();
        let (backoff, now) = (self.backoff.take(), at(self.clock));
        let plan = plan(&Input { job: &self.job, pods: &pods, behind: false, backoff: backoff.as_ref(), now });
        self.backoff = Some(plan.backoff.clone());
        self.job.status = Some(plan.status.clone());
        self.events.extend(plan.events.iter().map(|(_, reason, _)| reason.clone()));
        for gone in &plan.release {
            for pod in self.pods.iter_mut().filter(|p| p.uid() == gone.uid()) {
                pod.metadata.finalizers = None;
            }
        }
        // A deleted pod is there for one more round at least, and until its finalizer goes.
        self.pods.retain(|p| !p.deleting() || tracked(p));
        let now = time(at(self.clock));
        for gone in &plan.delete {
            for pod in self.pods.iter_mut().filter(|p| p.uid() == gone.uid()) {
                pod.metadata.deletion_timestamp = Some(now.clone());
            }
        }
        for new in &plan.create {
            let name = format!("p{}", self.clock * 1000 + self.pods.len() as i64);
            let (counted, ignored) = (new.failures.counted.to_string(), new.failures.ignored.to_string());
            let mut annotations = json!({ failures::COUNTED: counted, failures::IGNORED: ignored });
            if let Some(index) = new.index {
                annotations[INDEX] = index.to_string().into();
            }
            self.pods.push(
                serde_json::from_value(json!({
                    "metadata": { "name": name, "namespace": "d", "uid": name, "finalizers": [FINALIZER],
                        "annotations": annotations },
                    "status": { "phase": "Running" },
                }))
                .unwrap(),
            );
        }
        plan
    }

    /// Every running pod ends, with `code(index)` unless that is below zero; one that is being deleted is killed.
    fn end(&mut self, code: impl Fn(i32) -> i32) {
        let now = at(self.clock);
        for pod in self.pods.iter_mut().filter(|p| pods::phase(p) == "Running") {
            let code = if pod.deleting() { 137 } else { code(index_of(pod).unwrap_or(0)) };
            if code < 0 {
                continue;
            }
            pod.status = serde_json::from_value(json!({
                "phase": if code == 0 { "Succeeded" } else { "Failed" },
                "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "terminated": { "exitCode": code, "finishedAt": now } } }],
            }))
            .unwrap();
        }
    }

    /// Runs until nothing changes any more.
    fn run(&mut self, code: impl Fn(i32) -> i32) {
        for _ in 0..100 {
            self.step();
            self.end(&code);
            self.clock += 700;
        }
    }

    fn condition(&self) -> (String, String) {
        let condition = finished(&self.job).expect("finished");
        (condition.type_.clone(), condition.reason.clone().unwrap())
    }

    fn counts(&self) -> (i32, i32) {
        let status = self.job.status.as_ref().unwrap();
        (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0))
    }
}

fn check(spec: serde_json::Value, code: impl Fn(i32) -> i32, end: (&str, &str), counts: (i32, i32)) -> World {
    let mut world = World::new(spec);
    world.run(code);
    assert_eq!(world.condition(), (end.0.into(), end.1.into()));
    assert_eq!(world.counts(), counts);
    assert!(world.pods.iter().all(|p| !tracked(p)));
    world
}

#[test]
fn jobs_run_to_their_end() {
    let complete = ("Complete", "CompletionsReached");
    check(json!({ "completions": 1, "parallelism": 1 }), |_| 0, complete, (1, 0));
    check(json!({ "completions": 7, "parallelism": 3 }), |_| 0, complete, (7, 0));
    check(json!({ "parallelism": 3 }), |_| 0, complete, (3, 0));
    check(json!({ "completions": 1, "backoffLimit": 2 }), |_| 1, ("Failed", "BackoffLimitExceeded"), (0, 3));
    let indexed = json!({ "completionMode": "Indexed", "completions": 5, "parallelism": 2 });
    let world = check(indexed, |_| 0, complete, (5, 0));
    assert_eq!(world.job.status.unwrap().completed_indexes.as_deref(), Some("0-4"));
    assert_eq!(world.events, ["Completed"]);
}

/// More may run than are still needed, when somebody else's pods match or the number was lowered.
#[test]
fn more_successes_than_asked_for_are_told() {
    let mut world = World::new(json!({ "completions": 3, "parallelism": 3 }));
    world.step();
    world.end(|_| 0);
    world.job.spec.as_mut().unwrap().completions = Some(2);
    world.run(|_| 0);
    assert_eq!((world.condition().0.as_str(), world.counts()), ("Complete", (3, 0)));
    assert_eq!(world.events, ["TooManySucceededPods", "Completed"]);
}

#[test]
fn indexes_fail_alone() {
    let spec = json!({ "completionMode": "Indexed", "completions": 4, "parallelism": 4,
        "backoffLimit": 100, "backoffLimitPerIndex": 1 });
    let world = check(spec, |index| i32::from(index == 2), ("Failed", "FailedIndexes"), (3, 2));
    let status = world.job.status.unwrap();
    assert_eq!((status.completed_indexes.as_deref(), status.failed_indexes.as_deref()), (Some("0,1,3"), Some("2")));
}

#[test]
fn policies() {
    let rule = |action: &str| {
        json!({ "completions": 1, "backoffLimit": 1, "podFailurePolicy": { "rules": [
        { "action": action, "onExitCodes": { "operator": "In", "values": [3] } }] } })
    };
    check(rule("FailJob"), |_| 3, ("Failed", "PodFailurePolicy"), (0, 1));
    check(rule("Count"), |_| 3, ("Failed", "BackoffLimitExceeded"), (0, 2));
    let mut ignored = World::new(rule("Ignore"));
    ignored.run(|_| 3);
    assert!(finished(&ignored.job).is_none() && ignored.counts() == (0, 0));
    let success = json!({ "completionMode": "Indexed", "completions": 4, "parallelism": 1,
        "successPolicy": { "rules": [{ "succeededIndexes": "0-1", "succeededCount": 1 }] } });
    check(success, |_| 0, ("Complete", "SuccessPolicy"), (1, 0));
}

#[test]
fn a_policy_fails_one_index() {
    let spec = json!({ "completionMode": "Indexed", "completions": 3, "parallelism": 3, "backoffLimit": 100,
        "backoffLimitPerIndex": 5, "podFailurePolicy": { "rules": [
            { "action": "FailIndex", "onExitCodes": { "operator": "In", "values": [3] } }] } });
    let world = check(spec, |index| if index == 1 { 3 } else { 0 }, ("Failed", "FailedIndexes"), (2, 1));
    let status = world.job.status.unwrap();
    assert_eq!((status.completed_indexes.as_deref(), status.failed_indexes.as_deref()), (Some("0,2"), Some("1")));
}

#[test]
fn too_many_failed_indexes_end_the_job() {
    let spec = json!({ "completionMode": "Indexed", "completions": 6, "parallelism": 1, "backoffLimit": 100,
        "backoffLimitPerIndex": 0, "maxFailedIndexes": 1 });
    let world = check(spec, |_| 1, ("Failed", "MaxFailedIndexesExceeded"), (0, 2));
    assert_eq!(world.job.status.unwrap().failed_indexes.as_deref(), Some("0,1"));
}

#[test]
fn success_policies() {
    let indexed = |parallelism: i32, rules: serde_json::Value| {
        json!({ "completionMode": "Indexed", "completions": 5, "parallelism": parallelism, "backoffLimit": 100,
            "successPolicy": { "rules": rules } })
    };
    // The others would fail for ever, or have not begun.
    let all = json!([{ "succeededCount": 5 }]);
    let world = check(indexed(5, all), |_| 0, ("Complete", "SuccessPolicy"), (5, 0));
    assert_eq!(world.job.status.unwrap().completed_indexes.as_deref(), Some("0-4"));
    let count = json!([{ "succeededCount": 2 }]);
    check(indexed(1, count), |_| 0, ("Complete", "SuccessPolicy"), (2, 0));
    let indexes = json!([{ "succeededIndexes": "0" }]);
    let world = check(indexed(1, indexes), |_| 0, ("Complete", "SuccessPolicy"), (1, 0));
    assert_eq!(world.job.status.unwrap().completed_indexes.as_deref(), Some("0"));
    // Those that still run when it is enough have not failed.
    let world = check(
        json!({ "completionMode": "Indexed", "completions": 5, "parallelism": 5, "backoffLimit": 0,
            "backoffLimitPerIndex": 0, "successPolicy": { "rules": [{ "succeededIndexes": "0" }] } }),
        |index| if index == 0 { 0 } else { -1 },
        ("Complete", "SuccessPolicy"),
        (1, 0),
    );
    let status = world.job.status.unwrap();
    assert_eq!((status.completed_indexes.as_deref(), status.failed_indexes.as_deref()), (Some("0"), Some("")));
}

#[test]
fn deadlines_suspension_and_backoff() {
    let mut late = World::new(json!({ "completions": 1, "activeDeadlineSeconds": 30 }));
    assert_eq!(late.step().again, Some(Duration::from_secs(30)));
    late.clock = 31;
    late.run(|_| -1);
    assert_eq!((late.condition(), late.counts()), (("Failed".into(), "DeadlineExceeded".into()), (0, 1)));

    // Its author names an end that no calendar has: the pods run all the same.
    let mut endless = World::new(json!({ "completions": 1, "activeDeadlineSeconds": i64::MAX }));
    endless.step();
    assert!(endless.pods.len() == 1 && finished(&endless.job).is_none());

    let mut paused = World::new(json!({ "completions": 1, "suspend": true }));
    paused.step();
    assert!(paused.pods.is_empty() && paused.job.status.as_ref().unwrap().start_time.is_none());
    paused.job.spec.as_mut().unwrap().suspend = Some(false);
    paused.step();
    assert_eq!((paused.pods.len(), paused.events), (1, vec!["Suspended".to_string(), "Resumed".to_string()]));

    // When it began stays known; when it goes on, it begins anew.
    let mut paused = World::new(json!({ "completions": 1 }));
    let started = |world: &World| world.job.status.as_ref().unwrap().start_time.clone().unwrap().0;
    paused.step();
    (paused.clock, paused.job.spec.as_mut().unwrap().suspend) = (5, Some(true));
    paused.step();
    assert_eq!(started(&paused), at(0));
    (paused.clock, paused.job.spec.as_mut().unwrap().suspend) = (9, Some(false));
    paused.step();
    assert_eq!(started(&paused), at(9));

    let mut failing = World::new(json!({ "completions": 1 }));
    failing.step();
    failing.end(|_| 1);
    let plan = failing.step();
    assert!(plan.create.is_empty() && plan.again == Some(Duration::from_secs(10)));
    failing.clock = 10;
    assert_eq!(failing.step().create.len(), 1);
}

/// What the controller itself deletes has not failed: with a limit of 0 one failure would end the job.
#[test]
fn withdrawn_pods_are_no_failures() {
    let check =
        |mut spec: serde_json::Value, change: &dyn Fn(&mut JobSpec), back: &dyn Fn(&mut JobSpec), left: usize| {
            spec["backoffLimit"] = json!(0);
            let mut world = World::new(spec);
            world.step();
            assert_eq!(world.pods.len(), 4);
            change(world.job.spec.as_mut().unwrap());
            let plan = world.step();
            assert_eq!((plan.delete.len(), plan.release.len()), (4 - left, 4 - left));
            world.end(|_| -1);
            world.step();
            world.step();
            assert_eq!((world.pods.len(), world.counts(), finished(&world.job).is_some()), (left, (0, 0), false));
            back(world.job.spec.as_mut().unwrap());
            world.run(|_| 0);
            assert_eq!((world.condition().0.as_str(), world.counts()), ("Complete", (6, 0)));
        };
    for mode in ["NonIndexed", "Indexed"] {
        let spec = || json!({ "completions": 6, "parallelism": 4, "completionMode": mode });
        check(spec(), &|s| s.suspend = Some(true), &|s| s.suspend = Some(false), 0);
        check(spec(), &|s| s.parallelism = Some(1), &|_| {}, 1);
        check(spec(), &|s| s.parallelism = Some(0), &|s| s.parallelism = Some(4), 0);
    }
}

/// What the newest pod remembers of those before it.
fn remembered(world: &World) -> (i32, i32) {
    let failures = Failures::before(world.pods.last().unwrap());
    (failures.counted, failures.ignored)
}

#[test]
fn ignored_failures_leave_the_count_of_an_index_alone() {
    let mut world = World::new(json!({ "completionMode": "Indexed", "completions": 1, "parallelism": 1,
        "backoffLimit": 100, "backoffLimitPerIndex": 1, "podFailurePolicy": { "rules": [
            { "action": "Ignore", "onExitCodes": { "operator": "In", "values": [3] } }] } }));
    let mut fail = |code: i32| {
        world.step();
        world.end(|_| code);
        world.clock += 700;
        world.step();
        let ended = finished(&world.job).map(|c| c.reason.clone().unwrap());
        (remembered(&world), ended)
    };
    assert_eq!(fail(3), ((0, 1), None));
    assert_eq!(fail(3), ((0, 2), None));
    assert_eq!(fail(1), ((1, 2), None));
    assert_eq!(fail(3), ((1, 3), None));
    fail(1);
    assert_eq!(fail(0).1.as_deref(), Some("FailedIndexes"));
    assert_eq!(world.counts(), (0, 2));
}

#[test]
fn a_failed_pod_stays_until_its_successor_knows_of_it() {
    let mut world = World::new(json!({ "completionMode": "Indexed", "completions": 2, "parallelism": 2,
        "backoffLimit": 100, "backoffLimitPerIndex": 3 }));
    world.step();
    world.end(|index| if index == 0 { 1 } else { -1 });
    assert_eq!(world.step().again, Some(Duration::from_secs(10)));
    // Somebody clears away what has ended.
    world.pods[0].metadata.deletion_timestamp = Some(time(at(1)));
    world.step();
    assert_eq!((world.pods.len(), world.counts()), (2, (0, 0)), "it can't go yet, and is not counted");
    world.clock = 10;
    assert_eq!(world.step().create.len(), 1);
    assert_eq!(remembered(&world), (1, 0));
    world.step();
    world.step();
    assert_eq!((world.pods.len(), world.counts()), (2, (0, 1)));
    world.end(|index| if index == 0 { 1 } else { -1 });
    assert_eq!(world.step().again, Some(Duration::from_secs(20)));
}

#[test]
fn an_indexed_job_that_gets_smaller_loses_its_last_indexes() {
    let mut world = World::new(json!({ "completionMode": "Indexed", "completions": 4, "parallelism": 4,
        "backoffLimit": 0 }));
    world.step();
    let spec = world.job.spec.as_mut().unwrap();
    (spec.completions, spec.parallelism) = (Some(2), Some(2));
    let mut gone: Vec<_> = world.step().delete.iter().map(|p| index_of(p)).collect();
    gone.sort();
    assert_eq!(gone, [Some(2), Some(3)]);
    world.run(|_| 0);
    assert_eq!((world.condition().0.as_str(), world.counts()), ("Complete", (2, 0)));
}

/// Of two pods with one index the one that has come further stays, whichever is older.
#[test]
fn a_second_pod_of_an_index_goes() {
    let mut world = World::new(json!({ "completionMode": "Indexed", "completions": 2, "parallelism": 2 }));
    world.step();
    let mut twin = world.pods[1].clone();
    twin.metadata.uid = Some("twin".into());
    twin.status.as_mut().unwrap().phase = Some("Pending".into());
    world.pods.insert(0, twin);
    let gone: Vec<_> = world.step().delete.iter().map(|p| p.uid().to_string()).collect();
    assert_eq!(gone, ["twin"]);
}

/// One that was deleted before its end has failed too, and leaves nothing behind to be counted by.
#[test]
fn deleted_pods_are_replaced_ever_more_slowly() {
    let mut world = World::new(json!({ "completions": 1, "parallelism": 1 }));
    world.step();
    for wait in [10, 20, 40] {
        world.pods[0].metadata.deletion_timestamp = Some(time(at(world.clock)));
        let plan = world.step();
        assert_eq!((plan.create.len(), plan.again), (0, Some(Duration::from_secs(wait))));
        assert!(world.pods.is_empty());
        world.clock += wait as i64;
        assert_eq!(world.step().create.len(), 1);
    }
    // Whoever starts anew knows only of what is left.
    world.end(|_| 1);
    world.step();
    world.backoff = None;
    assert_eq!(world.step().again, Some(Duration::from_secs(10)));
}

/// `Failed` waits until a deleted pod has really ended; otherwise its place is free as soon as it is deleted.
#[test]
fn deleted_pods_are_replaced_as_the_policy_says() {
    let check = |spec: serde_json::Value, at_once: bool| {
        for mode in ["NonIndexed", "Indexed"] {
            let mut spec = spec.clone();
            (spec["completionMode"], spec["completions"], spec["parallelism"]) = (json!(mode), json!(2), json!(2));
            let mut world = World::new(spec);
            world.step();
            world.pods[0].metadata.deletion_timestamp = Some(time(at(0)));
            world.step();
            world.clock = 30;
            assert_eq!(world.step().create.len(), usize::from(at_once));
            let status = world.job.status.clone().unwrap();
            assert_eq!((status.failed, status.active), (at_once.then_some(1), Some(1)));
            assert_eq!(status.terminating, Some(i32::from(!at_once)));
            for pod in world.pods.iter_mut().filter(|p| p.deleting()) {
                pod.status.as_mut().unwrap().phase = Some("Failed".into());
            }
            world.step();
            world.clock = 60;
            world.step();
            assert_eq!((world.pods.len(), world.counts()), (2, (0, 1)));
        }
    };
    check(json!({}), true);
    check(json!({ "podReplacementPolicy": "TerminatingOrFailed" }), true);
    check(json!({ "podReplacementPolicy": "Failed" }), false);
    check(json!({ "podFailurePolicy": { "rules": [] } }), false);
}
