//! The least that is valid of every kind that is stored.
//! Used by `every_kind`, `kubectl` and `clients`.
//! One row per resource; names differ by `i`, so that several can be there at once.

use serde_json::{Value, json};

/// One of every built-in kind, complete; `i` is the number of the first.
pub fn all(i: usize) -> Vec<Value> {
    let stored = api::kinds::builtin().iter().filter_map(|r| Some((r, object(&r.group, &r.plural, 0)?)));
    let numbered = stored.enumerate().filter_map(|(n, (r, _))| Some((r, object(&r.group, &r.plural, i + n)?)));
    let complete = numbered.map(|(resource, (name, mut object))| {
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.as_str().into();
        object["metadata"] = json!({ "name": name, "labels": { "every": "kind" } });
        if resource.namespaced() {
            object["metadata"]["namespace"] = "default".into();
        }
        if resource.kind == "APIService"
            && let Some(spec) = object["spec"].as_object_mut()
        {
            // One whose server does not answer makes every client complain about discovery, as it should.
            spec.retain(|field, _| field != "service" && field != "insecureSkipTLSVerify");
        }
        object
    });
    complete.collect()
}

/// What the object of a resource is called and what it holds besides its metadata.
pub fn object(group: &str, plural: &str, i: usize) -> Option<(String, Value)> {
    let name = format!("every-{i}");
    let labels = json!({ "app": "x" });
    let template =
        json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let selector = json!({ "matchLabels": labels });
    let never = |mut template: Value| {
        template["spec"]["restartPolicy"] = "Never".into();
        template
    };
    let volume =
        json!({ "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/x" } });
    let claim = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    let webhook = json!([{
        "name": "w.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": { "url": "https://127.0.0.1:1/" }, "rules": [],
    }]);
    let role_ref = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" });
    let device = json!({ "requests": [{ "name": "r", "exactly": { "deviceClassName": "class.example.com" } }] });
    let plain = |fields: Value| Some((name.clone(), fields));
    match (group, plural) {
        ("", "configmaps") => plain(json!({ "data": { "a": "b" } })),
        ("", "endpoints") => {
            plain(json!({ "subsets": [{ "addresses": [{ "ip": "10.0.0.1" }], "ports": [{ "port": 80 }] }] }))
        }
        ("", "events") => {
            plain(json!({ "involvedObject": { "namespace": "default", "kind": "Pod", "name": "p" }, "reason": "R" }))
        }
        ("events.k8s.io", "events") => plain(json!({
            "regarding": { "namespace": "default", "kind": "Pod", "name": "p" }, "reason": "R", "action": "A", "type": "Normal",
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "example.com/c", "reportingInstance": "i",
        })),
        ("", "limitranges") => {
            plain(json!({ "spec": { "limits": [{ "type": "PersistentVolumeClaim", "max": { "storage": "9Ti" } }] } }))
        }
        ("", "namespaces" | "nodes" | "serviceaccounts") => plain(json!({})),
        ("", "persistentvolumes") => plain(json!({ "spec": volume })),
        ("", "persistentvolumeclaims") => plain(json!({ "spec": claim })),
        ("", "pods") => plain(json!({ "spec": template["spec"] })),
        ("", "podtemplates") => plain(json!({ "template": template })),
        ("", "replicationcontrollers") => {
            plain(json!({ "spec": { "replicas": 0, "selector": labels, "template": template } }))
        }
        ("", "resourcequotas") => plain(json!({ "spec": { "hard": { "count/widgets.example.com": "5" } } })),
        ("", "secrets") => plain(json!({ "data": { "a": "Yg==" } })),
        ("", "services") => plain(json!({ "spec": { "ports": [{ "port": 80 }] } })),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => {
            plain(json!({ "webhooks": webhook }))
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => plain(json!({ "spec": {
            "matchConstraints": { "resourceRules": [
                { "apiGroups": ["x.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["y"] },
            ] },
            "validations": [{ "expression": "true" }],
        } })),
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings") => {
            plain(json!({ "spec": { "policyName": "none", "validationActions": ["Deny"] } }))
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => Some((
            format!("every{i}s.example.com"),
            json!({ "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": { "plural": format!("every{i}s"), "singular": format!("every{i}"), "kind": format!("Every{i}"), "listKind": format!("Every{i}List") },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": { "type": "object" } } }],
        } }),
        )),
        ("apiregistration.k8s.io", "apiservices") => Some((
            format!("v1.every{i}.example.com"),
            json!({ "spec": {
            "group": format!("every{i}.example.com"), "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true, "service": { "namespace": "default", "name": "none" },
        } }),
        )),
        ("apps", "controllerrevisions") => plain(json!({ "revision": 1, "data": { "a": "b" } })),
        ("apps", "daemonsets") => plain(json!({ "spec": { "selector": selector, "template": template } })),
        ("apps", "deployments" | "replicasets") => {
            plain(json!({ "spec": { "replicas": 0, "selector": selector, "template": template } }))
        }
        ("apps", "statefulsets") => {
            plain(json!({ "spec": { "replicas": 0, "serviceName": "s", "selector": selector, "template": template } }))
        }
        ("autoscaling", "horizontalpodautoscalers") => plain(json!({ "spec": {
            "maxReplicas": 3, "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "d" },
        } })),
        ("batch", "jobs") => plain(json!({ "spec": { "template": never(template) } })),
        ("batch", "cronjobs") => plain(
            json!({ "spec": { "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": never(template) } } } }),
        ),
        ("certificates.k8s.io", "certificatesigningrequests") => plain(json!({ "spec": {
            "request": certificate_request(), "signerName": "example.com/signer", "usages": ["digital signature"],
        } })),
        ("coordination.k8s.io", "leases") => plain(json!({ "spec": {} })),
        ("discovery.k8s.io", "endpointslices") => {
            plain(json!({ "addressType": "IPv4", "endpoints": [{ "addresses": ["10.0.0.1"] }], "ports": [] }))
        }
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => plain(json!({ "spec": {
            "priorityLevelConfiguration": { "name": "global-default" }, "matchingPrecedence": 5000,
        } })),
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => plain(json!({ "spec": {
            "type": "Limited", "limited": { "nominalConcurrencyShares": 5, "limitResponse": { "type": "Reject" } },
        } })),
        ("networking.k8s.io", "ingressclasses") => plain(json!({ "spec": { "controller": "example.com/c" } })),
        ("networking.k8s.io", "ingresses") => plain(json!({ "spec": {
            "defaultBackend": { "service": { "name": "s", "port": { "number": 80 } } },
        } })),
        ("networking.k8s.io", "ipaddresses") => Some((
            format!("192.168.7.{i}"),
            json!({ "spec": {
            "parentRef": { "group": "", "resource": "services", "namespace": "default", "name": "s" },
        } }),
        )),
        ("networking.k8s.io", "networkpolicies") => plain(json!({ "spec": { "podSelector": {} } })),
        ("networking.k8s.io", "servicecidrs") => plain(json!({ "spec": { "cidrs": [format!("172.16.{i}.0/24")] } })),
        ("node.k8s.io", "runtimeclasses") => plain(json!({ "handler": "h" })),
        ("policy", "poddisruptionbudgets") => plain(json!({ "spec": { "maxUnavailable": 1, "selector": selector } })),
        ("rbac.authorization.k8s.io", "roles" | "clusterroles") => plain(json!({ "rules": [] })),
        ("rbac.authorization.k8s.io", _) => plain(json!({ "roleRef": role_ref, "subjects": [] })),
        ("resource.k8s.io", "deviceclasses") => plain(json!({ "spec": {} })),
        ("resource.k8s.io", "resourceclaims") => plain(json!({ "spec": { "devices": device } })),
        ("resource.k8s.io", "resourceclaimtemplates") => plain(json!({ "spec": { "spec": { "devices": device } } })),
        ("resource.k8s.io", "resourceslices") => plain(json!({ "spec": {
            "driver": "driver.example.com", "nodeName": "n", "devices": [{ "name": "d0" }],
            "pool": { "name": format!("pool-{i}"), "generation": 1, "resourceSliceCount": 1 },
        } })),
        ("scheduling.k8s.io", "priorityclasses") => plain(json!({ "value": 10 })),
        ("storage.k8s.io", "csidrivers") => plain(json!({ "spec": {} })),
        ("storage.k8s.io", "csinodes") => {
            plain(json!({ "spec": { "drivers": [{ "name": "d.example.com", "nodeID": "n" }] } }))
        }
        ("storage.k8s.io", "csistoragecapacities") => plain(json!({ "storageClassName": "c", "capacity": "1Gi" })),
        ("storage.k8s.io", "storageclasses") => plain(json!({ "provisioner": "example.com/p" })),
        ("storage.k8s.io", "volumeattachments") => plain(json!({ "spec": {
            "attacher": "a.example.com", "nodeName": "n", "source": { "persistentVolumeName": "v" },
        } })),
        ("storage.k8s.io", "volumeattributesclasses") => {
            plain(json!({ "driverName": "d.example.com", "parameters": { "a": "b" } }))
        }
        _ => None,
    }
}

fn certificate_request() -> String {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    let request = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap();
    BASE64_STANDARD.encode(request.pem().unwrap())
}

/// The body of what is asked and not stored.
pub fn question(plural: &str) -> Value {
    let attributes = json!({ "verb": "get", "resource": "pods", "namespace": "default" });
    match plural {
        "bindings" => json!({ "metadata": { "name": "every-bound" }, "target": { "kind": "Node", "name": "n" } }),
        "tokenreviews" => json!({ "spec": { "token": "nobody's" } }),
        "selfsubjectaccessreviews" => json!({ "spec": { "resourceAttributes": attributes } }),
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            json!({ "metadata": {}, "spec": { "user": "u", "resourceAttributes": attributes } })
        }
        "selfsubjectrulesreviews" => json!({ "spec": { "namespace": "default" } }),
        _ => json!({}),
    }
}
