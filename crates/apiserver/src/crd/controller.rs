//! Keeps the served resources in step with the definitions, and their conditions with what is served.
//! A row of `post_start_hooks`; reads the watch cache, writes through the pipeline like any client.
//! `judge` is pure; the loop carries out what it says and looks again.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use http::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use api::{
    ApiError,
    kinds::{
        ApprovalState,
        custom_resource_definition::{approval_state, is_protected_group, set_condition},
    },
};

use super::{FINALIZER, definition};
use crate::{
    discovery::served::{Definition, Served},
    json_fields::text,
    post_start_hooks::ControlLoop,
    registry::timestamp,
    server::{loopback, pipeline::ApiServer},
};

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The loop over all definitions.
pub struct Definitions;

#[async_trait]
impl ControlLoop for Definitions {
    /// Serves what is established already.
    async fn prepare(&mut self, server: &Arc<ApiServer>) -> Result<(), ApiError> {
        publish(server);
        Ok(())
    }

    async fn sync(&mut self, server: &Arc<ApiServer>) -> Result<Option<Duration>, ApiError> {
        let mut settled = true;
        let listed = server.cluster.list("customresourcedefinitions", "");
        let definitions: Vec<Value> = listed.iter().map(|d| d.value()).collect();
        for definition in &definitions {
            let name = text(&definition["metadata"], "name").to_string();
            let result = match definition["metadata"]["deletionTimestamp"].is_string() {
                true => finalize(server, definition).await,
                false => settle(server, definition, &definitions).await,
            };
            if let Err(error) = result
                && !error.is_conflict()
                && !error.is_not_found()
            {
                tracing::warn!(name, error = %error.message, "failed to settle a CustomResourceDefinition");
                settled = false;
            }
        }
        publish(server);
        // What failed is tried again; a change is looked at at once.
        Ok((!settled).then_some(RETRY_INTERVAL))
    }
}

/// Takes over the established definitions as the served custom resources.
fn publish(server: &ApiServer) {
    let listed = server.cluster.list("customresourcedefinitions", "");
    // One at a time: parsed they weigh many times their bytes.
    let established = listed.iter().filter_map(|object| {
        let definition = object.value();
        (condition(&definition, "Established") == Some("True"))
            .then(|| Definition { hash: hash(&definition), make: Box::new(|| definition::resources(&object.value())) })
    });
    server.cluster.served.replace_custom(established.collect());
}

/// Only these parts decide what is served; conditions and the like come and go.
fn hash(definition: &Value) -> [u8; 32] {
    let parts = [&definition["metadata"]["uid"], &definition["spec"], &definition["status"]["acceptedNames"]];
    let hash = parts.iter().fold(Sha256::new(), |hash, part| hash.chain_update(part.to_string()));
    hash.finalize().into()
}

fn condition<'a>(definition: &'a Value, kind: &str) -> Option<&'a str> {
    let conditions = definition["status"]["conditions"].as_array()?;
    conditions.iter().find(|c| c["type"] == kind)?["status"].as_str()
}

async fn settle(server: &Arc<ApiServer>, definition: &Value, all: &[Value]) -> Result<(), ApiError> {
    let now = timestamp(server.cluster.env.now());
    let Some(updated) = judge(definition, all, &now) else { return Ok(()) };
    write_status(server, &updated).await
}

async fn write_status(server: &Arc<ApiServer>, definition: &Value) -> Result<(), ApiError> {
    let name = text(&definition["metadata"], "name");
    loopback::send(server, Method::PUT, &format!("{PATH}/{name}/status"), definition).await.map(drop)
}

/// The definition with the status it should have, if it has another.
fn judge(definition: &Value, all: &[Value], now: &str) -> Option<Value> {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let conflict = conflict(definition, all);
    let mut new = definition.clone();
    let mut accepted = definition["status"]["acceptedNames"].clone();
    if !accepted.is_object() {
        accepted = json!({ "kind": "", "plural": "" });
    }
    match &conflict {
        None => {
            accepted = names.clone();
            set_condition(&mut new, "NamesAccepted", ("True", "NoConflicts", "no conflicts found"), now);
            // Once established, a definition stays so even if a later change of names is refused.
            let accepted = condition(definition, "NamesAccepted") == Some("True");
            let message = "the initial names have been accepted";
            match condition(definition, "Established") {
                Some("True") => {}
                _ if !accepted => set_condition(&mut new, "Established", ("False", "Installing", message), now),
                _ => set_condition(&mut new, "Established", ("True", "InitialNamesAccepted", message), now),
            }
        }
        Some((reason, message)) => {
            set_condition(&mut new, "NamesAccepted", ("False", reason, message), now);
            if condition(definition, "Established") != Some("True") {
                set_condition(&mut new, "Established", ("False", "NotAccepted", "not all names are accepted"), now);
            }
        }
    }
    new["status"]["acceptedNames"] = accepted;
    let stored = spec["versions"].as_array().into_iter().flatten().find(|v| v["storage"] == true);
    if let (Some(stored), true) = (stored, !new["status"]["storedVersions"].is_array()) {
        new["status"]["storedVersions"] = json!([stored["name"]]);
    }
    set_approval(&mut new, now);
    (new["status"] != definition["status"]).then_some(new)
}

