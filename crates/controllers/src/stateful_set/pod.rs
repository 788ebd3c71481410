//! What makes a stateful pod: its name, its identity and its claims.
//! Used by the controller beside it; pure.
//! The same ordinal always gives the same name and the same claims.

use k8s_openapi::{
    api::{
        apps::v1::{StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy},
        core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use crate::common::{meta::Object, pods, revisions::HASH_LABEL};

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

pub fn claim_name(template: &PersistentVolumeClaim, set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{}-{ordinal}", template.name(), set.name())
}

fn templates(set: &StatefulSet) -> impl Iterator<Item = &PersistentVolumeClaim> {
    set.spec.as_ref().and_then(|s| s.volume_claim_templates.as_ref()).into_iter().flatten()
}

/// The labels that tell the pods of a set apart.
pub fn identity(name: &str, ordinal: i32) -> [(&'static str, String); 2] {
    [(POD_NAME, name.to_string()), (POD_INDEX, ordinal.to_string())]
}

/// The pod of `ordinal` as `template` (that of its revision) says.
pub fn pod(set: &StatefulSet, template: &PodTemplateSpec, ordinal: i32, revision: &str) -> Pod {
    let name = format!("{}-{ordinal}", set.name());
    let mut pod = pods::from_template(template, set.namespace(), set.name(), "", set.as_controller());
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.into(), revision.to_string());
    labels.extend(identity(&name, ordinal).map(|(key, value)| (key.to_string(), value)));
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    spec.subdomain = set.spec.as_ref().and_then(|s| s.service_name.clone()).filter(|name| !name.is_empty());
    let volumes = spec.volumes.get_or_insert_default();
    for claim in templates(set) {
        volumes.retain(|v| v.name != claim.name());
        volumes.push(Volume {
            name: claim.name().to_string(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(claim, set, ordinal),
                read_only: Some(false),
            }),
            ..Volume::default()
        });
    }
    spec.volumes = spec.volumes.take().filter(|v| !v.is_empty());
    pod
}

/// The claims of `ordinal`, to be made before its pod.
pub fn claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let selector = set.spec.as_ref().and_then(|s| s.selector.match_labels.clone()).unwrap_or_default();
    templates(set)
        .map(|template| {
            let mut claim = template.clone();
            claim.metadata.name = Some(claim_name(template, set, ordinal));
            claim.metadata.namespace = set.metadata.namespace.clone();
            let labels = claim.metadata.labels.get_or_insert_default();
            labels.extend(selector.clone());
            claim.metadata.owner_references = Some(claim_owners(set, None, Vec::new())).filter(|o| !o.is_empty());
            claim.status = None;
            claim
        })
        .collect()
}

fn retention(set: &StatefulSet) -> StatefulSetPersistentVolumeClaimRetentionPolicy {
    set.spec.as_ref().and_then(|s| s.persistent_volume_claim_retention_policy.clone()).unwrap_or_default()
}

/// Whether someone else controls a claim that the retention policy is about: then the policy is not followed for it.
pub fn conflicting_controller(set: &StatefulSet, pod: &str, have: &[OwnerReference]) -> bool {
    let policy = retention(set);
    let retain = |when: &Option<String>| when.as_deref().is_none_or(|when| when == "Retain");
    if retain(&policy.when_deleted) && retain(&policy.when_scaled) {
        return false;
    }
    have.iter().any(|owner| match (owner.kind.as_str(), owner.name.as_str()) {
        ("StatefulSet", name) if name == set.name() => owner.uid != set.uid(),
        ("Pod", name) if name == pod => false,
        _ => owner.controller == Some(true),
    })
}

/// The owners a claim should have: the set where it goes with the set, the condemned pod where it goes with that.
/// Either controls it, as upstream's reference does.
pub fn claim_owners(set: &StatefulSet, condemned: Option<&Pod>, have: Vec<OwnerReference>) -> Vec<OwnerReference> {
    let policy = retention(set);
    let delete = |when: &Option<String>| when.as_deref() == Some("Delete");
    let mut owners = have;
    let pod_prefix = format!("{}-", set.name());
    owners.retain(|o| o.uid != set.uid() && !(o.kind == "Pod" && o.name.starts_with(&pod_prefix)));
    let reference = |api_version: &str, kind: &str, name: &str, uid: &str| OwnerReference {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    match condemned {
        Some(pod) if delete(&policy.when_scaled) => owners.push(reference("v1", "Pod", pod.name(), pod.uid())),
        _ if delete(&policy.when_deleted) => {
            owners.push(reference("apps/v1", "StatefulSet", set.name(), set.uid()));
        }
        _ => {}
    }
    owners
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn identity_and_claims() {
        let set: StatefulSet = serde_json::from_value(json!({
            "metadata": { "name": "db", "namespace": "d", "uid": "s" },
            "spec": { "serviceName": "svc", "selector": { "matchLabels": { "app": "db" } }, "template": {},
                "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Retain", "whenScaled": "Delete" },
                "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {} }] },
        }))
        .unwrap();
        let template: PodTemplateSpec = serde_json::from_value(json!({ "spec": { "containers": [],
            "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "other", "emptyDir": {} }] } }))
        .unwrap();
        let pod = pod(&set, &template, 2, "rev");
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(
            (pod.name(), spec.hostname.as_deref(), spec.subdomain.as_deref()),
            ("db-2", Some("db-2"), Some("svc"))
        );
        assert_eq!(
            (pod.label(POD_NAME), pod.label(POD_INDEX), pod.label(HASH_LABEL)),
            (Some("db-2"), Some("2"), Some("rev"))
        );
        let volumes = spec.volumes.as_ref().unwrap();
        assert_eq!(volumes[1].persistent_volume_claim.as_ref().unwrap().claim_name, "data-db-2");
        assert_eq!(claims(&set, 2)[0].label("app"), Some("db"));
        assert!(claim_owners(&set, None, Vec::new()).is_empty());
        let conflicts = |kind: &str, name: &str, uid: &str, controller: bool| {
            let owner = json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": controller });
            conflicting_controller(&set, "web-0", &[serde_json::from_value(owner).unwrap()])
        };
        assert!(conflicts("Other", "x", "x", true) && conflicts("StatefulSet", set.name(), "former", true));
        assert!(!conflicts("Other", "x", "x", false) && !conflicts("StatefulSet", set.name(), set.uid(), true));
        assert!(!conflicts("Pod", "web-0", "p", false));
        let by_pod = claim_owners(&set, Some(&pod), Vec::new()).remove(0);
        let deleted =
            StatefulSetPersistentVolumeClaimRetentionPolicy { when_deleted: Some("Delete".into()), when_scaled: None };
        let mut with_set = set.clone();
        with_set.spec.as_mut().unwrap().persistent_volume_claim_retention_policy = Some(deleted);
        let by_set = claim_owners(&with_set, None, Vec::new()).remove(0);
        for (owner, kind) in [(by_pod, "Pod"), (by_set, "StatefulSet")] {
            let found = (owner.kind.as_str(), owner.controller, owner.block_owner_deletion);
            assert_eq!(found, (kind, Some(true), Some(true)));
        }
    }
}
