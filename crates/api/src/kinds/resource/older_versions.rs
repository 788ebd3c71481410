//! v1beta1 and v1beta2 of this group, off unless `--runtime-config` asks for them: drivers of before v1.34 speak them.
//! Everything is decided as of v1, which is stored; `convert` turns one into the other. v1beta2 has the fields of v1, in
//! v1beta1 requests and devices look different.
//! There and back gives the same object.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    field::ErrorList,
    kinds::{
        Behavior, Column,
        common::access::{each, existing_mut, is_set},
        resource::{
            device_class::DeviceClass,
            resource_claim::{ResourceClaim, default_request},
            resource_claim_template::ResourceClaimTemplate,
            resource_slice::ResourceSlice,
        },
    },
};

/// What a request of v1beta1 has itself, and one of v1 below `exactly`.
const EXACTLY: [&str; 7] =
    ["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"];

fn each_claim_spec(kind: &str, object: &mut Value, change: impl Fn(&mut Value)) {
    let pointer = match kind {
        "ResourceClaim" => "/spec/devices",
        "ResourceClaimTemplate" => "/spec/spec/devices",
        _ => return,
    };
    if let Some(devices) = object.pointer_mut(pointer) {
        each(devices, "requests", change);
    }
}

fn each_device(kind: &str, object: &mut Value, change: impl Fn(&mut Value)) {
    if let Some(spec) = existing_mut(object, "spec").filter(|_| kind == "ResourceSlice") {
        each(spec, "devices", change);
    }
}

pub fn to_v1beta1(kind: &str, object: &mut Value) {
    each_claim_spec(kind, object, |request| {
        let Some(request) = request.as_object_mut() else { return };
        if let Some(Value::Object(exactly)) = request.remove("exactly") {
            request.extend(exactly);
        }
    });
    each_device(kind, object, |device| {
        let Some(device) = device.as_object_mut() else { return };
        let name = device.remove("name");
        let basic = std::mem::take(device);
        device.extend(name.map(|name| ("name".to_string(), name)));
        device.insert("basic".into(), Value::Object(basic));
    });
}

pub fn from_v1beta1(kind: &str, object: &mut Value) {
    each_claim_spec(kind, object, |request| {
        let Some(request) = request.as_object_mut() else { return };
        let own = |name: &&str| request.get(*name).is_some_and(|value| !is_zero(value));
        let is_exact = EXACTLY.iter().any(own);
        let exactly: Map<String, Value> =
            EXACTLY.iter().filter_map(|name| Some((name.to_string(), request.remove(*name)?))).collect();
        if is_exact {
            request.insert("exactly".into(), Value::Object(exactly));
        }
    });
    each_device(kind, object, |device| {
        let Some(device) = device.as_object_mut() else { return };
        if let Some(Value::Object(basic)) = device.remove("basic") {
            device.extend(basic);
        }
    });
}

/// As Go has a field that was not set.
fn is_zero(value: &Value) -> bool {
    value.is_null() || *value == json!("") || *value == json!(0)
}

pub trait Named {
    const KIND: &'static str;
}

impl Named for DeviceClass {
    const KIND: &'static str = "DeviceClass";
}

impl Named for ResourceClaim {
    const KIND: &'static str = "ResourceClaim";
}

impl Named for ResourceClaimTemplate {
    const KIND: &'static str = "ResourceClaimTemplate";
}

impl Named for ResourceSlice {
    const KIND: &'static str = "ResourceSlice";
}

/// A kind of v1 as v1beta1 (`FLAT`) or v1beta2 has it.
#[derive(Default)]
pub struct Older<K, const FLAT: bool>(K);

impl<K: Named, const FLAT: bool> Older<K, FLAT> {
    fn as_v1(&self, object: &Value) -> Value {
        let mut object = object.clone();
        if FLAT {
            from_v1beta1(K::KIND, &mut object);
        }
        object
    }

    fn change(&self, object: &mut Value, change: impl FnOnce(&mut Value)) {
        if FLAT {
            from_v1beta1(K::KIND, object);
        }
        change(object);
        if FLAT {
            to_v1beta1(K::KIND, object);
        }
    }
}

impl<K: Behavior + Named, const FLAT: bool> Behavior for Older<K, FLAT> {
    fn storage_version(&self) -> Option<(&'static str, &'static str)> {
        Some(("resource.k8s.io", "v1"))
    }