/// Definitions in groups of the community's say whether they were approved.
fn set_approval(definition: &mut Value, now: &str) {
    if !is_protected_group(text(&definition["spec"], "group")) {
        return;
    }
    let (state, message) = approval_state(definition);
    let (status, reason) = match state {
        ApprovalState::Missing => ("False", "MissingAnnotation"),
        ApprovalState::Approved => ("True", "ApprovedAnnotation"),
        ApprovalState::Bypassed => ("False", "UnapprovedAnnotation"),
        ApprovalState::Invalid => ("False", "InvalidAnnotation"),
    };
    set_condition(definition, "KubernetesAPIApprovalPolicyConformant", (status, reason, &message), now);
}

/// Why the names of a definition cannot be had: another established one of the group has them.
fn conflict(definition: &Value, all: &[Value]) -> Option<(&'static str, String)> {
    let own = text(&definition["metadata"], "name");
    let names = &definition["spec"]["names"];
    let others = all.iter().filter(|d| {
        text(&d["metadata"], "name") != own
            && d["spec"]["group"] == definition["spec"]["group"]
            && condition(d, "Established") == Some("True")
    });
    let mut taken: Vec<(String, &str)> = Vec::new();
    let mut kinds: Vec<(String, &str)> = Vec::new();
    for other in others {
        let (accepted, holder) = (&other["status"]["acceptedNames"], text(&other["metadata"], "name"));
        for field in ["plural", "singular"] {
            taken.push((text(accepted, field).into(), holder));
        }
        for short in accepted["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            taken.push((short.into(), holder));
        }
        for field in ["kind", "listKind"] {
            kinds.push((text(accepted, field).into(), holder));
        }
    }
    let used = |name: &str, by: &[(String, &str)]| !name.is_empty() && by.iter().any(|(n, _)| n == name);
    let message = |name: &str| format!("{name:?} is already in use");
    for (field, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
        let name = text(names, field);
        if used(name, &taken) {
            return Some((reason, message(name)));
        }
    }
    for short in names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if used(short, &taken) {
            return Some(("ShortNamesConflict", message(short)));
        }
    }
    for (field, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
        let name = text(names, field);
        if used(name, &kinds) {
            return Some((reason, message(name)));
        }
    }
    None
}

/// Deletes the objects of a definition that is going away, then lets it go.
async fn finalize(server: &Arc<ApiServer>, definition: &Value) -> Result<(), ApiError> {
    let finalizers = definition["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        return Ok(());
    }
    let now = timestamp(server.cluster.env.now());
    let mut new = definition.clone();
    let state = ("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress");
    set_condition(&mut new, "Terminating", state, &now);
    if new["status"] != definition["status"] {
        // This is seen again once it is written.
        return write_status(server, &new).await;
    }
    let resources = definition::resources(definition);
    let state = match (resources.first(), condition(definition, "Established") == Some("True")) {
        (Some(served), true) => {
            delete_instances(server, served).await?;
            ("False", "InstanceDeletionCompleted", "removed all instances")
        }
        _ => ("False", "NeverEstablished", "resource was never established"),
    };
    set_condition(&mut new, "Terminating", state, &now);
    let name = text(&definition["metadata"], "name");
    let rest: Vec<Value> = finalizers.into_iter().filter(|f| f != FINALIZER).collect();
    new["metadata"]["finalizers"] = rest.into();
    loopback::send(server, Method::PUT, &format!("{PATH}/{name}/status"), &new).await.map(drop)
}

/// All objects of a definition; an error as long as some of them are held.
async fn delete_instances(server: &Arc<ApiServer>, served: &Served) -> Result<(), ApiError> {
    let snapshot = server.cluster.cache.resource(&served.prefix).list("", None, 0, 0, |_| true);
    for entry in &snapshot.entries {
        let meta = &entry.object.meta;
        let path = served.path(meta.namespace.as_deref(), Some(&meta.name));
        match loopback::send(server, Method::DELETE, &path, &Value::Null).await {
            Err(e) if !e.is_not_found() => return Err(e),
            _ => {}
        }
    }
    server.cluster.cache.wait_until_fresh().await?;
    match server.cluster.cache.resource(&served.prefix).is_empty() {
        true => Ok(()),
        // Their own finalizers hold them; the next look comes when the retry is due.
        false => Err(ApiError::internal("custom resources are still being deleted")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(plural: &str, kind: &str) -> Value {
        json!({
            "metadata": { "name": format!("{plural}.example.com") },
            "spec": {
                "group": "example.com", "names": { "plural": plural, "kind": kind, "singular": kind.to_lowercase() },
                "versions": [{ "name": "v1", "served": true, "storage": true }],
            },
        })
    }

    #[test]
    fn names_are_accepted_once() {
        let now = "2026-01-01T00:00:00Z";
        let first = judge(&crd("widgets", "Widget"), &[], now).unwrap();
        assert_eq!(condition(&first, "Established"), Some("False"), "Installing first");
        let first = judge(&first, &[], now).unwrap();
        assert_eq!(condition(&first, "Established"), Some("True"));
        assert_eq!(first["status"]["acceptedNames"]["plural"], "widgets");
        assert_eq!(judge(&first, std::slice::from_ref(&first), now), None);
        let second = judge(&crd("gadgets", "Widget"), &[first], now).unwrap();
        assert_eq!(condition(&second, "NamesAccepted"), Some("False"));
        assert_eq!(condition(&second, "Established"), Some("False"));
    }
}
