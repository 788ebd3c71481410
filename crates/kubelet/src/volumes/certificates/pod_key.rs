//! A new key for a pod's certificate, and the proof that whoever asks for the certificate has it: the pod's UID, signed.
//! Used by `pod_certificates`. The key never leaves the node but into the pod's volume.

use api::pem;
use aws_lc_rs::{
    digest::{self, Digest, SHA256, SHA384},
    encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der},
    error::Unspecified,
    rand::SystemRandom,
    rsa::{self, KeySize},
    signature::{
        ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA256_ASN1_SIGNING, EcdsaKeyPair,
        EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PSS_SHA256,
    },
};

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("while generating keypair: unknown key type {0:?}")]
    UnknownType(String),
    #[error("while generating keypair")]
    Failed,
}

impl From<Unspecified> for KeyError {
    fn from(_: Unspecified) -> Self {
        Self::Failed
    }
}

pub struct PodKey {
    /// PKCS #8, as PEM.
    pub private_pem: String,
    /// The public key as DER of SubjectPublicKeyInfo.
    pub public_der: Vec<u8>,
    pub proof: Vec<u8>,
}

impl PodKey {
    /// Takes a while for RSA.
    pub fn generate(key_type: &str, pod_uid: &str) -> Result<Self, KeyError> {
        match key_type {
            "RSA3072" => Self::rsa(KeySize::Rsa3072, pod_uid),
            "RSA4096" => Self::rsa(KeySize::Rsa4096, pod_uid),
            "ECDSAP256" => Self::ecdsa(&ECDSA_P256_SHA256_ASN1_SIGNING, &SHA256, pod_uid),
            "ECDSAP384" => Self::ecdsa(&ECDSA_P384_SHA384_ASN1_SIGNING, &SHA384, pod_uid),
            "ECDSAP521" => Self::ecdsa(&ECDSA_P521_SHA256_ASN1_SIGNING, &SHA256, pod_uid),
            "ED25519" => Self::ed25519(pod_uid),
            other => Err(KeyError::UnknownType(other.to_string())),
        }
    }

    fn new(private_der: &[u8], public_der: &[u8], proof: &[u8]) -> Self {
        let private_pem = pem::encode("PRIVATE KEY", private_der);
        Self { private_pem, public_der: public_der.to_vec(), proof: proof.to_vec() }
    }

    fn rsa(size: KeySize, pod_uid: &str) -> Result<Self, KeyError> {
        let key = rsa::KeyPair::generate(size)?;
        let mut proof = vec![0; key.public_modulus_len()];
        key.sign(&RSA_PSS_SHA256, &SystemRandom::new(), pod_uid.as_bytes(), &mut proof)?;
        let private: Pkcs8V1Der = key.as_der()?;
        let public: PublicKeyX509Der = key.public_key().as_der()?;
        Ok(Self::new(private.as_ref(), public.as_ref(), &proof))
    }

    /// The proof is over SHA-256 whatever the curve, but the library signs only what is as long as the hash it `signs` with
    /// this curve. What is signed is a number, which zeroes before it do not change.
    fn ecdsa(
        algorithm: &'static EcdsaSigningAlgorithm,
        signs: &'static digest::Algorithm,
        pod_uid: &str,
    ) -> Result<Self, KeyError> {
        let key = EcdsaKeyPair::generate(algorithm)?;
        let hash = digest::digest(&SHA256, pod_uid.as_bytes());
        let zeroes = std::iter::repeat_n(0, signs.output_len() - SHA256.output_len());
        let padded: Vec<u8> = zeroes.chain(hash.as_ref().iter().copied()).collect();
        let proof = key.sign_digest(&Digest::import_less_safe(&padded, signs)?)?;
        let public: PublicKeyX509Der = key.public_key().as_der()?;
        Ok(Self::new(key.to_pkcs8v1()?.as_ref(), public.as_ref(), proof.as_ref()))
    }

    fn ed25519(pod_uid: &str) -> Result<Self, KeyError> {
        let key = Ed25519KeyPair::generate()?;
        let proof = key.sign(pod_uid.as_bytes());
        let public: PublicKeyX509Der = key.public_key().as_der()?;
        Ok(Self::new(key.to_pkcs8v1()?.as_ref(), public.as_ref(), proof.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P521_SHA256_ASN1, ED25519, RSA_PSS_2048_8192_SHA256,
        UnparsedPublicKey, VerificationAlgorithm,
    };
    use x509_parser::{prelude::FromDer, x509::SubjectPublicKeyInfo};

    use super::*;

    #[test]
    fn keys_of_every_type_are_made() {
        for key_type in ["RSA3072", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"] {
            let key = PodKey::generate(key_type, "uid").unwrap();
            let (rest, public) = SubjectPublicKeyInfo::from_der(&key.public_der).unwrap();
            assert!(rest.is_empty(), "{key_type}");
            // As the API server does.
            let algorithm: &'static dyn VerificationAlgorithm = match key_type {
                "RSA3072" => &RSA_PSS_2048_8192_SHA256,
                "ECDSAP256" => &ECDSA_P256_SHA256_ASN1,
                "ECDSAP384" => &ECDSA_P384_SHA256_ASN1,
                "ECDSAP521" => &ECDSA_P521_SHA256_ASN1,
                _ => &ED25519,
            };
            let bytes: &[u8] = &public.subject_public_key.data;
            UnparsedPublicKey::new(algorithm, bytes)
                .verify(b"uid", &key.proof)
                .unwrap_or_else(|_| panic!("{key_type}"));
            // Others can read it, and it is the key that belongs to the public one.
            let read = rcgen::KeyPair::from_pem(&key.private_pem).unwrap_or_else(|e| panic!("{key_type}: {e}"));
            assert_eq!(rcgen::PublicKeyData::subject_public_key_info(&read), key.public_der, "{key_type}");
        }
        let unknown = PodKey::generate("DSA", "uid").err().unwrap();
        assert_eq!(unknown.to_string(), "while generating keypair: unknown key type \"DSA\"");
    }
}
