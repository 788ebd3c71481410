//! Validation of the projected volume sources that have to do with certificates, and their removal where their gates are off.
//! Neighbours: `volumes` has the other sources.

use serde_json::Value;

use crate::{
    feature_gates::{CLUSTER_TRUST_BUNDLE_PROJECTION, FeatureGates, POD_CERTIFICATE_REQUEST},
    field::{ErrorList, Path},
    kinds::{
        Resource,
        certificates::signer_name::{self, MIN_MAX_EXPIRATION_SECONDS},
        common::{
            access::{each, existing_mut, int, items, part, set, text},
            checks::{label_selector, local_path},
        },
    },
};

/// Sources that are dropped from new objects while their gate is off.
const GATED_SOURCES: [(&str, &str); 2] =
    [("clusterTrustBundle", CLUSTER_TRUST_BUNDLE_PROJECTION), ("podCertificate", POD_CERTIFICATE_REQUEST)];

const KEY_TYPES: [&str; 6] = ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
const PATHS: [&str; 3] = ["credentialBundlePath", "keyPath", "certificateChainPath"];

fn uses(spec: &Value, source: &str) -> bool {
    let sources = items(spec, "volumes").iter().flat_map(|volume| items(&volume["projected"], "sources"));
    sources.into_iter().any(|found| part(found, source).is_some())
}

/// Where an object of this resource has the spec of a pod.
fn pod_spec(resource: &Resource) -> Option<&'static str> {
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "pods") => Some("/spec"),
        ("", "podtemplates") => Some("/template/spec"),
        ("", "replicationcontrollers") => Some("/spec/template/spec"),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") => Some("/spec/template/spec"),
        ("batch", "jobs") => Some("/spec/template/spec"),
        ("batch", "cronjobs") => Some("/spec/jobTemplate/spec/template/spec"),
        _ => None,
    }
}

/// Takes fields of gates that are off out of an object with the spec of a pod, unless the old object has them already.
pub fn drop_disabled(resource: &Resource, object: &mut Value, old: &Value, gates: &FeatureGates) {
    let Some(pointer) = pod_spec(resource) else { return };
    let Some(spec) = object.pointer_mut(pointer) else { return };
    let old = old.pointer(pointer).unwrap_or(&Value::Null);
    for (source, gate) in GATED_SOURCES {
        if gates.enabled(gate) || !uses(spec, source) || uses(old, source) {
            continue;
        }
        each(spec, "volumes", |volume| {
            if let Some(projected) = existing_mut(volume, "projected") {
                each(projected, "sources", |found| set(found, source, Value::Null));
            }
        });
    }
}

pub fn cluster_trust_bundle(errors: &mut ErrorList, path: &Path, source: &Value) {
    let given = |field: &str| source.get(field).filter(|value| !value.is_null());
    match (given("name"), given("signerName")) {
        (Some(_), Some(_)) => errors.invalid(path, source.clone(), "only one of name and signerName may be used"),
        (Some(_), None) => {
            let name = text(source, "name");
            if name.is_empty() {
                errors.required(&path.child("name"), "must be a valid object name");
            }
            for why in signer_name::trust_bundle_name(name, &signer_name::of_trust_bundle(name), false) {
                errors.invalid(&path.child("name"), name, format!("not a valid clustertrustbundlename: {why}"));
            }
            if let Some(selector) = given("labelSelector") {
                let why = "labelSelector must be unset if name is specified";
                errors.invalid(&path.child("labelSelector"), selector.clone(), why);
            }
        }
        (None, Some(_)) => {
            let signer = text(source, "signerName");
            if signer.is_empty() {
                errors.required(&path.child("signerName"), "must be a valid signer name");
            }
            signer_name::validate(errors, &path.child("signerName"), signer);
            if let Some(selector) = part(source, "labelSelector") {
                label_selector(errors, &path.child("labelSelector"), selector);
            }
        }
        (None, None) => errors.required(path, "either name or signerName must be specified"),
    }
    let at = path.child("path");
    if text(source, "path").is_empty() {
        errors.required(&at, "");
    }
    local_path(errors, &at, text(source, "path"));
}

/// The files that a podCertificate source makes.
pub fn paths(source: &Value) -> impl Iterator<Item = &str> {
    PATHS.iter().map(|field| text(source, field)).filter(|path| !path.is_empty())
}

