//! Reads and writes kubeconfig files, in every form that client-go takes from a file.
//! Used by `minke` for every component that runs apart, and for the admin's file.
//! Errors name the file and the field.

pub mod exec_identity;
pub mod exec_plugin;

use std::{path::Path, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderName, HeaderValue, header};
use parking_lot::RwLock;
use rustls::{
    crypto::aws_lc_rs::sign::any_supported_type,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use serde_json::{Value, json};

use crate::{ExecIdentity, ExecPlugin, HttpsConfig, Identity};

#[derive(Debug, thiserror::Error)]
#[error("kubeconfig {path}: {problem}")]
pub struct KubeconfigError {
    pub path: String,
    pub problem: String,
}

/// What a pod has of its own, where no file says how to reach the API server.
pub const POD_CREDENTIALS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The file's cluster and user of the current context, with the directory that its paths are seen from.
struct Chosen<'a> {
    path: &'a Path,
    cluster: Value,
    user: Value,
    user_name: String,
}

impl Chosen<'_> {
    fn fail(&self, problem: impl Into<String>) -> KubeconfigError {
        KubeconfigError { path: self.path.display().to_string(), problem: problem.into() }
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Of `field-data`, or of the file that `field` names. Empty is none.
    fn bytes(&self, of: &Value, field: &str) -> Result<Option<Vec<u8>>, KubeconfigError> {
        if let Some(data) = of[format!("{field}-data")].as_str().filter(|data| !data.is_empty()) {
            let decoded = BASE64_STANDARD.decode(data.trim());
            return decoded.map(Some).map_err(|e| self.fail(format!("{field}-data: {e}")));
        }
        let Some(file) = of[field].as_str().filter(|file| !file.is_empty()) else { return Ok(None) };
        let file = self.directory().join(file);
        std::fs::read(&file).map(Some).map_err(|e| self.fail(format!("{field} {}: {e}", file.display())))
    }

    /// A file is read anew with the kubeconfig, and wins over a token beside it.
    fn token(&self) -> Result<Option<String>, KubeconfigError> {
        if let Some(file) = self.user["tokenFile"].as_str().filter(|file| !file.is_empty()) {
            let file = self.directory().join(file);
            let text = std::fs::read_to_string(&file);
            let text = text.map_err(|e| self.fail(format!("tokenFile {}: {e}", file.display())))?;
            return match text.trim() {
                "" => Err(self.fail(format!("tokenFile {}: it is empty", file.display()))),
                token => Ok(Some(token.to_string())),
            };
        }
        Ok(self.user["token"].as_str().filter(|token| !token.is_empty()).map(str::to_string))
    }

    /// Password and impersonation.
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, KubeconfigError> {
        let mut headers = Vec::new();
        let mut add = |name: &str, value: &str| -> Result<(), KubeconfigError> {
            let bad = |_| self.fail(format!("{name} {value:?} can't be sent"));
            let mut text = HeaderValue::from_str(value).map_err(|_| bad(()))?;
            let name: HeaderName = name.parse().map_err(|_| bad(()))?;
            text.set_sensitive(name == header::AUTHORIZATION);
            headers.push((name, text));
            Ok(())
        };
        let text = |field: &str| self.user[field].as_str().unwrap_or_default();
        if !text("username").is_empty() {
            let pair = format!("{}:{}", text("username"), text("password"));
            add("authorization", &format!("Basic {}", BASE64_STANDARD.encode(pair)))?;
        }
        if !text("as").is_empty() {
            add("impersonate-user", text("as"))?;
            if !text("as-uid").is_empty() {
                add("impersonate-uid", text("as-uid"))?;
            }
            for group in self.user["as-groups"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                add("impersonate-group", group)?;
            }
            for (key, values) in self.user["as-user-extra"].as_object().into_iter().flatten() {
                for value in values.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    add(&format!("impersonate-extra-{}", key.to_lowercase()), value)?;
                }
            }
        }
        Ok(headers)
    }
}

fn choose(path: &Path) -> Result<Chosen<'_>, KubeconfigError> {
    let fail = |problem: String| KubeconfigError { path: path.display().to_string(), problem };
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let config: Value = serde_saphyr::from_str(&text).map_err(|e| fail(format!("not YAML: {e}")))?;
    let named = |list: &str, name: &Value, field: &str| {
        let entries = config[list].as_array().into_iter().flatten();
        entries.filter(|e| &e["name"] == name).map(|e| e[field].clone()).next()
    };
    let current = &config["current-context"];
    let context = named("contexts", current, "context").ok_or_else(|| fail(format!("no context {current}")))?;
    let cluster = named("clusters", &context["cluster"], "cluster")
        .ok_or_else(|| fail(format!("no cluster {}", context["cluster"])))?;
    let user = named("users", &context["user"], "user").unwrap_or_default();
    let user_name = context["user"].as_str().unwrap_or_default().to_string();
    Ok(Chosen { path, cluster, user, user_name })
}

