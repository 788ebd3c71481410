//! PodCertificateRequests: strategy, columns, and what can be checked of them without a clock or a signature.
//! Neighbours: the API server's `admission/pod_certificates.rs` verifies the proof of possession, the times and whether
//! the writer may sign; the kubelet makes requests for the projected volumes of its pods.
//! The spec never changes; a status that says how it ended neither.

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};
use x509_parser::{
    certificate::X509Certificate, extensions::GeneralName, prelude::FromDer, public_key::PublicKey,
    x509::SubjectPublicKeyInfo,
};

use super::signer_name::{self, MIN_MAX_EXPIRATION_SECONDS};
use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{int, items, text},
            checks,
            columns::{condition_is_true, labels, name, name_of, string, wide},
            conditions,
        },
    },
    names, pem,
};

const UID_BYTES_MAX: usize = 128;
const KEY_BYTES_MAX: usize = 10 * 1024;
const CHAIN_BYTES_MAX: usize = 100 * 1024;

/// How a request can end.
const ENDS: [&str; 3] = ["Issued", "Denied", "Failed"];

#[derive(Default)]
pub struct PodCertificateRequest;

impl Behavior for PodCertificateRequest {
    fn initial_status(&self) -> Value {
        json!({})
    }

    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_spec(errors, &object["spec"]);
    }

    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        checks::immutable(errors, &Path::new(""), object, old, "spec");
    }

    fn validate_status_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate_status(errors, object, old);
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
        const COLUMNS: [Column; 7] = [
            name(),
            string("PodName", "The pod it is for."),
            string("ServiceAccountName", "The account of that pod."),
            string("NodeName", "The node that asked."),
            string("SignerName", "Who should sign it."),
            string("State", "Is the request Pending, Issued, Denied, or Failed?"),
            wide("UnverifiedUserAnnotations", "What the pod tells the signer."),
        ];
        &COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let spec = &object["spec"];
        let mut kinds = items(&object["status"], "conditions").iter().map(|c| text(c, "type"));
        let state = kinds.rfind(|kind| ENDS.contains(kind)).unwrap_or("Pending");
        let [pod, account, node, signer] =
            ["podName", "serviceAccountName", "nodeName", "signerName"].map(|field| json!(text(spec, field)));
        vec![name_of(object), pod, account, node, signer, json!(state), labels(spec, "unverifiedUserAnnotations")]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        let field = |name: &str| (format!("spec.{name}"), text(&object["spec"], name).to_string());
        vec![field("signerName"), field("podName"), field("nodeName")]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["spec.signerName".into(), "spec.podName".into(), "spec.nodeName".into()]
    }
}

fn validate_spec(errors: &mut ErrorList, spec: &Value) {
    let path = Path::new("spec");
    let signer = text(spec, "signerName");
    signer_name::validate(errors, &path.child("signerName"), signer);
    signer_name::user_annotations(errors, &path, spec, "unverifiedUserAnnotations");
    for (name, uid) in [("podName", "podUID"), ("serviceAccountName", "serviceAccountUID"), ("nodeName", "nodeUID")] {
        checks::complaints(errors, &path.child(name), text(spec, name), names::dns_subdomain(text(spec, name), false));
        let value = text(spec, uid);
        if value.is_empty() {
            errors.invalid(&path.child(uid), value, "must not be empty");
        }
        if value.len() > UID_BYTES_MAX {
            errors.too_long(&path.child(uid), UID_BYTES_MAX);
        }
    }
    let at = path.child("maxExpirationSeconds");
    let Some(seconds) = int(spec, "maxExpirationSeconds") else {
        return errors.required(&at, "must be set");
    };
    let (low, high) = (MIN_MAX_EXPIRATION_SECONDS, signer_name::max_expiration_seconds(signer));
    if !(low..=high).contains(&seconds) {
        errors.invalid(&at, seconds, format!("must be in the range [{low}, {high}]"));
    }
    for field in ["pkixPublicKey", "proofOfPossession"] {
        if bytes(spec, field).len() > KEY_BYTES_MAX {
            return errors.too_long(&path.child(field), KEY_BYTES_MAX);
        }
    }
    if let Err((value, why)) = check_key(&bytes(spec, "pkixPublicKey")) {
        let value = value.unwrap_or_else(|| text(spec, "pkixPublicKey").to_string());
        errors.invalid(&path.child("pkixPublicKey"), value, why);
    }
}

fn bytes(owner: &Value, field: &str) -> Vec<u8> {
    STANDARD.decode(text(owner, field)).unwrap_or_default()
}

