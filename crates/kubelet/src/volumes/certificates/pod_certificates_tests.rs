//! The life of a pod's certificate against a signer of the test's own, under simulated time.

use std::sync::atomic::{AtomicUsize, Ordering};

use api::{Object, Resource, WatchEvent};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use client::{ObjectList, Transport, WatchStream};
use http::{Method, Request, Response};
use serde_json::{Value, json};

use super::*;

/// What the signer does with the n-th request.
#[derive(Clone, Copy)]
enum Answer {
    Issue,
    /// Later, so that it is seen by the watch.
    IssueLater(Duration),
    Deny,
    /// Somebody deletes it instead.
    Delete,
}

/// An API server that keeps requests, and a signer.
struct Signer {
    env: Env,
    answers: Vec<Answer>,
    made: AtomicUsize,
    requests: Mutex<Vec<Value>>,
}

impl Signer {
    fn issued(&self, mut request: Value) -> Value {
        let now = self.env.now();
        let after =
            |hours: u64| json!((now + Duration::from_secs(hours * 3600)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        let name = request["metadata"]["name"].as_str().unwrap_or_default().to_string();
        request["status"] = json!({
            "conditions": [{ "type": "Issued", "status": "True", "reason": "Signed", "message": "", "lastTransitionTime": after(0) }],
            "certificateChain": pem::encode("CERTIFICATE", name.as_bytes()),
            "notBefore": after(0), "notAfter": after(24), "beginRefreshAt": after(12),
        });
        request
    }

    fn denied(mut request: Value) -> Value {
        let time = "2026-01-01T00:00:00Z";
        let condition = json!({ "type": "Denied", "status": "True", "reason": "Policy", "message": "not you", "lastTransitionTime": time });
        request["status"] = json!({ "conditions": [condition] });
        request
    }

    fn find(&self, params: &ListParams) -> (Answer, Value) {
        let selector = params.field_selector.clone().unwrap_or_default();
        assert!(selector.ends_with(",spec.nodeName=n"), "{selector}");
        let number: usize = selector.split([',', '-']).nth(1).and_then(|n| n.parse().ok()).unwrap();
        (self.answers[number], self.requests.lock()[number].clone())
    }
}

fn object(value: &Value) -> Arc<Object> {
    Arc::new(Object::from_value(value).unwrap())
}

struct Server(Arc<Signer>);

#[async_trait::async_trait]
impl Transport for Server {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let answer = match (request.method(), request.uri().path()) {
            (&Method::GET, "/api/v1/namespaces/d/serviceaccounts/robot") => {
                json!({ "metadata": { "uid": "robot-uid" } })
            }
            (&Method::GET, "/api/v1/nodes/n") => json!({ "metadata": { "uid": "node-uid" } }),
            (&Method::POST, "/apis/certificates.k8s.io/v1beta1/namespaces/d/podcertificaterequests") => {
                let mut made: Value = serde_json::from_slice(request.body()).unwrap();
                let number = self.0.made.fetch_add(1, Ordering::SeqCst);
                made["metadata"]["name"] = json!(format!("req-{number}"));
                self.0.requests.lock().push(made.clone());
                made
            }
            // Events.
            (&Method::POST, _) => json!({}),
            (method, path) => panic!("{method} {path}"),
        };
        Ok(Response::new(Bytes::from(answer.to_string())))
    }

    async fn list(&self, _: &Resource, _: Option<&str>, params: &ListParams) -> Result<ObjectList, ApiError> {
        let (answer, request) = self.0.find(params);
        let objects = match answer {
            Answer::Issue => vec![object(&self.0.issued(request))],
            Answer::IssueLater(_) => vec![object(&request)],
            Answer::Deny => vec![object(&Signer::denied(request))],
            Answer::Delete => vec![],
        };
        Ok(ObjectList { objects, resource_version: "1".into() })
    }

    async fn watch(
        &self,
        _: &Resource,
        _: Option<&str>,
        params: &ListParams,
        _: &str,
    ) -> Result<WatchStream, ApiError> {
        let (answer, request) = self.0.find(params);
        let Answer::IssueLater(wait) = answer else { return Err(ApiError::internal("nothing to watch")) };
        let signer = self.0.clone();
        let later = async move {
            signer.env.sleep(wait).await;
            Ok(WatchEvent { kind: WatchKind::Modified, object: object(&signer.issued(request)) })
        };
        Ok(Box::pin(futures::stream::once(later).chain(futures::stream::pending())))
    }
}

struct Fixture {
    env: Env,
    signer: Arc<Signer>,
    manager: Arc<PodCertificateManager>,
    metrics: Metrics,
    pod: Pod,
    source: PodCertificateProjection,
}

fn fixture(answers: &[Answer]) -> Fixture {
    let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let (answers, made) = (answers.to_vec(), AtomicUsize::new(0));
    let signer = Arc::new(Signer { env: env.clone(), answers, made, requests: Mutex::default() });
    let client = Client::new(Server(signer.clone()));
    let recorder = EventRecorder::new(client.clone(), env.clone(), "kubelet", "n");
    let metrics = Metrics::default();
    let (node, wakes) = ("n".to_string(), PodWakes::default());
    let manager = PodCertificateManager::new(client, env.clone(), node, recorder, metrics.clone(), wakes);
    let pod = json!({
        "metadata": { "name": "p", "namespace": "d", "uid": "pod-uid" },
        "spec": { "containers": [], "serviceAccountName": "robot" },
    });
    let source =
        json!({ "signerName": "example.com/x", "keyType": "ECDSAP256", "userAnnotations": { "example.com/a": "b" } });
    let (pod, source) = (serde_json::from_value(pod).unwrap(), serde_json::from_value(source).unwrap());
    Fixture { env, signer, manager: Arc::new(manager), metrics, pod, source }
}

impl Fixture {
    /// The certificate's text, or why there is none.
    async fn get(&self) -> String {
        match self.manager.get(&self.pod, "v", 0, &self.source).await {
            Ok(credential) => {
                assert!(credential.key.starts_with("-----BEGIN PRIVATE KEY-----"));
                String::from_utf8(pem::blocks(&credential.chain)[0].content.clone()).unwrap()
            }
            Err(error) => error.to_string(),
        }
    }

