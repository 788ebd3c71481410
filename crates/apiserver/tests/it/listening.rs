//! A server on a loopback port over TLS, with the files stock clients need to reach it.
//! Used by `kubectl` and `clients`.
//! Invariant: everything is gone with the value.

use std::{path::PathBuf, sync::Arc};

use apiserver::{ApiServer, Config};
use env::Env;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use store::MemoryStore;

#[derive(Debug)]
struct One(Arc<CertifiedKey>);

impl rustls::server::ResolvesServerCert for One {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

pub struct Listening {
    directory: tempfile::TempDir,
    pub port: u16,
}

impl Listening {
    /// `ca.pem`, `admin.pem` and `admin-key.pem` are there from the start.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }
}

/// With the ServiceAccount that pods need.
pub async fn start() -> Listening {
    let directory = tempfile::tempdir().unwrap();
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "ca");
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let issue = |name: &str, group: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let (serving, serving_key) = issue("kube-apiserver", "none");
    let (admin, admin_key) = issue("admin", "system:masters");
    for (name, text) in [("ca.pem", &ca_pem), ("admin.pem", &admin), ("admin-key.pem", &admin_key)] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let chain = CertificateDer::pem_slice_iter(serving.as_bytes()).collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(serving_key.as_bytes()).unwrap();
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
    config.port = port;
    config.client_ca_pem = ca_pem.into_bytes();
    config.serving_certificate = Some(Arc::new(One(Arc::new(CertifiedKey::new(chain, key)))));
    let env = Env::real();
    let server = ApiServer::new(config, Arc::new(MemoryStore::new(env.clone())), env).await.unwrap();
    let account = r#"{"metadata":{"name":"default"}}"#;
    let request = http::Request::post("/api/v1/namespaces/default/serviceaccounts");
    let request = request.header("content-type", "application/json").body(apiserver::body::full(account)).unwrap();
    let user = apiserver::authn::User::new("admin", &["system:masters"]);
    assert_eq!(server.handle(ApiServer::in_process_request(user, request)).await.status(), 201);
    tokio::spawn(async move { server.serve(listener, std::future::pending()).await });
    Listening { directory, port }
}
