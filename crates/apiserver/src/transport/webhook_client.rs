//! JSON over HTTPS to services outside: authentication, authorization, admission and audit webhooks.
//! Used by `authn`, `authz`, `admission` and `audit`.
//! Every call has a deadline and a limit on the answer; nothing sent is ever logged.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;

use env::Env;

use crate::{server::config_document, transport::tls_config};

const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Where to go and how to prove both sides.
#[derive(Clone)]
pub struct Endpoint {
    /// `https://host:port/path`
    pub url: http::Uri,
    /// Where to connect to, if not to the host that the URL names.
    pub address: Option<(String, u16)>,
    pub tls: Arc<ClientConfig>,
    pub authorization: Option<HeaderValue>,
}

impl Endpoint {
    /// Posts `body` and returns the JSON that comes back with a 2xx.
    pub async fn post(&self, env: &Env, limit: Duration, body: &Value) -> Result<Value, String> {
        let answer = self.send(env, limit, Bytes::from(body.to_string())).await?;
        parse(&answer)
    }

    /// Posts a review and returns the status of what comes back. What says that it is something else answers nothing.
    pub async fn review(&self, env: &Env, limit: Duration, review: &Value) -> Result<Value, String> {
        let mut answer = self.post(env, limit, review).await?;
        for field in ["apiVersion", "kind"] {
            let found = &answer[field];
            if !found.is_null() && *found != review[field] {
                return Err(format!("unable to decode the answer: its {field} is {found}, not {}", review[field]));
            }
        }
        Ok(answer["status"].take())
    }

    /// Returns the JSON that is to be had there.
    pub async fn get(&self, env: &Env, limit: Duration) -> Result<Value, String> {
        parse(&self.fetch(env, limit).await?)
    }

    /// Returns whatever is to be had there.
    pub async fn fetch(&self, env: &Env, limit: Duration) -> Result<Bytes, String> {
        let answered = env.timeout(limit, self.exchange(None)).await;
        answered.unwrap_or_else(|| Err(self.failed("Get", "context deadline exceeded")))
    }

    /// Posts a JSON document and returns whatever comes back with a 2xx.
    pub async fn send(&self, env: &Env, limit: Duration, body: Bytes) -> Result<Bytes, String> {
        let answered = env.timeout(limit, self.exchange(Some(body))).await;
        answered.unwrap_or_else(|| Err(self.failed("Post", "context deadline exceeded")))
    }

    /// Why there was no answer at all.
    fn failed(&self, verb: &str, why: impl std::fmt::Display) -> String {
        format!("{verb} \"{}\": {why}", self.url)
    }

    async fn exchange(&self, body: Option<Bytes>) -> Result<Bytes, String> {
        let verb = if body.is_some() { "Post" } else { "Get" };
        let method = if body.is_some() { http::Method::POST } else { http::Method::GET };
        let host = self.url.host().ok_or("the URL has no host")?.trim_matches(['[', ']']).to_string();
        let (to, port) = match &self.address {
            Some((to, port)) => (to.as_str(), *port),
            None => (host.as_str(), self.url.port_u16().unwrap_or(443)),
        };
        let stream = TcpStream::connect((to, port)).await.map_err(|e| {
            let to = if to.contains(':') { format!("[{to}]") } else { to.to_string() };
            self.failed(verb, format!("dial tcp {to}:{port}: connect: {e}"))
        })?;
        // The certificate of a Service is made for its name, whatever port is appended to it.
        let name = ServerName::try_from(host.clone()).map_err(|e| e.to_string())?;
        let connector = tokio_rustls::TlsConnector::from(self.tls.clone());
        let stream = connector.connect(name, stream).await.map_err(|e| self.failed(verb, format!("tls: {e}")))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|e| self.failed(verb, e))?;
        let path = self.url.path_and_query().map_or("/", |p| p.as_str());
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.url.authority().map_or(host.as_str(), |a| a.as_str()))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|e| e.to_string())?;
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, value.clone());
        }
        let answered = async {
            let response = sender.send_request(request).await.map_err(|e| self.failed(verb, e))?;
            let (parts, body) = response.into_parts();
            let bytes = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|e| e.to_string())?.to_bytes();
            if !parts.status.is_success() {
                return Err(refused(parts.status, &bytes));
            }
            Ok(bytes)
        };
        // The connection is driven only as long as its one exchange lasts.
        tokio::select! {
            answer = answered => answer,
            ended = async { let ended = connection.await; std::future::pending::<()>().await; ended } => {
                Err(self.failed(verb, ended.err().map_or_else(|| "EOF".to_string(), |e| e.to_string())))
            }
        }
    }
}

