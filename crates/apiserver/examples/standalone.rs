//! An API server alone, with a kubeconfig for stock clients: `standalone PORT KUBECONFIG [DIRECTORY | etcd=URL]`.
//! For trying things out and for measuring by hand; `minke` is the product.
//! Keeps nothing without a directory or an etcd.

use std::{error::Error, sync::Arc};

use apiserver::{
    ApiServer, Config,
    config::{ClientCertificate, KubeletClient},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use env::Env;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{PrivateKeyDer, pem::PemObject};

#[derive(Debug)]
struct One(Arc<CertifiedKey>);

impl rustls::server::ResolvesServerCert for One {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().ok_or("usage: standalone PORT KUBECONFIG")?.parse()?;
    let kubeconfig = arguments.next().ok_or("usage: standalone PORT KUBECONFIG")?;

    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "ca");
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let issuer = Issuer::new(ca, ca_key);
    let issue = |name: &str, group: Option<&str>| -> Result<(String, String), rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        Ok((params.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
    };
    let (serving, serving_key) = issue("kube-apiserver", None)?;
    let (admin, admin_key) = issue("admin", Some("system:masters"))?;

    let chain = rustls_pki_types::CertificateDer::pem_slice_iter(serving.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(serving_key.as_bytes())?;
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)?;
    let mut config = Config::in_process(KeyPair::generate()?.serialize_pem());
    config.port = port;
    config.client_ca_pem = ca_pem.clone().into_bytes();
    config.serving_certificate = Some(Arc::new(One(Arc::new(CertifiedKey::new(chain, key)))));
    config.kubelet_client = Some(KubeletClient {
        certificate: ClientCertificate::new(admin.clone().into_bytes(), admin_key.clone().into_bytes()),
        ca_pem: ca_pem.clone().into_bytes(),
        former_ca_pem: Vec::new(),
    });
    let base64 = |text: &str| BASE64_STANDARD.encode(text);
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"https://127.0.0.1:{port}\", \
         certificate-authority-data: {}}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n\
         users: [{{name: c, user: {{client-certificate-data: {}, client-key-data: {}}}}}]\n",
        base64(&ca_pem),
        base64(&admin),
        base64(&admin_key)
    );
    std::fs::write(&kubeconfig, text)?;
    let env = Env::real();
    let store: Arc<dyn store::Store> = match arguments.next() {
        Some(etcd) if etcd.starts_with("etcd=") => {
            let servers = [etcd.trim_start_matches("etcd=").to_string()];
            Arc::new(store::EtcdStore::connect(&servers, "", None, env.clone()).await?)
        }
        Some(directory) => Arc::new(store::EmbeddedStore::open(directory, env.clone())?),
        None => Arc::new(store::MemoryStore::new(env.clone())),
    };
    let server = ApiServer::new(config, store, env).await.map_err(|e| e.message.clone())?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("serving on 127.0.0.1:{port}, kubeconfig {kubeconfig}");
    server.serve(listener, std::future::pending()).await
}
