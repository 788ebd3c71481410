//! Access to devices that others use, for administrators: only in namespaces that are labelled for it.
//! Called by `registry` before the validation of the kind, as upstream's strategy does.
//! The namespace is read from the store: a label that was just taken away must not count a moment longer.
//! The scheduler's word about a claim's devices is checked too: it must not give what the namespace may not have.

use api::{
    ApiError,
    field::{ErrorList, Path},
    kinds::Resource,
};
use serde_json::Value;

use crate::storage::cluster::Cluster;

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Where the first of a list asks for it.
fn asked(list: &Value, asks: impl Fn(&Value) -> bool, path: &Path) -> Option<Path> {
    let at = list.as_array()?.iter().position(asks)?;
    Some(path.index(at).child("adminAccess"))
}

fn asked_by_requests(spec: &Value) -> Option<Path> {
    let path = Path::new("spec").child("devices").child("requests");
    asked(&spec["devices"]["requests"], |request| request["exactly"]["adminAccess"] == true, &path)
}

fn asked_by_results(object: &Value) -> Option<Path> {
    let path = Path::new("status").child("allocation").child("devices").child("results");
    let results = &object["status"]["allocation"]["devices"]["results"];
    asked(results, |result| result["adminAccess"] == true, &path)
}

/// What is wrong with what `object` asks for; `old` is null for a new one.
pub async fn errors(
    cluster: &Cluster,
    resource: &Resource,
    subresource: &str,
    object: &Value,
    old: &Value,
) -> Result<ErrorList, ApiError> {
    let mut errors = ErrorList::new();
    if resource.group != "resource.k8s.io" {
        return Ok(errors);
    }
    let (object, old) = (api::kinds::as_stored(resource, object), api::kinds::as_stored(resource, old));
    let asked = match (resource.plural.as_str(), subresource, old.is_null()) {
        ("resourceclaims", "", true) => asked_by_requests(&object["spec"]),
        ("resourceclaimtemplates", "", true) => asked_by_requests(&object["spec"]["spec"]),
        ("resourceclaims", "status", false) => asked_by_results(&object).filter(|_| asked_by_results(&old).is_none()),
        _ => None,
    };
    let Some(path) = asked else { return Ok(errors) };
    let served = cluster.served.find("", "v1", "namespaces");
    let served = served.ok_or_else(|| ApiError::internal("namespaces are not served"))?;
    let namespace = cluster.live(&served, "", object["metadata"]["namespace"].as_str().unwrap_or_default()).await?;
    if namespace.is_some_and(|namespace| namespace.value()["metadata"]["labels"][LABEL] == "true") {
        return Ok(errors);
    }
    let why = format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    errors.forbidden(&path, why);
    Ok(errors)
}
