//! The TLS listener: HTTP/1.1 and HTTP/2, client certificates optional.
//! Hands every request to `pipeline`.
//! Invariant: plain text is never served; a client certificate reaches `authn` only from whoever has its key.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::Request;
use http_body_util::BodyExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime, pem::PemObject};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{authn::PeerCertificates, body::BoxError, config::Config, pipeline::ApiServer};

/// Connections beyond this wait in the kernel's queue.
const MAX_STREAMS: u32 = 1000;
/// Label selectors are long at times; upstream takes as much.
const MAX_HEADER_BYTES: u32 = 1 << 20;
const HANDSHAKE_SECONDS: u64 = 10;
const DRAIN_SECONDS: u64 = 5;

impl ApiServer {
    /// Serves `listener` until `shutdown`, then lets requests in flight finish for a moment.
    pub fn serve(
        self: &Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(self.accept_until(listener, Box::pin(shutdown)))
    }

    async fn accept_until(
        self: &Arc<Self>,
        listener: TcpListener,
        mut shutdown: BoxFuture<'static, ()>,
    ) -> Result<(), BoxError> {
        let acceptor = TlsAcceptor::from(Arc::new(tls(&self.config)?));
        let graceful = GracefulShutdown::new();
        loop {
            let (stream, peer) = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of file descriptors and the like: the next one may fit again.
                        tracing::warn!(%error, "failed to accept a connection");
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                        continue;
                    }
                },
                () = &mut shutdown => break,
            };
            let server = self.clone();
            let acceptor = acceptor.clone();
            let watcher = graceful.watcher();
            tokio::spawn(async move {
                if let Err(error) = connection(server, acceptor, stream, watcher).await {
                    tracing::debug!(%error, %peer, "a connection ended");
                }
            });
        }
        self.health.stopping();
        let drained = tokio::time::timeout(std::time::Duration::from_secs(DRAIN_SECONDS), graceful.shutdown()).await;
        if drained.is_err() {
            tracing::info!("closing connections that are still in use");
        }
        Ok(())
    }
}

fn tls(config: &Config) -> Result<ServerConfig, BoxError> {
    let resolver = config.serving_certificate.clone().ok_or("no serving certificate is configured")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let mut roots = RootCertStore::empty();
    let proxies = config.authentication.request_header.as_ref().map(|r| r.ca_pem.as_slice()).unwrap_or_default();
    for certificate in
        CertificateDer::pem_slice_iter(&config.client_ca_pem).chain(CertificateDer::pem_slice_iter(proxies))
    {
        roots.add(certificate?)?;
    }
    let builder = match roots.is_empty() {
        true => builder.with_no_client_auth(),
        false => builder.with_client_cert_verifier(Arc::new(ProofOfKey::new(roots.subjects(), provider))),
    };
    let mut tls = builder.with_cert_resolver(resolver);
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
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

async fn connection(
    server: Arc<ApiServer>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    watcher: hyper_util::server::graceful::Watcher,
) -> Result<(), BoxError> {
    stream.set_nodelay(true)?;
    let handshake = std::time::Duration::from_secs(HANDSHAKE_SECONDS);
    let accepted = tokio::time::timeout(handshake, acceptor.accept(stream)).await.map_err(std::io::Error::from);
    let stream = accepted.and_then(|accepted| accepted).inspect_err(|_| server.metrics.requests.handshake_failed())?;
    let certificates = stream
        .get_ref()
        .1
        .peer_certificates()
        .map(|chain| PeerCertificates(chain.iter().map(|c| c.clone().into_owned()).collect()));
    let service = service_fn(move |request: Request<Incoming>| {
        let server = server.clone();
        let certificates = certificates.clone();
        let future: BoxFuture<'static, _> = Box::pin(async move {
            let mut request = request.map(|body| body.map_err(|e| Box::new(e) as BoxError).boxed_unsync());
            if let Some(certificates) = certificates {
                request.extensions_mut().insert(certificates);
            }
            Ok::<_, std::convert::Infallible>(server.handle(request).await)
        });
        future
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
    builder.http2().max_header_list_size(MAX_HEADER_BYTES);
    builder.http2().initial_stream_window_size(1 << 20).initial_connection_window_size(4 << 20);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    watcher.watch(connection.into_owned()).await
}
