//! An extension server as they were at 1.17: plain discovery only, no schemas of version 3, users by the headers of a
//! front proxy whose authority it reads from the cluster, permissions by asking the cluster.
//! `aggregation` has a newer one, which is another server of ours.
//! The extension server answers nobody who has not our certificate.

use std::{collections::BTreeMap, sync::Arc};

use apiserver::config::{ClientCertificate, ProxyClient};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use env::Env;
use http::{Method, Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use rustls::{RootCertStore, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use store::MemoryStore;

use crate::{
    harness::{Server, names, server_on},
    listening::Authority,
    outside::{self, json_response},
};

const GROUP: &str = "wardle.example.com";
const VERSION: &str = "/apis/wardle.example.com/v1alpha1";
const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

struct Old {
    /// The cluster it is an extension of.
    cluster: Arc<Server>,
    flunders: Mutex<BTreeMap<String, Value>>,
}

impl Old {
    async fn answer(&self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        let user = request.headers().get("x-remote-user").and_then(|v| v.to_str().ok()).unwrap_or_default().to_string();
        let groups = request.headers().get_all("x-remote-group").iter().filter_map(|v| v.to_str().ok());
        let groups: Vec<_> = groups.collect();
        let path = request.uri().path();
        let verb = match (request.method(), path) {
            (&Method::GET, VERSION) => return json_response(200, &resources()),
            (&Method::POST, FLUNDERS) => "create",
            (&Method::GET, FLUNDERS) => "list",
            (&Method::DELETE, _) if path.starts_with(FLUNDERS) => "delete",
            _ => return failure(404, "NotFound", "the server could not find the requested resource"),
        };
        let attributes = json!({ "group": GROUP, "resource": "flunders", "verb": verb, "namespace": "default" });
        let review = json!({ "spec": { "user": user, "groups": groups, "resourceAttributes": attributes } });
        let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        if self.cluster.post(reviews, review).await.expect(201)["status"]["allowed"] != true {
            return failure(403, "Forbidden", &format!("{user} may not {verb} flunders"));
        }
        let mut flunders = self.flunders.lock();
        match verb {
            "create" => {
                let flunder: Value = serde_json::from_slice(request.body()).unwrap();
                flunders.insert(flunder["metadata"]["name"].as_str().unwrap().to_string(), flunder.clone());
                json_response(201, &flunder)
            }
            "list" => {
                let items: Vec<_> = flunders.values().collect();
                let list = json!({ "kind": "FlunderList", "apiVersion": "wardle.example.com/v1alpha1",
                    "metadata": { "resourceVersion": "1" }, "items": items });
                json_response(200, &list)
            }
            _ => match flunders.remove(path.rsplit('/').next().unwrap_or_default()) {
                Some(_) => json_response(200, &json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" })),
                None => failure(404, "NotFound", "no such flunder"),
            },
        }
    }
}

fn resources() -> Value {
    let verbs = ["create", "delete", "list"];
    let flunders =
        json!({ "name": "flunders", "singularName": "", "namespaced": true, "kind": "Flunder", "verbs": verbs });
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "wardle.example.com/v1alpha1",
        "resources": [flunders] })
}

fn failure(code: u16, reason: &str, message: &str) -> Response<Full<Bytes>> {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "message": message, "code": code });
    json_response(code, &status)
}

/// The cluster, with the certificate of its front proxy and the authority that signed it.
async fn cluster() -> Server {
    let proxies = Authority::new();
    let (certificate, key) = proxies.issue("front-proxy", "none", false);
    let env = Env::real();
    server_on(Arc::new(MemoryStore::new(env.clone())), env, |config| {
        let [certificate_pem, key_pem, ca_pem] = [certificate, key, proxies.pem.clone()].map(String::into_bytes);
        let certificate = ClientCertificate::new(certificate_pem, key_pem);
        config.proxy_client = Some(ProxyClient { certificate, ca_pem });
    })
    .await
}

/// Starts the extension server as its documentation says: it believes clients of the authority that the cluster names.
async fn extension(cluster: &Arc<Server>) -> (u16, String) {
    let map = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let data = cluster.until(map, |a| a.code == 200).await["data"].clone();
    let text = |key: &str| data[key].as_str().unwrap_or_default().to_string();
    assert_eq!(text("requestheader-allowed-names"), "[\"front-proxy\"]");
    assert_eq!(text("requestheader-username-headers"), "[\"X-Remote-User\"]");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text("requestheader-client-ca-file").as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
    let old = Arc::new(Old { cluster: cluster.clone(), flunders: Mutex::default() });
    let handler: outside::Handler = Arc::new(move |request| {
        let old = old.clone();
        Box::pin(async move { old.answer(request).await })
    });
    outside::serve("sample-api.default.svc", Some(verifier), handler).await
}

