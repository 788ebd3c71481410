//! What a node's credential may write and read, against a whole server.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::Method;
use rcgen::{CertificateParams, DnType, DnValue, KeyPair, string::BmpString};
use serde_json::{Value, json};

use crate::{
    admission::tests::{Fixture, PODS, configured, fixture},
    authn::User,
};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

fn node(name: &str) -> User {
    User::new(&format!("system:node:{name}"), &["system:nodes"])
}

fn node_object(name: &str, address: &str) -> Value {
    let addresses = json!([{ "type": "InternalIP", "address": address }, { "type": "Hostname", "address": name }]);
    json!({ "metadata": { "name": name }, "status": { "addresses": addresses } })
}

/// Nodes n1 and n2, each registered by itself.
async fn two_nodes() -> Fixture {
    registered(fixture(&["NodeRestriction"]).await).await
}

async fn registered(f: Fixture) -> Fixture {
    for (name, address) in [("n1", "192.0.2.1"), ("n2", "192.0.2.2")] {
        let (code, answer, _) = f.send(&node(name), Method::POST, "/api/v1/nodes", node_object(name, address)).await;
        assert_eq!(code, 201, "{answer}");
    }
    f
}

impl Fixture {
    /// What node n1 is told: nothing where the write is done, else the refusal after its standing beginning.
    async fn as_n1(&self, method: Method, path: &str, object: Value) -> String {
        let (code, answer, _) = self.send(&node("n1"), method, path, object).await;
        if code < 300 {
            return String::new();
        }
        let message = answer["message"].as_str().unwrap_or_default();
        let why = message.split_once(" is forbidden: ").map_or(message, |(_, why)| why);
        format!("{code} {why}")
    }

    async fn check(&self, method: Method, path: &str, object: Value, expected: &str) {
        assert_eq!(self.as_n1(method, path, object.clone()).await, expected, "{path} {object}");
    }
}

#[tokio::test]
async fn a_node_does_not_set_its_pod_range() {
    let f = fixture(&["NodeRestriction"]).await;
    for spec in [json!({ "podCIDR": "10.0.0.0/8" }), json!({ "podCIDRs": ["10.0.0.0/8"] })] {
        let object = json!({ "metadata": { "name": "n1" }, "spec": spec });
        f.check(Method::POST, "/api/v1/nodes", object, "403 node \"n1\" is not allowed to set podCIDR").await;
    }
    f.check(Method::POST, "/api/v1/nodes", node_object("n1", "192.0.2.1"), "").await;
    let path = "/api/v1/nodes/n1";
    let with = async |field: &str, value: Value| {
        let mut object = f.ok(Method::GET, path, Value::Null).await;
        object["spec"][field] = value;
        object
    };
    let refusal = "403 node \"n1\" is not allowed to modify podCIDR";
    f.check(Method::PUT, path, with("podCIDR", json!("10.244.7.0/24")).await, refusal).await;
    f.check(Method::PUT, path, with("podCIDRs", json!(["10.244.7.0/24"])).await, refusal).await;
    // The controllers set it, once.
    f.ok(Method::PUT, path, with("podCIDR", json!("10.244.1.0/24")).await).await;
    let given = f.ok(Method::GET, path, Value::Null).await;
    assert_eq!(given["spec"]["podCIDRs"], json!(["10.244.1.0/24"]));
    f.check(Method::PUT, path, with("podCIDR", json!("10.244.7.0/24")).await, refusal).await;
    f.check(Method::PUT, path, with("unschedulable", json!(true)).await, "").await;
    // Where the two fields differ the single one counts, so a change of it alone is one of both.
    let (code, answer, _) = f.admin(Method::PUT, path, with("podCIDR", json!("10.244.7.0/24")).await).await;
    let why = "node updates may not change podCIDR except from \"\" to valid";
    assert!(code == 422 && answer["message"].as_str().unwrap_or_default().contains(why), "{code} {answer}");
}

