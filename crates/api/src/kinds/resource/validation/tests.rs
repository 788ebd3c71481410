//! Claims, classes, slices and their status, each as a table.

use super::*;

fn shown(check: impl FnOnce(&mut ErrorList)) -> Vec<String> {
    let mut errors = ErrorList::new();
    check(&mut errors);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn claims() {
    let check = |devices: Value, expected: &[&str]| {
        let spec = json!({ "devices": devices });
        assert_eq!(shown(|e| claim_spec(e, &Path::new("spec"), &spec)), expected, "{spec}");
    };
    let exactly = |name: &str, more: Value| {
        let mut exactly = json!({ "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1 });
        more.as_object().unwrap().iter().for_each(|(k, v)| exactly[k] = v.clone());
        json!({ "name": name, "exactly": exactly })
    };
    check(json!({ "requests": [exactly("a", json!({}))] }), &[]);
    check(
        json!({ "requests": [exactly("a", json!({})), exactly("a", json!({}))] }),
        &["spec.devices.requests[1]: Duplicate value: \"a\""],
    );
    check(
        json!({ "requests": [exactly("a", json!({ "tolerations": [
            { "key": "k", "operator": "Exists", "value": "v" }, { "operator": "Is", "effect": "Some" },
        ] }))] }),
        &[
            "spec.devices.requests[0].exactly.tolerations[0].value: Invalid value: \"v\": must be empty for operator `Exists`",
            "spec.devices.requests[0].exactly.tolerations[1].operator: Unsupported value: \"Is\": supported values: \"Equal\", \"Exists\"",
            "spec.devices.requests[0].exactly.tolerations[1].effect: Unsupported value: \"Some\": supported values: \"NoExecute\", \"NoSchedule\", \"None\"",
        ],
    );
    check(
        json!({ "requests": [exactly("a", json!({}))], "constraints": [
            { "requests": ["b"], "matchAttribute": "model" }, { "requests": ["a"] },
        ] }),
        &[
            "spec.devices.constraints[0].requests[0]: Invalid value: \"b\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
            "spec.devices.constraints[0].matchAttribute: Invalid value: \"model\": a fully qualified name must be a domain and a name separated by a slash",
            "spec.devices.constraints[1].matchAttribute: Required value",
        ],
    );
    check(
        json!({ "requests": [], "config": [{}, { "opaque": { "driver": "d.example.com", "parameters": [1] } }] }),
        &[
            "spec.devices.config[0].opaque: Required value",
            "spec.devices.config[1].opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object",
        ],
    );
    let many: Vec<_> = (0..33).map(|i| exactly(&format!("r{i}"), json!({}))).collect();
    check(json!({ "requests": many }), &["spec.devices.requests: Too many: 33: must have at most 32 items"]);
}

#[test]
fn slices() {
    let check = |more: Value, expected: &[&str]| {
        let mut spec = json!({
            "driver": "d.example.com", "nodeName": "n", "pool": { "name": "p", "resourceSliceCount": 1, "generation": 1 },
        });
        more.as_object().unwrap().iter().for_each(|(k, v)| spec[k] = v.clone());
        assert_eq!(shown(|e| slice_spec(e, &Path::new("spec"), &spec)), expected, "{spec}");
    };
    check(json!({}), &[]);
    check(
        json!({ "allNodes": false, "pool": { "name": "P", "resourceSliceCount": 0, "generation": -1 } }),
        &[
            "spec.pool.name: Invalid value: \"P\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
            "spec.pool.generation: Invalid value: -1: must be greater than or equal to zero",
            "spec.allNodes: Invalid value: false: must be either unset or set to true",
        ],
    );
    check(
        json!({ "allNodes": true }),
        &[
            "spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set",
        ],
    );
    check(
        json!({ "devices": [{ "name": "d", "attributes": { "a": {}, "b": { "version": "1" } },
            "capacity": { "c": { "value": "1", "requestPolicy": { "default": "1" } } },
            "taints": [{ "key": "k" }], "bindingConditions": ["x"] }] }),
        &[
            "spec.devices[0].attributes[a]: Invalid value: \"\": exactly one value must be specified",
            "spec.devices[0].attributes[b].version: Invalid value: \"1\": must be a string compatible with semver.org spec 2.0.0",
            "spec.devices[0].capacity[c].requestPolicy: Forbidden: allowMultipleAllocations must be true",
            "spec.devices[0].taints[0].effect: Required value",
            "spec.devices[0].bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions",
        ],
    );
    check(
        json!({ "sharedCounters": [{ "name": "s" }], "devices": [{ "name": "d", "nodeName": "x" }] }),
        &[
            "spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed",
            "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
            "spec.sharedCounters[0].counters: Required value",
        ],
    );
}

#[test]
fn statuses() {
    let request = json!({ "name": "a", "exactly": { "deviceClassName": "gpu" } });
    let claim =
        |status: Value| json!({ "metadata": {}, "spec": { "devices": { "requests": [request] } }, "status": status });
    let check = |status: Value, old: Value, expected: &[&str]| {
        let found = shown(|e| claim_status(e, &claim(status.clone()), &claim(old)));
        assert_eq!(found, expected, "{status}");
    };
    let user = json!({ "resource": "pods", "name": "p", "uid": "u" });
    let result = |request: &str| json!({ "request": request, "driver": "d.example.com", "pool": "p", "device": "d0" });
    let allocation = |request: &str| json!({ "devices": { "results": [result(request)] } });
    check(json!({ "allocation": allocation("a"), "reservedFor": [user] }), json!({}), &[]);
    check(
        json!({ "reservedFor": [user, user] }),
        json!({}),
        &[
            "status.reservedFor[1]: Duplicate value: \"u\"",
            "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
        ],
    );
    check(
        json!({ "allocation": allocation("b") }),
        json!({}),
        &[
            "status.allocation.devices.results[0].request: Invalid value: \"b\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
        ],
    );
    check(
        json!({ "allocation": allocation("a"), "devices": [{ "driver": "d.example.com", "pool": "p", "device": "d1" }] }),
        json!({ "allocation": allocation("a") }),
        &["status.devices[0]: Invalid value: \"d.example.com/p/d1\": must be an allocated device in the claim"],
    );
}
