//! A real admission webhook, over TLS on loopback, that refuses every pod until it changes its mind.
//! Beside `bad_input`, in real time: simulated time would not wait for sockets.
//! Counts what the webhook is asked; no figure here depends on how fast the machine is.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use env::Env;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration,
        apps::v1::{Deployment, ReplicaSet},
        core::v1::{Event, Pod, ServiceAccount},
    },
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};

use crate::{Cluster, config, deployment};

/// Longer than any machine needs; what is waited for comes much sooner.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Default)]
struct Webhook {
    asked: Arc<AtomicUsize>,
    allows: Arc<AtomicBool>,
}

impl Webhook {
    fn answer(&self, review: &Value) -> Value {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let allowed = self.allows.load(Ordering::Relaxed);
        let response = json!({ "uid": review["request"]["uid"], "allowed": allowed,
            "status": { "message": "pods are closed today", "code": 403 } });
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })
    }

    /// Its port and its CA.
    async fn listen(&self) -> (u16, String) {
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
        let key = KeyPair::generate().unwrap();
        let leaf = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let webhook = self.clone();
        env::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, webhook) = (acceptor.clone(), webhook.clone());
                env::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async {
                        let bytes = request.into_body().collect().await.unwrap().to_bytes();
                        let answer = webhook.answer(&serde_json::from_slice(&bytes).unwrap());
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer.to_string()))))
                    });
                    let connection = hyper::server::conn::http1::Builder::new();
                    connection.serve_connection(TokioIo::new(stream), service).await.ok();
                });
            }
        });
        (port, ca_pem)
    }
}

/// Waits for news until `done`.
async fn until(cluster: &Cluster, what: &str, done: impl AsyncFn() -> bool) {
    let wait = async {
        while !done().await {
            cluster.env.sleep(Duration::from_millis(50)).await;
        }
    };
    env::timeout(PATIENCE, wait).await.unwrap_or_else(|| panic!("never: {what}"));
}

#[tokio::test]
async fn a_webhook_that_denies() {
    let cluster = Cluster::start_in(config(), Env::real()).await;
    // Without their account the pods would be refused for that.
    until(&cluster, "the account is made", async || !cluster.list::<ServiceAccount>().await.is_empty()).await;
    let webhook = Webhook::default();
    let (port, ca) = webhook.listen().await;
    let hook = json!({ "metadata": { "name": "closed" }, "webhooks": [{
        "name": "closed.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
        "clientConfig": { "url": format!("https://127.0.0.1:{port}/"), "caBundle": ByteString(ca.into_bytes()) },
        "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
    }] });
    cluster.create::<ValidatingWebhookConfiguration>(hook).await;
    cluster.create::<Deployment>(deployment(30, "a:1")).await;

    let events = async || {
        let all = cluster.list::<Event>().await.into_iter();
        all.filter(|e| e.reason.as_deref() == Some("FailedCreate")).collect::<Vec<_>>()
    };
    until(&cluster, "an Event says so", async || !events().await.is_empty()).await;
    // 5 ms, 10 ms, 20 ms …: after the eighth attempt each takes longer than a second.
    cluster.env.sleep(Duration::from_secs(5)).await;
    let asked = webhook.asked.load(Ordering::Relaxed);
    assert!((1..=16).contains(&asked), "the webhook was asked {asked} times");
    let said = events().await;
    let message = said[0].message.clone().unwrap_or_default();
    assert!(said.len() <= 2, "{said:#?}");
    assert!(
        message.contains("admission webhook \"closed.example.com\" denied the request: pods are closed today"),
        "{message}"
    );
    let conditions = async || {
        let status = cluster.list::<ReplicaSet>().await[0].status.clone().unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default().into_iter();
        conditions.map(|c| (c.type_, c.reason.unwrap_or_default())).collect::<Vec<_>>()
    };
    let failed = [("ReplicaFailure".to_string(), "FailedCreate".to_string())];
    until(&cluster, "the condition says so", async || conditions().await == failed).await;

    webhook.allows.store(true, Ordering::Relaxed);
    until(&cluster, "all pods are made", async || cluster.list::<Pod>().await.len() == 30).await;
    until(&cluster, "the condition goes", async || conditions().await.is_empty()).await;
}
