//! A server on a loopback port over TLS, with the files stock clients need to reach it.
//! Used by `aggregation`, `kubectl`, `clients` and `identities`.
//! Everything is gone with the value.

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
    pub api: Arc<ApiServer>,
    authority: Authority,
}

/// Signs certificates that the server believes, or does not.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Self {
        Self::named("ca")
    }

    pub fn named(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Certificate and key, as PEM.
    pub fn issue(&self, name: &str, group: &str, expired: bool) -> (String, String) {
        self.issue_for(&["127.0.0.1"], name, group, expired)
    }

    /// The same for a server that is reached by these names.
    pub fn issue_for(&self, hosts: &[&str], name: &str, group: &str, expired: bool) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        if expired {
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

impl Listening {
    /// `ca.pem`, `admin.pem` and `admin-key.pem` are there from the start.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }
}

/// With the ServiceAccount that pods need.
pub async fn start() -> Listening {
    start_with(|_| {}).await
}

pub async fn start_with(change: impl FnOnce(&mut Config)) -> Listening {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let issue = |name: &str, group: &str| authority.issue(name, group, false);
    let ca_pem = authority.pem.clone();
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
    change(&mut config);
    let env = Env::real();
    let server = ApiServer::new(config, Arc::new(MemoryStore::new(env.clone())), env).await.unwrap();
    let account = r#"{"metadata":{"name":"default"}}"#;
    let request = http::Request::post("/api/v1/namespaces/default/serviceaccounts");
    let request = request.header("content-type", "application/json").body(apiserver::body::full(account)).unwrap();
    let user = apiserver::authn::User::new("admin", &["system:masters"]);
    assert_eq!(server.handle(ApiServer::in_process_request(user, request)).await.status(), 201);
    let api = server.clone();
    env::spawn(async move { server.serve(listener, std::future::pending()).await });
    Listening { directory, port, api, authority }
}
