//! Static pods from a URL, asked every 20 s unless configured otherwise.
//! A failed request changes nothing: what was there last stays. Over https, only a server that this machine's
//! certificate authorities vouch for is believed.

use std::{sync::Arc, time::Duration};

use env::Env;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use super::{MANIFEST_BYTES_MAX, ManifestError, Origin, Source, StaticPods, parse};
use crate::{
    config::Config,
    pod::http_probe::{self, HttpRequest},
};

/// For the connection, the question and the whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn follow(url: String, config: Arc<Config>, env: Env, sender: mpsc::Sender<StaticPods>) {
    let Some(mut request) = request(&url) else {
        tracing::error!(url, "the manifest URL is not one");
        return;
    };
    request.headers = config.manifest_url_headers.clone();
    loop {
        match env.timeout(ANSWER_TIMEOUT, http_probe::send(&request)).await {
            Some(Ok((200, body))) => match read(&url, &body, &config.node_name, &env.now().to_string()) {
                Ok(pods) => {
                    if sender.send(StaticPods { source: Source::Http, pods }).await.is_err() {
                        return;
                    }
                }
                Err(error) => tracing::warn!(url, %error, "can't process the manifest"),
            },
            Some(Ok((status, _))) => tracing::warn!(url, status, "the manifest URL answered with an error"),
            Some(Err(error)) => tracing::warn!(url, %error, "failed to read the manifest URL"),
            None => tracing::warn!(url, "the manifest URL does not answer"),
        }
        env.sleep(config.manifest_url_interval).await;
    }
}

fn read(url: &str, body: &str, node_name: &str, seen: &str) -> Result<Vec<Arc<Pod>>, ManifestError> {
    let pods = parse(body, &Origin { source: Source::Http, place: url, node_name, seen })?;
    Ok(pods.into_iter().map(Arc::new).collect())
}

fn request(url: &str) -> Option<HttpRequest> {
    let uri: http::Uri = url.parse().ok()?;
    let tls = match uri.scheme_str()? {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    Some(HttpRequest {
        tls,
        host: uri.host()?.trim_matches(['[', ']']).to_string(),
        port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
        path: uri.path_and_query().map_or("/".into(), ToString::to_string),
        headers: vec![],
        agent: "kubelet/1.35",
        max_body: MANIFEST_BYTES_MAX as usize,
        verified: true,
    })
}

#[cfg(test)]
mod tests {
    use std::{process::Command, sync::Arc};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    const MANIFEST: &str = "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"p\"},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}]}}";

    /// The port of a server for `localhost` that answers with `answer`, and the authority that vouches for it, in PEM.
    async fn serve(answer: String) -> (u16, String) {
        let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = ca.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(ca, ca_key);
        let certificate = CertificateParams::new(vec!["localhost".into()]).unwrap().signed_by(&key, &issuer).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = rustls_pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        env::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut asked = vec![0; 4096];
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        (port, authority.pem())
    }

    fn with_length(body: &str, length: usize) -> String {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    }

    /// In a process of its own, whose system believes one authority.
    #[tokio::test]
    async fn manifests_over_https_come_only_from_whom_this_machine_believes() {
        const FILE: &str = "SSL_CERT_FILE";
        let mark = "MINKE_TEST_OWN_SYSTEM";
        if std::env::var_os(mark).is_none() {
            let folder = tempfile::tempdir().unwrap();
            let mut again = Command::new(std::env::current_exe().unwrap());
            let test = module_path!().split_once("::").unwrap().1;
            let test = format!("{test}::manifests_over_https_come_only_from_whom_this_machine_believes");
            again.args(["--exact", &test, "--nocapture"]).env(mark, "yes");
            again.env(FILE, folder.path().join("roots.pem")).env("SSL_CERT_DIR", folder.path().join("none"));
            let output = again.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let (known, authority) = serve(with_length(MANIFEST, MANIFEST.len())).await;
        let (stranger, _) = serve(with_length(MANIFEST, MANIFEST.len())).await;
        std::fs::write(std::env::var_os(FILE).unwrap(), authority).unwrap();
        let ask = async |port: u16| http_probe::send(&request(&format!("https://localhost:{port}/")).unwrap()).await;
        assert_eq!(ask(known).await, Ok((200, MANIFEST.to_string())));
        let refused = ask(stranger).await.unwrap_err().to_string();
        assert!(refused.contains("certificate"), "{refused}");
        let named = http_probe::send(&request(&format!("https://127.0.0.1:{known}/")).unwrap()).await;
        let named = named.unwrap_err().to_string();
        assert!(named.contains("certificate"), "{named}");
    }

    #[tokio::test]
    async fn an_answer_that_is_not_whole_is_none() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (cut, large) = (with_length("half of", 4096), "x".repeat(MANIFEST_BYTES_MAX as usize + 1));
        env::spawn(async move {
            for answer in [cut, with_length(&large, large.len())] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = vec![0; 4096];
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        for _ in 0..2 {
            let answer = http_probe::send(&request(&format!("http://127.0.0.1:{port}/")).unwrap()).await;
            assert!(
                answer.as_ref().is_err_and(|error| error.to_string().contains("failed to read the answer")),
                "{answer:?}"
            );
        }
        assert!(request("file:///etc/passwd").is_none());
    }
}
