//! Reads and writes kubeconfig files, as far as components need them.
//! Used by `minke` for every component that runs apart, and for the admin's file.
//! Errors name the file and the field.

use std::{path::Path, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use parking_lot::RwLock;
use rustls::{
    crypto::aws_lc_rs::sign::any_supported_type,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use serde_json::{Value, json};

use crate::{HttpsConfig, Identity};

#[derive(Debug, thiserror::Error)]
#[error("kubeconfig {path}: {problem}")]
pub struct KubeconfigError {
    pub path: String,
    pub problem: String,
}

/// The current context of the file as a connection.
pub fn from_kubeconfig(path: &Path, user_agent: &str) -> Result<HttpsConfig, KubeconfigError> {
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
    let bytes = |of: &Value, field: &str| -> Result<Option<Vec<u8>>, KubeconfigError> {
        if let Some(data) = of[format!("{field}-data")].as_str() {
            return BASE64_STANDARD.decode(data).map(Some).map_err(|e| fail(format!("{field}-data: {e}")));
        }
        match of[field].as_str() {
            Some(file) => {
                let file = path.parent().unwrap_or(Path::new("")).join(file);
                std::fs::read(&file).map(Some).map_err(|e| fail(format!("{field} {}: {e}", file.display())))
            }
            None => Ok(None),
        }
    };
    let ca = bytes(&cluster, "certificate-authority")?.unwrap_or_default();
    let certificate = match (bytes(&user, "client-certificate")?, bytes(&user, "client-key")?) {
        (Some(chain), Some(key)) => {
            Some(certified_key(&chain, &key).map_err(|e| fail(format!("client certificate: {e}")))?)
        }
        _ => None,
    };
    Ok(HttpsConfig {
        server: cluster["server"].as_str().ok_or_else(|| fail("the cluster has no server".into()))?.to_string(),
        ca: certificates(&ca).map_err(|e| fail(format!("certificate-authority: {e}")))?,
        identity: Identity {
            certificate: certificate.map(|c| Arc::new(RwLock::new(Arc::new(c)))),
            bearer_token: user["token"].as_str().map(|t| Arc::new(RwLock::new(t.to_string()))),
        },
        user_agent: user_agent.to_string(),
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
