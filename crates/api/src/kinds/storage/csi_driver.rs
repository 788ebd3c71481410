//! CSIDrivers: defaults, columns, validation.
//! Neighbours: `csi_node`, `storage_class`.
//! Most of what a driver declares never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{default_absent, default_to, flag, int, is_set, items, part_mut, text, texts},
            checks,
            columns::{age, age_of, boolean, name, name_of, string},
        },
    },
};

#[derive(Default)]
pub struct CsiDriver;

impl Behavior for CsiDriver {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Value) {
        let Some(spec) = part_mut(object, "spec") else { return };
        default_to(spec, "attachRequired", true);
        default_absent(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            default_to(spec, field, false);
        }
        if !is_set(spec, "volumeLifecycleModes") {
            spec["volumeLifecycleModes"] = json!(["Persistent"]);
        }
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let spec = &object["spec"];
        let changed = old.is_none_or(|old| old["spec"]["tokenRequests"] != spec["tokenRequests"]);
        let asked = !items(spec, "tokenRequests").is_empty() && spec["serviceAccountTokenInSecrets"].is_null();
        match changed && asked {
            true => vec![
                "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent \
                 possible logging of tokens in volume attributes"
                    .into(),
            ],
            false => Vec::new(),
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        checks::optional_one_of(errors, &path, spec, "fsGroupPolicy", &policies);
        let requests = items(spec, "tokenRequests");
        for (index, request) in requests.iter().enumerate() {
            let path = path.child("tokenRequests").index(index);
            if requests[..index].iter().any(|other| text(other, "audience") == text(request, "audience")) {
                errors.duplicate(&path.child("audience"), text(request, "audience"));
                continue;
            }
            if let Some(seconds) = int(request, "expirationSeconds").filter(|s| *s > 1 << 32) {
                errors.invalid(
                    &path.child("expirationSeconds"),
                    seconds,
                    "may not specify a duration larger than 2^32 seconds",
                );
            }
            if let Some(seconds) = int(request, "expirationSeconds").filter(|s| *s < 600) {
                errors.invalid(
                    &path.child("expirationSeconds"),
                    seconds,
                    "may not specify a duration less than 10 minutes",
                );
            }
        }
        for mode in texts(spec, "volumeLifecycleModes").filter(|mode| !matches!(*mode, "Persistent" | "Ephemeral")) {
            errors.not_supported_as_listed(&path.child("volumeLifecycleModes"), mode, &["Persistent", "Ephemeral"]);
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
