//! Protobuf against itself and against bytes worked out by hand; upstream's golden bytes are in `tests/reference.rs`.

use serde_json::json;

use super::*;
use crate::{feature_gates, kinds};

fn check(object: Value) -> Vec<u8> {
    let bytes = encode_object(&object).unwrap();
    assert_eq!(decode(&bytes, None).unwrap(), object);
    bytes
}

#[test]
fn objects_round_trip() {
    check(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"x": "y", "a": "b"}},
        "data": {"k": "v"}, "binaryData": {"b": "AAEC"}}));
    check(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"creationTimestamp": "2024-05-06T07:08:09Z"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "500m"}},
            "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": -1}}],
            "volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}, "status": {}}));
    check(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {},
        "spec": {"group": "g", "scope": "Namespaced", "names": {"plural": "p", "kind": "K"}, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "maximum": 1.5, "enum": ["a", 1, null], "default": {"x": []},
                "properties": {"a": {"items": {"type": "string"}}, "b": {"additionalProperties": true},
                    "c": {"additionalProperties": {"type": "integer"}}, "d": {"items": [{"type": "string"}]},
                    "e": {"dependencies": {"x": ["y"], "z": {"type": "object"}}}}}}}]},
        "status": {"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null}}));
}

#[test]
fn kinds_of_feature_gates_have_a_form() {
    check(json!({"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle", "metadata": {"name": "a"},
        "spec": {"signerName": "s", "trustBundle": "pem"}}));
    for (gate, resource) in kinds::gated() {
        let object = json!({"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": "a"}});
        // The oldest of them never had types of Go's that would give the numbers.
        if *gate == feature_gates::INITIALIZERS {
            continue;
        }
        let back = decode(&encode_object(&object).unwrap(), None).unwrap();
        for field in ["apiVersion", "kind", "metadata"] {
            assert_eq!(back[field], object[field], "{back}");
        }
        let list = json!({"apiVersion": resource.api_version(), "kind": resource.list_kind, "items": [object]});
        assert!(encode_object(&list).is_ok(), "{list}");
    }
}

/// A body is read as what it says that it is, also where the kind asked for is one of a feature gate.
#[test]
fn another_kind_than_asked_for_is_read_as_what_it_is() {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
    let asked = schema::find_built_in("certificates.k8s.io", "v1beta1", "ClusterTrustBundle");
    assert_eq!(decode(&encode_object(&map).unwrap(), asked).unwrap(), map);
}

#[test]
fn bytes_of_an_empty_config_map() {
    let bytes = encode_object(&json!({"apiVersion": "v1", "kind": "ConfigMap"})).unwrap();
    let open = open(&bytes).unwrap();
    assert_eq!((open.api_version.as_str(), open.kind.as_str()), ("v1", "ConfigMap"));
    // Metadata is a plain struct: written though empty, with its plain strings and numbers.
    assert_eq!(open.raw, b"\x0a\x10\x0a\x00\x12\x00\x1a\x00\x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00");
    assert!(bytes.ends_with(b"\x1a\x00\x22\x00"));
}

#[test]
fn lists_from_encoded_items() {
    let item = |name: &str| json!({"metadata": {"name": name}});
    let schema = schema::builtin();
    let id = schema.find_kind("", "v1", "ConfigMap").unwrap();
    let items: Vec<Vec<u8>> = ["a", "b"].iter().map(|n| encode(schema, id, &item(n)).unwrap()).collect();
    let metadata = json!({"resourceVersion": "7"});
    let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
    let put_together = list("v1", "ConfigMapList", &metadata, &items).unwrap();
    let whole =
        json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": metadata, "items": [item("a"), item("b")]});
    assert_eq!(put_together, encode_object(&whole).unwrap());
}

#[test]
fn watch_frames() {
    let object = encode_object(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})).unwrap();
    let frame = watch_frame("ADDED", &object);
    assert!(read_watch_frame(&frame[..frame.len() - 1]).unwrap().is_none());
    let (kind, back, used) = read_watch_frame(&frame).unwrap().unwrap();
    assert_eq!((kind.as_str(), back, used), ("ADDED", object.as_slice(), frame.len()));
}

#[test]
fn an_envelope_may_leave_out_the_type() {
    let schema = schema::builtin();
    let id = schema.find_kind("", "v1", "DeleteOptions").unwrap();
    let raw = encode(schema, id, &json!({"gracePeriodSeconds": 3})).unwrap();
    assert_eq!(decode(&envelope("", "", &raw), Some((schema, id))).unwrap(), json!({"gracePeriodSeconds": 3}));
}

#[test]
fn what_cannot_be_read_is_refused() {
    for bytes in [&b""[..], b"k8s", b"k8s\0\xff", b"k8s\0\x0a\xff\xff\xff\xff\x0f", b"k8s\0\x0a\x05\x0a\x03v1"] {
        assert_eq!(decode(bytes, None).unwrap_err().code, 400, "{bytes:?}");
    }
    let strings = encode_object(&json!({"apiVersion": "v1", "kind": "Table"}));
    assert!(strings.is_err());
}
