//! StatefulSets: defaults, strategy, columns, validation.
//! Neighbours: `pod_spec` for the template, `persistent_volume_claim` for the claim templates.
//! Only a few fields of the spec may change.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_to, each, existing_mut, int, int_at, is_set, items, part, part_mut, set, text},
            checks,
            columns::{CONTAINERS, IMAGES, age, age_of, containers, name, name_of, string},
            warnings::{claim_spec, generation_changed},
            workload,
        },
        core::{persistent_volume_claim, pod_spec},
    },
    names,
};

#[derive(Default)]
pub struct StatefulSet;

impl Behavior for StatefulSet {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "podManagementPolicy", "OrderedReady");
        default_to(spec, "replicas", 1);
        default_to(spec, "revisionHistoryLimit", 10);
        if let Some(strategy) = part_mut(spec, "updateStrategy") {
            if !is_set(strategy, "type") {
                strategy["type"] = json!("RollingUpdate");
                default_to(strategy, "rollingUpdate", json!({}));
            }
            if text(strategy, "type") == "RollingUpdate"
                && let Some(rolling) = existing_mut(strategy, "rollingUpdate")
            {
                default_to(rolling, "partition", 0);
            }
        }
        if let Some(retention) = part_mut(spec, "persistentVolumeClaimRetentionPolicy") {
            default_to(retention, "whenDeleted", "Retain");
            default_to(retention, "whenScaled", "Retain");
        }
        each(spec, "volumeClaimTemplates", |claim| {
            default_to(claim, "apiVersion", "v1");
            default_to(claim, "kind", "PersistentVolumeClaim");
            persistent_volume_claim::PersistentVolumeClaim.default(claim);
        });
        pod_spec::defaults::template(spec);
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &object["spec"], true);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &object["spec"], false);
        let mut allowed = object["spec"].clone();
        for field in UPDATABLE {
            set(&mut allowed, field, old["spec"][field].clone());
        }
        if !checks::same(&allowed, &old["spec"]) {
            errors.forbidden(
                &Path::new("spec"),
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                 'minReadySeconds' are forbidden",
            );
        }
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        let counts = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
        checks::replica_counts(errors, &object["status"], "status.readyReplicas", &counts);
        workload::collision_count(errors, object, old);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::dns_label(name, prefix)
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut warnings = match old {
            Some(old) if !generation_changed(object, old) => Vec::new(),
            _ => pod_spec::warnings::template("spec.template", &object["spec"]["template"]),
        };
        for (index, claim) in items(&object["spec"], "volumeClaimTemplates").iter().enumerate() {
            let path = format!("spec.volumeClaimTemplates[{index}]");
            let path = if old.is_some() { format!("{path}.Spec") } else { path };
            warnings.extend(claim_spec(&path, &claim["spec"]));
        }
        if int(&object["spec"], "revisionHistoryLimit").is_some_and(|limit| limit < 0) {
            let message = "a negative value retains all historical revisions; a value >= 0 is recommended";
            warnings.push(format!("spec.revisionHistoryLimit: {message}"));
        }
        warnings
    }

    fn has_status(&self) -> bool {
        true
    }

    fn initial_status(&self) -> Value {
        json!({ "replicas": 0, "availableReplicas": 0 })
    }

    fn status_update_resets(&self) -> &'static [&'static str] {
        &[]
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 5] =
            [name(), string("Ready", "Ready replicas of those wanted."), age(), CONTAINERS, IMAGES];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let (names, images) = containers(&spec["template"]["spec"]);
        vec![
            name_of(object),
            json!(format!("{}/{}", int_at(status, "readyReplicas"), int_at(spec, "replicas"))),
            age_of(object, now),
            names,
            images,
        ]
    }
}

const UPDATABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

fn validate_spec(errors: &mut ErrorList, spec: &Value, is_new: bool) {
    let path = Path::new("spec");
    match text(spec, "podManagementPolicy") {
        "" => errors.required(&path.child("podManagementPolicy"), ""),
        "OrderedReady" | "Parallel" => {}
        policy => {
            errors.invalid(&path.child("podManagementPolicy"), policy, "must be 'OrderedReady' or 'Parallel'");
        }
    }
    update_strategy(errors, &path.child("updateStrategy"), &spec["updateStrategy"]);
    for field in ["whenDeleted", "whenScaled"] {
        let policy = text(&spec["persistentVolumeClaimRetentionPolicy"], field);
        if !matches!(policy, "Retain" | "Delete") {
            let path = path.child("persistentVolumeClaimRetentionPolicy").child(field);
            errors.not_supported_as_listed(&path, policy, &["Retain", "Delete"]);
        }
    }
    for (index, claim) in items(spec, "volumeClaimTemplates").iter().enumerate().filter(|_| is_new) {
        let path = path.child("volumeClaimTemplates").index(index).child("spec");
        persistent_volume_claim::validate_spec(errors, &path, &claim["spec"]);
    }
    checks::not_negative(errors, &path, spec, &["replicas", "minReadySeconds"]);
    checks::not_negative(errors, &path.child("ordinals"), &spec["ordinals"], &["start"]);
    if is_new {
        checks::optional_name(errors, &path, spec, "serviceName", |name| names::dns_label(name, false));
    }
    workload::selector(errors, &path, spec, "statefulset");
    if workload::has_readable_selector(errors, &path, spec, "") {
        workload::template_matches(errors, &path, spec);
        let (path, spec) = (path.child("template"), with_claim_volumes(spec));
        pod_spec::validation::template(errors, &path, &spec["template"]);
        // The metadata once more, as upstream does.
        pod_spec::validation::template_metadata(errors, &path, &spec["template"]);
    }
    workload::runs_forever(errors, &path, spec, "StatefulSet");
}

