//! Names of signers, and of the ClusterTrustBundles that belong to them.
//! Used by the kinds beside it and by the projected volumes of pods.

use serde_json::Value;

use crate::{
    field::{ErrorList, Path},
    kinds::common::access::entries,
    names,
};

const DOMAIN_BYTES_MAX: usize = 253;
const SIGNER_NAME_BYTES_MAX: usize = DOMAIN_BYTES_MAX + 1 + 253 + 1 + 63;

/// How long a certificate may last that a pod asks for.
pub const MIN_MAX_EXPIRATION_SECONDS: i64 = 3600;
const MAX_MAX_EXPIRATION_SECONDS: i64 = 91 * 24 * 3600;
const KUBERNETES_MAX_MAX_EXPIRATION_SECONDS: i64 = 24 * 3600;

const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// `example.com/signer`.
pub fn validate(errors: &mut ErrorList, path: &Path, signer: &str) {
    if signer.is_empty() {
        return errors.required(path, "");
    }
    let &[domain, name] = signer.split('/').collect::<Vec<_>>().as_slice() else {
        let form = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return errors.invalid(path, signer, form);
    };
    if domain.len() > DOMAIN_BYTES_MAX {
        errors.too_long(path, DOMAIN_BYTES_MAX);
    }
    labels(errors, path, domain, |label| names::dns_label(label, false));
    if !domain.contains('.') {
        errors.invalid(path, domain, "should be a domain with at least two segments separated by dots");
    }
    labels(errors, path, name, |label| names::dns_subdomain(label, false));
    if signer.len() > SIGNER_NAME_BYTES_MAX {
        errors.too_long(path, SIGNER_NAME_BYTES_MAX);
    }
}

/// Only the first label that is wrong is named.
fn labels(errors: &mut ErrorList, path: &Path, part: &str, complaints: impl Fn(&str) -> Vec<String>) {
    let wrong = part.split('.').map(|label| (label, complaints(label))).find(|(_, found)| !found.is_empty());
    for (label, complaint) in wrong.into_iter().flat_map(|(label, found)| found.into_iter().map(move |c| (label, c))) {
        errors.invalid(path, part, format!("validating label {label:?}: {complaint}"));
    }
}

/// The longest that a certificate of this signer may be asked for.
pub fn max_expiration_seconds(signer: &str) -> i64 {
    let domain = signer.split('/').next().unwrap_or_default();
    match domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") {
        true => KUBERNETES_MAX_MAX_EXPIRATION_SECONDS,
        false => MAX_MAX_EXPIRATION_SECONDS,
    }
}

/// Why a ClusterTrustBundle can't have this name; `signer` may be empty.
pub fn trust_bundle_name(name: &str, signer: &str, prefix: bool) -> Vec<String> {
    if signer.is_empty() {
        return match name.contains(':') {
            true => vec!["ClusterTrustBundle without signer name must not have \":\" in its name".into()],
            false => names::dns_subdomain(name, prefix),
        };
    }
    let required = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&required) {
        Some(rest) => names::dns_subdomain(rest, prefix),
        None => vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {required}")],
    }
}

/// The signer that a ClusterTrustBundle of this name would have; empty for none.
pub fn of_trust_bundle(name: &str) -> String {
    name.rsplit_once(':').map(|(signer, _)| signer.replace(':', "/")).unwrap_or_default()
}

/// What pods tell signers: keys with a domain, like annotations in size.
pub fn user_annotations(errors: &mut ErrorList, path: &Path, owner: &Value, field: &str) {
    let path = path.child(field);
    let mut bytes = 0;
    for (key, value) in entries(owner, field) {
        bytes += key.len() + value.as_str().map_or(0, str::len);
        let lower = key.to_lowercase();
        if lower.is_empty() {
            errors.required(&path, "");
            continue;
        }
        let complaints = names::qualified_name(&lower);
        if complaints.is_empty() && !lower.contains('/') {
            errors.invalid(&path, lower.as_str(), "must be a domain-prefixed key (such as \"acme.io/foo\")");
        }
        complaints.into_iter().for_each(|complaint| errors.invalid(&path, lower.as_str(), complaint));
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        errors.too_long(&path, ANNOTATIONS_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signers_have_a_domain_and_a_name() {
        let check = |signer: &str, expected: &[&str]| {
            let mut errors = ErrorList::new();
            validate(&mut errors, &Path::new("signerName"), signer);
            let found: Vec<_> = errors.iter().map(ToString::to_string).collect();
            let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.contains(e));
            assert!(fits, "{signer}: {found:?}");
        };
        check("example.com/signer", &[]);
        check("example.com/signer.v1", &[]);
        check("", &["Required value"]);
        check("example.com", &["must be a fully qualified domain and path"]);
        check("a.b/c/d", &["must be a fully qualified domain and path"]);
        check("com/x", &["should be a domain with at least two segments"]);
        check("Example.com/x", &["\"Example.com\": validating label \"Example\": a lowercase RFC 1123 label"]);
        check("example.com/X", &["\"X\": validating label \"X\": a lowercase RFC 1123 subdomain"]);
        check(&format!("{}.com/x", "a.".repeat(130)), &["may not be more than 253 bytes", "validating label \"\""]);
    }

    #[test]
    fn bundles_are_named_after_their_signers() {
        let check = |name: &str, signer: &str, expected: &str| {
            let found = trust_bundle_name(name, signer, false);
            assert!(found.first().map_or(expected.is_empty(), |f| f.starts_with(expected)), "{name}: {found:?}");
        };
        check("roots", "", "");
        check("a:b", "", "ClusterTrustBundle without signer name must not have \":\" in its name");
        check("example.com:x:roots", "example.com/x", "");
        check("roots", "example.com/x", "ClusterTrustBundle for signerName example.com/x must be named with prefix");
        check("example.com:x:Roots", "example.com/x", "a lowercase RFC 1123 subdomain");
        assert_eq!(of_trust_bundle("example.com:x:roots"), "example.com/x");
        assert_eq!(of_trust_bundle("roots"), "");
        assert_eq!(max_expiration_seconds("kubernetes.io/x"), 86400);
        assert_eq!(max_expiration_seconds("a.kubernetes.io/x"), 86400);
        assert_eq!(max_expiration_seconds("akubernetes.io/x"), 91 * 86400);
    }
}
