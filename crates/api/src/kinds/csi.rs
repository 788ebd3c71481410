//! The kinds through which CSI drivers and volume attachments are described.
//! Neighbours: `storage_class`, `persistent_volume`.
//! Invariant: what a driver declared when it was registered mostly stays.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, flag, int, is_set, items, part, part_mut, text, texts},
    amount, checks,
    columns::{age, age_of, boolean, integer, name, name_of, plain, string},
};
use crate::{
    field::{ErrorList, Path},
    names,
};

#[derive(Default)]
pub struct CsiDriver;

impl Behavior for CsiDriver {
    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "attachRequired", true);
        default_to(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            default_to(spec, field, false);
        }
        if !is_set(spec, "volumeLifecycleModes") {
            spec["volumeLifecycleModes"] = json!(["Persistent"]);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        checks::optional_one_of(errors, &path, spec, "fsGroupPolicy", &policies);
        for mode in texts(spec, "volumeLifecycleModes").filter(|mode| !matches!(*mode, "Persistent" | "Ephemeral")) {
            errors.not_supported(&path.child("volumeLifecycleModes"), mode, &["Ephemeral", "Persistent"]);
        }
        let requests = items(spec, "tokenRequests");
        for (index, request) in requests.iter().enumerate() {
            let path = path.child("tokenRequests").index(index);
            if requests[..index].iter().any(|other| text(other, "audience") == text(request, "audience")) {
                errors.duplicate(&path.child("audience"), text(request, "audience"));
            }
            if let Some(seconds) = int(request, "expirationSeconds").filter(|s| *s < 600) {
                errors.invalid(
                    &path.child("expirationSeconds"),
                    seconds,
                    "may not specify a duration less than 10 minutes",
                );
            }
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        for field in ["attachRequired", "volumeLifecycleModes"] {
            checks::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"], field);
        }
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 8] = [
            name(),
            boolean("AttachRequired", "Whether volumes are attached before use."),
            boolean("PodInfoOnMount", "Whether it is told about the pod."),
            boolean("StorageCapacity", "Whether it reports capacity."),
            string("TokenRequests", "Audiences of the tokens it gets."),
            boolean("RequiresRepublish", "Whether it is called again and again."),
            string("Modes", "Kinds of volumes it makes."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let tokens = match spec.get("tokenRequests") {
            Some(Value::Array(all)) => all.iter().map(|t| text(t, "audience")).collect::<Vec<_>>().join(","),
            _ => "<unset>".to_string(),
        };
        let modes = texts(spec, "volumeLifecycleModes").collect::<Vec<_>>().join(",");
        vec![
            name_of(object),
            json!(spec["attachRequired"].as_bool().unwrap_or(true)),
            json!(flag(spec, "podInfoOnMount")),
            json!(flag(spec, "storageCapacity")),
            json!(tokens),
            json!(flag(spec, "requiresRepublish")),
            json!(if modes.is_empty() { "<none>" } else { &modes }),
            age_of(object, now),
        ]
    }
}

#[derive(Default)]
pub struct CsiNode;

impl Behavior for CsiNode {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::new("spec").child("drivers");
        let drivers = items(&object["spec"], "drivers");
        for (index, driver) in drivers.iter().enumerate() {
            let at = path.index(index);
            checks::required_name(errors, &at, driver, "name", |name| {
                names::dns_subdomain(&name.to_lowercase(), false)
            });
            checks::required(errors, &at, driver, "nodeID");
            if drivers[..index].iter().any(|other| text(other, "name") == text(driver, "name")) {
                errors.duplicate(&at.child("name"), text(driver, "name"));
            }
            let keys: Vec<&str> = texts(driver, "topologyKeys").collect();
            for (index, key) in keys.iter().enumerate() {
                if keys[..index].contains(key) {
                    errors.duplicate(&at.child("topologyKeys"), *key);
                }
                checks::label_key(errors, &at.child("topologyKeys"), key);
            }
        }
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), integer("Drivers", "Drivers on the node."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(items(&object["spec"], "drivers").len()), age_of(object, now)]
    }
}