pub fn pod_certificate(errors: &mut ErrorList, path: &Path, source: &Value) {
    let signer = text(source, "signerName");
    signer_name::validate(errors, &path.child("signerName"), signer);
    signer_name::user_annotations(errors, path, source, "userAnnotations");
    if !KEY_TYPES.contains(&text(source, "keyType")) {
        errors.not_supported(&path.child("keyType"), text(source, "keyType"), &KEY_TYPES);
    }
    if let Some(seconds) = int(source, "maxExpirationSeconds") {
        let (low, high) = (MIN_MAX_EXPIRATION_SECONDS, signer_name::max_expiration_seconds(signer));
        let at = path.child("maxExpirationSeconds");
        if seconds < low {
            errors.invalid(&at, seconds, format!("if provided, maxExpirationSeconds must be >= {low}"));
        }
        if seconds > high {
            errors.invalid(&at, seconds, format!("if provided, maxExpirationSeconds must be <= {high}"));
        }
    }
    for field in PATHS {
        local_path(errors, &path.child(field), text(source, field));
    }
    if paths(source).next().is_none() {
        let why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.required(path, why);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(validate: impl Fn(&mut ErrorList)) -> Vec<String> {
        let mut errors = ErrorList::new();
        validate(&mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    fn fits(found: &[String], expected: &[&str], of: &Value) {
        let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.contains(e));
        assert!(fits, "{of}: {found:?}");
    }

    #[test]
    fn bundles_are_named_or_selected() {
        let check = |source: Value, expected: &[&str]| {
            fits(&shown(|errors| cluster_trust_bundle(errors, &Path::new("b"), &source)), expected, &source);
        };
        check(json!({ "name": "roots", "path": "ca.pem" }), &[]);
        check(json!({ "name": "example.com:x:roots", "path": "ca.pem" }), &[]);
        check(json!({ "signerName": "example.com/x", "labelSelector": {}, "path": "ca.pem" }), &[]);
        check(json!({ "path": "ca.pem" }), &["b: Required value: either name or signerName must be specified"]);
        check(json!({ "name": "a", "signerName": "b.c/d", "path": "p" }), &["only one of name and signerName"]);
        check(
            json!({ "name": "A", "path": "p" }),
            &["b.name: Invalid value: \"A\": not a valid clustertrustbundlename"],
        );
        check(json!({ "name": "a", "labelSelector": {}, "path": "p" }), &["labelSelector must be unset if name"]);
        check(json!({ "name": "a" }), &["b.path: Required value"]);
        check(json!({ "name": "a", "path": "../p" }), &["b.path: Invalid value: \"../p\": must not contain '..'"]);
    }

    #[test]
    fn certificates_have_a_signer_a_key_and_a_place() {
        let check = |change: Value, expected: &[&str]| {
            let mut source =
                json!({ "signerName": "example.com/x", "keyType": "ED25519", "credentialBundlePath": "bundle.pem" });
            source.as_object_mut().unwrap().extend(change.as_object().cloned().unwrap());
            fits(&shown(|errors| pod_certificate(errors, &Path::new("c"), &source)), expected, &source);
        };
        check(json!({}), &[]);
        check(json!({ "keyPath": "key.pem", "certificateChainPath": "chain.pem", "maxExpirationSeconds": 3600 }), &[]);
        check(json!({ "signerName": "" }), &["c.signerName: Required value"]);
        check(json!({ "keyType": "RSA1024" }), &["c.keyType: Unsupported value: \"RSA1024\": supported values"]);
        check(json!({ "maxExpirationSeconds": 60 }), &["maxExpirationSeconds must be >= 3600"]);
        check(json!({ "maxExpirationSeconds": 8_000_000 }), &["maxExpirationSeconds must be <= 7862400"]);
        check(json!({ "userAnnotations": { "a": "b" } }), &["c.userAnnotations: Invalid value: \"a\""]);
        check(json!({ "credentialBundlePath": "" }), &["c: Required value: specify at least one of"]);
        check(json!({ "keyPath": "/key" }), &["c.keyPath: Invalid value: \"/key\": must be a relative path"]);
    }

    #[test]
    fn sources_of_gates_that_are_off_are_dropped() {
        let spec = |source: Value| {
            let volumes = json!([{ "name": "v", "projected": { "sources": [source] } }]);
            json!({ "spec": { "template": { "spec": { "volumes": volumes } } } })
        };
        let deployments = crate::kinds::find("apps", "v1", "deployments").unwrap();
        let check = |gates: &[&str], source: Value, old: Value, kept: bool| {
            let (mut new, gates) = (spec(source.clone()), FeatureGates::parse(gates.iter().copied()).unwrap());
            drop_disabled(deployments, &mut new, &old, &gates);
            let expected = if kept { spec(source) } else { spec(json!({})) };
            assert_eq!(new, expected);
        };
        let (bundle, certificate) = (json!({ "clusterTrustBundle": { "name": "a" } }), json!({ "podCertificate": {} }));
        check(&[], bundle.clone(), Value::Null, false);
        check(&[], certificate.clone(), Value::Null, false);
        check(&[], certificate.clone(), spec(certificate.clone()), true);
        check(&["PodCertificateRequest=true"], certificate, Value::Null, true);
        let both = ["ClusterTrustBundle=true", "ClusterTrustBundleProjection=true"];
        check(&both, bundle, Value::Null, true);
        check(&[], json!({ "configMap": { "name": "c" } }), Value::Null, true);
    }
}
