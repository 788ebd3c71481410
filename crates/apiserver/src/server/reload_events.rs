//! Tells of configuration files that could not be used when they changed: one Event each, about this server's identity
//! Lease.
//! Fed by `reload`, which also logs and counts; started by `pipeline`.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{loopback, pipeline::ApiServer, reload::ReloadFailure};
use crate::post_start_hooks::identity;

const NAMESPACE: &str = "kube-system";

fn event(failure: &ReloadFailure, hostname: &str, now: jiff::Timestamp) -> Value {
    let name = identity(hostname);
    let ReloadFailure { what, files, error } = failure;
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let about = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "namespace": NAMESPACE, "name": name,
    });
    json!({
        "metadata": { "generateName": format!("{name}."), "namespace": NAMESPACE }, "involvedObject": about,
        "type": "Warning", "reason": "FailedReload", "count": 1, "firstTimestamp": time, "lastTimestamp": time,
        "message": format!("failed to reload the {what} from {files}: {error}; the old one stays in use"),
        "source": { "component": "kube-apiserver", "host": hostname },
        "reportingComponent": "kube-apiserver", "reportingInstance": hostname,
    })
}

/// For as long as the server lives.
pub fn start(server: &Arc<ApiServer>, mut failures: Receiver<ReloadFailure>) {
    let weak = Arc::downgrade(server);
    server.cluster.env.spawn(async move {
        loop {
            let failure = match failures.recv().await {
                Ok(failure) => failure,
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => return,
            };
            let Some(server) = weak.upgrade() else { return };
            let event = event(&failure, &server.config.hostname, server.cluster.env.now());
            let path = format!("/api/v1/namespaces/{NAMESPACE}/events");
            if let Err(error) = loopback::send(&server, Method::POST, &path, &event).await {
                tracing::debug!(error = %error.message, "failed to tell of a file that could not be reloaded");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use env::Env;

    use crate::{Config, config::EncryptionProviders};

    use super::*;

    #[tokio::test]
    async fn a_file_that_can_not_be_used_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("encryption.yaml");
        let text = |provider: &str| {
            let resources = format!("resources: [{{resources: [secrets], providers: [{provider}]}}]");
            format!("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n{resources}\n")
        };
        std::fs::write(&file, text("{identity: {}}")).unwrap();
        let env = Env::real();
        let mut config = Config::in_process(rcgen::KeyPair::generate().unwrap().serialize_pem());
        config.encryption_providers = Some(EncryptionProviders { file: file.clone(), automatic_reload: true });
        let store = Arc::new(store::MemoryStore::new(env.clone()));
        let server = ApiServer::new(config, store, env.clone()).await.unwrap();
        std::fs::write(&file, text("{rot13: {}}")).unwrap();
        let path = "/api/v1/namespaces/kube-system/events?fieldSelector=reason%3DFailedReload";
        let message = loop {
            let found = loopback::send(&server, Method::GET, path, &Value::Null).await.unwrap();
            if let Some(event) = found["items"].get(0) {
                assert_eq!(event["involvedObject"]["kind"], "Lease");
                break event["message"].as_str().unwrap().to_string();
            }
            env::sleep(Duration::from_millis(20)).await;
        };
        assert!(message.starts_with("failed to reload the encryption configuration from "), "{message}");
        for words in ["encryption.yaml", "rot13", "the old one stays in use"] {
            assert!(message.contains(words), "{message}");
        }
    }
}