#[derive(Default)]
pub struct CsiStorageCapacity;

impl Behavior for CsiStorageCapacity {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        if let Some(topology) = part(object, "nodeTopology") {
            checks::label_selector(errors, &Path::new("nodeTopology"), topology);
        }
        let class = text(object, "storageClassName");
        checks::complaints(errors, &Path::new("storageClassName"), class, names::dns_subdomain(class, false));
        if amount::of(&object["capacity"]).is_some_and(|q| q.sign() < 0) {
            errors.invalid(&Path::new("capacity"), plain(&object["capacity"]), checks::NOT_NEGATIVE);
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        for field in ["nodeTopology", "storageClassName"] {
            checks::immutable(errors, &Path::default(), object, old, field);
        }
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] =
            [name(), string("StorageClassName", "The class it is about."), string("Capacity", "What is left.")];
        &COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let capacity = plain(&object["capacity"]);
        let capacity = if capacity.is_empty() { "<unset>" } else { &capacity };
        vec![name_of(object), json!(text(object, "storageClassName")), json!(capacity)]
    }
}

#[derive(Default)]
pub struct VolumeAttachment;

impl Behavior for VolumeAttachment {
    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({ "attached": false });
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::required(errors, &path, spec, "attacher");
        let source = &spec["source"];
        match (is_set(source, "inlineVolumeSpec"), is_set(source, "persistentVolumeName")) {
            (false, false) => errors.required(&path.child("source"), ONE),
            (true, true) => errors.forbidden(&path.child("source"), ONE),
            _ => {}
        }
        let node = text(spec, "nodeName");
        checks::complaints(errors, &path.child("nodeName"), node, names::dns_subdomain(node, false));
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        checks::immutable(errors, &Path::default(), object, old, "spec");
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 6] = [
            name(),
            Column { format: "name", ..string("Attacher", "The driver.") },
            string("PV", "The volume."),
            string("Node", "The node."),
            boolean("Attached", "Whether it is attached."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_of(object),
            json!(text(spec, "attacher")),
            json!(text(&spec["source"], "persistentVolumeName")),
            json!(text(spec, "nodeName")),
            json!(flag(&object["status"], "attached")),
            age_of(object, now),
        ]
    }
}

#[derive(Default)]
pub struct VolumeAttributesClass;

impl Behavior for VolumeAttributesClass {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let path = Path::default();
        checks::required_name(errors, &path, object, "driverName", |name| {
            names::dns_subdomain(&name.to_lowercase(), false)
        });
        if !is_set(object, "parameters") {
            errors.required(&path.child("parameters"), "must contain at least one key/value pair");
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        for field in ["driverName", "parameters"] {
            if !checks::same(&object[field], &old[field]) {
                errors.forbidden(&Path::new(field), format!("updates to {field} are forbidden."));
            }
        }
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("DriverName", "The driver."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(text(object, "driverName")), age_of(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities() {
        let check = |object: Value, old: Option<Value>, expected: &[&str]| {
            let mut errors = ErrorList::new();
            match old {
                None => CsiStorageCapacity.validate_create(&object, &mut errors),
                Some(old) => CsiStorageCapacity.validate_update(&object, &old, &mut errors),
            }
            let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{object}");
        };
        let good =
            json!({ "storageClassName": "c", "capacity": "1Gi", "nodeTopology": { "matchLabels": { "a": "b" } } });
        check(good.clone(), None, &[]);
        check(
            json!({ "storageClassName": "c", "capacity": "-1", "nodeTopology": { "matchExpressions": [{ "key": "k", "operator": "In" }] } }),
            None,
            &[
                "nodeTopology.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                "capacity: Invalid value: \"-1\": must be greater than or equal to 0",
            ],
        );
        let mut other = good.clone();
        other["storageClassName"] = "d".into();
        check(other, Some(good), &["storageClassName: Invalid value: \"d\": field is immutable"]);
    }
}
