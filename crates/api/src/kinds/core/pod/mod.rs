//! Pods: defaults, strategy, grace periods, selectable fields. Their validation is `pod_spec`, their cells `printing`.
//! Neighbours: `pod_spec` (shared with templates), `update` (what may change).
//! A pod's status comes from its subresource only; on create it is Pending with its QoS class.

pub mod app_armor;
pub mod gated_status;
mod printing;
pub mod update;

use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{at, each, flag, int, int_at, is_set, items, part_mut, text, text_at},
            warnings::label_name,
        },
        core::pod_spec,
    },
    pod_resources::qos::qos_class_of_value,
};

#[derive(Default)]
pub struct Pod;

impl Behavior for Pod {
    fn returns_deleted(&self) -> bool {
        true
    }

    /// Counted with what they request.
    fn is_counted_by_quota(&self) -> bool {
        false
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        pod_spec::defaults::pod_spec(spec);
        pod_spec::defaults::pod_only(spec);
    }

    fn prepare_create(&self, object: &mut Value) {
        let mut status = json!({ "phase": "Pending", "qosClass": qos_class_of_value(&object["spec"]).as_str() });
        if is_set(&object["spec"], "schedulingGates") {
            status["conditions"] = json!([{
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]);
        }
        object["status"] = status;
        app_armor::annotations_to_fields(object);
        pod_spec::placement::merge_label_keys(object);
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        crate::kinds::behavior::reset_to_old(object, old, &["ownerReferences"]);
        let Some(status) = part_mut(object, "status") else { return };
        if text(status, "qosClass").is_empty() && is_set(&old["status"], "qosClass") {
            status["qosClass"] = old["status"]["qosClass"].clone();
        }
        keep_observed_generations(status, &old["status"]);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        pod_spec::validation::pod(errors, object);
        let path = Path::new("spec");
        let spec = &object["spec"];
        app_armor::validate_match(errors, &path, &object["metadata"], spec);
        if is_set(spec, "ephemeralContainers") {
            errors.forbidden(&path.child("ephemeralContainers"), "cannot be set on create");
        }
        if is_set(spec, "nodeName") && is_set(spec, "schedulingGates") {
            errors.forbidden(&path.child("nodeName"), "cannot be set until all schedulingGates have been cleared");
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        pod_spec::validation::pod(errors, object);
        update::validate(errors, object, old);
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        update::validate_status(errors, object, old);
    }

    fn prepare_subresource_update(&self, subresource: &str, object: &mut Value, old: &Value) {
        match subresource {
            "ephemeralcontainers" => update::prepare_ephemeral_containers(object, old),
            "resize" => update::prepare_resize(object, old),
            _ => {}
        }
    }

    fn validate_subresource_update(&self, subresource: &str, object: &Value, old: &Value, errors: &mut ErrorList) {
        match subresource {
            "ephemeralcontainers" => update::validate_ephemeral_containers(errors, object, old),
            "resize" => update::validate_resize(errors, object, old),
            _ => {}
        }
    }

    fn warnings_before_prepare(&self, object: &Value) -> Vec<String> {
        app_armor::warnings(object)
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        if old.is_some() {
            return Vec::new();
        }
        let of_name = label_name(object, "the Pod's hostname");
        of_name.into_iter().chain(pod_spec::warnings::pod(object)).collect()
    }

    fn has_status(&self) -> bool {
        true
    }

    /// Zero: delete now. A pod that never reached a node, or has ended, has nothing to wait for.
    fn grace_period_seconds(&self, object: &Value, asked: Option<i64>) -> Option<i64> {
        let period = asked.or(int(&object["spec"], "terminationGracePeriodSeconds")).unwrap_or(0);
        let nothing_runs = text_at(object, "spec.nodeName").is_empty()
            || matches!(text_at(object, "status.phase"), "Failed" | "Succeeded");
        Some(match period {
            _ if nothing_runs => 0,
            ..0 => 1,
            period => period,
        })
    }

    fn columns(&self) -> &'static [Column] {
        &printing::COLUMNS
    }

    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        printing::cells(object, now)
    }

    fn row_conditions(&self, object: &Value) -> Vec<Value> {
        let (reason, message) = match text_at(object, "status.phase") {
            "Succeeded" => ("Succeeded", "The pod has completed successfully."),
            "Failed" => ("Failed", "The pod failed."),
            _ => return Vec::new(),
        };
        vec![json!({ "type": "Completed", "status": "True", "reason": reason, "message": message })]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let ips: Vec<&str> = items(status, "podIPs").iter().map(|ip| text(ip, "ip")).collect();
        let first = ips.first().copied().unwrap_or(text(status, "podIP"));
        [
            ("spec.nodeName", text(spec, "nodeName")),
            ("spec.restartPolicy", text(spec, "restartPolicy")),
            ("spec.schedulerName", text(spec, "schedulerName")),
            ("spec.serviceAccountName", text(spec, "serviceAccountName")),
            ("spec.hostNetwork", if flag(spec, "hostNetwork") { "true" } else { "false" }),
            ("status.phase", text(status, "phase")),
            ("status.podIP", first),
            ("status.podIPs", &ips.join(",")),
            ("status.nominatedNodeName", text(status, "nominatedNodeName")),
        ]
        .map(|(field, value)| (field.to_string(), value.to_string()))
        .into()
    }