#[tokio::test]
async fn a_node_does_not_take_an_address_of_another() {
    let f = two_nodes().await;
    let path = "/api/v1/nodes/n1/status";
    for (kind, address, expected) in [
        ("ExternalIP", "198.51.100.1", ""),
        ("InternalIP", "192.0.2.2", "403 node \"n1\" is not allowed to take address \"192.0.2.2\" of node \"n2\""),
        ("InternalDNS", "n2", "403 node \"n1\" is not allowed to take address \"n2\" of node \"n2\""),
        ("InternalDNS", "N2.", "403 node \"n1\" is not allowed to take address \"N2.\" of node \"n2\""),
        (
            "InternalIP",
            "::ffff:192.0.2.2",
            "403 node \"n1\" is not allowed to take address \"::ffff:192.0.2.2\" of node \"n2\"",
        ),
    ] {
        let mut object = f.ok(Method::GET, "/api/v1/nodes/n1", Value::Null).await;
        let addresses = object["status"]["addresses"].as_array_mut().unwrap();
        addresses.push(json!({ "type": kind, "address": address }));
        f.check(Method::PUT, path, object, expected).await;
    }
}

#[tokio::test]
async fn a_node_writes_only_what_is_its_own_of_its_node() {
    let f = two_nodes().await;
    let path = "/api/v1/nodes/n1";
    for (part, field, value, expected) in [
        ("spec", "taints", json!([]), "node \"n1\" is not allowed to modify taints"),
        (
            "spec",
            "configSource",
            json!({ "configMap": { "name": "c", "namespace": "d", "uid": "u", "kubeletConfigKey": "k" } }),
            "node \"n1\" is not allowed to update configSource to a new non-nil configSource",
        ),
        (
            "metadata",
            "ownerReferences",
            json!([{ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u" }]),
            "node \"n1\" is not allowed to modify ownerReferences",
        ),
        (
            "metadata",
            "labels",
            json!({ "node-role.kubernetes.io/x": "", "foo.k8s.io/x": "" }),
            "is not allowed to modify labels: foo.k8s.io/x, node-role.kubernetes.io/x",
        ),
    ] {
        let mut object = f.ok(Method::GET, path, Value::Null).await;
        object[part][field] = value;
        f.check(Method::PUT, path, object, &format!("403 {expected}")).await;
    }
    let other = f.ok(Method::GET, "/api/v1/nodes/n2", Value::Null).await;
    f.check(Method::PUT, "/api/v1/nodes/n2", other, "403 node \"n1\" is not allowed to modify node \"n2\"").await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str| json!({ "metadata": { "name": name }, "spec": {} });
    f.check(Method::POST, leases, lease("n1"), "").await;
    let why = "403 can only access node lease with the same name as the requesting node";
    f.check(Method::POST, leases, lease("n2"), why).await;
    let csi = |name: &str| json!({ "metadata": { "name": name }, "spec": { "drivers": [] } });
    f.check(Method::POST, "/apis/storage.k8s.io/v1/csinodes", csi("n1"), "").await;
    let why = "403 can only access CSINode with the same name as the requesting node";
    f.check(Method::POST, "/apis/storage.k8s.io/v1/csinodes", csi("n2"), why).await;
}

#[tokio::test]
async fn a_node_makes_only_mirror_pods_that_it_owns_and_that_name_nothing() {
    // Another plugin comes before and refuses some of these as well.
    let f = configured(|config| config.disable_admission_plugins = vec!["ServiceAccount".into()]).await;
    let f = registered(f).await;
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap().to_string();
    let own = uid(&f.ok(Method::GET, "/api/v1/nodes/n1", Value::Null).await);
    let other = uid(&f.ok(Method::GET, "/api/v1/nodes/n2", Value::Null).await);
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": own, "controller": true });
    let mirror = json!({
        "metadata": {
            "name": "m", "annotations": { "kubernetes.io/config.mirror": "h" }, "ownerReferences": [owner],
        },
        "spec": { "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }] },
    });
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = "v".into();
        json!([volume])
    };
    let references = "node \"n1\" can not create pods that reference";
    let owner_is = "/metadata/ownerReferences/0";
    let environment = |from: Value| json!([{ "name": "c", "image": "i", "envFrom": [from] }]);
    for (pointer, value, expected) in [
        (
            "/metadata/annotations",
            json!({}),
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods"
                .to_string(),
        ),
        ("/spec/nodeName", json!("n2"), "node \"n1\" can only create pods with spec.nodeName set to itself".into()),
        (
            "/metadata/ownerReferences",
            json!([]),
            "node \"n1\" can only create pods with an owner reference set to itself".into(),
        ),
        (
            "/metadata/ownerReferences",
            json!([owner, owner]),
            "node \"n1\" can only create pods with a single owner reference set to itself".into(),
        ),
        (
            &format!("{owner_is}/name"),
            json!("n2"),
            "node \"n1\" can only create pods with an owner reference set to itself".into(),
        ),
        (
            &format!("{owner_is}/apiVersion"),
            json!("v2"),
            "node \"n1\" can only create pods with an owner reference set to itself".into(),
        ),
        (
            &format!("{owner_is}/controller"),
            json!(false),
            "node \"n1\" can only create pods with a controller owner reference set to itself".into(),
        ),
        (&format!("{owner_is}/uid"), json!(other), format!("node n1 UID mismatch: expected {other} got {own}")),
        ("/spec/imagePullSecrets", json!([{ "name": "s" }]), format!("{references} secrets")),
        ("/spec/serviceAccountName", json!("default"), format!("{references} serviceaccounts")),
        ("/spec/containers", environment(json!({ "secretRef": { "name": "s" } })), format!("{references} secrets")),
        (
            "/spec/containers",
            environment(json!({ "configMapRef": { "name": "s" } })),
            format!("{references} configmaps"),
        ),
        (
            "/spec/resourceClaims",
            json!([{ "name": "c", "resourceClaimName": "x" }]),
            format!("{references} resourceclaims"),
        ),
        ("/spec/volumes", volume(json!({ "secret": { "secretName": "s" } })), format!("{references} secrets")),
        ("/spec/volumes", volume(json!({ "configMap": { "name": "s" } })), format!("{references} configmaps")),
        (
            "/spec/volumes",
            volume(json!({ "persistentVolumeClaim": { "claimName": "s" } })),
            format!("{references} persistentvolumeclaims"),
        ),
        (
            "/spec/volumes",
            volume(json!({ "csi": { "driver": "d" } })),
            format!("{references} csidrivers (via CSI volumes)"),
        ),
        (
            "/spec/volumes",
            volume(json!({ "ephemeral": { "volumeClaimTemplate": { "spec": {} } } })),
            format!("{references} persistentvolumeclaims (via ephemeral volumes)"),
        ),
        (
            "/spec/volumes",
            volume(json!({ "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }] } })),
            format!("{references} serviceaccounts (via projected volumes)"),
        ),
        (
            "/spec/volumes",
            volume(json!({ "projected": { "sources": [{}] } })),
            "error checking mirror pod for API references: unknown source for projected volume \"v\"".into(),
        ),
    ] {
        let mut pod = mirror.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value;
        f.check(Method::POST, PODS, pod, &format!("403 {expected}")).await;
    }
    let mut blocking = mirror.clone();
    blocking["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = true.into();
    let why = "403 node \"n1\" must not set blockOwnerDeletion on an owner reference";
    f.check(Method::POST, PODS, blocking, why).await;
    let mut good = mirror;
    good["spec"]["volumes"] = volume(json!({ "hostPath": { "path": "/" } }));
    f.check(Method::POST, PODS, good, "").await;
}

/// A pod that asks for a claim of a template, on n1.
async fn pod_with_claim(f: &Fixture) -> Value {
    let claims = json!([{ "name": "gpu", "resourceClaimTemplateName": "t" }]);
    let spec = json!({ "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }], "resourceClaims": claims });
    f.ok(Method::POST, PODS, json!({ "metadata": { "name": "p" }, "spec": spec })).await
}

#[tokio::test]
async fn a_node_says_of_a_pod_how_it_runs_and_not_what_it_may_claim() {
    let f = two_nodes().await;
    let pod = pod_with_claim(&f).await;
    let path = format!("{PODS}/p/status");
    for (pointer, value, expected) in [
        ("/status/phase", json!("Running"), ""),
        ("/metadata/labels", json!({ "app": "db" }), "403 node \"n1\" cannot update labels through pod status"),
        (
            "/status/resourceClaimStatuses",
            json!([{ "name": "gpu", "resourceClaimName": "somebody-elses" }]),
            "403 node \"n1\" cannot update resource claim statues",
        ),
        (
            "/status/extendedResourceClaimStatus",
            json!({ "resourceClaimName": "somebody-elses", "requestMappings": [] }),
            "403 node \"n1\" cannot update extended resource claim status",
        ),
    ] {
        let mut changed = pod.clone();
        changed["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[field] = value;
        f.check(Method::PUT, &path, changed, expected).await;
    }
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "p" } });
    let (code, answer, _) = f.send(&node("n2"), Method::POST, &format!("{PODS}/p/eviction"), eviction).await;
    let why = "node n2 can only evict pods with spec.nodeName set to itself";
    assert!(code == 403 && answer["message"].as_str().unwrap().ends_with(why), "{answer}");
    let (code, answer, _) = f.send(&node("n2"), Method::DELETE, &format!("{PODS}/p"), Value::Null).await;
    let why = "node \"n2\" can only delete pods with spec.nodeName set to itself";
    assert!(code == 403 && answer["message"].as_str().unwrap().ends_with(why), "{answer}");
    let absent = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "absent" } });
    f.check(Method::POST, &format!("{PODS}/absent/eviction"), absent, "404 pods \"absent\" not found").await;
}

#[tokio::test]
async fn a_node_says_of_a_claim_how_far_its_expansion_is() {
    let f = two_nodes().await;
    let resources = json!({ "requests": { "storage": "1Gi" } });
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "resources": resources, "storageClassName": "" });
    let claim = f.ok(Method::POST, CLAIMS, json!({ "metadata": { "name": "c" }, "spec": spec })).await;
    let path = format!("{CLAIMS}/c/status");
    let with = |pointer: &str, value: Value| {
        let mut changed = claim.clone();
        changed["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[field] = value;
        changed
    };
    let capacity = || with("/status/capacity", json!({ "storage": "1Gi" }));
    let unrelated = f.as_n1(Method::PUT, &path, capacity()).await;
    assert!(unrelated.contains("no relationship found between node 'n1' and this object"), "{unrelated}");
    let volumes = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }]);
    let spec = json!({ "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }], "volumes": volumes });
    f.ok(Method::POST, PODS, json!({ "metadata": { "name": "uses" }, "spec": spec })).await;
    f.check(Method::PUT, &path, capacity(), "").await;
    f.check(Method::PUT, &path, with("/status/conditions", json!([{ "type": "Resizing", "status": "True" }])), "")
        .await;
    let refusal = "403 node \"n1\" is not allowed to update fields other than status.quantity and status.conditions:";
    for (pointer, value, field) in [
        ("/status/phase", json!("Bound"), "status.phase"),
        ("/metadata/labels", json!({ "a": "b" }), "metadata.labels"),
        ("/metadata/finalizers", json!(["example.com/kept"]), "metadata.finalizers"),
        ("/spec/volumeName", json!("somebody-elses"), "spec.volumeName"),
    ] {
        f.check(Method::PUT, &path, with(pointer, value), &format!("{refusal} {field}")).await;
    }
}

#[tokio::test]
async fn a_node_publishes_only_its_own_resource_slices() {
    let f = two_nodes().await;
    let slice = |name: &str, node: &str| {
        let pool = json!({ "name": "p", "resourceSliceCount": 1, "generation": 1 });
        json!({ "metadata": { "name": name }, "spec": { "driver": "d.example.com", "nodeName": node, "pool": pool } })
    };
    f.check(Method::POST, SLICES, slice("own", "n1"), "").await;
    let why = "403 can only create ResourceSlice with the same NodeName as the requesting node";
    f.check(Method::POST, SLICES, slice("other", "n2"), why).await;
    let mut everywhere = slice("all", "");
    everywhere["spec"]["nodeName"].take();
    everywhere["spec"]["allNodes"] = true.into();
    f.check(Method::POST, SLICES, everywhere, why).await;
    f.ok(Method::POST, SLICES, slice("other", "n2")).await;
    f.check(Method::GET, &format!("{SLICES}/own"), Value::Null, "").await;
    let refused = f.as_n1(Method::GET, &format!("{SLICES}/other"), Value::Null).await;
    assert!(refused.ends_with("no relationship found between node 'n1' and this object"), "{refused}");
    let own = f.ok(Method::GET, &format!("{SLICES}/own"), Value::Null).await;
    f.check(Method::PUT, &format!("{SLICES}/own"), own, "").await;
    for selector in ["", "?fieldSelector=spec.nodeName%3Dn2"] {
        let refused = f.as_n1(Method::DELETE, &format!("{SLICES}{selector}"), Value::Null).await;
        let why = "can only list/watch/deletecollection resourceslices with nodeName field selector";
        assert!(refused.ends_with(why), "{refused}");
    }
    f.check(Method::DELETE, &format!("{SLICES}?fieldSelector=spec.nodeName%3Dn1"), Value::Null, "").await;
    assert_eq!(f.admin(Method::GET, &format!("{SLICES}/own"), Value::Null).await.0, 404);
    assert_eq!(f.admin(Method::GET, &format!("{SLICES}/other"), Value::Null).await.0, 200);
}

#[tokio::test]
async fn a_node_asks_for_certificates_in_its_own_name_only() {
    let f = two_nodes().await;
    let request = |name: DnValue, signer: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let usages = match signer {
            "kubernetes.io/kubelet-serving" => ["digital signature", "server auth"],
            _ => ["digital signature", "client auth"],
        };
        let spec = json!({ "request": BASE64_STANDARD.encode(pem), "signerName": signer, "usages": usages });
        json!({ "metadata": { "generateName": "csr-" }, "spec": spec })
    };
    let text = |name: &str| DnValue::Utf8String(name.into());
    let refusal = "403 can only create a node CSR with CN=system:node:n1";
    for signer in ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"] {
        f.check(Method::POST, REQUESTS, request(text("system:node:n1"), signer), "").await;
        for other in ["system:node:n2", "system:node:n1 ", "kubernetes-admin"] {
            f.check(Method::POST, REQUESTS, request(text(other), signer), refusal).await;
        }
    }
    f.check(Method::POST, REQUESTS, request(text("jane"), "example.com/own"), "").await;
    let unreadable = DnValue::BmpString(BmpString::try_from("system:node:n1").unwrap());
    let refused = f.as_n1(Method::POST, REQUESTS, request(unreadable, "kubernetes.io/kubelet-serving")).await;
    assert!(refused.starts_with("403 unable to parse csr: "), "{refused}");
}

