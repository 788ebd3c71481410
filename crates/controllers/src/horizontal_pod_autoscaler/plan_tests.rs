//! Whole decisions: what a series of wishes becomes under windows and policies, and what people are told.

use super::*;
use serde_json::{Value, json};

use crate::horizontal_pod_autoscaler::replica_calculator::{PodMetric, PodMetrics};

fn autoscaler(spec: Value) -> HorizontalPodAutoscaler {
    let mut whole = json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
        "minReplicas": 1, "maxReplicas": 100,
        "metrics": [{ "type": "External", "external": {
            "metric": { "name": "qps" }, "target": { "type": "AverageValue", "averageValue": "1" } } }],
    });
    for (name, value) in spec.as_object().unwrap() {
        whole[name] = value.clone();
    }
    serde_json::from_value(json!({ "metadata": { "name": "h", "namespace": "d" }, "spec": whole })).unwrap()
}

fn moment(seconds: u64) -> Moment {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    Moment { now: now + Duration::from_secs(seconds), monotonic: Duration::from_secs(seconds) }
}

fn reason<'a>(plan: &'a Plan, kind: &str) -> (&'a str, bool) {
    let found = plan.status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    found.map_or(("", false), |found| (found.reason.as_deref().unwrap_or_default(), found.status == "True"))
}

/// One wish after the other: when, how many, and the size that comes of it. Every change is carried out.
#[track_caller]
fn check(what: &str, spec: Value, start: i32, steps: &[(u64, i32, i32)]) {
    let (autoscaler, mut history, mut current) = (autoscaler(spec), History::default(), start);
    let settings = HorizontalPodAutoscalerSettings::default();
    for (index, (seconds, wished, expected)) in steps.iter().enumerate() {
        let scale = Scale { spec_replicas: current, status_replicas: current, selector: "app=web".into() };
        let samples = vec![Ok(Sample::Value(i64::from(*wished) * 1000))];
        let observed =
            needs_metrics(autoscaler.spec.as_ref().unwrap(), &scale).then_some(Ok(Observation { pods: &[], samples }));
        let mut plan = plan(&autoscaler, &scale, observed, &mut history, &settings, moment(*seconds));
        plan.rescaled(&autoscaler, Ok(()), &mut history, moment(*seconds));
        assert_eq!(plan.status.desired_replicas, *expected, "{what}, step {index}: {:?}", plan.status.conditions);
        current = plan.status.desired_replicas;
    }
}

