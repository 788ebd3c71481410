//! Servers of others over TLS on loopback, for webhooks and extension servers.
//! Used by `conversion` and `old_extension`.
//! Each has an authority of its own.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use crate::listening::Authority;

pub type Handler = Arc<dyn Fn(Request<Bytes>) -> BoxFuture<'static, Response<Full<Bytes>>> + Send + Sync>;

/// Where it listens, and the PEM of the authority that vouches for it as `127.0.0.1` and as `name`.
pub async fn serve(name: &str, clients: Option<Arc<dyn ClientCertVerifier>>, handler: Handler) -> (u16, String) {
    let authority = Authority::new();
    let (certificate, key) = authority.issue_for(&[name, "127.0.0.1"], "outside", "none", false);
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let tls = match clients {
        Some(verifier) => tls.with_client_cert_verifier(verifier),
        None => tls.with_no_client_auth(),
    };
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls.with_single_cert(chain, key).unwrap()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    env::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, handler) = (acceptor.clone(), handler.clone());
            env::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = hyper::service::service_fn(|request: Request<Incoming>| async {
                    let (parts, body) = request.into_parts();
                    let bytes = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
                    Ok::<_, Infallible>(handler(Request::from_parts(parts, bytes)).await)
                });
                let connection = hyper::server::conn::http1::Builder::new();
                connection.serve_connection(TokioIo::new(stream), service).await.ok();
            });
        }
    });
    (port, authority.pem)
}

pub fn json_response(code: u16, value: &serde_json::Value) -> Response<Full<Bytes>> {
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(Full::new(value.to_string().into())).unwrap()
}