    fn made(&self) -> usize {
        self.signer.made.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_asked_for_and_renewed_in_time() {
    let f = fixture(&[Answer::Issue, Answer::IssueLater(Duration::from_secs(90)), Answer::Issue]);
    assert_eq!(f.get().await, "req-0");
    let spec = f.signer.requests.lock()[0]["spec"].clone();
    for (field, expected) in [
        ("podName", "p"),
        ("podUID", "pod-uid"),
        ("serviceAccountName", "robot"),
        ("serviceAccountUID", "robot-uid"),
        ("nodeName", "n"),
        ("nodeUID", "node-uid"),
        ("signerName", "example.com/x"),
    ] {
        assert_eq!(spec[field], expected, "{field}");
    }
    assert_eq!(spec["unverifiedUserAnnotations"], json!({ "example.com/a": "b" }));
    for field in ["pkixPublicKey", "proofOfPossession"] {
        assert!(!BASE64_STANDARD.decode(spec[field].as_str().unwrap()).unwrap().is_empty(), "{field}");
    }
    // Nothing is asked for before it is time.
    f.env.sleep(Duration::from_secs(12 * 3600 - 60)).await;
    assert_eq!((f.get().await.as_str(), f.made()), ("req-0", 1));
    // The signer takes a while for the second one; the pod keeps the first until then.
    f.env.sleep(Duration::from_secs(90 + REFRESH_JITTER_SECONDS_MAX)).await;
    assert_eq!(f.made(), 2);
    f.env.sleep(Duration::from_secs(120)).await;
    assert_eq!((f.get().await.as_str(), f.made()), ("req-1", 2));
    let keys: Vec<Value> = f.signer.requests.lock().iter().map(|r| r["spec"]["pkixPublicKey"].clone()).collect();
    assert_ne!(keys[0], keys[1], "each has a key of its own");
    assert!(
        f.metrics.page().contains("kubelet_podcertificate_states{signer_name=\"example.com/x\",state=\"fresh\"} 1")
    );
    f.manager.forget("pod-uid");
    f.env.sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(f.made(), 2, "nothing is asked for a pod that is gone");
    assert!(!f.metrics.page().contains("kubelet_podcertificate_states{"));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final_and_a_lost_request_is_made_again() {
    let f = fixture(&[Answer::Delete, Answer::IssueLater(Duration::from_secs(20))]);
    assert_eq!(f.get().await, "credential bundle is not issued yet");
    f.env.sleep(Duration::from_secs(30)).await;
    assert_eq!((f.get().await.as_str(), f.made()), ("req-1", 2));
    let f = fixture(&[Answer::Deny]);
    let words = "PodCertificateRequest was permanently denied: reason=\"Policy\" message=\"not you\"";
    assert_eq!(f.get().await, words);
    f.env.sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!((f.get().await.as_str(), f.made()), (words, 1));
}
