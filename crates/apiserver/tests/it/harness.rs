//! A server over a memory store and a client that says what it means in one line.
//! Used by every module here.
//! Every test has its own server.

use std::sync::Arc;

use apiserver::{
    ApiServer, Body, Config, ObjectStream,
    authn::{PeerCertificates, User},
    body,
};
use env::Env;
use http::{Request, Response};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use store::{MemoryStore, Store};

pub struct Server {
    pub api: Arc<ApiServer>,
    /// What the TLS layer would have verified; nothing for an anonymous client.
    certificate: Option<PeerCertificates>,
}

pub struct Answer {
    pub code: u16,
    pub value: Value,
    pub headers: http::HeaderMap,
    pub bytes: bytes::Bytes,
}

pub async fn server() -> Server {
    let env = Env::real();
    server_on(Arc::new(MemoryStore::new(env.clone())), env, |_| {}).await
}

/// A server on a store that others may be on too.
pub async fn server_on(store: Arc<dyn Store>, env: Env, configure: impl FnOnce(&mut Config)) -> Server {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let mut config = Config::in_process(KeyPair::generate().unwrap().serialize_pem());
    configure(&mut config);
    config.client_ca_pem = ca.self_signed(&ca_key).unwrap().pem().into_bytes();
    let mut admin = CertificateParams::new(Vec::new()).unwrap();
    admin.distinguished_name.push(DnType::CommonName, "admin");
    admin.distinguished_name.push(DnType::OrganizationName, "system:masters");
    let key = KeyPair::generate().unwrap();
    let admin = admin.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap().der().clone();
    let api = ApiServer::new(config, store, env).await.unwrap();
    Server { api, certificate: Some(PeerCertificates(vec![admin])) }
}

impl Server {
    /// A server that somebody else started, spoken to without credentials.
    pub fn of(api: Arc<ApiServer>) -> Server {
        Server { api, certificate: None }
    }

