//! Stock kubectl over TLS.

use std::{io::Write, process::Stdio, sync::Arc};

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

struct Kubectl {
    directory: tempfile::TempDir,
    port: u16,
}

impl Kubectl {
    fn run(&self, arguments: &str, input: &str) -> (bool, String) {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let mut child = std::process::Command::new("kubectl")
            .args(arguments.split_whitespace())
            .env("KUBECONFIG", path("none"))
            .env("HOME", self.directory.path())
            .arg(format!("--server=https://127.0.0.1:{}", self.port))
            .arg(format!("--certificate-authority={}", path("ca.pem")))
            .arg(format!("--client-certificate={}", path("admin.pem")))
            .arg(format!("--client-key={}", path("admin-key.pem")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }
}

async fn start() -> Kubectl {
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
    tokio::spawn(async move { server.serve(listener, std::future::pending()).await });
    Kubectl { directory, port }
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_unchanged() {
    if std::process::Command::new("kubectl").arg("help").output().is_err() {
        println!("skipped: kubectl is not installed");
        return;
    }
    let kubectl = Arc::new(start().await);
    let steps: [(&str, &str, &str); 14] = [
        ("apply -f -", DEPLOYMENT, "deployment.apps/web created"),
        ("apply -f -", DEPLOYMENT, "deployment.apps/web unchanged"),
        ("get deploy", "", "0/3"),
        ("apply --server-side --force-conflicts -f -", DEPLOYMENT, "serverside-applied"),
        ("scale deploy web --replicas=5", "", "scaled"),
        ("get deploy web -o jsonpath={.spec.replicas}", "", "5"),
        ("patch deploy web -p {\"spec\":{\"paused\":true}}", "", "patched"),
        ("label deploy web a=b", "", "labeled"),
        ("get deploy -l a=b -o name", "", "deployment.apps/web"),
        ("explain deployment.spec.replicas", "", "FIELD: replicas <integer>"),
        ("api-resources --no-headers", "", "configmaps"),
        ("describe deploy web", "", "Replicas:"),
        ("auth can-i create pods", "", "yes"),
        ("delete deploy web", "", "\"web\" deleted"),
    ];
    for (arguments, input, expected) in steps {
        let runner = kubectl.clone();
        let (ok, text) = tokio::task::spawn_blocking(move || runner.run(arguments, input)).await.unwrap();
        assert!(ok && text.contains(expected), "kubectl {arguments}: {text}");
    }
}