#[tokio::test]
async fn a_node_reads_only_the_claims_that_its_pods_ask_for() {
    let f = two_nodes().await;
    let mut pod = pod_with_claim(&f).await;
    // As the controllers say it; an entry that the spec does not ask for gives nothing.
    pod["status"]["resourceClaimStatuses"] =
        json!([{ "name": "gpu", "resourceClaimName": "made" }, { "name": "other", "resourceClaimName": "foreign" }]);
    f.ok(Method::PUT, &format!("{PODS}/p/status"), pod).await;
    let read = async |name: &str| {
        let path = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
        f.as_n1(Method::GET, &path, Value::Null).await
    };
    assert!(read("made").await.starts_with("404"), "permitted, and not there");
    for name in ["foreign", "any"] {
        let refused = read(name).await;
        assert!(refused.ends_with("no relationship found between node 'n1' and this object"), "{refused}");
    }
}

/// The authorizer must read a selector as the handler does, or what is permitted for one name selects others.
#[tokio::test]
async fn selectors_that_escape_a_comma_do_not_widen_what_a_node_reads() {
    let f = two_nodes().await;
    let volumes = json!([{ "name": "v", "secret": { "secretName": "own" } }]);
    let spec = json!({ "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }], "volumes": volumes });
    f.ok(Method::POST, PODS, json!({ "metadata": { "name": "p" }, "spec": spec })).await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let allowed = f.as_n1(Method::GET, &format!("{secrets}?fieldSelector=metadata.name%3Down"), Value::Null).await;
    assert_eq!(allowed, "");
    for (path, selector) in [
        (secrets, "metadata.namespace!=x\\,metadata.name=own"),
        ("/api/v1/pods", "metadata.namespace!=x\\,spec.nodeName=n1"),
        ("/api/v1/pods", "spec.nodeName!=n1"),
    ] {
        let selector = percent_encoding::utf8_percent_encode(selector, percent_encoding::NON_ALPHANUMERIC);
        let refused = f.as_n1(Method::GET, &format!("{path}?fieldSelector={selector}"), Value::Null).await;
        assert!(refused.starts_with("403 "), "{path} {selector}: {refused}");
    }
    // One object by its path is permitted; fields that select others are not taken in its place.
    let others = format!("{secrets}/own?watch=1&fieldSelector=metadata.name%21%3Dx");
    f.check(Method::GET, &others, Value::Null, "400 fieldSelector metadata.name doesn't match requested name").await;
}

#[tokio::test]
async fn a_node_lets_go_of_its_own_local_volumes_and_changes_nothing_else() {
    let f = configured(|_| {}).await;
    let f = registered(f).await;
    let finalizers = json!([api::local_storage::FINALIZER, "example.com/keep"]);
    for (name, owner) in [("own", "n1"), ("other", "n2")] {
        let volume = json!({
            "metadata": { "name": name, "labels": { api::local_storage::NODE_LABEL: owner }, "finalizers": finalizers,
                "annotations": { "pv.kubernetes.io/provisioned-by": api::local_storage::PROVISIONER } },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "local": { "path": "/v" },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions":
                    [{ "key": "a", "operator": "Exists" }] }] } } },
        });
        f.ok(Method::POST, "/api/v1/persistentvolumes", volume).await;
    }
    let (own, other) = ("/api/v1/persistentvolumes/own", "/api/v1/persistentvolumes/other");
    let changed = async |path: &str, pointer: &str, value: Value| {
        let mut volume = f.ok(Method::GET, path, Value::Null).await;
        let finalizers = volume["metadata"]["finalizers"].as_array_mut().unwrap();
        finalizers.retain(|finalizer| finalizer != api::local_storage::FINALIZER);
        if !pointer.is_empty() {
            let (part, field) = pointer.split_once('.').unwrap();
            volume[part][field] = value;
        }
        volume
    };
    let alive = "403 can only let go of a persistent volume that is being deleted";
    f.check(Method::PUT, own, changed(own, "", Value::Null).await, alive).await;
    for path in [own, other] {
        f.ok(Method::DELETE, path, Value::Null).await;
    }
    for (field, value) in [
        ("metadata.finalizers", Value::Null),
        ("metadata.labels", json!({ "a": "b" })),
        ("spec.mountOptions", json!(["x"])),
    ] {
        let finalizer = api::local_storage::FINALIZER;
        let why = format!("403 node \"n1\" is not allowed to change more than the finalizer {finalizer:?}: {field}");
        f.check(Method::PUT, own, changed(own, field, value).await, &why).await;
    }
    let unrelated = f.as_n1(Method::PUT, other, changed(other, "", Value::Null).await).await;
    assert!(unrelated.contains("no relationship found between node 'n1' and this object"), "{unrelated}");
    let listed = |node: &str| format!("/api/v1/persistentvolumes?labelSelector=minke.io%2Flocal-storage-node%3D{node}");
    f.check(Method::GET, &listed("n1"), Value::Null, "").await;
    for path in [listed("n2"), "/api/v1/persistentvolumes".into()] {
        let refused = f.as_n1(Method::GET, &path, Value::Null).await;
        assert!(refused.contains("can only get individual resources of this type"), "{refused}");
    }
    f.check(Method::PUT, own, changed(own, "", Value::Null).await, "").await;
    let left = f.ok(Method::GET, own, Value::Null).await;
    let held = left["metadata"]["finalizers"].as_array().unwrap();
    assert!(held.contains(&json!("example.com/keep")) && !held.contains(&json!(api::local_storage::FINALIZER)));
}
