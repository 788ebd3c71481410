//! Clients that hold connections for nothing, against a listening server.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore, SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::listening::{self, Authority, Listening};

/// Of real time, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

/// Notes which authorities a server names, and shows no certificate.
#[derive(Debug, Default)]
struct ToldAuthorities(Mutex<Vec<Vec<u8>>>);

impl ResolvesClientCert for ToldAuthorities {
    fn resolve(&self, names: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        *self.0.lock() = names.iter().map(|name| name.to_vec()).collect();
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

async fn connect(server: &Listening) -> TlsStream<TcpStream> {
    connect_with(server, Arc::default()).await
}

async fn connect_with(server: &Listening, told: Arc<ToldAuthorities>) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(server.authority().pem.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(builder.with_root_certificates(roots).with_client_cert_resolver(told));
    let stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(config).connect(name, stream).await.unwrap()
}

fn head(path: &str, token: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

#[tokio::test(start_paused = true)]
async fn a_client_that_shakes_no_hands_is_closed() {
    let server = listening::start().await;
    let mut silent = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
    let ended = env::timeout(Duration::from_secs(24 * 3600), silent.read(&mut [0])).await;
    assert_eq!(ended.expect("the server closes it").unwrap_or(0), 0);
}

#[tokio::test]
async fn nodes_renew_their_leases_while_others_send_bodies_slowly() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens");
    std::fs::write(&tokens, "ordinary,ordinary,1\nnode,system:node:n1,2,system:nodes\n").unwrap();
    let server = listening::start_with(|config| {
        config.authentication.token_file = Some(tokens);
        config.authorization_modes = vec!["AlwaysAllow".into()];
        config.limits.mutating_requests_in_flight = 5;
    })
    .await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = connect(&server).await;
        let head = head("/api/v1/namespaces/default/configmaps", "ordinary", 1000);
        stream.write_all(format!("{head}{{").as_bytes()).await.unwrap();
        slow.push(stream);
    }
    for (path, token, name) in [
        ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", "node", "n1"),
        ("/api/v1/namespaces/default/configmaps", "ordinary", "quick"),
    ] {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
        let mut stream = connect(&server).await;
        stream.write_all(format!("{}{body}", head(path, token, body.len())).as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = env::timeout(PATIENCE, stream.read_to_string(&mut answer)).await;
        read.expect("an answer").unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_whose_certificates_are_believed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("client-ca.pem");
    std::fs::write(&file, Authority::named("first").pem).unwrap();
    let server = listening::start_with(|config| config.client_ca_file = Some(file.clone())).await;
    let told = async || {
        let told = Arc::new(ToldAuthorities::default());
        connect_with(&server, told.clone()).await;
        let names = told.0.lock().clone();
        names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>()
    };
    let names = told().await;
    assert!(names.len() == 2 && names[0].ends_with("ca") && names[1].ends_with("first"), "{names:?}");
    std::fs::write(&file, Authority::named("second").pem).unwrap();
    while !told().await[1].ends_with("second") {
        env::sleep(Duration::from_millis(10)).await;
    }
}