const ED25519: &str = "1.3.101.112";
const CURVES: [&str; 3] = ["1.2.840.10045.3.1.7", "1.3.132.0.34", "1.3.132.0.35"];

/// Whether keys of this kind and size are taken; else what to show of it, and why not.
fn check_key(der: &[u8]) -> Result<(), (Option<String>, &'static str)> {
    let malformed = || (None, "must be a valid PKIX-serialized public key");
    let (rest, key) = SubjectPublicKeyInfo::from_der(der).map_err(|_| malformed())?;
    if !rest.is_empty() {
        return Err(malformed());
    }
    match key.parsed() {
        Ok(PublicKey::RSA(key)) => match key.key_size() {
            3072 | 4096 => Ok(()),
            bits => Err((Some(format!("{bits}-bit modulus")), "RSA keys must have modulus size 3072 or 4096")),
        },
        Ok(PublicKey::EC(_)) => {
            let curve = key.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok()).map(|oid| oid.to_id_string());
            match curve {
                Some(curve) if CURVES.contains(&curve.as_str()) => Ok(()),
                Some(curve) => {
                    Err((Some(format!("curve {curve}")), "elliptic public keys must use curve P256 or P384"))
                }
                None => Err(malformed()),
            }
        }
        Ok(PublicKey::Unknown(_)) if key.algorithm.algorithm.to_id_string() == ED25519 => Ok(()),
        Ok(_) => Err((None, "unknown public key type; supported types are Ed25519, ECDSA, and RSA")),
        Err(_) => Err(malformed()),
    }
}

fn ended(object: &Value) -> bool {
    ENDS.iter().any(|end| condition_is_true(object, end))
}

fn validate_status(errors: &mut ErrorList, object: &Value, old: &Value) {
    let (path, status) = (Path::new("status"), &object["status"]);
    let found = items(status, "conditions");
    let mut known = 0;
    for (index, condition) in found.iter().enumerate() {
        let at = path.child("conditions").index(index);
        let kind = text(condition, "type");
        if !ENDS.contains(&kind) {
            errors.not_supported(&at.child("type"), kind, &ENDS);
            continue;
        }
        known += 1;
        if known > 1 {
            let why = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            errors.invalid(&at.child("type"), kind, why);
        }
        if text(condition, "status") != "True" {
            errors.not_supported(&at.child("status"), text(condition, "status"), &["True"]);
        }
    }
    conditions::validate(errors, &path.child("conditions"), found);
    if !errors.is_empty() {
        return;
    }
    if ended(old) {
        if !checks::same(status, &old["status"]) {
            errors.invalid_quiet(&path, "immutable after PodCertificateRequest is issued, denied, or failed");
        }
    } else if condition_is_true(object, "Issued") {
        if let Err((path, value, why)) = check_issued(status, &old["spec"]) {
            match value {
                Some(value) => errors.invalid(&path, value, why),
                None => errors.required(&path, &why),
            }
        }
    } else if ended(object) {
        if !checks::same(status, &json!({ "conditions": found })) {
            let why = "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
            errors.invalid_quiet(&path, why);
        }
    } else if !checks::same(status, &old["status"]) {
        let why = "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"";
        errors.invalid_quiet(&path, why);
    }
}

/// Where it is wrong, the value to show (none: it is missing), and why.
type Refusal = (Path, Option<Value>, String);

const MINUTE: i64 = 60;

