//! Fields of a pod's status that belong to features behind a gate: left out of what is written while the gate is off.
//! Called by the API server for every write of a status.

use serde_json::Value;

use crate::{
    feature_gates::{FeatureGates, RESOURCE_HEALTH_STATUS},
    kinds::{Resource, behavior::drop_field, common::access::each},
};

const CONTAINER_STATUSES: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];

pub fn drop_disabled_status(resource: &Resource, object: &mut Value, gates: &FeatureGates) {
    if (resource.group.as_str(), resource.plural.as_str()) != ("", "pods") || gates.enabled(RESOURCE_HEALTH_STATUS) {
        return;
    }
    let Some(status) = object.get_mut("status") else { return };
    for list in CONTAINER_STATUSES {
        each(status, list, |container| drop_field(container, "allocatedResourcesStatus"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds;

    #[test]
    fn the_health_of_devices_is_kept_where_its_gate_is_on() {
        let health =
            json!([{ "name": "example.com/widget", "resources": [{ "resourceID": "a", "health": "Healthy" }] }]);
        let pod = |extra: Value| {
            let mut container = json!({ "name": "main" });
            if !extra.is_null() {
                container["allocatedResourcesStatus"] = extra;
            }
            json!({ "status": { "containerStatuses": [container] } })
        };
        let check = |gates: &str, expected: Value| {
            let gates = FeatureGates::parse([gates]).unwrap();
            let mut found = pod(health.clone());
            drop_disabled_status(kinds::resource_of::<k8s_openapi::api::core::v1::Pod>(), &mut found, &gates);
            assert_eq!(found, expected);
        };
        check("", pod(Value::Null));
        check("ResourceHealthStatus=true", pod(health.clone()));
    }
}
