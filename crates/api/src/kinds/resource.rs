//! The kinds of dynamic resource allocation: defaults, strategy, columns, validation.
//! Neighbours: the scheduler allocates claims, drivers publish slices.
//! Invariant: the spec of a claim and of a template never changes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Behavior, Column,
    access::{default_to, each, existing_mut, int_at, is_set, items, part, part_mut, text},
    checks,
    columns::{age, age_of, deleting, name, name_of, string},
};
use crate::{
    field::{ErrorList, Path},
    names,
};

const MAX_DEVICES: usize = 128;
const MAX_REQUESTS: usize = 32;
const MAX_SELECTORS: usize = 32;

fn default_request(request: &mut Value) {
    default_to(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" && int_at(request, "count") == 0 {
        request["count"] = json!(1);
    }
}

fn default_claim_spec(spec: &mut Value) {
    let Some(devices) = existing_mut(spec, "devices") else { return };
    each(devices, "requests", |request| {
        if let Some(exactly) = existing_mut(request, "exactly") {
            default_request(exactly);
        }
        each(request, "firstAvailable", default_request);
    });
}

#[derive(Default)]
pub struct ResourceClaim;

impl Behavior for ResourceClaim {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec") {
            default_claim_spec(spec);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({});
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_claim_spec(errors, &Path::new("spec"), &object["spec"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        checks::immutable(errors, &Path::default(), object, old, "spec");
    }

    fn has_status(&self) -> bool {
        true
    }

    fn has_generation(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 3] = [name(), string("State", "How far it is."), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let status = &object["status"];
        let mut states = Vec::new();
        if deleting(object) {
            states.push("deleted");
        }
        if part(status, "allocation").is_some() {
            states.push("allocated");
            if is_set(status, "reservedFor") {
                states.push("reserved");
            }
        } else if !deleting(object) {
            states.push("pending");
        }
        vec![name_of(object), json!(states.join(",")), age_of(object, now)]
    }
}

#[derive(Default)]
pub struct ResourceClaimTemplate;

impl Behavior for ResourceClaimTemplate {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = part_mut(object, "spec").and_then(|spec| part_mut(spec, "spec")) {
            default_claim_spec(spec);
        }
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_claim_spec(errors, &Path::new("spec").child("spec"), &object["spec"]["spec"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        checks::immutable(errors, &Path::default(), object, old, "spec");
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 2] = [name(), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), age_of(object, now)]
    }
}

#[derive(Default)]
pub struct DeviceClass;

impl Behavior for DeviceClass {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_selectors(errors, &Path::new("spec").child("selectors"), &object["spec"]);
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 2] = [name(), age()];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_of(object), age_of(object, now)]
    }
}

#[derive(Default)]
pub struct ResourceSlice;

