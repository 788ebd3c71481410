//! Access to devices that others use, for administrators: only in namespaces that are labelled for it.
//! Part of the chain in `admission`; not a plugin, because upstream's strategy checks it whatever plugins are on.
//! The namespace is read from the store: a label that was just taken away must not count a moment longer.
//! The scheduler's word about a claim's devices is checked too: it must not give what the namespace may not have.

use api::{
    ApiError,
    field::{ErrorList, Path},
};
use serde_json::Value;

use super::{Attributes, Operation};
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

pub async fn check(cluster: &Cluster, a: &Attributes<'_>) -> Result<(), ApiError> {
    if a.resource.group != "resource.k8s.io" {
        return Ok(());
    }
    let asked = match (a.resource.plural.as_str(), a.subresource, a.operation) {
        ("resourceclaims", "", Operation::Create) => asked_by_requests(&a.object["spec"]),
        ("resourceclaimtemplates", "", Operation::Create) => asked_by_requests(&a.object["spec"]["spec"]),
        ("resourceclaims", "status", Operation::Update) => {
            asked_by_results(&a.object).filter(|_| asked_by_results(&a.old).is_none())
        }
        _ => None,
    };
    let Some(path) = asked else { return Ok(()) };
    let served = cluster.served.find("", "v1", "namespaces");
    let served = served.ok_or_else(|| ApiError::internal("namespaces are not served"))?;
    let namespace = cluster.live(&served, "", a.namespace).await?;
    if namespace.is_some_and(|namespace| namespace.value()["metadata"]["labels"][LABEL] == "true") {
        return Ok(());
    }
    let mut errors = ErrorList::new();
    let why = format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    errors.forbidden(&path, why);
    Err(ApiError::invalid(&a.resource.group, &a.resource.kind, a.name, errors))
}
