//! Whether an exited container runs again: the pod's policy, the container's own, and its rules by exit code.
//! Used by `pod_actions` and `pod_status`, which must agree.
//! Invariant: pure (tidy: `pure_files`).

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod};

use crate::{
    pod::pod_spec,
    runtime::runtime_status::{PodRuntimeStatus, State},
};

/// The policy that holds for this container.
pub fn policy<'a>(pod: &'a Pod, container: &'a Container) -> &'a str {
    container.restart_policy.as_deref().unwrap_or_else(|| pod_spec::restart_policy(pod))
}

/// Whether the container runs again after it ended with `exit_code`.
pub fn after_exit(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    if let Some(rule) = container.restart_policy_rules.iter().flatten().find(|rule| matches(rule, exit_code)) {
        return rule.action == "Restart";
    }
    match policy(pod, container) {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// Whether a container that is not running is to be started (again), given the pod is not being deleted.
pub fn wanted(pod: &Pod, container: &Container, status: &PodRuntimeStatus) -> bool {
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    match status.find(&container.name) {
        None => true,
        Some(found) => match found.state {
            State::Running => false,
            // Created but never started, or lost: it has not ended, so the policy has nothing to say.
            State::Created | State::Unknown => true,
            State::Exited => after_exit(pod, container, found.exit_code),
        },
    }
}

fn matches(rule: &ContainerRestartRule, exit_code: i32) -> bool {
    rule.exit_codes.as_ref().is_some_and(|codes| {
        let listed = codes.values.iter().flatten().any(|value| *value == exit_code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_before_policies_and_the_containers_policy_before_the_pods() {
        let check = |pod_policy: &str, container: serde_json::Value, exit_code: i32, expected: bool| {
            let pod: Pod =
                serde_json::from_value(serde_json::json!({"spec": {"restartPolicy": pod_policy, "containers": []}}))
                    .unwrap();
            let container: Container = serde_json::from_value(container).unwrap();
            assert_eq!(after_exit(&pod, &container, exit_code), expected, "{pod_policy} {container:?} {exit_code}");
        };
        let plain = || serde_json::json!({"name": "a"});
        check("Always", plain(), 0, true);
        check("OnFailure", plain(), 0, false);
        check("OnFailure", plain(), 1, true);
        check("Never", plain(), 1, false);
        check("Never", serde_json::json!({"name": "a", "restartPolicy": "OnFailure"}), 1, true);
        let rules = || {
            serde_json::json!({"name": "a", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]})
        };
        check("Never", rules(), 42, true);
        check("Always", rules(), 1, false);
    }
}