#[test]
fn sizes_follow_wishes_at_the_pace_that_is_allowed() {
    check("without a behavior a target doubles at most", json!({}), 3, &[(0, 50, 6), (15, 50, 12), (30, 50, 24)]);
    check("and may always have four", json!({}), 1, &[(0, 50, 4)]);
    check(
        "and shrinks when five minutes are over",
        json!({}),
        10,
        &[(0, 10, 10), (15, 2, 10), (299, 3, 10), (316, 2, 3)],
    );
    check("maximum", json!({ "maxReplicas": 5 }), 3, &[(0, 50, 5)]);
    check("outside of the bounds it goes back to them", json!({ "maxReplicas": 5 }), 9, &[(0, 9, 5)]);
    check("minimum", json!({ "minReplicas": 4 }), 2, &[(0, 1, 4)]);
    check("a target of none stays", json!({}), 0, &[(0, 9, 0)]);
    let rules = |up: Value, down: Value| json!({ "behavior": { "scaleUp": up, "scaleDown": down } });
    let policy =
        |kind: &str, value: i32, seconds: i32| json!({ "type": kind, "value": value, "periodSeconds": seconds });
    let free =
        json!({ "stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [policy("Percent", 100, 15)] });
    let up = json!({ "stabilizationWindowSeconds": 0, "policies": [policy("Pods", 2, 60)] });
    check("pods per minute", rules(up, free.clone()), 2, &[(0, 9, 4), (15, 9, 4), (61, 9, 6), (130, 9, 8)]);
    let up = json!({ "stabilizationWindowSeconds": 0, "policies": [policy("Percent", 50, 60)] });
    check("percent, rounded up", rules(up, free.clone()), 1, &[(0, 9, 2), (61, 9, 3), (122, 9, 5)]);
    let both = json!([policy("Pods", 4, 60), policy("Percent", 10, 60)]);
    let up = |select: &str| json!({ "stabilizationWindowSeconds": 0, "selectPolicy": select, "policies": both });
    check("the larger change", rules(up("Max"), free.clone()), 10, &[(0, 90, 14)]);
    check("the smaller change", rules(up("Min"), free.clone()), 10, &[(0, 90, 11)]);
    check("no change up", rules(up("Disabled"), free.clone()), 10, &[(0, 90, 10), (15, 2, 2)]);
    let down = |select: &str| json!({ "stabilizationWindowSeconds": 0, "selectPolicy": select, "policies": both });
    check("the larger step down", rules(free.clone(), down("Max")), 50, &[(0, 1, 45), (61, 1, 40)]);
    check("the smaller step down", rules(free.clone(), down("Min")), 50, &[(0, 1, 46)]);
    check("no change down", rules(free.clone(), down("Disabled")), 50, &[(0, 1, 50), (15, 60, 60)]);
    let window =
        |seconds: i32| json!({ "stabilizationWindowSeconds": seconds, "policies": [policy("Percent", 900, 15)] });
    check("the lowest wish of the window up", rules(window(60), free.clone()), 2, &[(0, 9, 2), (30, 5, 2), (61, 8, 5)]);
    check(
        "the highest wish of the window down",
        rules(free.clone(), window(60)),
        9,
        &[(0, 2, 9), (30, 5, 9), (61, 1, 5)],
    );
    let unset = json!({ "policies": [policy("Percent", 100, 15)] });
    check("the window of the flag", rules(free, unset), 9, &[(0, 2, 9), (290, 2, 9), (301, 2, 2)]);
}

#[test]
fn tolerances_of_each_direction() {
    let tolerant = json!({ "behavior": { "scaleUp": { "tolerance": "0.5" }, "scaleDown": { "tolerance": "0" } } });
    let spec = autoscaler(tolerant).spec.unwrap();
    assert_eq!(tolerances(&spec, 0.1), Tolerances { scale_down: 0.0, scale_up: 0.5 });
    assert_eq!(tolerances(&autoscaler(json!({})).spec.unwrap(), 0.1), Tolerances { scale_down: 0.1, scale_up: 0.1 });
}

fn decide(autoscaler: &HorizontalPodAutoscaler, replicas: i32, samples: Vec<Result<Sample, String>>) -> Plan {
    let scale = Scale { spec_replicas: replicas, status_replicas: replicas, selector: "app=web".into() };
    let (mut history, settings) = (History::default(), HorizontalPodAutoscalerSettings::default());
    plan(autoscaler, &scale, Some(Ok(Observation { pods: &[], samples })), &mut history, &settings, moment(0))
}

#[test]
fn people_are_told_in_upstreams_words() {
    let one = autoscaler(json!({}));
    let plan = decide(&one, 2, vec![Ok(Sample::Value(3000))]);
    assert_eq!(plan.rescale.as_ref().unwrap().reason, "external metric qps(nil) above target");
    assert_eq!(reason(&plan, "AbleToScale"), ("ReadyForNewScale", true));
    assert_eq!(reason(&plan, "ScalingActive"), ("ValidMetricFound", true));
    assert_eq!(reason(&plan, "ScalingLimited"), ("DesiredWithinRange", false));
    let current = plan.status.current_metrics.as_ref().unwrap()[0].external.as_ref().unwrap();
    assert_eq!(current.current.average_value.as_ref().unwrap().0, "1500m");

    let plan = decide(&one, 4, vec![Ok(Sample::Value(1000))]);
    assert_eq!(reason(&plan, "AbleToScale"), ("ScaleDownStabilized", true));
    let plan = decide(&one, 4, vec![Ok(Sample::Value(900_000))]);
    assert_eq!(reason(&plan, "ScalingLimited"), ("ScaleUpLimit", true));

    let plan = decide(&one, 2, vec![Err("no metrics returned from external metrics API".into())]);
    assert!(plan.rescale.is_none());
    assert_eq!(reason(&plan, "ScalingActive"), ("FailedGetExternalMetric", false));
    let told: Vec<_> = plan.events.iter().map(|event| (event.reason, event.message.as_str())).collect();
    let cause = "unable to get external metric d/qps/nil: no metrics returned from external metrics API";
    let whole = format!(
        "invalid metrics (1 invalid out of 1), first error is: failed to get qps external metric value: failed to get \
         qps external metric: {cause}"
    );
    assert_eq!(told, [("FailedGetExternalMetric", cause), ("FailedComputeMetricsReplicas", whole.as_str())]);

    let failure = Failure { message: "whole".into(), is_spec: true };
    let plan = without_scale(&one, "no matches for kind \"X\" in group \"\"", failure, moment(0));
    assert_eq!(reason(&plan, "AbleToScale"), ("FailedGetScale", false));
}

#[test]
fn of_metrics_that_can_not_be_read_only_growth_is_believed() {
    let metric = |name: &str| {
        json!({ "type": "External", "external": {
        "metric": { "name": name }, "target": { "type": "AverageValue", "averageValue": "1" } } })
    };
    let two = autoscaler(json!({ "metrics": [metric("a"), metric("b")] }));
    let broken = || Err("gone".to_string());
    let check = |samples, expected: Option<i32>, active: (&str, bool)| {
        let plan = decide(&two, 4, samples);
        assert_eq!(plan.rescale.as_ref().map(|rescale| rescale.to), expected);
        assert_eq!(reason(&plan, "ScalingActive"), active);
        plan
    };
    check(vec![broken(), Ok(Sample::Value(6000))], Some(6), ("ValidMetricFound", true));
    check(vec![broken(), Ok(Sample::Value(2000))], None, ("FailedGetExternalMetric", false));
    check(vec![Ok(Sample::Value(5000)), Ok(Sample::Value(6000))], Some(6), ("ValidMetricFound", true));
    // Never both up and down: the other metric still wants what is there.
    check(vec![Ok(Sample::Value(4000)), Ok(Sample::Value(1000))], None, ("ValidMetricFound", true));
}

#[test]
fn memory_is_shown_in_binary() {
    let metric = json!([{ "type": "Resource", "resource": {
        "name": "memory", "target": { "type": "AverageValue", "averageValue": "64Mi" } } }]);
    let autoscaler = autoscaler(json!({ "metrics": metric }));
    let pod = json!({ "metadata": { "name": "p" }, "status": { "phase": "Running" } });
    let pods = [Arc::new(serde_json::from_value(pod).unwrap())];
    let used = PodMetric { milli: 128 * 1024 * 1024 * 1000, at: moment(0).now, window: Duration::from_secs(15) };
    let samples = vec![Ok(Sample::Pods(PodMetrics::from([("p".to_string(), used)])))];
    let scale = Scale { spec_replicas: 1, status_replicas: 1, selector: "a=b".into() };
    let (mut history, settings) = (History::default(), HorizontalPodAutoscalerSettings::default());
    let observed = Some(Ok(Observation { pods: &pods, samples }));
    let plan = plan(&autoscaler, &scale, observed, &mut history, &settings, moment(0));
    assert_eq!(plan.status.desired_replicas, 2);
    let status = plan.status.current_metrics.as_ref().unwrap()[0].resource.as_ref().unwrap();
    assert_eq!(status.current.average_value.as_ref().unwrap().0, "128Mi");
}