fn flunder(name: &str) -> Value {
    json!({ "apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": { "name": name, "namespace": "default", "labels": { "sample-label": "true" } } })
}

fn has(service: &Value, kind: &str, message: &str) -> bool {
    let conditions = service["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == kind && c["message"] == message))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_1_17_is_served() {
    let name = format!("v1alpha1.{GROUP}");
    let s = Arc::new(cluster().await);
    let (port, authority) = extension(&s).await;
    let external = json!({ "metadata": { "name": "sample-api" },
        "spec": { "type": "ExternalName", "externalName": "localhost" } });
    s.post("/api/v1/namespaces/default/services", external).await.expect(201);
    let service = json!({
        "metadata": { "name": name },
        "spec": { "group": GROUP, "version": "v1alpha1", "groupPriorityMinimum": 2000, "versionPriority": 200,
            "caBundle": BASE64_STANDARD.encode(authority),
            "service": { "namespace": "default", "name": "sample-api", "port": port } },
    });
    s.post(SERVICES, service).await.expect(201);
    let path = format!("{SERVICES}/{name}");
    let status = format!("{path}/status");
    s.until(&status, |a| has(&a.value, "Available", "all checks passed")).await;

    // Created, listed and deleted by an administrator, and by nobody who may not.
    let made = s.post(FLUNDERS, flunder("first")).await.expect(201);
    assert_eq!((&made["kind"], &made["metadata"]["name"]), (&json!("Flunder"), &json!("first")));
    assert_eq!(names(&s.get(FLUNDERS).await.expect(200)), ["first"]);
    let bob = s.send("GET", FLUNDERS, &[("impersonate-user", "bob")], Vec::new()).await;
    bob.refused(403, "Forbidden", "bob");
    s.delete(&format!("{FLUNDERS}/first"), Value::Null).await.expect(200);
    assert!(names(&s.get(FLUNDERS).await.expect(200)).is_empty());
    // Clients that discover find it in both forms.
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let all = s.send("GET", "/apis", &[("accept", accept)], Vec::new()).await.expect(200);
    let group = all["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == GROUP).unwrap();
    assert_eq!(group["versions"][0]["resources"][0]["resource"], "flunders");
    assert_eq!(s.get(&format!("/apis/{GROUP}")).await.expect(200)["preferredVersion"]["version"], "v1alpha1");
    assert_eq!(s.get(VERSION).await.expect(200)["resources"][0]["name"], "flunders");

    // The APIService itself is changed, with its status, while it serves.
    let patched = s.patch("merge-patch", &path, json!({ "spec": { "versionPriority": 400 } })).await.expect(200);
    assert_eq!(patched["spec"]["versionPriority"], 400);
    assert!(names(&s.get(SERVICES).await.expect(200)).contains(&name.as_str()));
    s.patch("strategic-merge-patch", &path, json!({ "metadata": { "labels": { "of": "tests" } } })).await.expect(200);
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": "Tests", "message": "by hand" });
    let update = async |path: &str, change: &dyn Fn(&mut Value)| loop {
        // The server keeps its own condition; then it is taken again.
        let mut object = s.get(path).await.expect(200);
        change(&mut object);
        let answer = s.put(path, object).await;
        if answer.code != 409 {
            break answer.expect(200);
        }
    };
    update(&status, &|object| object["status"]["conditions"].as_array_mut().unwrap().push(condition("Updated"))).await;
    let mut found = s.get(&status).await.expect(200);
    assert!(has(&found, "Updated", "by hand") && has(&found, "Available", "all checks passed"), "{found}");
    found["status"]["conditions"].as_array_mut().unwrap().push(condition("Patched"));
    let patch = json!({ "status": { "conditions": found["status"]["conditions"] } });
    s.patch("merge-patch", &status, patch).await.expect(200);
    assert!(has(&s.get(&status).await.expect(200), "Patched", "by hand"));
    let updated = update(&path, &|object| object["metadata"]["labels"] = json!({ "of": "updates" })).await;
    assert_eq!(updated["metadata"]["labels"], json!({ "of": "updates" }));
    s.post(FLUNDERS, flunder("second")).await.expect(201);
    assert_eq!(names(&s.get(FLUNDERS).await.expect(200)), ["second"]);

    s.delete(&format!("{SERVICES}?labelSelector=of%3Dupdates"), Value::Null).await.expect(200);
    s.get(&path).await.refused(404, "NotFound", "");
    s.until(FLUNDERS, |a| a.code == 404).await;
    assert!(!names(&s.get(SERVICES).await.expect(200)).is_empty(), "others stay");
}