impl Behavior for ResourceSlice {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        let (path, spec) = (Path::new("spec"), &object["spec"]);
        checks::required_name(errors, &path, spec, "driver", |name| names::dns_subdomain(&name.to_lowercase(), false));
        checks::required(errors, &path.child("pool"), &spec["pool"], "name");
        if int_at(&spec["pool"], "resourceSliceCount") <= 0 {
            errors.invalid(
                &path.child("pool").child("resourceSliceCount"),
                int_at(&spec["pool"], "resourceSliceCount"),
                "must be greater than zero",
            );
        }
        let places = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
        let set: Vec<&&str> =
            places.iter().filter(|place| is_set(spec, place) && spec[**place] != json!(false)).collect();
        match set.len() {
            0 => errors.required(
                &path,
                "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
            ),
            1 => {}
            _ => errors.invalid(
                &path,
                format!("{{{}}}", set.iter().map(|place| format!("`{place}`")).collect::<Vec<_>>().join(", ")),
                "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but \
                 multiple fields are set",
            ),
        }
        let devices = items(spec, "devices");
        if devices.len() > MAX_DEVICES {
            errors.too_many(&path.child("devices"), devices.len(), MAX_DEVICES);
        }
        for (index, device) in devices.iter().enumerate() {
            let path = path.child("devices").index(index);
            checks::required_name(errors, &path, device, "name", |name| names::dns_label(name, false));
            if devices[..index].iter().any(|other| text(other, "name") == text(device, "name")) {
                errors.duplicate(&path.child("name"), text(device, "name"));
            }
        }
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.validate_create(object, errors);
        for field in ["nodeName", "driver", "nodeSelector", "allNodes"] {
            checks::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"], field);
        }
        let pool = Path::new("spec").child("pool");
        checks::immutable(errors, &pool, &object["spec"]["pool"], &old["spec"]["pool"], "name");
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 5] = [
            name(),
            string("Node", "Where the devices are."),
            string("Driver", "Who manages them."),
            string("Pool", "Which pool they are of."),
            age(),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        vec![
            name_of(object),
            json!(text(spec, "nodeName")),
            json!(text(spec, "driver")),
            json!(text(&spec["pool"], "name")),
            age_of(object, now),
        ]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        let spec = &object["spec"];
        ["nodeName", "driver"].map(|field| (format!("spec.{field}"), text(spec, field).to_string())).into()
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["spec.nodeName".into(), "spec.driver".into()]
    }
}

fn validate_claim_spec(errors: &mut ErrorList, path: &Path, spec: &Value) {
    let path = path.child("devices").child("requests");
    let requests = items(&spec["devices"], "requests");
    if requests.len() > MAX_REQUESTS {
        errors.too_many(&path, requests.len(), MAX_REQUESTS);
    }
    for (index, request) in requests.iter().enumerate() {
        let path = path.index(index);
        checks::required_name(errors, &path, request, "name", |name| names::dns_label(name, false));
        if requests[..index].iter().any(|other| text(other, "name") == text(request, "name")) {
            errors.duplicate(&path.child("name"), text(request, "name"));
        }
        match (part(request, "exactly"), items(request, "firstAvailable")) {
            (None, []) => errors.required(&path, "exactly one of `exactly` or `firstAvailable` is required"),
            (Some(_), [_, ..]) => errors.invalid(
                &path,
                Value::Null,
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
            ),
            (Some(exactly), []) => validate_request(errors, &path.child("exactly"), exactly),
            (None, alternatives) => {
                for (index, alternative) in alternatives.iter().enumerate() {
                    let path = path.child("firstAvailable").index(index);
                    checks::required_name(errors, &path, alternative, "name", |name| names::dns_label(name, false));
                    validate_request(errors, &path, alternative);
                }
            }
        }
    }
}

fn validate_request(errors: &mut ErrorList, path: &Path, request: &Value) {
    checks::required_name(errors, path, request, "deviceClassName", |name| names::dns_subdomain(name, false));
    let count = int_at(request, "count");
    match text(request, "allocationMode") {
        "All" if count != 0 => {
            errors.invalid(&path.child("count"), count, "must not be specified when allocationMode is 'All'");
        }
        "All" => {}
        "ExactCount" if count <= 0 => errors.invalid(&path.child("count"), count, "must be greater than zero"),
        "ExactCount" => {}
        mode => errors.not_supported(&path.child("allocationMode"), mode, &["All", "ExactCount"]),
    }
    validate_selectors(errors, &path.child("selectors"), request);
}

fn validate_selectors(errors: &mut ErrorList, path: &Path, owner: &Value) {
    let selectors = items(owner, "selectors");
    if selectors.len() > MAX_SELECTORS {
        errors.too_many(path, selectors.len(), MAX_SELECTORS);
    }
    for (index, selector) in selectors.iter().enumerate() {
        let path = path.index(index).child("cel");
        match part(selector, "cel") {
            None => errors.required(&path, ""),
            Some(cel) => checks::required(errors, &path, cel, "expression"),
        }
    }
}
