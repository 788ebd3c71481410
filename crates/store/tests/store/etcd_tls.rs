//! An etcd that speaks TLS and lets in only whom its authority has signed for.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use env::Env;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use store::{
    EtcdStore, EtcdTls, Store, StoreError,
    contract::{next_events, put, write},
    prefix_end,
};

use crate::etcd_server::free_port;

const PATIENCE: Duration = Duration::from_secs(120);

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { pem: certificate.pem(), issuer: Issuer::new(params, key) }
    }

    /// A certificate for this name or address, and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_string()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    fn identity(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (certificate, key) = self.sign("client");
        Some((certificate.into_bytes(), key.into_bytes()))
    }
}

struct TlsEtcd(Child);

impl TlsEtcd {
    fn start(directory: &Path, client: &str, peer: &str) -> Self {
        let file = |name: &str| directory.join(name);
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(file("data"))
            .args(["--name", "one", "--log-level", "error", "--unsafe-no-fsync", "--client-cert-auth"])
            .arg("--trusted-ca-file")
            .arg(file("ca.crt"))
            .arg("--cert-file")
            .arg(file("server.crt"))
            .arg("--key-file")
            .arg(file("server.key"))
            .args(["--listen-client-urls", client, "--advertise-client-urls", client])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(
            child.unwrap_or_else(|error| {
                panic!("failed to start etcd: {error}; install it: apt-get install etcd-server")
            }),
        )
    }
}

impl Drop for TlsEtcd {
    fn drop(&mut self) {
        self.0.kill().expect("etcd was running");
        self.0.wait().expect("etcd was our child");
    }
}

/// Asks until there is an answer.
async fn patiently<T>(mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let asking = async {
        loop {
            match ask().await {
                Ok(answer) => break answer,
                Err(_) => env::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    env::timeout(PATIENCE, asking).await.expect("etcd answers in the end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_over_tls_is_believed_by_its_authority_and_believes_by_ours() {
    let (authority, other, directory) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let (certificate, key) = authority.sign("127.0.0.1");
    for (name, pem) in [("ca.crt", &authority.pem), ("server.crt", &certificate), ("server.key", &key)] {
        std::fs::write(directory.path().join(name), pem).unwrap();
    }
    let endpoints = [format!("https://127.0.0.1:{}", free_port())];
    let peer = format!("http://127.0.0.1:{}", free_port());
    let server = TlsEtcd::start(directory.path(), &endpoints[0], &peer);
    let tls = EtcdTls { ca: authority.pem.clone().into_bytes(), identity: authority.identity(), server_name: None };
    let connect = |tls: &EtcdTls| EtcdStore::connect(&endpoints, "/minke", Some(tls.clone()), Env::real());

    let store = patiently(async || connect(&tls).await).await;
    let mut stream = store.watch("/k/", &prefix_end("/k/"), 0).await.unwrap();
    let revision = write(&store, vec![put("/k/a", "1")]).await;
    assert_eq!(next_events(&mut stream).await[0].revision, revision);

    for (why, tls) in [
        ("we show nothing", EtcdTls { identity: None, ..tls.clone() }),
        ("another authority has signed for us", EtcdTls { identity: other.identity(), ..tls.clone() }),
        ("another authority is believed", EtcdTls { ca: other.pem.clone().into_bytes(), ..tls.clone() }),
        ("another name is wanted", EtcdTls { server_name: Some("etcd.test".into()), ..tls.clone() }),
    ] {
        let connected = env::timeout(PATIENCE, connect(&tls)).await.expect("an answer");
        let error = connected.err().unwrap_or_else(|| panic!("let in: {why}")).to_string();
        assert!(error.contains(&endpoints[0]), "{why}: {error}");
    }

    // The connection comes back by itself, over TLS.
    drop(server);
    let _server = TlsEtcd::start(directory.path(), &endpoints[0], &peer);
    let found = patiently(async || store.get("/k/a").await).await;
    assert_eq!(&found.expect("the key").value[..], b"1");
}
