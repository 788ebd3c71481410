//! What a request asks for, whether its signer may grant it, and the certificate itself.
//! Used by `approver` and `signer`.
//! Subject and names come from the request, lifetime and usages from us.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use rcgen::{
    CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
    SerialNumber,
};

use crate::CertificateAuthority;

pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";
/// Clocks differ a little.
const BACKDATE: Duration = Duration::from_secs(300);

pub fn condition(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == kind)
}

pub fn parse(request: &CertificateSigningRequest) -> Result<CertificateSigningRequestParams, String> {
    let pem = String::from_utf8(request.spec.request.0.clone()).map_err(|_| "the request is not PEM".to_string())?;
    CertificateSigningRequestParams::from_pem(&pem).map_err(|e| format!("unable to parse csr: {e}"))
}

fn subject(params: &CertificateSigningRequestParams, kind: &DnType) -> Vec<String> {
    let names = params.params.distinguished_name.iter().filter(|(of, _)| *of == kind);
    names.map(|(_, value)| dn_text(value)).collect()
}

fn dn_text(value: &rcgen::DnValue) -> String {
    match value {
        rcgen::DnValue::Utf8String(text) => text.clone(),
        rcgen::DnValue::PrintableString(text) => text.as_str().to_string(),
        rcgen::DnValue::Ia5String(text) => text.as_str().to_string(),
        _ => String::new(),
    }
}

pub fn common_name(params: &CertificateSigningRequestParams) -> String {
    subject(params, &DnType::CommonName).pop().unwrap_or_default()
}

/// Why the signer may not grant this, or nothing.
pub fn refusal(signer: &str, params: &CertificateSigningRequestParams, usages: &[String]) -> Option<String> {
    let has = |usage: &str| usages.iter().any(|u| u == usage);
    let only = |allowed: &[&str]| usages.iter().all(|u| allowed.contains(&u.as_str()));
    let base = ["key encipherment", "digital signature"];
    let names = &params.params.subject_alt_names;
    match signer {
        CLIENT => {
            let allowed = only(&[base[0], base[1], "client auth"]);
            (!allowed || !has("client auth"))
                .then(|| "usages did not match [client auth digital signature key encipherment]".into())
        }
        KUBELET_CLIENT | KUBELET_SERVING => {
            let purpose = if signer == KUBELET_CLIENT { "client auth" } else { "server auth" };
            if subject(params, &DnType::OrganizationName) != ["system:nodes"] {
                return Some("subject organization is not system:nodes".into());
            }
            if !common_name(params).starts_with("system:node:") {
                return Some("subject common name does not begin with system:node:".into());
            }
            if signer == KUBELET_CLIENT && !names.is_empty() {
                return Some("subjectAltNames are not allowed".into());
            }
            if signer == KUBELET_SERVING {
                if !names.iter().any(|n| matches!(n, SanType::DnsName(_) | SanType::IpAddress(_))) {
                    return Some("DNS or IP subjectAltName is required".into());
                }
                if names.iter().any(|n| !matches!(n, SanType::DnsName(_) | SanType::IpAddress(_))) {
                    return Some("email and URI subjectAltNames are not allowed".into());
                }
            }
            let right = has(purpose) && has(base[1]) && only(&[base[0], base[1], purpose]);
            (!right).then(|| format!("usages did not match [{purpose} digital signature key encipherment]"))
        }
        LEGACY => None,
        other => Some(format!("no such signer: {other}")),
    }
}

fn days_after_epoch(at: Timestamp) -> Duration {
    Duration::from_secs(at.as_second().max(0) as u64)
}

