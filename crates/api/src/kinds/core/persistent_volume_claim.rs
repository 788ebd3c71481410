//! PersistentVolumeClaims: defaults, strategy, columns, validation.
//! Neighbours: `persistent_volume`; `stateful_set`, which has claims as templates.
//! A new claim is Pending; of its spec only little may change.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        behavior::status_without_generation,
        common::{
            access::{default_to, entries, is_set, part, part_mut, set, text, text_at, texts},
            checks,
            columns::{age, age_of, deleting, name, name_of, string, wide},
            warnings::claim_spec,
        },
        core::{
            persistent_volume::{access_modes, capacity},
            pod_spec,
        },
    },
    names,
    quantity::Quantity,
};

#[derive(Default)]
pub struct PersistentVolumeClaim;

/// The annotation older than the field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// The class by annotation or field.
pub fn class(object: &Value) -> &str {
    match object["metadata"]["annotations"].get(CLASS_ANNOTATION).and_then(Value::as_str) {
        Some(class) => class,
        None => text(&object["spec"], "storageClassName"),
    }
}

impl Behavior for PersistentVolumeClaim {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let key = "volume.beta.kubernetes.io/storage-class";
        let annotated = object["metadata"]["annotations"].get(key).map(|_| {
            format!("metadata.annotations[{key}]: deprecated since v1.8; use \"storageClassName\" attribute instead")
        });
        annotated.into_iter().chain(claim_spec("spec", &object["spec"])).collect()
    }

    fn default(&self, object: &mut Value) {
        if let Some(status) = part_mut(object, "status") {
            default_to(status, "phase", "Pending");
        }
        if let Some(spec) = part_mut(object, "spec") {
            pod_spec::defaults::claim_spec(spec);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({ "phase": "Pending" });
        if let Some(spec) = part_mut(object, "spec") {
            drop_other_data_source(spec);
            mirror_data_source(spec);
        }
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        crate::kinds::behavior::keep_field(object, old, "status");
        if let Some(spec) = part_mut(object, "spec") {
            let in_use = ["dataSource", "dataSourceRef"].iter().any(|field| part(&old["spec"], field).is_some());
            if !in_use {
                drop_other_data_source(spec);
            }
            mirror_data_source(spec);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &Path::new("spec"), &object["spec"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        validate_update(errors, object, old);
    }

    fn validate_status_update(&self, object: &Value, _old: &Value, errors: &mut ErrorList) {
        let path = Path::new("status").child("capacity");
        for (name, value) in entries(&object["status"], "capacity") {
            pod_spec::resources::quantity(errors, &path.key(name), name, value);
        }
    }

    status_without_generation!();

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 9] = [
            name(),
            string("Status", "Whether it has a volume."),
            string("Volume", "The volume it has."),
            string("Capacity", "Size of that volume."),
            string("Access Modes", "How it may be mounted."),
            string("StorageClass", "Its storage class."),
            string("VolumeAttributesClass", "Its volume attributes class."),
            age(),
            wide("VolumeMode", "Filesystem, or Block."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let (spec, status) = (&object["spec"], &object["status"]);
        let phase = if deleting(object) { "Terminating" } else { text(status, "phase") };
        let volume = text(spec, "volumeName");
        let (capacity, modes) = if volume.is_empty() {
            (String::new(), String::new())
        } else {
            (capacity(status), access_modes(&status["accessModes"]))
        };
        vec![
            name_of(object),
            json!(phase),
            json!(volume),
            json!(capacity),
            json!(modes),
            json!(class(object)),
            json!(spec["volumeAttributesClassName"].as_str().unwrap_or("<unset>")),
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

pub const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Modes are known, and `ReadWriteOncePod` stands alone.
pub fn validate_access_modes(errors: &mut ErrorList, path: &Path, spec: &Value) {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let path = path.child("accessModes");
    let modes: Vec<&str> = texts(spec, "accessModes").collect();
    for mode in modes.iter().filter(|mode| !MODES.contains(mode)) {
        errors.not_supported(&path, *mode, &MODES);
    }
    if modes.contains(&"ReadWriteOncePod") && modes.iter().any(|mode| MODES[..3].contains(mode)) {
        errors.forbidden(&path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// Of a claim, of a claim template and of an ephemeral volume.
pub fn validate_spec(errors: &mut ErrorList, path: &Path, spec: &Value) {
    if !is_set(spec, "accessModes") {
        errors.required(&path.child("accessModes"), "at least 1 access mode is required");
    }
    checks::label_selector(errors, &path.child("selector"), &spec["selector"]);
    validate_access_modes(errors, path, spec);
    let storage = path.child("resources").key("storage");
    match spec["resources"]["requests"].get("storage") {
        None => errors.required(&storage, ""),
        Some(value) => match Quantity::from_value(value) {
            Some(size) if size.sign() <= 0 => {
                errors.invalid(&storage, size.canonical(), "must be greater than zero");
            }
            Some(_) => {}
            None => errors.invalid(&storage, value.clone(), "must be a valid resource quantity"),
        },
    }
    let name = |name: &str| names::dns_subdomain(name, false);
    checks::optional_name(errors, path, spec, "storageClassName", name);
    checks::optional_name(errors, path, spec, "volumeAttributesClassName", name);
    checks::optional_one_of(errors, path, spec, "volumeMode", &VOLUME_MODES);
    for field in ["dataSource", "dataSourceRef"] {
        let Some(source) = part(spec, field) else { continue };
        let path = path.child(field);
        checks::required(errors, &path, source, "name");
        checks::required(errors, &path, source, "kind");
        let group = text(source, "apiGroup");
        if group.is_empty() && text(source, "kind") != "PersistentVolumeClaim" {
            errors.invalid(
                &path,
                text(source, "kind"),
                "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            );
        }
        checks::optional_name(errors, &path, source, "apiGroup", name);
        checks::optional_name(errors, &path, source, "namespace", |name| names::dns_label(name, false));
    }
    if let (Some(source), Some(reference)) = (part(spec, "dataSource"), part(spec, "dataSourceRef")) {
        let agree = ["apiGroup", "kind", "name"].iter().all(|field| text(source, field) == text(reference, field));
        if is_set(reference, "namespace") {
            let detail = "may not be specified when dataSourceRef.namespace is specified";
            errors.invalid(path, path.child("dataSource").to_string(), detail);
        } else if !agree {
            errors.invalid(path, path.child("dataSource").to_string(), "must match dataSourceRef");
        }
    }
}

fn validate_update(errors: &mut ErrorList, new: &Value, old: &Value) {
    let path = Path::new("spec");
    let bound = text(&new["status"], "phase") == "Bound";
    let (new_spec, old_spec) = (&new["spec"], &old["spec"]);
    let mut allowed = new_spec.clone();
    let mut before = old_spec.clone();
    if !is_set(old_spec, "volumeName") {
        set(&mut before, "volumeName", new_spec["volumeName"].clone());
    }
    // A class may be named where there was none: the default class arrives late.
    if old_spec.get("storageClassName").is_none_or(Value::is_null) {
        set(&mut allowed, "storageClassName", Value::Null);
    }
    if bound {
        if let Some(requests) =
            part_mut(&mut allowed, "resources").and_then(|resources| part_mut(resources, "requests"))
        {
            set(requests, "storage", old_spec["resources"]["requests"]["storage"].clone());
        }
        set(&mut allowed, "volumeAttributesClassName", old_spec["volumeAttributesClassName"].clone());
    }
    // A class that is empty is said, and so is another than none.
    let class = |spec: &Value| spec.get("storageClassName").filter(|class| !class.is_null()).cloned();
    let class_went = class(old_spec).is_some() && class(new_spec).is_none();
    if class_went || !checks::same(&allowed, &before) {
        errors.forbidden(
            &path,
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n",
        );
    }
    let size = |value: &Value| Quantity::from_value(&value["storage"]);
    let [wanted, had, there] =
        [&new_spec["resources"]["requests"], &old_spec["resources"]["requests"], &new["status"]["capacity"]]
            .map(|list| size(list).unwrap_or_default());
    if wanted < had && wanted <= there {
        errors.forbidden(
            &path.child("resources").child("requests").child("storage"),
            "field can not be less than status.capacity",
        );
    }
    checks::immutable(errors, &Path::default(), new_spec, old_spec, "volumeMode");
}

/// Only claims and snapshots may stand in `dataSource`; of old, anything else is dropped.
fn drop_other_data_source(spec: &mut Value) {
    let known = |source: &Value| {
        let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
        matches!((group, kind), ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot"))
    };
    if part(spec, "dataSourceRef").is_none() && part(spec, "dataSource").is_some_and(|source| !known(source)) {
        set(spec, "dataSource", Value::Null);
    }
}

/// `dataSource` and `dataSourceRef` say the same unless the latter names another namespace.
fn mirror_data_source(spec: &mut Value) {
    let (source, reference) = (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned());
    match (source.filter(Value::is_object), reference.filter(Value::is_object)) {
        (Some(source), None) => spec["dataSourceRef"] = source,
        (None, Some(reference)) if text(&reference, "namespace").is_empty() => {
            let mut source = reference;
            set(&mut source, "namespace", Value::Null);
            spec["dataSource"] = source;
        }
        _ => {}
    }
}
