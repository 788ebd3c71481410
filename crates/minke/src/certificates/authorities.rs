//! The certificate authorities of a cluster, each for one purpose, so that none can speak for another.
//! Kept and used by `pki`.
//! A certificate that a node asks for is never one that clients believe as the API server's.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, SerialNumber,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use sha2::{Digest, Sha256};

use crate::certificates::pki::{write_private, write_public};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Authority {
    /// The API server's serving certificate (`kube-root-ca.crt`), and everybody's client certificates.
    #[default]
    Cluster,
    /// Kubelets' serving certificates (`kubernetes.io/kubelet-serving`).
    KubeletServing,
    /// The certificate by which extension API servers believe our word about users.
    FrontProxy,
    /// Where etcd is the cluster's own: its servers', and the certificates by which they and API servers know each other.
    Etcd,
}

impl Authority {
    /// `<file>.crt` and `<file>.key`.
    pub fn file(self) -> &'static str {
        match self {
            Self::Cluster => "ca",
            Self::KubeletServing => "kubelet-serving-ca",
            Self::FrontProxy => "front-proxy-ca",
            Self::Etcd => "etcd-ca",
        }
    }
}

/// An authority's certificate, and what signs with its key.
pub struct Certifier {
    pub certificate_pem: String,
    pub key_pem: String,
    pub issuer: Issuer<'static, KeyPair>,
}

impl Certifier {
    pub fn load(directory: &Path, authority: Authority) -> Result<Self> {
        let file = |extension: &str| directory.join(format!("{}.{extension}", authority.file()));
        let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()));
        let (certificate_pem, key_pem) = (read(&file("crt"))?, read(&file("key"))?);
        let damaged = || format!("{} or its key is damaged: restore them from a backup", file("crt").display());
        let key = KeyPair::from_pem(&key_pem).with_context(damaged)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key).with_context(damaged)?;
        Ok(Self { certificate_pem, key_pem, issuer })
    }

    /// The same, made if it is not there yet: an installation of before gets it at its next start.
    pub fn load_or_derive(directory: &Path, authority: Authority, cluster: &Self) -> Result<Self> {
        if !directory.join(format!("{}.crt", authority.file())).exists() {
            let (certificate, key) = cluster.derive(authority)?;
            write_private(&directory.join(format!("{}.key", authority.file())), &key)?;
            write_public(&directory.join(format!("{}.crt", authority.file())), &certificate)?;
        }
        Self::load(directory, authority)
    }

    /// An authority of its own that follows from the cluster's key and from nothing else: several API servers of one
    /// cluster have the same, without anybody carrying it from one to the other. The key does not give the cluster's away.
    fn derive(&self, authority: Authority) -> Result<(String, String)> {
        // What PKCS#8 puts before the 32 bytes of an Ed25519 key (RFC 8410).
        const PKCS8_ED25519: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        let seed = Sha256::new()
            .chain_update(b"minke certificate authority\0")
            .chain_update(authority.file())
            .chain_update(b"\0")
            .chain_update(self.issuer.key().serialized_der());
        let pkcs8 = [&PKCS8_ED25519[..], &seed.finalize()[..]].concat();
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(pkcs8), &PKCS_ED25519)?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(self.certificate_pem.as_bytes())?;
        let validity = pem.parse_x509()?.validity().clone();
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, format!("minke-{}", authority.file()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.not_before = validity.not_before.to_datetime();
        params.not_after = validity.not_after.to_datetime();
        let mut serial = Sha256::digest(key.public_key_raw())[..16].to_vec();
        serial[0] = (serial[0] & 0x7f) | 0x40;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
    }
}