/// The current context of the file as a connection, which is not made yet. A program that gives credentials is run.
pub fn from_kubeconfig(path: &Path, user_agent: &str) -> Result<HttpsConfig, KubeconfigError> {
    let chosen = choose(path)?;
    let (cluster, user) = (&chosen.cluster, &chosen.user);
    let server = cluster["server"].as_str().filter(|server| !server.is_empty());
    let server = server.ok_or_else(|| chosen.fail("the cluster has no server"))?.to_string();
    let ca_pem = chosen.bytes(cluster, "certificate-authority")?.unwrap_or_default();
    let insecure_skip_tls_verify = cluster["insecure-skip-tls-verify"] == true;
    if insecure_skip_tls_verify && !ca_pem.is_empty() {
        return Err(chosen.fail("specifying a root certificates file with the insecure flag is not allowed"));
    }
    let mut certificate = match (chosen.bytes(user, "client-certificate")?, chosen.bytes(user, "client-key")?) {
        (Some(chain), Some(key)) => {
            Some(certified_key(&chain, &key).map_err(|e| chosen.fail(format!("client certificate: {e}")))?)
        }
        (None, None) => None,
        _ => return Err(chosen.fail("client-certificate and client-key must be given together")),
    };
    let mut token = chosen.token()?;
    let mut exec = None;
    if token.is_none() && user["exec"].is_object() {
        let plugin = ExecPlugin::new(&chosen.user_name, user, cluster, &server, &ca_pem, chosen.directory());
        let plugin = ExecIdentity::new(plugin.map_err(|e| chosen.fail(e.to_string()))?);
        // Which kind of credential it gives is known once it has run; one that fails is asked again with each request.
        match plugin.first() {
            Ok(first) => {
                token = first.token;
                if let (Some(chain), Some(key)) = (first.certificate_pem, first.key_pem) {
                    let pair = certified_key(&chain, &key);
                    certificate = Some(pair.map_err(|e| chosen.fail(format!("exec: client certificate: {e}")))?);
                }
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no credentials for the API server yet");
                token = Some(String::new());
            }
        }
        exec = Some(Arc::new(plugin));
    }
    Ok(HttpsConfig {
        server,
        ca: certificates(&ca_pem).map_err(|e| chosen.fail(format!("certificate-authority: {e}")))?,
        system_roots: ca_pem.is_empty(),
        insecure_skip_tls_verify,
        tls_server_name: text(cluster, "tls-server-name"),
        proxy_url: text(cluster, "proxy-url"),
        headers: chosen.headers()?,
        identity: Identity {
            certificate: certificate.map(|c| Arc::new(RwLock::new(Arc::new(c)))),
            bearer_token: token.map(|token| Arc::new(RwLock::new(token))),
            exec,
        },
        user_agent: user_agent.to_string(),
    })
}

fn text(of: &Value, field: &str) -> Option<String> {
    of[field].as_str().filter(|text| !text.is_empty()).map(str::to_string)
}

/// How a pod reaches the API server of its cluster, under its own ServiceAccount.
pub fn in_cluster(user_agent: &str) -> Result<HttpsConfig, KubeconfigError> {
    let fail = |problem: String| KubeconfigError { path: "of this pod".into(), problem };
    let part = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (Some(host), Some(port)) = (part("KUBERNETES_SERVICE_HOST"), part("KUBERNETES_SERVICE_PORT")) else {
        return Err(fail(
            "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be \
             defined: give --kubeconfig"
                .into(),
        ));
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let read = |name: &str| {
        let path = Path::new(POD_CREDENTIALS).join(name);
        std::fs::read(&path).map_err(|e| fail(format!("{}: {e}", path.display())))
    };
    let token = String::from_utf8_lossy(&read("token")?).trim().to_string();
    Ok(HttpsConfig {
        server: format!("https://{host}:{port}"),
        ca: certificates(&read("ca.crt")?).map_err(|e| fail(format!("ca.crt: {e}")))?,
        identity: Identity { bearer_token: Some(Arc::new(RwLock::new(token))), ..Identity::default() },
        user_agent: user_agent.to_string(),
        ..HttpsConfig::default()
    })
}

/// A PEM chain.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|e| e.to_string())
}

/// A PEM chain and its key, ready for rustls.
pub fn certified_key(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| e.to_string())?;
    Ok(CertifiedKey::new(certificates(chain)?, any_supported_type(&key).map_err(|e| e.to_string())?))
}

/// A kubeconfig with everything inside, for one user of one cluster. PEM in, YAML out.
pub fn kubeconfig_yaml(server: &str, ca: &str, user: &str, certificate: &str, key: &str) -> String {
    let encode = |pem: &str| BASE64_STANDARD.encode(pem);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "minke", "cluster": {"server": server, "certificate-authority-data": encode(ca)}}],
        "contexts": [{"name": "minke", "context": {"cluster": "minke", "user": user}}],
        "current-context": "minke",
        "users": [{"name": user, "user": {
            "client-certificate-data": encode(certificate), "client-key-data": encode(key)}}],
    });
    // JSON is YAML, but people open this file: write it as they expect to see it.
    serde_saphyr::to_string(&config).unwrap_or_else(|_| config.to_string())
}

#[cfg(test)]
mod tests;
