//! The TLS listener (over `serve`), client certificates optional.
//! Hands every request to `pipeline`.
//! Plain text is never served; a client certificate reaches `authn` only from whoever has its key.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use rustls::{
    DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use serve::{Handler, Peer, offering_http, serve_https};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    audit::PeerAddress,
    authn::PeerCertificates,
    request::body::{Body, BoxError},
    server::{config::Config, pipeline::ApiServer},
};

impl ApiServer {
    /// Serves `listener` until `shutdown`, then lets requests in flight finish for a moment.
    pub fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(self.serve_until(listener, Box::pin(shutdown)))
    }

    async fn serve_until(
        self: &Arc<Self>,
        listener: TcpListener,
        shutdown: BoxFuture<'static, ()>,
    ) -> Result<(), BoxError> {
        let names = self.authentication.certificate_authorities();
        let (begun, limits) = (tls(&self.config, names)?, self.config.limits.connections.clone());
        let handler = Arc::new(Listener { server: self.clone(), tls: Mutex::new(None) });
        let stop = CancellationToken::new();
        let stopping = async {
            shutdown.await;
            self.health.stopping();
            // Load balancers learn meanwhile that others are to be asked.
            self.cluster.env.sleep(self.config.limits.shutdown_delay).await;
            stop.cancel();
        };
        let serving = serve_https(listener, begun, handler, limits, self.cluster.env.clone(), stop.clone());
        tokio::join!(serving, stopping);
        self.close_audit().await;
        Ok(())
    }
}

/// What a handshake goes by, and the authorities that it names.
type Offered = (Vec<DistinguishedName>, Arc<ServerConfig>);

/// The server behind its port. Clients are told the names of the authorities that are believed when they come.
struct Listener {
    server: Arc<ApiServer>,
    tls: Mutex<Option<Offered>>,
}

impl Handler for Listener {
    type Body = Body;

    fn handle(self: &Arc<Self>, request: Request<Incoming>, peer: &Arc<Peer>) -> BoxFuture<'static, Response<Body>> {
        let mut request = request.map(|body| body.map_err(|e| Box::new(e) as BoxError).boxed_unsync());
        if let Some(certificates) = &peer.certificates {
            request.extensions_mut().insert(PeerCertificates(certificates.clone()));
        }
        if let Some(address) = peer.address {
            request.extensions_mut().insert(PeerAddress(address));
        }
        let server = self.server.clone();
        Box::pin(async move { ApiServer::handle(&server, request).await })
    }

    fn handshake_failed(&self) {
        self.server.metrics.requests.handshake_failed();
    }

    fn tls_now(&self) -> Option<Arc<ServerConfig>> {
        let names = self.server.authentication.certificate_authorities();
        let mut offered = self.tls.lock();
        if let Some((known, tls)) = &*offered
            && known.iter().map(AsRef::<[u8]>::as_ref).eq(names.iter().map(AsRef::<[u8]>::as_ref))
        {
            return Some(tls.clone());
        }
        let made = offering_http(tls(&self.server.config, names.clone()).ok()?);
        *offered = Some((names, made.clone()));
        Some(made)
    }
}

fn tls(config: &Config, names: Vec<DistinguishedName>) -> Result<ServerConfig, BoxError> {
    let resolver = config.serving_certificate.clone().ok_or("no serving certificate is configured")?;
    let (builder, provider) = config.tls.builder()?;
    let builder = match names.is_empty() {
        true => builder.with_no_client_auth(),
        false => builder.with_client_cert_verifier(Arc::new(ProofOfKey::new(names, provider))),
    };
    Ok(builder.with_cert_resolver(resolver))
}

/// Lets every client certificate through whose key the client has. Who signed it is for `authn` to judge, which can
/// answer 401 where a handshake could only break off, and which tells clients from proxies.
#[derive(Debug)]
pub struct ProofOfKey {
    /// Named to clients, so that they know which certificate to show.
    subjects: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ProofOfKey {
    pub fn new(subjects: Vec<DistinguishedName>, provider: Arc<CryptoProvider>) -> Self {
        Self { subjects, provider }
    }
}

impl ClientCertVerifier for ProofOfKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.subjects
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