    fn default(&self, object: &mut Value) {
        if !FLAT {
            return self.0.default(object);
        }
        each_claim_spec(K::KIND, object, |request| {
            if is_set(request, "deviceClassName") {
                default_request(request);
            }
            each(request, "firstAvailable", default_request);
        });
    }

    fn prepare_create(&self, object: &mut Value) {
        self.change(object, |object| self.0.prepare_create(object));
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        let old = self.as_v1(old);
        self.change(object, |object| self.0.prepare_update(object, &old));
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        let old = self.as_v1(old);
        self.change(object, |object| self.0.prepare_status_update(object, &old));
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        self.0.validate_create(&self.as_v1(object), errors);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.0.validate_update(&self.as_v1(object), &self.as_v1(old), errors);
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        self.0.validate_status_update(&self.as_v1(object), &self.as_v1(old), errors);
    }

    fn returns_deleted(&self) -> bool {
        self.0.returns_deleted()
    }

    fn validates_generate_name(&self) -> bool {
        self.0.validates_generate_name()
    }

    fn has_status(&self) -> bool {
        self.0.has_status()
    }

    fn has_generation(&self) -> bool {
        self.0.has_generation()
    }

    fn columns(&self) -> &'static [Column] {
        self.0.columns()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.0.cells(object, now)
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        self.0.selectable_fields(object)
    }

    fn selectable_field_names(&self) -> Vec<String> {
        self.0.selectable_field_names()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{convert, find};

    #[test]
    fn requests_and_devices_there_and_back() {
        let check = |plural: &str, version: &str, v1: Value, older: Value| {
            let [current, other] = ["v1", version].map(|version| find("resource.k8s.io", version, plural).unwrap());
            let typed = |of: &crate::Resource, mut object: Value| {
                (object["apiVersion"], object["kind"]) = (json!(of.api_version()), json!(of.kind));
                object
            };
            let converted = convert(current, other, typed(current, v1.clone()));
            assert_eq!(converted, typed(other, older), "{plural} {version}");
            assert_eq!(convert(other, current, converted), typed(current, v1), "{plural} {version}");
        };
        let asked =
            json!({ "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2, "adminAccess": false });
        let mut flat = asked.clone();
        flat["name"] = json!("a");
        let list = json!({ "name": "b", "firstAvailable": [{ "name": "x", "deviceClassName": "gpu" }] });
        let devices = |first: Value| json!({ "devices": { "requests": [first, list] } });
        let (v1, v1beta1) = (devices(json!({ "name": "a", "exactly": asked })), devices(flat));
        check("resourceclaims", "v1beta1", json!({ "spec": v1 }), json!({ "spec": v1beta1 }));
        check("resourceclaims", "v1beta2", json!({ "spec": v1 }), json!({ "spec": v1 }));
        let template = |spec: &Value| json!({ "spec": { "spec": spec } });
        check("resourceclaimtemplates", "v1beta1", template(&v1), template(&v1beta1));
        let slice = |device: Value| json!({ "spec": { "driver": "d", "devices": [device] } });
        let capacity = json!({ "memory": { "value": "1Gi" } });
        let (new, old) = (json!({ "name": "x", "capacity": capacity }), json!({ "capacity": capacity }));
        check("resourceslices", "v1beta1", slice(new), slice(json!({ "name": "x", "basic": old })));
        check("resourceslices", "v1beta1", slice(json!({ "name": "x" })), slice(json!({ "name": "x", "basic": {} })));
        check("deviceclasses", "v1beta1", json!({ "spec": {} }), json!({ "spec": {} }));
    }

    #[test]
    fn what_is_wrong_is_told_as_of_v1() {
        let check = |request: Value, expected: &str| {
            let claims = find("resource.k8s.io", "v1beta1", "resourceclaims").unwrap();
            let mut claim = json!({ "metadata": { "name": "c" }, "spec": { "devices": { "requests": [request] } } });
            claims.behavior.default(&mut claim);
            claims.behavior.prepare_create(&mut claim);
            let mut errors = ErrorList::new();
            claims.behavior.validate_create(&claim, &mut errors);
            let shown = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            assert!(shown.starts_with(expected) && (shown.is_empty() == expected.is_empty()), "{shown}");
        };
        check(json!({ "name": "a", "deviceClassName": "gpu" }), "");
        check(json!({ "name": "a", "deviceClassName": "gpu", "count": -1 }), "spec.devices.requests[0].exactly.count");
        check(json!({ "name": "a" }), "spec.devices.requests[0]: Required value");
    }
}
