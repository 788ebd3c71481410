//! Whom we believe when we open TLS: an authority that the configuration names, those of this system, or anybody.
//! Used by `webhook_client`, `streaming` and `kubelet_trust`, for all that this server connects to.
//! Invariant: the system's certificates are read once, and only if somebody needs them.

use std::sync::{Arc, LazyLock};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier,
    client::{WantsClientCert, danger::ServerCertVerifier},
    crypto::CryptoProvider,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

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

/// One that is no certificate is not believed, and no reason to do without the rest.
static SYSTEM: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(env::system_roots::certificates().iter().cloned());
    tracing::debug!(certificates = roots.len(), "read the certificate authorities of this system");
    Arc::new(roots)
});

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