fn parse(answer: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(answer).map_err(|e| format!("couldn't read the answer: {e}"))
}

fn refused(status: http::StatusCode, body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    match value["message"].as_str() {
        Some(message) => message.to_string(),
        None if status == http::StatusCode::NOT_FOUND => "the server could not find the requested resource".into(),
        None => {
            format!("an error on the server ({:?}) has prevented the request from succeeding", status.as_str())
        }
    }
}

/// What a webhook is shown of who asks it.
#[derive(Clone, Default)]
pub struct Identity {
    certificate: Vec<u8>,
    key: Vec<u8>,
    pub authorization: Option<HeaderValue>,
}

impl Identity {
    pub fn pem(&self) -> Option<(&[u8], &[u8])> {
        (!self.certificate.is_empty()).then_some((self.certificate.as_slice(), self.key.as_slice()))
    }

    /// `folder`: where relative files of a kubeconfig are.
    fn read(user: &User, folder: &Path) -> Result<Self, String> {
        let token = match (user.token.as_str(), user.token_file.as_str()) {
            ("", "") => String::new(),
            ("", file) => {
                let text = std::fs::read_to_string(folder.join(file)).map_err(|e| format!("{file}: {e}"))?;
                text.trim().to_string()
            }
            (token, _) => token.to_string(),
        };
        let authorization = match (token.as_str(), user.username.as_str()) {
            ("", "") => None,
            ("", name) => Some(format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{}", user.password)))),
            (token, _) => Some(format!("Bearer {token}")),
        };
        let authorization = authorization.map(|a| HeaderValue::try_from(a).map_err(|e| e.to_string())).transpose()?;
        Ok(Self {
            certificate: load(folder, &user.client_certificate_data, &user.client_certificate)?,
            key: load(folder, &user.client_key_data, &user.client_key)?,
            authorization: authorization.map(|mut value| {
                value.set_sensitive(true);
                value
            }),
        })
    }
}

fn load(folder: &Path, data: &str, file: &str) -> Result<Vec<u8>, String> {
    match (data, file) {
        ("", "") => Ok(Vec::new()),
        ("", file) => std::fs::read(folder.join(file)).map_err(|e| format!("{file}: {e}")),
        (data, _) => BASE64_STANDARD.decode(data).map_err(|e| e.to_string()),
    }
}

fn read_kubeconfig(path: &Path) -> Result<Kubeconfig, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    config_document::read_secret(&text)
}

/// Who we are to which webhook, by the users of a kubeconfig that are named like servers.
#[derive(Clone, Default)]
pub struct WebhookIdentities {
    users: BTreeMap<String, Identity>,
    current: Option<Identity>,
}

impl std::fmt::Debug for WebhookIdentities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebhookIdentities({})", self.users.len())
    }
}

impl WebhookIdentities {
    pub fn load(path: &Path) -> Result<Self, String> {
        let attempt = |e: String| format!("failed to read webhook identities {}: {e}", path.display());
        let config = read_kubeconfig(path).map_err(attempt)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut users = BTreeMap::new();
        for named in &config.users {
            let identity = Identity::read(&named.user, folder).map_err(attempt)?;
            // A certificate that can't be used is told of at the start.
            tls_config::client_config(None, identity.pem()).map_err(attempt)?;
            users.insert(named.name.clone(), identity);
        }
        let context = config.contexts.iter().find(|context| context.name == config.current_context);
        let current = context.and_then(|context| users.get(&context.context.user)).cloned();
        Ok(Self { users, current })
    }