/// The template as its pods will be: with a volume per claim, and with the host name that the controller sets.
fn with_claim_volumes(spec: &Value) -> Value {
    let claims: Vec<&str> =
        items(spec, "volumeClaimTemplates").iter().map(|claim| text(&claim["metadata"], "name")).collect();
    let mut template = spec["template"].clone();
    if let Some(pod) = part_mut(&mut template, "spec") {
        set(pod, "hostname", Value::Null);
        set(pod, "subdomain", Value::Null);
        let mut volumes: Vec<Value> =
            claims.iter().map(|name| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } })).collect();
        volumes.extend(items(pod, "volumes").iter().filter(|v| !claims.contains(&text(v, "name"))).cloned());
        set(pod, "volumes", if volumes.is_empty() { Value::Null } else { Value::Array(volumes) });
    }
    json!({ "template": template })
}

fn update_strategy(errors: &mut ErrorList, path: &Path, strategy: &Value) {
    let rolling = part(strategy, "rollingUpdate");
    let at = path.child("rollingUpdate");
    match (text(strategy, "type"), rolling) {
        ("", _) => errors.required(path, ""),
        ("OnDelete", Some(rolling)) => {
            errors.invalid(&at, rolling.clone(), "only allowed for updateStrategy 'RollingUpdate'");
        }
        ("OnDelete" | "RollingUpdate", None) => {}
        ("RollingUpdate", Some(rolling)) => {
            checks::not_negative(errors, &at, rolling, &["partition"]);
            let most = &rolling["maxUnavailable"];
            checks::int_or_percent(errors, &at.child("maxUnavailable"), most);
            if checks::is_zero(most) {
                errors.invalid(&at.child("maxUnavailable"), most.clone(), "cannot be 0");
            }
            checks::at_most_100_percent(errors, &at.child("maxUnavailable"), most);
        }
        _ => errors.invalid_shown(path, shown_strategy(strategy), "must be 'RollingUpdate' or 'OnDelete'"),
    }
}

/// As Go prints its own type.
fn shown_strategy(strategy: &Value) -> String {
    let shown = |owner: &Value, field: &str| owner.get(field).cloned().unwrap_or_default().to_string();
    let rolling = part(strategy, "rollingUpdate").map_or("null".to_string(), |rolling| {
        let partition = int_at(rolling, "partition");
        format!("{{\"Partition\":{partition},\"MaxUnavailable\":{}}}", shown(rolling, "maxUnavailable"))
    });
    format!("{{\"Type\":{},\"RollingUpdate\":{rolling}}}", shown(strategy, "type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_of(change: impl Fn(&mut Value)) -> Value {
        let mut object = json!({
            "metadata": { "name": "s" },
            "spec": {
                "serviceName": "s",
                "selector": { "matchLabels": { "a": "b" } },
                "template": {
                    "metadata": { "labels": { "a": "b" } },
                    "spec": { "containers": [{
                        "name": "c", "image": "i", "volumeMounts": [{ "name": "data", "mountPath": "/d" }],
                    }] },
                },
                "volumeClaimTemplates": [{
                    "metadata": { "name": "data" },
                    "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
                }],
            },
        });
        change(&mut object);
        StatefulSet.default(&mut object);
        object
    }

    #[test]
    fn validation() {
        let old = set_of(|_| ());
        let check = |change: fn(&mut Value), on_create: usize, on_update: &[&str]| {
            let new = set_of(change);
            let mut errors = ErrorList::new();
            StatefulSet.validate_create(&new, &mut errors);
            let found: Vec<String> = errors.iter().map(|e| e.to_string()).collect();
            assert_eq!(errors.len(), on_create, "{found:?}");
            let mut errors = ErrorList::new();
            StatefulSet.validate_update(&new, &old, &mut errors);
            let found: Vec<String> = errors.iter().map(|e| e.to_string().chars().take(59).collect()).collect();
            assert_eq!(found, on_update);
        };
        check(|_| (), 0, &[]);
        check(|s| s["spec"]["replicas"] = json!(3), 0, &[]);
        check(
            |s| s["spec"]["serviceName"] = json!("t"),
            0,
            &["spec: Forbidden: updates to statefulset spec for fields oth"],
        );
        check(
            |s| s["spec"]["podManagementPolicy"] = json!("X"),
            1,
            &[
                "spec.podManagementPolicy: Invalid value: \"X\": must be 'Orde",
                "spec: Forbidden: updates to statefulset spec for fields oth",
            ],
        );
    }
}
