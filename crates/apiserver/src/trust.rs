//! Whom we believe when we open TLS: an authority that the configuration names, those of this system, or anybody.
//! Used by `webhook_client`, `streaming` and `kubelet_trust`, for all that this server connects to.
//! Invariant: the system's certificates are read once, and only if somebody needs them.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier,
    client::{WantsClientCert, danger::ServerCertVerifier},
    crypto::CryptoProvider,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// Where distributions keep them; the first that is there. The list, and the variables, are those of upstream's runtime.
const FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// All of these.
const DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];

/// Certificates and key, PEM.
type IdentityPem<'a> = (&'a [u8], &'a [u8]);

/// Shows `identity` and believes `authority` (PEM; empty: whom the system believes; none: whoever answers).
pub fn client(authority: Option<&[u8]>, identity: Option<IdentityPem<'_>>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    match authority {
        None => verified(Arc::new(anybody::Anybody(provider.clone())), provider, identity),
        Some([]) => with_identity(builder(provider)?.with_root_certificates(SYSTEM.clone()), identity),
        Some(pem) => with_identity(builder(provider)?.with_root_certificates(roots(pem)?), identity),
    }
}

/// Shows `identity` and believes whom the verifier does.
pub fn verified(
    verifier: Arc<dyn ServerCertVerifier>,
    provider: Arc<CryptoProvider>,
    identity: Option<IdentityPem<'_>>,
) -> Result<ClientConfig, String> {
    with_identity(builder(provider)?.dangerous().with_custom_certificate_verifier(verifier), identity)
}

fn builder(provider: Arc<CryptoProvider>) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    builder.map_err(|e| e.to_string())
}

fn with_identity(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<IdentityPem<'_>>,
) -> Result<ClientConfig, String> {
    let Some((certificates, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    let chain = CertificateDer::pem_slice_iter(certificates).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|e| format!("failed to read a client certificate: {e}"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("failed to read a client key: {e}"))?;
    builder.with_client_auth_cert(chain, key).map_err(|e| e.to_string())
}

pub fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| format!("unable to load root certificates: {e}"))?;
        roots.add(certificate).map_err(|e| format!("unable to load root certificates: {e}"))?;
    }
    if roots.is_empty() {
        return Err("unable to load root certificates: unable to parse bytes as PEM block".into());
    }
    Ok(roots)
}

static SYSTEM: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let named = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
    let files = named("SSL_CERT_FILE").map_or(FILES.map(PathBuf::from).to_vec(), |file| vec![file.into()]);
    let split = |list: String| list.split(':').map(PathBuf::from).collect();
    let directories = named("SSL_CERT_DIR").map_or(DIRECTORIES.map(PathBuf::from).to_vec(), split);
    let roots = system_roots(&files, &directories);
    tracing::debug!(certificates = roots.len(), "read the certificate authorities of this system");
    Arc::new(roots)
});

/// What can't be read is not believed, and no reason to do without the rest.
fn system_roots(files: &[PathBuf], directories: &[PathBuf]) -> RootCertStore {
    let listed = |directory: &PathBuf| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let read = |path: &Path| std::fs::read(path).ok();
    let first = files.iter().find_map(|file| read(file));
    let (mut roots, mut seen) = (RootCertStore::empty(), HashSet::new());
    for pem in first.into_iter().chain(directories.iter().flat_map(listed).filter_map(|path| read(&path))) {
        for certificate in CertificateDer::pem_slice_iter(&pem).flatten() {
            // The files of a directory are often the parts of the bundle, and links to each other.
            if seen.insert(certificate.to_vec()) {
                let _ = roots.add(certificate);
            }
        }
    }
    roots
}

/// For those who prove nothing to us, as pods behind the proxy subresource.
mod anybody {
    use std::sync::Arc;

    use rustls::{
        DigitallySignedStruct, Error, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    };
    use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

    #[derive(Debug)]
    pub struct Anybody(pub Arc<CryptoProvider>);

    impl ServerCertVerifier for Anybody {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};

    use super::*;

    fn authority(name: &str) -> String {
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, name);
        ca.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn the_systems_authorities_are_read_from_the_first_file_and_all_directories() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(authority);
        for directory in ["one", "two"] {
            std::fs::create_dir(path(directory)).unwrap();
        }
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (name, text) in [
            ("bundle.pem", format!("{a}\n{broken}\n{b}")),
            ("second.pem", d),
            ("one/a.pem", a.clone()),
            ("one/README", "no certificate".into()),
            ("two/c.pem", c),
        ] {
            std::fs::write(path(name), text).unwrap();
        }
        std::os::unix::fs::symlink("a.pem", path("one/hash.0")).unwrap();
        let check = |files: &[&str], directories: &[&str], expected: usize| {
            let [files, directories] =
                [files, directories].map(|names| names.iter().map(|name| path(name)).collect::<Vec<_>>());
            assert_eq!(system_roots(&files, &directories).len(), expected, "{files:?} {directories:?}");
        };
        check(&["absent.pem", "bundle.pem", "second.pem"], &[], 2);
        check(&["absent.pem"], &["one", "absent", "two"], 2);
        check(&["bundle.pem"], &["one", "two"], 3);
        check(&[], &[], 0);
    }
}
