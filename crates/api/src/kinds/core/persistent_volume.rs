//! PersistentVolumes: defaults, strategy, columns, validation.
//! Neighbours: `persistent_volume_claim`; the volume binder sets `claimRef`.
//! The source of a volume never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        behavior::status_without_generation,
        common::{
            access::{default_absent, default_to, entries, is_set, items, part, part_mut, text, text_at},
            checks,
            columns::{age, age_of, deleting, name, name_of, plain, string, wide},
            quantities,
            warnings::node_selector_term,
        },
        core::{persistent_volume_claim, pod_spec},
    },
    names,
    quantity::Quantity,
};

#[derive(Default)]
pub struct PersistentVolume;

/// `RWO,ROX`, in upstream's order.
pub fn access_modes(modes: &Value) -> String {
    let modes: Vec<&str> = modes.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let short =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    short.iter().filter(|(mode, _)| modes.contains(mode)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

/// The cell `Capacity`, of a volume's spec or of a claim's status.
pub fn capacity(owner: &Value) -> String {
    let capacity = plain(&owner["capacity"]["storage"]);
    if capacity.is_empty() { "0".to_string() } else { capacity }
}

const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

fn validate_spec(errors: &mut ErrorList, path: &Path, spec: &Value) {
    checks::required(errors, path, spec, "accessModes");
    persistent_volume_claim::validate_access_modes(errors, path, spec);
    let capacity = path.child("capacity");
    if !is_set(spec, "capacity") {
        errors.required(&capacity, "");
    }
    let sizes = spec.get("capacity").cloned().unwrap_or_else(|| json!({}));
    if sizes.get("storage").is_none() || entries(spec, "capacity").count() > 1 {
        errors.not_supported(&capacity, sizes, &["storage"]);
    }
    for (name, value) in entries(spec, "capacity") {
        let path = capacity.key(name);
        let Some(size) = Quantity::from_value(value) else { continue };
        if size.sign() < 0 {
            errors.invalid(&path, size.value(), "must be a valid resource quantity");
        }
        if size.sign() <= 0 {
            errors.invalid(&path, size.canonical(), "must be greater than zero");
        }
    }
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    if !matches!(policy, "" | "Delete" | "Recycle" | "Retain") {
        let path = path.child("persistentVolumeReclaimPolicy");
        errors.not_supported(&path, policy, &["Delete", "Recycle", "Retain"]);
    }
    let affinity = part(spec, "nodeAffinity");
    if let Some(affinity) = affinity {
        match part(affinity, "required") {
            Some(required) => {
                let path = path.child("nodeAffinity").child("required");
                pod_spec::placement::node_selector(errors, &path, required);
            }
            None => {
                errors.required(&path.child("nodeAffinity").child("required"), "must specify required node constraints")
            }
        }
    }
    let mut found = SOURCES.iter().filter_map(|kind| part(spec, kind).map(|source| (*kind, source)));
    match found.next() {
        None => errors.required(path, "must specify a volume type"),
        Some((kind, source)) => {
            pod_spec::volumes::shared_source(errors, path, kind, source);
            if kind == "csi" {
                checks::required(errors, &path.child("csi"), source, "volumeHandle");
            }
            if kind == "local" && affinity.is_none() {
                errors.required(&path.child("nodeAffinity"), "Local volume requires node affinity");
            }
        }
    }
    for (kind, _) in found {
        errors.forbidden(&path.child(kind), "may not specify more than 1 volume type");
    }
    if policy == "Recycle" && text(&spec["hostPath"], "path") == "/" {
        errors.forbidden(
            &path.child("persistentVolumeReclaimPolicy"),
            "may not be 'recycle' for a hostPath mount of '/'",
        );
    }
    checks::optional_name(errors, path, spec, "storageClassName", |name| names::dns_subdomain(name, false));
    checks::optional_one_of(errors, path, spec, "volumeMode", &persistent_volume_claim::VOLUME_MODES);
}

const OLD_ANNOTATIONS: [(&str, &str); 2] = [
    ("volume.beta.kubernetes.io/storage-class", "deprecated since v1.8; use \"storageClassName\" attribute instead"),
    ("volume.beta.kubernetes.io/mount-options", "deprecated since v1.31; use \"mountOptions\" attribute instead"),
];

const OLD_PLUGINS: [(&str, &str, &str); 6] = [
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

fn warnings(object: &Value) -> Vec<String> {
    let spec = &object["spec"];
    let mut warnings = Vec::new();
    for (key, message) in OLD_ANNOTATIONS {
        if object["metadata"]["annotations"].get(key).is_some() {
            warnings.push(format!("metadata.annotations[{key}]: {message}"));
        }
    }
    if text(spec, "persistentVolumeReclaimPolicy") == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended \
             approach is to use dynamic provisioning."
                .into(),
        );
    }
    for (index, term) in items(&spec["nodeAffinity"]["required"], "nodeSelectorTerms").iter().enumerate() {
        let path = format!("spec.nodeAffinity.required.nodeSelectorTerms[{index}]");
        warnings.extend(node_selector_term(&path, term, false));
    }
    for (field, shown, message) in OLD_PLUGINS {
        if part(spec, field).is_some() {
            warnings.push(format!("spec.{shown}: {message}"));
        }
    }
    warnings
}

impl Behavior for PersistentVolume {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings(object)
    }

    fn default(&self, object: &mut Value) {
        if let Some(status) = part_mut(object, "status") {
            default_to(status, "phase", "Pending");
        }
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "persistentVolumeReclaimPolicy", "Retain");
        default_absent(spec, "volumeMode", "Filesystem");
        quantities::round_list(spec, "capacity");
        pod_spec::defaults::volume_source(spec);
    }

    fn prepare_create(&self, object: &mut Value) {
        let created = object["metadata"]["creationTimestamp"].clone();
        object["status"] = json!({ "phase": "Pending" });
        if created.is_string() {
            object["status"]["lastPhaseTransitionTime"] = created;
        }
    }

    fn stamp_status_update(&self, object: &mut Value, old: &Value, now: Timestamp) {
        const TIME: &str = "lastPhaseTransitionTime";
        let (said, known) = (object["status"][TIME].clone(), &old["status"][TIME]);
        let changed = !checks::same(&object["status"]["phase"], &old["status"]["phase"]);
        if changed && (said.is_null() || said == *known) {
            object["status"][TIME] = json!(now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        } else if !changed && said.is_null() && !known.is_null() {
            object["status"][TIME] = known.clone();
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &Path::new("spec"), &object["spec"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        // Twice, as upstream's strategy and its check of the update both do.
        self.validate_create(object, errors);
        self.validate_create(object, errors);
        let (new, old) = (&object["spec"], &old["spec"]);
        if SOURCES.iter().any(|source| !checks::same(&new[*source], &old[*source])) {
            errors.forbidden(
                &Path::new("spec").child("persistentvolumesource"),
                "spec.persistentvolumesource is immutable after creation\n",
            );
        }
        checks::immutable(errors, &Path::default(), new, old, "volumeMode");
        if part(old, "nodeAffinity").is_some() {
            checks::immutable(errors, &Path::default(), new, old, "nodeAffinity");
        }
    }

    status_without_generation!();

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 11] = [
            name(),
            string("Capacity", "Its size."),
            string("Access Modes", "How it may be mounted."),
            string("Reclaim Policy", "What happens when its claim goes."),
            string("Status", "Whether it is claimed."),
            string("Claim", "Who has it."),
            string("StorageClass", "Its storage class."),
            string("VolumeAttributesClass", "Its volume attributes class."),
            string("Reason", "Why it failed."),
            age(),
            wide("VolumeMode", "Filesystem, or Block."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let phase = if deleting(object) { "Terminating" } else { text(status, "phase") };
        let claim = part(spec, "claimRef").map(|c| format!("{}/{}", text(c, "namespace"), text(c, "name")));
        vec![
            name_of(object),
            json!(capacity(spec)),
            json!(access_modes(&spec["accessModes"])),
            json!(text(spec, "persistentVolumeReclaimPolicy")),
            json!(phase),
            json!(claim.unwrap_or_default()),
            json!(persistent_volume_claim::class(object)),
            json!(spec["volumeAttributesClassName"].as_str().unwrap_or("<unset>")),
            json!(text(status, "reason")),
            age_of(object, now),
            json!(spec["volumeMode"].as_str().unwrap_or("<unset>")),
        ]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        vec![("name".into(), text_at(object, "metadata.name").to_string())]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["name".into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_says_since_when_it_is_in_its_phase() {
        let (first, now) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00.5Z".parse().unwrap());
        let mut made = json!({ "metadata": { "creationTimestamp": first }, "status": { "phase": "Bound" } });
        PersistentVolume.prepare_create(&mut made);
        assert_eq!(made["status"], json!({ "phase": "Pending", "lastPhaseTransitionTime": first }));
        let check = |status: Value, expected: &str| {
            let mut new = json!({ "status": status });
            PersistentVolume.stamp_status_update(&mut new, &made, now);
            assert_eq!(new["status"]["lastPhaseTransitionTime"], expected, "{new}");
        };
        check(json!({ "phase": "Pending" }), first);
        check(json!({ "phase": "Bound" }), "2026-01-01T00:01:00Z");
        check(json!({ "phase": "Bound", "lastPhaseTransitionTime": first }), "2026-01-01T00:01:00Z");
        let own = "2026-02-01T00:00:00Z";
        check(json!({ "phase": "Bound", "lastPhaseTransitionTime": own }), own);
    }
}
