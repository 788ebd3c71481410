//! Pods run as a ServiceAccount that exists, and find its token mounted.
//! A row of the table in `admission`.
//! Mirror pods and pods that opted out get no token.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::{Value, json};

use api::{ApiError, Object};

use super::{Attributes, Operation, Plugin, pods::push};
use crate::storage::cluster::Cluster;

pub struct ServiceAccount(pub Arc<Cluster>);

/// How long a default account that is about to be made is waited for.
const SERVICE_ACCOUNT_WAIT: Duration = Duration::from_millis(1500);
const VOLUME_PREFIX: &str = "kube-api-access-";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    async fn admit(&self, a: &mut Attributes<'_>) -> Result<(), ApiError> {
        let creates_pod = a.is("", "pods") && a.subresource.is_empty() && a.operation == Operation::Create;
        if !creates_pod || !a.object["spec"].is_object() {
            return Ok(());
        }
        if a.object["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string() {
            return mirror_pod(a);
        }
        let spec = &mut a.object["spec"];
        let name = match spec["serviceAccountName"].as_str().filter(|n| !n.is_empty()) {
            Some(name) => name.to_string(),
            None => "default".to_string(),
        };
        spec["serviceAccountName"] = json!(name);
        spec["serviceAccount"] = json!(name);
        let Some(account) = self.account(a.namespace, &name).await? else {
            let why =
                format!("error looking up service account {}/{name}: serviceaccount \"{name}\" not found", a.namespace);
            return Err(a.forbidden(&why));
        };
        let account = account.value();
        let spec = &mut a.object["spec"];
        let automount = spec["automountServiceAccountToken"]
            .as_bool()
            .or_else(|| account["automountServiceAccountToken"].as_bool())
            .unwrap_or(true);
        if automount {
            mount_token(spec, &self.0.env.name_suffix(5));
        }
        let secrets = account["imagePullSecrets"].as_array().filter(|s| !s.is_empty());
        if let (Some(secrets), true) = (secrets, spec["imagePullSecrets"].as_array().is_none_or(|s| s.is_empty())) {
            spec["imagePullSecrets"] = json!(secrets);
        }
        Ok(())
    }
}

impl ServiceAccount {
    /// In a namespace made a moment ago a controller is about to make the default account: that is waited for.
    async fn account(&self, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, ApiError> {
        let mut changes = self.0.resource("serviceaccounts").changes();
        let mut found = self.0.fresh_get("serviceaccounts", namespace, name).await?;
        let until = self.0.env.monotonic() + SERVICE_ACCOUNT_WAIT;
        while found.is_none() && name == "default" {
            let left = until.saturating_sub(self.0.env.monotonic());
            match self.0.env.timeout(left, changes.changed()).await {
                Some(Ok(())) => found = self.0.get("serviceaccounts", namespace, name),
                // Nobody makes it, or the server ends.
                _ => break,
            }
        }
        Ok(found)
    }
}

/// What a node runs on its own account gets nothing from the cluster.
fn mirror_pod(a: &Attributes<'_>) -> Result<(), ApiError> {
    let spec = &a.object["spec"];
    if spec["serviceAccountName"].as_str().is_some_and(|n| !n.is_empty()) {
        return Err(a.forbidden("a mirror pod may not reference service accounts"));
    }
    let volumes = || spec["volumes"].as_array().into_iter().flatten();
    if volumes().any(|v| !v["secret"].is_null()) {
        return Err(a.forbidden("a mirror pod may not reference secrets"));
    }
    let mut sources = volumes().flat_map(|v| v["projected"]["sources"].as_array().into_iter().flatten());
    if sources.any(|s| !s["serviceAccountToken"].is_null()) {
        return Err(a.forbidden("a mirror pod may not use ServiceAccountToken volume projections"));
    }
    Ok(())
}

/// Adds the projected volume and mounts it where a container has nothing at that path yet.
fn mount_token(spec: &mut Value, suffix: &str) {
    // Containers that a webhook added later share the volume of the others.
    let known = spec["volumes"].as_array().into_iter().flatten().filter_map(|v| v["name"].as_str());
    let known = known.filter(|n| n.starts_with(VOLUME_PREFIX)).map(str::to_string).next();
    let volume = known.clone().unwrap_or_else(|| format!("{VOLUME_PREFIX}{suffix}"));
    let mut used = false;
    for list in ["initContainers", "containers"] {
        // `get_mut`, because indexing would make the list that a pod does not have.
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = container["volumeMounts"].as_array();
            if mounts.is_some_and(|m| m.iter().any(|m| m["mountPath"] == MOUNT_PATH)) {
                continue;
            }
            used = true;
            push(container, "volumeMounts", json!({ "name": volume, "readOnly": true, "mountPath": MOUNT_PATH }));
        }
    }
    if used && known.is_none() {
        push(spec, "volumes", token_volume(&volume));
    }
}

fn token_volume(name: &str) -> Value {
    let namespace =
        json!({ "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } });
    json!({
        "name": name,
        "projected": {
            "defaultMode": 0o644,
            "sources": [
                { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
                { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
                { "downwardAPI": { "items": [namespace] } },
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::admission::tests::{PODS, fixture, pod};

    #[tokio::test]
    async fn tokens_are_mounted_unless_someone_opts_out() {
        let f = fixture(&[]).await;
        for (name, automount) in [("open", json!(null)), ("yes", json!(true)), ("no", json!(false))] {
            let account = json!({ "metadata": { "name": name }, "automountServiceAccountToken": automount });
            f.ok(Method::POST, "/api/v1/namespaces/default/serviceaccounts", account).await;
        }
        let check = async |account: &str, of_pod: Value, expected: bool| {
            let mut object = pod(&format!("{account}-{}", of_pod.to_string().trim_matches('"')), json!({}));
            object["spec"]["serviceAccountName"] = account.into();
            object["spec"]["automountServiceAccountToken"] = of_pod.clone();
            let made = f.ok(Method::POST, PODS, object).await;
            let mounts = made["spec"]["containers"][0]["volumeMounts"].as_array().cloned().unwrap_or_default();
            let mounted = mounts.iter().any(|m| m["mountPath"] == MOUNT_PATH);
            assert_eq!(mounted, expected, "{account} {of_pod}");
            assert_eq!(made["spec"]["volumes"].is_array(), expected, "{account} {of_pod}");
        };
        // The pod's word counts before the account's.
        for (account, of_pod, expected) in [
            ("open", json!(null), true),
            ("yes", json!(null), true),
            ("no", json!(null), false),
            ("open", json!(true), true),
            ("yes", json!(true), true),
            ("no", json!(true), true),
            ("open", json!(false), false),
            ("yes", json!(false), false),
            ("no", json!(false), false),
        ] {
            check(account, of_pod, expected).await;
        }
    }

    #[tokio::test]
    async fn the_default_account_of_a_new_namespace_is_waited_for() {
        let f = fixture(&[]).await;
        f.ok(Method::POST, "/api/v1/namespaces", json!({ "metadata": { "name": "new" } })).await;
        f.refused(403, "/api/v1/namespaces/new/pods", pod("early", json!({}))).await;
        let account = json!({ "metadata": { "name": "default" } });
        let (made, _) = tokio::join!(
            f.ok(Method::POST, "/api/v1/namespaces/new/pods", pod("p", json!({}))),
            f.ok(Method::POST, "/api/v1/namespaces/new/serviceaccounts", account),
        );
        assert_eq!(made["spec"]["serviceAccountName"], "default");
    }
}