/// The signed certificate as PEM.
pub fn sign(
    ca: &CertificateAuthority,
    mut request: CertificateSigningRequestParams,
    usages: &[String],
    duration: Duration,
    serial: [u8; 16],
    now: Timestamp,
) -> Result<String, String> {
    let key = KeyPair::from_pem(&ca.key_pem).map_err(|e| format!("failed to read the CA's key: {e}"))?;
    let issuer =
        Issuer::from_ca_cert_pem(&ca.certificate_pem, key).map_err(|e| format!("failed to read the CA: {e}"))?;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let params = &mut request.params;
    params.not_before = epoch + days_after_epoch(now - BACKDATE);
    params.not_after = epoch + days_after_epoch(now + duration);
    params.is_ca = IsCa::ExplicitNoCa;
    // Positive, and never zero.
    let mut serial = serial;
    serial[0] = (serial[0] & 0x7f) | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.use_authority_key_identifier_extension = true;
    params.custom_extensions.clear();
    params.key_usages.clear();
    params.extended_key_usages.clear();
    for usage in usages {
        match usage.as_str() {
            "digital signature" | "signing" => params.key_usages.push(KeyUsagePurpose::DigitalSignature),
            "key encipherment" => params.key_usages.push(KeyUsagePurpose::KeyEncipherment),
            "key agreement" => params.key_usages.push(KeyUsagePurpose::KeyAgreement),
            "data encipherment" => params.key_usages.push(KeyUsagePurpose::DataEncipherment),
            "content commitment" => params.key_usages.push(KeyUsagePurpose::ContentCommitment),
            "client auth" => params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth),
            "server auth" => params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth),
            "code signing" => params.extended_key_usages.push(ExtendedKeyUsagePurpose::CodeSigning),
            "any" => params.extended_key_usages.push(ExtendedKeyUsagePurpose::Any),
            other => return Err(format!("unrecognized usage: {other}")),
        }
    }
    params.key_usages.dedup();
    let certificate = request.signed_by(&issuer).map_err(|e| format!("failed to sign: {e}"))?;
    Ok(certificate.pem())
}

#[cfg(test)]
pub mod testing {
    use rcgen::{BasicConstraints, CertificateParams, DistinguishedName};

    use super::*;

    pub fn authority() -> CertificateAuthority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "ca");
        let certificate = params.self_signed(&key).expect("a CA");
        CertificateAuthority { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() }
    }

    pub fn request(organization: &str, name: &str, hosts: &[&str]) -> String {
        let key = KeyPair::generate().expect("a key");
        let hosts: Vec<String> = hosts.iter().map(|h| h.to_string()).collect();
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, name);
        params.serialize_request(&key).expect("a request").pem().expect("PEM")
    }
}

#[cfg(test)]
mod tests {
    use super::{testing::*, *};

    #[test]
    fn what_signers_grant() {
        let check = |signer: &str, organization: &str, name: &str, hosts: &[&str], usages: &[&str], granted: bool| {
            let params = CertificateSigningRequestParams::from_pem(&request(organization, name, hosts)).unwrap();
            let usages: Vec<String> = usages.iter().map(|u| u.to_string()).collect();
            let refusal = refusal(signer, &params, &usages);
            assert_eq!(refusal.is_none(), granted, "{signer} {name}: {refusal:?}");
        };
        let client = ["digital signature", "client auth"];
        let server = ["digital signature", "server auth"];
        check(CLIENT, "", "jane", &[], &client, true);
        check(CLIENT, "", "jane", &[], &server, false);
        check(KUBELET_CLIENT, "system:nodes", "system:node:n", &[], &client, true);
        check(KUBELET_CLIENT, "system:masters", "system:node:n", &[], &client, false);
        check(KUBELET_CLIENT, "system:nodes", "admin", &[], &client, false);
        check(KUBELET_SERVING, "system:nodes", "system:node:n", &["n"], &server, true);
        check(KUBELET_SERVING, "system:nodes", "system:node:n", &[], &server, false);
        check("example.com/own", "", "x", &[], &client, false);
    }

    #[test]
    fn signed_certificates_carry_subject_and_lifetime() {
        let params = CertificateSigningRequestParams::from_pem(&request("system:nodes", "system:node:n", &[])).unwrap();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let usages = ["digital signature".to_string(), "client auth".to_string()];
        let pem = sign(&authority(), params, &usages, Duration::from_secs(3600), [9; 16], now).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        assert_eq!(certificate.subject().to_string(), "O=system:nodes, CN=system:node:n");
        assert_eq!(certificate.validity().not_after.timestamp(), now.as_second() + 3600);
        assert!(certificate.extended_key_usage().unwrap().unwrap().value.client_auth);
        assert!(!certificate.is_ca());
    }
}
