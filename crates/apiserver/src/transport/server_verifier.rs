//! A verifier of server certificates whose judgement of the certificate is a policy.
//! Used by `tls_config` (anybody) and `kubelet_tls` (kubelets); ordinary authorities are rustls's own business.
//! Whatever the policy says, the server has the key of the certificate that it shows.

use std::{fmt::Debug, sync::Arc};

use rustls::{
    DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// What a server shows, and the name it was called by.
pub struct Shown<'a> {
    pub leaf: &'a CertificateDer<'a>,
    pub intermediates: &'a [CertificateDer<'a>],
    pub name: &'a ServerName<'a>,
    pub ocsp: &'a [u8],
}

pub trait CertificatePolicy: Debug + Send + Sync {
    fn accept(&self, shown: &Shown<'_>, now: UnixTime) -> Result<ServerCertVerified, Error>;
}

/// For those who prove nothing to us, as pods behind the proxy subresource.
#[derive(Debug)]
pub struct AcceptAny;

impl CertificatePolicy for AcceptAny {
    fn accept(&self, _: &Shown<'_>, _: UnixTime) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
}

#[derive(Debug)]
pub struct ServerVerifier<P> {
    pub policy: P,
    pub provider: Arc<CryptoProvider>,
}

impl<P: CertificatePolicy> ServerCertVerifier for ServerVerifier<P> {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.policy.accept(&Shown { leaf, intermediates, name, ocsp }, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