/// What a signer says must fit the certificate that it hands out, and the request.
fn check_issued(status: &Value, spec: &Value) -> Result<(), Refusal> {
    let at = |field: &str| Path::new("status").child(field);
    let chain = text(status, "certificateChain");
    let refuse = |why: &str| Err((at("certificateChain"), Some(json!(chain)), why.to_string()));
    if chain.len() > CHAIN_BYTES_MAX {
        return refuse(&format!("may not be more than {CHAIN_BYTES_MAX} bytes"));
    }
    let blocks = pem::blocks(chain);
    let Some(leaf) = blocks.first() else {
        return refuse("issued certificate chain must contain at least one certificate");
    };
    if blocks.iter().any(|block| block.label != "CERTIFICATE") {
        return refuse("issued certificate chain must consist entirely of CERTIFICATE PEM blocks");
    }
    let Ok((_, certificate)) = X509Certificate::from_der(&leaf.content) else {
        return refuse("leaf certificate does not parse as valid X.509");
    };
    if let Some((name, why)) = unfit_name(&certificate) {
        return Err((at("certificateChain"), Some(json!(name)), why.to_string()));
    }
    if certificate.public_key().raw != bytes(spec, "pkixPublicKey") {
        return refuse("leaf certificate was not issued to the requested public key");
    }
    let consistent = "must be present and consistent with the issued certificate";
    let not_before = time(status, "notBefore").ok_or((at("notBefore"), None, consistent.to_string()))?;
    let not_after = time(status, "notAfter").ok_or((at("notAfter"), None, consistent.to_string()))?;
    let range = "must be present and in the range [notbefore+10min, notafter-10min]";
    let refresh = time(status, "beginRefreshAt").ok_or((at("beginRefreshAt"), None, range.to_string()))?;
    let field = |field: &str, why: &str| Err((at(field), Some(status[field].clone()), why.to_string()));
    let validity = certificate.validity();
    if not_before != validity.not_before.timestamp() {
        return field("notBefore", "must be set to the NotBefore time encoded in the leaf certificate");
    }
    if not_after != validity.not_after.timestamp() {
        return field("notAfter", "must be set to the NotAfter time encoded in the leaf certificate");
    }
    let (seconds, most) = (not_after - not_before, int(spec, "maxExpirationSeconds").unwrap_or(0));
    let lifetime = |why: String| Err((at("certificateChain"), Some(json!(format!("{seconds}s"))), why));
    if seconds < MIN_MAX_EXPIRATION_SECONDS {
        return lifetime("leaf certificate lifetime must be >= 1 hour".into());
    }
    if seconds > most {
        return lifetime(format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({most})"));
    }
    if refresh < not_before + 10 * MINUTE {
        return field("beginRefreshAt", "must be at least 10 minutes after status.notBefore");
    }
    if refresh > not_after - 10 * MINUTE {
        return field("beginRefreshAt", "must be at least 10 minutes before status.notAfter");
    }
    match blocks[1..].iter().all(|block| X509Certificate::from_der(&block.content).is_ok()) {
        true => Ok(()),
        false => refuse("intermediate certificate does not parse as valid X.509"),
    }
}

fn time(status: &Value, field: &str) -> Option<i64> {
    text(status, field).parse::<Timestamp>().ok().map(Timestamp::as_second)
}

/// The first name in the certificate that nobody should have.
fn unfit_name<'a>(certificate: &'a X509Certificate) -> Option<(&'a str, &'static str)> {
    let names = certificate.subject_alternative_name().ok().flatten()?;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::DNSName("") => Some(("", "leaf certificate should not contain empty DNSName")),
        GeneralName::DNSName(name) if name.contains("..") => {
            Some((*name, "leaf certificate's DNSName should not contain '..'"))
        }
        GeneralName::DNSName(name) if name.starts_with('.') || name.ends_with('.') => {
            Some((*name, "leaf certificate's DNSName should not start or end with '.'"))
        }
        GeneralName::RFC822Name(address) => match address.split_once('@') {
            Some((user, host)) if !user.is_empty() && !host.is_empty() && !host.contains(['@', ' ']) => None,
            _ => Some((*address, "leaf certificate should not contain invalid EmailAddress")),
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PublicKeyData, date_time_ymd};

    use super::*;

    fn spec(key: &KeyPair) -> Value {
        json!({
            "signerName": "example.com/x", "podName": "p", "podUID": "u", "serviceAccountName": "default",
            "serviceAccountUID": "v", "nodeName": "n", "nodeUID": "w", "maxExpirationSeconds": 7 * 86400,
            "pkixPublicKey": STANDARD.encode(key.subject_public_key_info()), "proofOfPossession": "AAAA",
        })
    }

    fn shown(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn requests_name_their_pod_and_its_key() {
        let key = KeyPair::generate().unwrap();
        let check = |change: Value, expected: &[&str]| {
            let mut spec = spec(&key);
            spec.as_object_mut().unwrap().extend(change.as_object().cloned().unwrap_or_default());
            let mut errors = ErrorList::new();
            PodCertificateRequest.validate_create(&json!({ "spec": spec }), &mut errors);
            let found = shown(&errors);
            let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.contains(e));
            assert!(fits, "{change}: {found:?}");
        };
        check(json!({}), &[]);
        check(json!({ "unverifiedUserAnnotations": { "example.com/a": "b" } }), &[]);
        check(json!({ "signerName": "x" }), &["spec.signerName: Invalid value: \"x\": must be a fully qualified"]);
        check(json!({ "unverifiedUserAnnotations": { "a": "b" } }), &["must be a domain-prefixed key"]);
        check(json!({ "podUID": "" }), &["spec.podUID: Invalid value: \"\": must not be empty"]);
        check(json!({ "nodeUID": "x".repeat(129) }), &["spec.nodeUID: Too long: may not be more than 128 bytes"]);
        check(json!({ "nodeName": "N" }), &["spec.nodeName: Invalid value: \"N\": a lowercase RFC 1123 subdomain"]);
        check(json!({ "maxExpirationSeconds": 60 }), &["must be in the range [3600, 7862400]"]);
        check(json!({ "signerName": "kubernetes.io/x" }), &["must be in the range [3600, 86400]"]);
        check(json!({ "maxExpirationSeconds": null }), &["spec.maxExpirationSeconds: Required value: must be set"]);
        check(json!({ "pkixPublicKey": "AAAA" }), &["must be a valid PKIX-serialized public key"]);
        let long = STANDARD.encode([0; KEY_BYTES_MAX + 1]);
        check(json!({ "proofOfPossession": long }), &["spec.proofOfPossession: Too long"]);
        for kind in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P384_SHA384] {
            let key = KeyPair::generate_for(kind).unwrap();
            check(json!({ "pkixPublicKey": STANDARD.encode(key.subject_public_key_info()) }), &[]);
        }
    }

    #[test]
    fn a_status_says_how_it_ended_once() {
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let certificate = |key: &KeyPair, days: u8, name: &str| {
            let mut params = CertificateParams::default();
            params.subject_alt_names = vec![rcgen::SanType::DnsName(name.try_into().unwrap())];
            params.not_before = date_time_ymd(2026, 1, 1);
            params.not_after = date_time_ymd(2026, 1, 1 + days);
            params.self_signed(key).unwrap().pem()
        };
        let condition = |kind: &str, status: &str| json!([{ "type": kind, "status": status, "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        let issued = |chain: String| {
            json!({
                "conditions": condition("Issued", "True"), "certificateChain": chain,
                "notBefore": "2026-01-01T00:00:00Z", "notAfter": "2026-01-02T00:00:00Z",
                "beginRefreshAt": "2026-01-01T12:00:00Z",
            })
        };
        let check = |status: Value, old: Value, expected: &[&str]| {
            let (new, old) =
                (json!({ "spec": spec(&key), "status": status }), json!({ "spec": spec(&key), "status": old }));
            let mut errors = ErrorList::new();
            PodCertificateRequest.validate_status_update(&new, &old, &mut errors);
            let found = shown(&errors);
            let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.contains(e));
            assert!(fits, "{status}: {found:?}");
        };
        let good = issued(certificate(&key, 1, "a.b"));
        let with = |change: Value| {
            let mut status = good.clone();
            status.as_object_mut().unwrap().extend(change.as_object().cloned().unwrap_or_default());
            status
        };
        check(good.clone(), json!({}), &[]);
        check(good.clone(), good.clone(), &[]);
        check(json!({ "conditions": condition("Denied", "True") }), json!({}), &[]);
        check(json!({ "conditions": condition("Denied", "True") }), good.clone(), &["immutable after"]);
        check(with(json!({ "conditions": condition("Failed", "True") })), json!({}), &["non-condition status fields"]);
        check(
            json!({ "conditions": condition("Issued", "False") }),
            json!({}),
            &["status: Unsupported value: \"False\""],
        );
        check(json!({ "conditions": condition("Ready", "True") }), json!({}), &["type: Unsupported value: \"Ready\""]);
        check(json!({ "certificateChain": "x" }), json!({}), &["status is immutable unless transitioning"]);
        check(issued(String::new()), json!({}), &["must contain at least one certificate"]);
        check(issued(key.serialize_pem()), json!({}), &["must consist entirely of CERTIFICATE"]);
        check(issued(certificate(&other, 1, "a.b")), json!({}), &["was not issued to the requested public key"]);
        check(issued(certificate(&key, 1, "a..b")), json!({}), &["DNSName should not contain '..'"]);
        check(issued(certificate(&key, 2, "a.b")), json!({}), &["status.notAfter: Invalid value"]);
        check(with(json!({ "notBefore": null })), json!({}), &["status.notBefore: Required value"]);
        check(
            with(json!({ "beginRefreshAt": "2026-01-01T00:05:00Z" })),
            json!({}),
            &["10 minutes after status.notBefore"],
        );
        check(
            with(json!({ "beginRefreshAt": "2026-01-01T23:55:00Z" })),
            json!({}),
            &["10 minutes before status.notAfter"],
        );
        let long = json!({ "certificateChain": certificate(&key, 9, "a.b"), "notAfter": "2026-01-10T00:00:00Z" });
        check(with(long), json!({}), &["lifetime must be <= spec.maxExpirationSeconds (604800)"]);
        let chain = format!("{}{}", certificate(&key, 1, "a.b"), pem::encode("CERTIFICATE", b"x"));
        check(issued(chain), json!({}), &["intermediate certificate does not parse"]);
    }
}
