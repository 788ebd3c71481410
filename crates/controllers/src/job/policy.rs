//! What a pod's failure means to its job: podFailurePolicy and successPolicy.
//! Used by the job core; pure.
//! The first rule that matches decides.

use k8s_openapi::api::{
    batch::v1::{Job, PodFailurePolicyOnExitCodesRequirement},
    core::v1::{ContainerStatus, Pod},
};

use super::indexes::{Indexes, parse};
use crate::common::{meta::Object, pods};

#[derive(Debug, Clone, PartialEq)]
pub enum Ruling {
    /// Counts toward the back-off limit.
    Count,
    Ignore,
    FailIndex,
    /// With the message that the job's condition gets.
    FailJob(String),
}

pub fn ruling(job: &Job, pod: &Pod) -> Ruling {
    match matching_rule(job, pod) {
        Some(("Ignore", _)) => Ruling::Ignore,
        Some(("FailIndex", _)) => Ruling::FailIndex,
        Some(("FailJob", message)) => Ruling::FailJob(message),
        _ => Ruling::Count,
    }
}

/// The action of the rule that matches, as it is written.
pub fn matched_action<'a>(job: &'a Job, pod: &Pod) -> Option<&'a str> {
    matching_rule(job, pod).map(|(action, _)| action)
}

/// The action of the first rule that matches, and what to say of it.
fn matching_rule<'a>(job: &'a Job, pod: &Pod) -> Option<(&'a str, String)> {
    let policy = job.spec.as_ref().and_then(|s| s.pod_failure_policy.as_ref());
    for (index, rule) in policy.into_iter().flat_map(|p| p.rules.iter()).enumerate() {
        let action = rule.action.as_str();
        let found = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
            (Some(codes), _) => matching_container(codes, pod).map(|(container, code)| {
                let (name, pod) = (&container.name, pod.key());
                format!("Container {name} for pod {pod} failed with exit code {code} matching {action} rule at index {index}")
            }),
            (None, Some(patterns)) => patterns.iter().find_map(|pattern| {
                let condition = pods::condition(pod, &pattern.type_)?;
                let wanted = pattern.status.as_deref().unwrap_or("True");
                let message =
                    format!("Pod {} has condition {} matching {action} rule at index {index}", pod.key(), pattern.type_);
                (condition.status == wanted).then_some(message)
            }),
            (None, None) => None,
        };
        if let Some(message) = found {
            return Some((action, message));
        }
    }
    None
}

fn matching_container<'a>(
    codes: &PodFailurePolicyOnExitCodesRequirement,
    pod: &'a Pod,
) -> Option<(&'a ContainerStatus, i32)> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.filter(|c| codes.container_name.as_ref().is_none_or(|name| *name == c.name)).find_map(|container| {
        let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
        let listed = codes.values.contains(&code);
        let matches = code != 0 && if codes.operator == "NotIn" { !listed } else { listed };
        matches.then_some((container, code))
    })
}

/// The message of the success rule that these finished indexes fulfil.
pub fn success(job: &Job, succeeded: &Indexes, completions: i32) -> Option<String> {
    let policy = job.spec.as_ref()?.success_policy.as_ref()?;
    policy.rules.iter().enumerate().find_map(|(at, rule)| {
        let relevant: Indexes = match &rule.succeeded_indexes {
            Some(text) => parse(text, completions),
            None => (0..completions).collect(),
        };
        let have = relevant.intersection(succeeded).count();
        let needed = rule.succeeded_count.map_or(relevant.len(), |n| n.max(0) as usize);
        (have >= needed).then(|| format!("Matched rules at index {at}"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rulings() {
        let job = |rules: serde_json::Value| -> Job {
            let spec = json!({ "template": {}, "podFailurePolicy": { "rules": rules } });
            serde_json::from_value(json!({ "spec": spec })).unwrap()
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "p", "namespace": "d" },
            "status": { "phase": "Failed",
                "conditions": [{ "type": "DisruptionTarget", "status": "True" }],
                "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": { "terminated": { "exitCode": 42 } } }] },
        }))
        .unwrap();
        let codes = |operator: &str, values: &[i32]| json!({ "operator": operator, "values": values });
        let check = |rules, expected: Ruling| assert_eq!(ruling(&job(rules), &pod), expected);
        check(json!([]), Ruling::Count);
        check(
            json!([{ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }] }]),
            Ruling::Ignore,
        );
        check(json!([{ "action": "FailIndex", "onExitCodes": codes("NotIn", &[1]) }]), Ruling::FailIndex);
        check(json!([{ "action": "FailJob", "onExitCodes": codes("In", &[1]) }]), Ruling::Count);
        let message = "Container c for pod d/p failed with exit code 42 matching FailJob rule at index 0";
        check(json!([{ "action": "FailJob", "onExitCodes": codes("In", &[42]) }]), Ruling::FailJob(message.into()));
    }
}
