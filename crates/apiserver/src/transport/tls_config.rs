//! TLS towards others: which identity we show, and whom we believe: an authority that the configuration names, those of
//! this system, or anybody.
//! Used by `webhook_client`, `proxy::streaming` and `kubelet_tls`, for all that this server connects to.
//! The system's certificates are read once, and only if somebody needs them.

use std::sync::{Arc, LazyLock};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier, client::WantsClientCert, crypto::CryptoProvider,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::server_verifier::{AcceptAny, CertificatePolicy, ServerVerifier};

/// Certificates and key, PEM.
type IdentityPem<'a> = (&'a [u8], &'a [u8]);

/// Shows `identity` and believes `authority` (PEM; empty: whom the system believes; none: whoever answers).
pub fn client_config(authority: Option<&[u8]>, identity: Option<IdentityPem<'_>>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    match authority {
        None => with_policy(AcceptAny, provider, identity),
        Some([]) => with_identity(builder(provider)?.with_root_certificates(SYSTEM_ROOTS.clone()), identity),
        Some(pem) => with_identity(builder(provider)?.with_root_certificates(parse_roots(pem)?), identity),
    }
}

/// Shows `identity` and believes whom the policy does.
pub fn with_policy(
    policy: impl CertificatePolicy + 'static,
    provider: Arc<CryptoProvider>,
    identity: Option<IdentityPem<'_>>,
) -> Result<ClientConfig, String> {
    let verifier = Arc::new(ServerVerifier { policy, provider: provider.clone() });
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

pub fn parse_roots(pem: &[u8]) -> Result<RootCertStore, String> {
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

/// A file of the system that is no certificate is not believed, and no reason to do without the rest.
static SYSTEM_ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(env::system_roots::certificates().iter().cloned());
    tracing::debug!(certificates = roots.len(), "read the certificate authorities of this system");
    Arc::new(roots)
});