    /// One request of an administrator from inside the process.
    pub async fn as_admin(&self, method: &str, path: &str, object: Value) -> Answer {
        let content = if object.is_null() { Vec::new() } else { object.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.header("accept", "application/json").body(body::full(content)).unwrap();
        let user = User::new("admin", &["system:masters"]);
        Answer::of(self.api.handle(ApiServer::in_process_request(user, request)).await).await
    }

    /// The same server without credentials.
    pub fn anonymous(&self) -> Server {
        Server { api: self.api.clone(), certificate: None }
    }

    /// A request as it comes from a socket, with the certificate that this client shows.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], content: Vec<u8>) -> Request<Body> {
        let mut request = Request::builder().method(method).uri(path).body(body::full(content)).unwrap();
        for (name, value) in headers {
            request
                .headers_mut()
                .append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        if let Some(certificate) = &self.certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        request
    }

    pub async fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], content: Vec<u8>) -> Response<Body> {
        self.api.handle(self.request(method, path, headers, content)).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], content: Vec<u8>) -> Answer {
        Answer::of(self.raw(method, path, headers, content).await).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Vec::new()).await
    }

    pub async fn post(&self, path: &str, object: Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], object.to_string().into_bytes()).await
    }

    pub async fn put(&self, path: &str, object: Value) -> Answer {
        self.send("PUT", path, &[("content-type", "application/json")], object.to_string().into_bytes()).await
    }

    pub async fn delete(&self, path: &str, options: Value) -> Answer {
        let content = if options.is_null() { Vec::new() } else { options.to_string().into_bytes() };
        self.send("DELETE", path, &[("content-type", "application/json")], content).await
    }

    pub async fn patch(&self, kind: &str, path: &str, patch: Value) -> Answer {
        let kind = match kind {
            "apply" => "application/apply-patch+yaml".to_string(),
            other => format!("application/{other}+json"),
        };
        self.send("PATCH", path, &[("content-type", &kind)], patch.to_string().into_bytes()).await
    }

    /// The events of a watch, straight from the cache.
    pub async fn watch(
        &self,
        path: &str,
    ) -> futures::stream::BoxStream<'static, Result<api::WatchEvent, api::ApiError>> {
        let request = Request::builder().uri(path).body(body::empty()).unwrap();
        let user = User::new("admin", &["system:masters"]);
        let response = self.api.handle(ApiServer::in_process_request(user, request)).await;
        response.extensions().get::<ObjectStream>().unwrap_or_else(|| panic!("no stream for {path}")).take().unwrap()
    }

    /// Asks again until `holds`, for what is kept in the background.
    pub async fn until(&self, path: &str, holds: impl Fn(&Answer) -> bool) -> Value {
        for _ in 0..6000 {
            let found = self.get(path).await;
            if holds(&found) {
                return found.value;
            }
            env::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("{path} never came to be as it should: {}", self.get(path).await.value);
    }

    /// Defines a custom resource and waits until it is served; where its objects are, in `default` or the cluster.
    pub async fn define(&self, definition: &Value) -> String {
        self.post(DEFINITIONS, definition.clone()).await.expect(201);
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap().to_string();
        let place = if spec["scope"] == "Namespaced" { "/namespaces/default" } else { "" };
        let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
        let path = |version: &Value| format!("/apis/{group}/{}{place}/{plural}", text(&version["name"]));
        for version in spec["versions"].as_array().unwrap().iter().filter(|v| v["served"] == true) {
            self.until(&path(version), |a| a.code == 200).await;
        }
        path(&spec["versions"][0])
    }

    pub async fn create_config_map(&self, name: &str) -> Answer {
        self.post("/api/v1/namespaces/default/configmaps", config_map(name)).await
    }
}

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition whose versions have one schema; the first is stored.
pub fn definition(group: &str, kind: &str, scope: &str, versions: &[&str], schema: &Value) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let version = |(i, name): (usize, &&str)| json!({ "name": name, "served": true, "storage": i == 0, "schema": { "openAPIV3Schema": schema } });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": scope, "names": { "plural": plural, "kind": kind },
            "versions": Vec::from_iter(versions.iter().enumerate().map(version)),
        },
    })
}

/// Takes whatever it is given.
pub fn any_object() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

pub fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

pub fn config_map(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "k": "v" } })
}

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    })
}

/// Serves a custom resource, with one object, and says where.
pub async fn widgets(s: &Server) -> String {
    let path = s.define(&definition("example.com", "Widget", "Namespaced", &["v1"], &any_object())).await;
    let widget = json!({ "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "w" } });
    s.post(&path, widget).await.expect(201);
    path
}

pub async fn default_account(server: &Server) {
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    let made = server.post("/api/v1/namespaces/default/serviceaccounts", account).await;
    assert_eq!(made.code, 201, "{}", made.value);
}

impl Answer {
    async fn of(response: Response<Body>) -> Self {
        let (parts, content) = response.into_parts();
        let bytes = body::read_all(content, 64 << 20).await.unwrap();
        let value = serde_json::from_slice(&bytes).unwrap_or_default();
        Answer { code: parts.status.as_u16(), value, headers: parts.headers, bytes }
    }

    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", String::from_utf8_lossy(&self.bytes));
        self.value
    }

    /// An answer in plain text, as handlers outside of the API give it.
    #[track_caller]
    pub fn said(self, code: u16, text: &str) {
        let content = self.headers["content-type"].to_str().unwrap();
        let found = String::from_utf8_lossy(&self.bytes);
        assert_eq!((self.code, content, &*found), (code, "text/plain; charset=utf-8", text));
    }

    #[track_caller]
    pub fn refused(self, code: u16, reason: &str, message: &str) {
        let found = self.value["message"].as_str().unwrap_or_default();
        assert_eq!((self.code, self.value["reason"].as_str().unwrap_or_default()), (code, reason), "{found}");
        assert!(found.contains(message), "{found}");
    }
}
