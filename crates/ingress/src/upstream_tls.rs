//! TLS to backends: who they have to be, and by whose word.
//! Made by `controller` from BackendTLSPolicies and annotations, used by `proxy` for new connections.
//! Invariant: connections of two settings are never mixed (type: each has an id, which the pool keeps them by).

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};

use crate::backends::Protocol;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TrustedRoots {
    System,
    Pem(Vec<u8>),
    /// Encrypted, and to whom is not asked.
    Anybody,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SubjectAltName {
    Hostname(String),
    Uri(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UpstreamTlsSettings {
    /// Sent as server name, and what the certificate has to be for unless there are other names.
    pub hostname: String,
    pub subject_alt_names: Vec<SubjectAltName>,
    pub roots: TrustedRoots,
}

pub struct UpstreamTls {
    id: u64,
    server_name: ServerName<'static>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl UpstreamTls {
    pub fn new(settings: &UpstreamTlsSettings) -> Result<Self, String> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let server_name = server_name(&settings.hostname)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = verifier(settings, &provider)?;
        let config = |alpn: &[u8]| -> Result<Arc<ClientConfig>, String> {
            let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
            let builder = builder.map_err(|error| error.to_string())?.dangerous();
            let mut config = builder.with_custom_certificate_verifier(verifier.clone()).with_no_client_auth();
            config.alpn_protocols = vec![alpn.to_vec()];
            Ok(Arc::new(config))
        };
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Self { id, server_name, http1: config(b"http/1.1")?, http2: config(b"h2")? })
    }

    /// Never 0.
    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn server_name(&self) -> &ServerName<'static> {
        &self.server_name
    }

    pub fn config(&self, protocol: Protocol) -> &Arc<ClientConfig> {
        match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        }
    }
}

impl fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS to {}", self.server_name.to_str())
    }
}

impl PartialEq for UpstreamTls {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for UpstreamTls {}

impl Hash for UpstreamTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(name.to_string()).map_err(|_| format!("{name:?} is not a host name"))
}

fn verifier(
    settings: &UpstreamTlsSettings,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let roots = match &settings.roots {
        TrustedRoots::Anybody => return Ok(Arc::new(client::AnyCertificate(provider.clone()))),
        TrustedRoots::Pem(pem) => roots(pem)?,
        TrustedRoots::System => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(env::system_roots::certificates().iter().cloned());
            if roots.is_empty() {
                return Err("this machine has no certificate authorities".into());
            }
            roots
        }
    };
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let inner = built.map_err(|error| error.to_string())?;
    if settings.subject_alt_names.is_empty() {
        return Ok(inner);
    }
    let mut named = NamedServer { inner, names: Vec::new(), uris: Vec::new() };
    for name in &settings.subject_alt_names {
        match name {
            SubjectAltName::Hostname(name) => named.names.push(server_name(name)?),
            SubjectAltName::Uri(uri) => named.uris.push(uri.clone()),
        }
    }
    Ok(Arc::new(named))
}

fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| format!("a certificate can't be read: {error}"))?;
        roots.add(certificate).map_err(|error| format!("a certificate can't be used: {error}"))?;
    }
    if roots.is_empty() { Err("there is no certificate".into()) } else { Ok(roots) }
}

/// One whose certificate has one of these names.
#[derive(Debug)]
struct NamedServer {
    inner: Arc<WebPkiServerVerifier>,
    names: Vec<ServerName<'static>>,
    uris: Vec<String>,
}

impl ServerCertVerifier for NamedServer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut refused = rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidForName);
        for name in &self.names {
            match self.inner.verify_server_cert(certificate, intermediates, name, ocsp, now) {
                Ok(verified) => return Ok(verified),
                Err(error) => refused = error,
            }
        }
        if !self.uris.is_empty() && has_uri(certificate, &self.uris) {
            // Any name will do for the chain: that the name is wrong is found last.
            let name = ServerName::try_from("uri.invalid").expect("a host name");
            return match self.inner.verify_server_cert(certificate, intermediates, &name, ocsp, now) {
                Err(rustls::Error::InvalidCertificate(
                    rustls::CertificateError::NotValidForName | rustls::CertificateError::NotValidForNameContext { .. },
                )) => Ok(ServerCertVerified::assertion()),
                other => other,
            };
        }
        Err(refused)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn has_uri(certificate: &CertificateDer<'_>, wanted: &[String]) -> bool {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return false };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|name| match name {
        x509_parser::extensions::GeneralName::URI(uri) => wanted.iter().any(|wanted| wanted == uri),
        _ => false,
    })
}
