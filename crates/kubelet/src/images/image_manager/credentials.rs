//! Registry credentials out of image pull secrets, and how images match those who know some.
//! Used by `image_manager`.
//! Invariant: pure; a malformed secret gives no credentials, and none for other registries (tidy: `pure_files`).

use std::{collections::HashMap, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use cri::v1;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::reference::registry_and_path;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    #[serde(rename = "identitytoken")]
    identity_token: String,
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: HashMap<String, Entry>,
}

/// What a pull can be tried with.
#[derive(Debug)]
pub struct Credential {
    pub auth: v1::AuthConfig,
    pub source: CredentialSource,
    pub hash: String,
}

/// Whose a credential is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// By the secret's UID.
    Secret(String),
    /// A program gave it for this ServiceAccount.
    ServiceAccount { namespace: String, name: String, uid: String },
    /// A program gave it for any pod of the node.
    Node,
}

impl Credential {
    pub fn new(auth: v1::AuthConfig, source: CredentialSource) -> Self {
        Self { hash: hash(&auth), auth, source }
    }
}

/// The credentials for this image, the most specific first.
pub fn matching(image: &str, secrets: &[Arc<Secret>]) -> Vec<Credential> {
    let (registry, path) = registry_and_path(image);
    let mut found: Vec<(usize, Credential)> = Vec::new();
    for secret in secrets {
        for (pattern, entry) in entries(secret) {
            if matches(&pattern, registry, &path) {
                let uid = secret.metadata.uid.clone().unwrap_or_default();
                found.push((pattern.len(), Credential::new(config(entry), CredentialSource::Secret(uid))));
            }
        }
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.into_iter().map(|(_, credential)| credential).collect()
}

fn hash(auth: &v1::AuthConfig) -> String {
    let mut hasher = Sha256::new();
    for part in [&auth.username, &auth.password, &auth.identity_token] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    STANDARD.encode(hasher.finalize())
}

fn entries(secret: &Secret) -> HashMap<String, Entry> {
    let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
    if let Some(bytes) = data(".dockerconfigjson") {
        return serde_json::from_slice::<DockerConfig>(bytes).map(|c| c.auths).unwrap_or_default();
    }
    data(".dockercfg").and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default()
}

fn config(entry: Entry) -> v1::AuthConfig {
    let decoded = STANDARD.decode(&entry.auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let (username, password) = match decoded.as_deref().and_then(|text| text.split_once(':')) {
        Some((username, password)) => (username.to_string(), password.trim_end_matches('\0').to_string()),
        None => (entry.username, entry.password),
    };
    v1::AuthConfig { username, password, identity_token: entry.identity_token, ..Default::default() }
}

/// A pattern is a host with optional `*` parts, an optional port and an optional path prefix, with or without a scheme.
pub fn matches(pattern: &str, registry: &str, path: &str) -> bool {
    let pattern = pattern.strip_prefix("https://").or_else(|| pattern.strip_prefix("http://")).unwrap_or(pattern);
    let (host, prefix) = pattern.split_once('/').unwrap_or((pattern, ""));
    // Docker Hub is known by an older address too; "v1" and "v2" are parts of addresses, not of images.
    let host = if host == "index.docker.io" { "docker.io" } else { host };
    let prefix = prefix.trim_end_matches('/');
    let prefix = if prefix == "v1" || prefix == "v2" { "" } else { prefix };
    let split = |text: &str| -> (Vec<String>, Option<String>) {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.to_string())),
            None => (text, None),
        };
        (name.split('.').map(String::from).collect(), port)
    };
    let ((wanted, wanted_port), (parts, port)) = (split(host), split(registry));
    wanted_port == port
        && wanted.len() == parts.len()
        && wanted.iter().zip(&parts).all(|(pattern, part)| glob(pattern, part))
        && path.starts_with(prefix)
}

fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text.starts_with(head) && text.len() >= head.len() + tail.len() && text.ends_with(tail),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn credentials_go_to_their_registry_only() {
        let config = json!({"auths": {
            "localhost:5000": {"auth": STANDARD.encode("joe:pa:ss")},
            "*.example.com/team": {"username": "ann", "password": "x"},
            "https://index.docker.io/v1/": {"username": "hub", "password": "y"}}});
        let secret: Secret =
            serde_json::from_value(json!({"data": {".dockerconfigjson": STANDARD.encode(config.to_string())}}))
                .unwrap();
        let secrets = [Arc::new(secret)];
        let check = |image: &str, expected: Option<(&str, &str)>| {
            let found = matching(image, &secrets);
            let first = found.first().map(|found| (found.auth.username.as_str(), found.auth.password.as_str()));
            assert_eq!(first, expected, "{image}");
        };
        check("localhost:5000/a:1", Some(("joe", "pa:ss")));
        check("localhost:5001/a:1", None);
        check("r.example.com/team/x", Some(("ann", "x")));
        check("r.example.com/other/x", None);
        check("busybox:1", Some(("hub", "y")));
        check("a.b.example.com/team/x", None);
    }
}