    /// For `host:port`: the user of that name, of the name without its first steps (`*.rest`), both without port 443, of
    /// every name (`*`), or of the current context.
    pub fn of(&self, target: &str) -> Option<&Identity> {
        let by_name = |target: &str| {
            let steps = target.match_indices('.').map(|(at, _)| format!("*{}", &target[at..]));
            std::iter::once(target.to_string()).chain(steps).find_map(|name| self.users.get(&name))
        };
        let without_port = || target.strip_suffix(":443").and_then(by_name);
        by_name(target).or_else(without_port).or_else(|| self.users.get("*")).or(self.current.as_ref())
    }
}

/// The endpoint a kubeconfig file describes, as `--…-webhook-config-file` names one.
pub fn from_kubeconfig(path: &Path) -> Result<Endpoint, String> {
    let attempt = |e: String| format!("failed to read webhook configuration {}: {e}", path.display());
    let config = read_kubeconfig(path).map_err(attempt)?;
    let context = config.contexts.iter().find(|c| c.name == config.current_context).or(config.contexts.first());
    let context = context.ok_or_else(|| attempt("it has no context".into()))?;
    let cluster = config.clusters.iter().find(|c| c.name == context.context.cluster);
    let cluster = &cluster.ok_or_else(|| attempt("the context names no cluster".into()))?.cluster;
    let empty = User::default();
    let user = config.users.iter().find(|u| u.name == context.context.user).map_or(&empty, |u| &u.user);
    let folder = path.parent().unwrap_or(Path::new("."));
    let ca = load(folder, &cluster.certificate_authority_data, &cluster.certificate_authority).map_err(attempt)?;
    let authority = (!cluster.insecure_skip_tls_verify).then_some(ca.as_slice());
    let identity = Identity::read(user, folder).map_err(attempt)?;
    Ok(Endpoint {
        url: cluster.server.parse().map_err(|e| attempt(format!("{}: {e}", cluster.server)))?,
        address: None,
        tls: Arc::new(tls_config::client_config(authority, identity.pem()).map_err(attempt)?),
        authorization: identity.authorization,
    })
}

#[derive(Deserialize)]
struct Kubeconfig {
    #[serde(rename = "current-context", default)]
    current_context: String,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    #[serde(default)]
    certificate_authority: String,
    #[serde(default)]
    certificate_authority_data: String,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    username: String,
    password: String,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_found_by_the_names_of_webhooks() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "from-file\n").unwrap();
        let file = folder.path().join("kubeconfig");
        let users = [
            ("hook.ns.svc", "token: exact"),
            ("hook.ns.svc:8443", "token: port"),
            ("*.ns.svc", "tokenFile: token"),
            ("*.svc:8443", "username: ada, password: secret"),
        ];
        let write = |more: &str| {
            let entry = |(name, user): &(&str, &str)| format!("- name: '{name}'\n  user: {{{user}}}\n");
            let users: String = users.iter().map(entry).collect();
            std::fs::write(&file, format!("apiVersion: v1\nkind: Config\nusers:\n{users}{more}")).unwrap();
            WebhookIdentities::load(&file).unwrap()
        };
        let check = |found: &WebhookIdentities, target: &str, expected: &str| {
            let shown = found.of(target).and_then(|identity| identity.authorization.as_ref());
            assert_eq!(shown.map_or("none", |value| value.to_str().unwrap()), expected, "{target}");
        };
        let found = write("");
        check(&found, "hook.ns.svc:443", "Bearer exact");
        check(&found, "hook.ns.svc:8443", "Bearer port");
        check(&found, "other.ns.svc:443", "Bearer from-file");
        check(&found, "other.ns.svc:8443", "Basic YWRhOnNlY3JldA==");
        check(&found, "other.elsewhere:443", "none");
        let current = "current-context: c\ncontexts: [{name: c, context: {user: hook.ns.svc}}]\n";
        check(&write(current), "other.elsewhere:443", "Bearer exact");
        let all = "- name: '*'\n  user: {token: all}\n";
        check(&write(&format!("{all}{current}")), "other.elsewhere:443", "Bearer all");
        std::fs::write(&file, "users: [{name: a, user: {client-certificate-data: eA==, client-key-data: eA==}}]")
            .unwrap();
        assert!(WebhookIdentities::load(&file).unwrap_err().contains("client"));
    }
}
