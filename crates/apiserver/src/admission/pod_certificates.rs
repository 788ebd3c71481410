//! What the kind PodCertificateRequest can't check by itself: that whoever asks has the key, when a certificate begins, and
//! whether the writer of a status may sign.
//! Part of every chain, as upstream's strategy does it: no flag turns it off.

use aws_lc_rs::{
    rsa::RsaPssSaltLength,
    signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P521_SHA256_ASN1, ED25519, RSA_PSS_2048_8192_SHA256,
        UnparsedPublicKey, VerificationAlgorithm,
    },
};
use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use x509_parser::{prelude::FromDer, public_key::PublicKey, x509::SubjectPublicKeyInfo};

use api::{
    ApiError,
    field::{ErrorList, Path},
};

use super::{Attributes, Operation, permissions::may_act};
use crate::authz::Chain;

const SKEW: SignedDuration = SignedDuration::from_mins(5);

pub async fn check(authorizer: &Chain, now: Timestamp, a: &Attributes<'_>) -> Result<(), ApiError> {
    if !a.is("certificates.k8s.io", "podcertificaterequests") {
        return Ok(());
    }
    let mut errors = ErrorList::new();
    match (a.operation, a.subresource) {
        (Operation::Create, "") if !proves_possession(&a.object["spec"]) => {
            let path = Path::new("spec").child("proofOfPossession");
            errors.invalid_quiet(&path, "could not verify proof-of-possession signature");
        }
        (Operation::Update, "status") if a.object["status"] != a.old["status"] => {
            check_begin(&mut errors, &a.object["status"], now);
            let signer = a.old["spec"]["signerName"].as_str().unwrap_or_default();
            if errors.is_empty() && !may_act(authorizer, a, "sign", signer).await {
                let why = format!("User {:?} is not permitted to \"sign\" for signer {signer:?}", a.user.name);
                errors.forbidden(&Path::new("spec").child("signerName"), why);
            }
        }
        _ => {}
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(ApiError::invalid(&a.resource.group, &a.resource.kind, a.name, errors)),
    }
}

fn check_begin(errors: &mut ErrorList, status: &Value, now: Timestamp) {
    let Some(begin) = status["notBefore"].as_str().and_then(|text| text.parse::<Timestamp>().ok()) else { return };
    if begin.duration_since(now).abs() >= SKEW {
        let why = "must be set to within 5 minutes of kube-apiserver's current time";
        errors.invalid(&Path::new("status").child("notBefore"), status["notBefore"].clone(), why);
    }
}

/// Whether the proof is the pod's UID, signed with the key that a certificate is wanted for.
fn proves_possession(spec: &Value) -> bool {
    let bytes = |field: &str| BASE64_STANDARD.decode(spec[field].as_str().unwrap_or_default()).unwrap_or_default();
    let (key, proof) = (bytes("pkixPublicKey"), bytes("proofOfPossession"));
    let message = spec["podUID"].as_str().unwrap_or_default().as_bytes();
    let Ok((_, key)) = SubjectPublicKeyInfo::from_der(&key) else { return false };
    let algorithms: Vec<&'static dyn VerificationAlgorithm> = match key.parsed() {
        // Our kubelets' salt is as long as the hash, upstream's as long as fits.
        Ok(PublicKey::RSA(_)) => vec![
            &RSA_PSS_2048_8192_SHA256,
            &const { RSA_PSS_2048_8192_SHA256.with_pss_salt_length(RsaPssSaltLength::Max) },
        ],
        Ok(PublicKey::EC(_)) => {
            let curve = key.algorithm.parameters.as_ref().and_then(|p| p.as_oid().ok()).map(|oid| oid.to_id_string());
            match curve.as_deref() {
                Some("1.2.840.10045.3.1.7") => vec![&ECDSA_P256_SHA256_ASN1],
                Some("1.3.132.0.34") => vec![&ECDSA_P384_SHA256_ASN1],
                Some("1.3.132.0.35") => vec![&ECDSA_P521_SHA256_ASN1],
                _ => return false,
            }
        }
        Ok(PublicKey::Unknown(_)) => vec![&ED25519],
        _ => return false,
    };
    let bytes: &[u8] = &key.subject_public_key.data;
    algorithms.iter().any(|algorithm| UnparsedPublicKey::new(*algorithm, bytes).verify(message, &proof).is_ok())
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::{
        encoding::{AsDer, PublicKeyX509Der},
        rand::SystemRandom,
        rsa::{KeyPair as RsaKeyPair, KeySize},
        signature::{KeyPair, RSA_PSS_SHA256},
    };
    use serde_json::json;

    use super::*;

    fn spec(key: &[u8], uid: &str, proof: &[u8]) -> Value {
        json!({
            "podUID": uid, "pkixPublicKey": BASE64_STANDARD.encode(key), "proofOfPossession": BASE64_STANDARD.encode(proof),
        })
    }

    #[test]
    fn only_the_owner_of_the_key_proves_it() {
        let check = |key: &[u8], proof: &[u8]| {
            assert!(proves_possession(&spec(key, "the-uid", proof)));
            assert!(!proves_possession(&spec(key, "another-uid", proof)));
            let mut broken = proof.to_vec();
            broken[proof.len() / 2] ^= 1;
            assert!(!proves_possession(&spec(key, "the-uid", &broken)));
            assert!(!proves_possession(&spec(key, "the-uid", &[])));
        };
        let key = RsaKeyPair::generate(KeySize::Rsa3072).unwrap();
        let mut proof = vec![0; key.public_modulus_len()];
        key.sign(&RSA_PSS_SHA256, &SystemRandom::new(), b"the-uid", &mut proof).unwrap();
        let public: PublicKeyX509Der = key.public_key().as_der().unwrap();
        check(public.as_ref(), &proof);
        for kind in [&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P256_SHA256] {
            let key = rcgen::KeyPair::generate_for(kind).unwrap();
            let proof = rcgen::SigningKey::sign(&key, b"the-uid").unwrap();
            check(&rcgen::PublicKeyData::subject_public_key_info(&key), &proof);
        }
    }

    /// Made by Go's `rsa.SignPSS` with the longest salt, as upstream's kubelet does.
    #[test]
    fn salts_of_other_lengths_are_read() {
        let vector = include_str!("testdata/pss_longest_salt.txt");
        let field = |name: &str| {
            let line = vector.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.unwrap_or_default().to_string()
        };
        let spec =
            json!({ "podUID": field("uid"), "pkixPublicKey": field("key"), "proofOfPossession": field("proof") });
        assert!(proves_possession(&spec));
        let other = json!({ "podUID": "x", "pkixPublicKey": field("key"), "proofOfPossession": field("proof") });
        assert!(!proves_possession(&other));
    }

    #[test]
    fn certificates_begin_about_now() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        for (begin, expected) in [
            ("2026-01-01T00:04:59Z", 0),
            ("2025-12-31T23:55:01Z", 0),
            ("2026-01-01T00:05:00Z", 1),
            ("2025-12-31T23:00:00Z", 1),
        ] {
            let mut errors = ErrorList::new();
            check_begin(&mut errors, &json!({ "notBefore": begin }), now);
            assert_eq!(errors.len(), expected, "{begin}");
        }
    }
}