    fn selectable_field_names(&self) -> Vec<String> {
        [
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ]
        .map(str::to_string)
        .into()
    }
}

/// A client that does not know `observedGeneration` does not clear it.
fn keep_observed_generations(status: &mut Value, old: &Value) {
    if int_at(status, "observedGeneration") == 0 && int_at(old, "observedGeneration") != 0 {
        status["observedGeneration"] = at(old, "observedGeneration").clone();
    }
    each(status, "conditions", |condition| {
        if int_at(condition, "observedGeneration") != 0 {
            return;
        }
        let before = items(old, "conditions").iter().find(|c| text(c, "type") == text(condition, "type"));
        if let Some(generation) = before.and_then(|c| int(c, "observedGeneration")).filter(|g| *g != 0) {
            condition["observedGeneration"] = json!(generation);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value) -> Value {
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a" }, "spec": spec });
        Pod.default(&mut pod);
        pod
    }

    #[test]
    fn less_than_no_grace_is_a_second() {
        for (given, kept) in [(-1, 1), (0, 0), (5, 5)] {
            let pod = pod(json!({ "containers": [], "terminationGracePeriodSeconds": given }));
            assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], kept);
        }
    }

    #[test]
    fn defaults() {
        let pod = pod(json!({
            "serviceAccountName": "robot",
            "containers": [{
                "name": "c", "image": "nginx", "ports": [{ "containerPort": 80 }],
                "resources": { "limits": { "cpu": "1000m" } },
                "livenessProbe": { "httpGet": { "port": 80 }, "periodSeconds": 0 },
                "env": [{ "name": "E", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
            }],
            "volumes": [{ "name": "v" }, { "name": "s", "secret": { "secretName": "x" } }],
        }));
        assert_eq!(
            pod["spec"],
            json!({
                "serviceAccountName": "robot", "serviceAccount": "robot",
                "containers": [{
                    "name": "c", "image": "nginx", "ports": [{ "containerPort": 80, "protocol": "TCP" }],
                    "resources": { "limits": { "cpu": "1" }, "requests": { "cpu": "1" } },
                    "imagePullPolicy": "Always",
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    "livenessProbe": {
                        "httpGet": { "port": 80, "path": "/", "scheme": "HTTP" },
                        "periodSeconds": 10, "timeoutSeconds": 1, "successThreshold": 1, "failureThreshold": 3,
                    },
                    "env": [{ "name": "E", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name", "apiVersion": "v1" } } }],
                }],
                "volumes": [
                    { "name": "v", "emptyDir": {} },
                    { "name": "s", "secret": { "secretName": "x", "defaultMode": 420 } },
                ],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "securityContext": {},
                "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler", "enableServiceLinks": true,
            })
        );
    }

    #[test]
    fn starts_pending_and_keeps_its_spec_on_status_updates() {
        let mut old = pod(json!({ "containers": [{ "name": "c", "image": "i" }] }));
        Pod.prepare_create(&mut old);
        assert_eq!(old["status"], json!({ "phase": "Pending", "qosClass": "BestEffort" }));
        let mut new = old.clone();
        new["spec"] = json!({});
        new["metadata"]["labels"] = json!({ "a": "b" });
        new["status"] = json!({ "phase": "Running" });
        Pod.prepare_status_update(&mut new, &old);
        assert_eq!(new["spec"], old["spec"]);
        assert_eq!(new["status"], json!({ "phase": "Running", "qosClass": "BestEffort" }));
        assert_eq!(new["metadata"]["labels"]["a"], "b");
    }

    #[test]
    fn grace_periods() {
        let check = |node: &str, phase: &str, asked: Option<i64>, expected: i64| {
            let pod = json!({
                "spec": { "nodeName": node, "terminationGracePeriodSeconds": 30 }, "status": { "phase": phase }
            });
            assert_eq!(Pod.grace_period_seconds(&pod, asked), Some(expected), "{node} {phase} {asked:?}");
        };
        check("", "Pending", None, 0);
        check("n", "Running", None, 30);
        check("n", "Running", Some(5), 5);
        check("n", "Running", Some(-5), 1);
        check("n", "Running", Some(0), 0);
        check("n", "Succeeded", Some(5), 0);
    }
}
