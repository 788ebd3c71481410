//! Upstream's situations of `replica_calculator_test.go`, as data.

use super::*;
use serde_json::json;

const NOW: &str = "2026-01-01T01:00:00Z";

/// One pod: what it requests and uses in thousandths, and what sets it apart.
#[derive(Clone, Copy)]
struct PodCase {
    request: i64,
    used: Option<i64>,
    state: &'static str,
}

fn running(used: i64) -> PodCase {
    PodCase { request: 1000, used: Some(used), state: "" }
}

fn other(used: impl Into<Option<i64>>, state: &'static str) -> PodCase {
    PodCase { request: 1000, used: used.into(), state }
}

fn pod(index: usize, case: &PodCase) -> Arc<Pod> {
    let (phase, ready) = match case.state {
        "pending" => ("Pending", "False"),
        "failed" => ("Failed", "False"),
        "unready" => ("Running", "False"),
        _ => ("Running", "True"),
    };
    // Started a while ago; `hot` ones are within their initialization and have just turned ready.
    let (started, changed) = match case.state {
        "hot" => ("2026-01-01T00:59:00Z", "2026-01-01T00:59:50Z"),
        "once ready" => ("2026-01-01T00:00:00Z", "2026-01-01T00:30:00Z"),
        _ => ("2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z"),
    };
    let ready = if case.state == "once ready" { "False" } else { ready };
    let mut pod = json!({
        "metadata": { "name": format!("p{index}"), "namespace": "d" },
        "spec": { "containers": [
            { "name": "c", "resources": { "requests": { "cpu": format!("{}m", case.request) } } },
            { "name": "d", "resources": { "requests": { "cpu": "0" } } },
        ] },
        "status": { "phase": phase, "startTime": started,
            "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": changed }] },
    });
    if case.state == "deleted" {
        pod["metadata"]["deletionTimestamp"] = NOW.into();
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn metrics(cases: &[PodCase]) -> PodMetrics {
    let at: Timestamp = NOW.parse().unwrap();
    let one = |(index, case): (usize, &PodCase)| {
        let milli = case.used?;
        Some((format!("p{index}"), PodMetric { milli, at, window: Duration::from_secs(60) }))
    };
    cases.iter().enumerate().filter_map(one).collect()
}

fn with<T>(cases: &[PodCase], tolerance: f64, ask: impl FnOnce(&ReplicaCalculator<'_>) -> T) -> T {
    let pods: Vec<Arc<Pod>> = cases.iter().enumerate().map(|(index, case)| pod(index, case)).collect();
    ask(&ReplicaCalculator {
        pods: &pods,
        tolerances: Tolerances { scale_down: tolerance, scale_up: tolerance },
        initialization: PodInitialization {
            cpu_initialization_period: Duration::from_secs(120),
            initial_readiness_delay: Duration::from_secs(10),
        },
        now: NOW.parse().unwrap(),
    })
}

#[test]
fn utilization() {
    let check = |what: &str, cases: &[PodCase], current: i32, percent: i32, expected: (i32, i32, i64)| {
        for container in [None, Some("c")] {
            let found = with(cases, 0.1, |calculator| {
                calculator.by_utilization(current, percent, "cpu", container, metrics(cases))
            });
            let (replicas, utilization, average_milli) = expected;
            let expected = Proposal { replicas, utilization: Some(utilization), average_milli };
            assert_eq!(found, Ok(expected), "{what} {container:?}");
        }
    };
    check("up", &[running(300), running(500), running(700)], 3, 30, (5, 50, 500));
    let cases = [other(300, "unready"), running(500), running(700)];
    check("unready pods make it grow less", &cases, 3, 30, (4, 60, 600));
    let cases = [other(300, "hot"), running(500), running(700)];
    check("so do pods that start", &cases, 3, 30, (4, 60, 600));
    let cases = [other(None, "pending"), running(500), running(700)];
    check("and pending ones", &cases, 3, 30, (4, 60, 600));
    let cases = [running(500), running(700), other(None, "failed"), other(None, "deleted")];
    check("failed and deleted pods do not count", &cases, 2, 50, (3, 60, 600));
    let cases = [running(100), running(300), running(500), running(250), running(250)];
    check("down", &cases, 5, 50, (3, 28, 280));
    let cases = [running(100), running(300), running(500), other(250, "hot"), other(250, "hot")];
    check("pods that start do not keep it from shrinking", &cases, 5, 50, (2, 30, 300));
    let cases = [other(400, "once ready"), running(600), running(600)];
    check("a pod that was ready long ago counts", &cases, 3, 30, (6, 53, 533));
    let near = |request, used| PodCase { request, used: Some(used), state: "" };
    check("within tolerance", &[near(900, 1010), near(1000, 1030), near(1100, 1020)], 3, 100, (3, 102, 1020));
    let cases = [running(400), running(95), other(None, ""), other(None, "")];
    check("missing metrics count as all on the way down", &cases, 4, 100, (3, 24, 247));
    let cases = [running(100), other(None, "")];
    check("or as the target where that is higher", &cases, 2, 300, (2, 10, 100));
    check("missing, equal", &[running(1000), other(None, "")], 2, 100, (2, 100, 1000));
    check("missing, higher", &[running(1900), other(None, "")], 2, 100, (2, 190, 1900));
    check("missing, lower", &[running(600), other(None, "")], 2, 100, (2, 60, 600));
    let cases = [other(100, "unready"), running(450), other(None, "")];
    check("missing and unready, lower", &cases, 3, 50, (3, 45, 450));
    let cases = [other(100, "unready"), running(2000), other(None, "")];
    check("missing and unready, higher", &cases, 3, 50, (4, 200, 2000));
}

#[test]
fn averages() {
    let check = |what: &str, cases: &[PodCase], current: i32, target: i64, expected: (i32, i64)| {
        let found = with(cases, 0.1, |calculator| calculator.by_average(current, target, "", metrics(cases)));
        let (replicas, average_milli) = expected;
        assert_eq!(found, Ok(Proposal { replicas, utilization: None, average_milli }), "{what}");
    };
    check("up", &[running(20_000), running(10_000), running(30_000)], 3, 15_000, (4, 20_000));
    let cases = [running(50_000), other(10_000, "unready"), other(30_000, "hot")];
    check("whether a pod is ready matters for processor time only", &cases, 3, 15_000, (6, 30_000));
    check("down", &[running(12_000); 5], 5, 20_000, (3, 12_000));
    check("within tolerance", &[running(20_666), running(20_666), running(20_668)], 3, 20_000, (3, 20_666));
    let cases = [running(3000), other(None, ""), other(None, "")];
    check("missing, higher", &cases, 3, 2000, (3, 3000));
    check("missing, lower", &[running(500), other(None, "")], 2, 2000, (2, 500));
    check("negative", &[running(-5000), running(1000)], 2, 1000, (-4, -2000));
}

#[test]
fn values() {
    let check = |current: i32, target: i64, used: i64, cases: &[PodCase], expected: Result<i32, &str>| {
        let found = with(cases, 0.1, |calculator| calculator.by_value(current, target, used));
        assert_eq!(found, expected.map_err(String::from), "{used} of {target} with {current}");
    };
    let three = [running(0); 3];
    check(3, 15_000, 20_000, &three, Ok(4));
    check(3, 10_000, 10_500, &three, Ok(3));
    check(5, 20_000, 12_000, &[running(0); 5], Ok(3));
    check(3, 15_000, 20_000, &[running(0), other(0, "unready"), running(0)], Ok(3));
    check(0, 15_000, 20_000, &[], Ok(2));
    check(0, 15_000, 0, &[], Ok(0));
    check(1, 1, i64::MAX, &three, Ok(i32::MAX));
    let none = "unable to calculate ready pods: no pods returned by selector while calculating replica count";
    check(1, 1, 5, &[], Err(none));

    let check = |replicas: i32, target: i64, used: i64, expected: (i32, i64)| {
        let found = with(&[], 0.1, |calculator| calculator.by_value_per_pod(replicas, target, used));
        assert_eq!(found, expected, "{used} of {target} each with {replicas}");
    };
    check(3, 2150, 8600, (4, 2867));
    check(5, 2000, 5000, (3, 1000));
    check(3, 2867, 8600, (3, 2867));
    check(3, 1, i64::MAX, (i32::MAX, i64::MAX));
}

#[test]
fn what_can_not_be_computed_says_why() {
    let check = |cases: &[PodCase], resource: &str, container: Option<&str>, expected: &str| {
        let found =
            with(cases, 0.1, |calculator| calculator.by_utilization(1, 50, resource, container, metrics(cases)));
        assert_eq!(found, Err(expected.into()));
    };
    check(&[], "cpu", None, "no pods returned by selector while calculating replica count");
    let unready = "did not receive metrics for targeted pods (pods might be unready)";
    check(&[other(5, "pending")], "cpu", None, unready);
    check(&[running(1)], "memory", None, "missing request for memory in container c of Pod p0");
    check(&[running(1)], "cpu", Some("x"), "container x not found in Pod p0");
    check(&[running(1)], "cpu", Some("d"), "no metrics returned matched known pods");
}

#[test]
fn pod_level_requests_win_unless_a_container_is_named() {
    let mut pod = (*pod(0, &running(1))).clone();
    let resources = json!({ "requests": { "memory": "2Ki" } });
    pod.spec.as_mut().unwrap().resources = serde_json::from_value(resources).unwrap();
    assert_eq!(request(&pod, "memory", None), Ok(2_048_000));
    assert_eq!(request(&pod, "cpu", None), Ok(1000));
    assert_eq!(request(&pod, "cpu", Some("d")), Ok(0));
    assert!(request(&pod, "hugepages-2Mi", None).is_err_and(|error| error.starts_with("missing pod-level request")));
}
