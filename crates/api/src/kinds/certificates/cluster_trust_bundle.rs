//! ClusterTrustBundles: validation and columns.
//! Neighbours: the admission plugin ClusterTrustBundleAttest; the projected volumes that show them to pods.
//! The signer never changes; both versions are stored as v1beta1.

use jiff::Timestamp;
use serde_json::{Value, json};
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use super::signer_name;
use crate::{
    field::{ErrorList, Path},
    kinds::{
        Behavior, Column,
        common::{
            access::{text, text_at},
            checks,
            columns::{name, name_of, or, string},
        },
    },
    pem,
};

const TRUST_BUNDLE_BYTES_MAX: usize = 1024 * 1024;

/// `BETA`: of the stored version.
#[derive(Default)]
pub struct ClusterTrustBundle<const BETA: bool>;

impl<const BETA: bool> Behavior for ClusterTrustBundle<BETA> {
    fn validate_create(&self, object: &Value, errors: &mut ErrorList) {
        validate_names(errors, object);
        validate_trust_bundle(errors, &Path::new("spec").child("trustBundle"), text_at(object, "spec.trustBundle"));
    }

    /// Anchors that stay are not read again: what was once accepted must remain so.
    fn validate_update(&self, object: &Value, old: &Value, errors: &mut ErrorList) {
        validate_names(errors, object);
        let bundle = text_at(object, "spec.trustBundle");
        if bundle != text_at(old, "spec.trustBundle") {
            validate_trust_bundle(errors, &Path::new("spec").child("trustBundle"), bundle);
        }
        checks::immutable(errors, &Path::new("spec"), &object["spec"], &old["spec"], "signerName");
    }

    /// Depends on the signer, so `validate_create` does it.
    fn validate_name(&self, _name: &str, _prefix: bool) -> Vec<String> {
        Vec::new()
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn storage_version(&self) -> Option<(&'static str, &'static str)> {
        (!BETA).then_some(("certificates.k8s.io", "v1beta1"))
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 2] = [name(), string("SignerName", "Whose certificates it vouches for.")];
        &COLUMNS
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        vec![name_of(object), json!(or(text(&object["spec"], "signerName"), "<none>"))]
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        vec![("spec.signerName".into(), text(&object["spec"], "signerName").to_string())]
    }

    fn selectable_field_names(&self) -> Vec<String> {
        vec!["spec.signerName".into()]
    }
}

fn validate_names(errors: &mut ErrorList, object: &Value) {
    let (signer, metadata) = (text(&object["spec"], "signerName"), Path::new("metadata"));
    for (field, prefix) in [("generateName", true), ("name", false)] {
        let name = text(&object["metadata"], field);
        if !name.is_empty() {
            let complaints = signer_name::trust_bundle_name(name, signer, prefix);
            checks::complaints(errors, &metadata.child(field), name, complaints);
        }
    }
    if !signer.is_empty() {
        signer_name::validate(errors, &Path::new("spec").child("signerName"), signer);
    }
}

fn validate_trust_bundle(errors: &mut ErrorList, path: &Path, bundle: &str) {
    if bundle.len() > TRUST_BUNDLE_BYTES_MAX {
        return errors.too_long(path, TRUST_BUNDLE_BYTES_MAX);
    }
    let blocks = pem::blocks(bundle);
    let mut sound = true;
    for (index, block) in blocks.iter().enumerate() {
        if let Some(why) = unfit(block) {
            errors.invalid(path, "<value omitted>", format!("entry {index} {why}"));
            sound = false;
        }
    }
    if !sound {
        return;
    }
    if blocks.is_empty() {
        errors.invalid(path, "<value omitted>", "at least one trust anchor must be provided");
    }
    for (index, block) in blocks.iter().enumerate() {
        let same: Vec<usize> = (0..blocks.len()).filter(|other| blocks[*other].content == block.content).collect();
        if same.len() > 1 && same[0] == index {
            let indices: Vec<String> = same.iter().map(usize::to_string).collect();
            let why = format!("duplicate trust anchor (indices [{}])", indices.join(" "));
            errors.invalid(path, "<value omitted>", why);
        }
    }
}

/// Why a block is no trust anchor.
fn unfit(block: &pem::Block) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.label));
    }
    if block.has_headers {
        return Some("has PEM block headers".into());
    }
    let Ok((rest, certificate)) = X509Certificate::from_der(&block.content) else {
        return Some("does not parse as X.509".into());
    };
    if !rest.is_empty() {
        return Some("does not parse as X.509".into());
    }
    match certificate.basic_constraints().map(|found| found.is_some_and(|found| found.value.ca)) {
        Err(_) => Some("has invalid basic constraints".into()),
        Ok(false) => Some("does not have the CA bit set".into()),
        Ok(true) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(authority: bool) -> String {
        let mut params = rcgen::CertificateParams::default();
        if authority {
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn bundles_hold_certificates_of_authorities() {
        let (root, leaf) = (certificate(true), certificate(false));
        let check = |name: &str, signer: &str, bundle: &str, expected: &[&str]| {
            let object =
                json!({ "metadata": { "name": name }, "spec": { "signerName": signer, "trustBundle": bundle } });
            let mut errors = ErrorList::new();
            ClusterTrustBundle::<true>.validate_create(&object, &mut errors);
            let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
            let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.contains(e));
            assert!(fits, "{name} {signer}: {found:?}");
        };
        check("roots", "", &root, &[]);
        check("example.com:x:roots", "example.com/x", &format!("# a root\n{root}{}", certificate(true)), &[]);
        check("roots", "", "", &["spec.trustBundle: Invalid value: \"<value omitted>\": at least one trust anchor"]);
        check("roots", "", &leaf, &["entry 0 does not have the CA bit set"]);
        check("roots", "", &format!("{root}{root}"), &["duplicate trust anchor (indices [0 1])"]);
        let key = pem::encode("PRIVATE KEY", b"k");
        check("roots", "", &format!("{root}{key}"), &["entry 1 has bad block type: PRIVATE KEY"]);
        check("roots", "", &pem::encode("CERTIFICATE", b"no"), &["entry 0 does not parse as X.509"]);
        let headers = root.replacen("-----\n", "-----\nA: b\n\n", 1);
        check("roots", "", &headers, &["entry 0 has PEM block headers"]);
        check("roots", "", &"x".repeat(TRUST_BUNDLE_BYTES_MAX + 1), &["may not be more than 1048576 bytes"]);
        check("a:b", "", &root, &["metadata.name: Invalid value: \"a:b\": ClusterTrustBundle without signer name"]);
        check("roots", "example.com/x", &root, &["must be named with prefix example.com:x:"]);
    }

    #[test]
    fn what_stays_is_not_read_again() {
        let check = |signer: &str, bundle: &str, expected: usize| {
            let object = |signer: &str, bundle: &str| json!({ "metadata": { "name": "example.com:x:a" }, "spec": { "signerName": signer, "trustBundle": bundle } });
            let mut errors = ErrorList::new();
            let old = object("example.com/x", "old");
            ClusterTrustBundle::<true>.validate_update(&object(signer, bundle), &old, &mut errors);
            assert_eq!(errors.len(), expected, "{signer} {bundle}");
        };
        check("example.com/x", "old", 0);
        check("example.com/x", "new", 1);
        // Another signer: the name no longer fits either.
        check("example.com/y", "old", 2);
    }
}
