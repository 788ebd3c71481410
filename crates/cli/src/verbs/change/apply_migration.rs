//! From client-side to server-side apply: what the former managed becomes the latter's, so that it can take fields away.
//! Used by `apply_server_side` after an apply, on what the server answered.
//! Only managers that own the last-applied annotation are taken over; a failure is a warning, as the apply went through.

use std::collections::BTreeSet;

use api::managed_fields::Set;
use serde_json::{Value, json};

use super::{Change, JSON};
use crate::{apply::LAST_APPLIED, failure::Result, resource::Info, session::Session};

const ANNOTATION_MANAGER: &str = "kubectl-last-applied";
const CONFLICT_RETRIES: usize = 5;

fn owns_annotation(entry: &Value, operation: &str) -> bool {
    entry["operation"] == operation
        && Set::parse(&entry["fieldsV1"]).is_ok_and(|set| set.has_fields(&["metadata", "annotations", LAST_APPLIED]))
}

fn entries(object: &Value) -> &[Value] {
    object["metadata"]["managedFields"].as_array().map_or(&[], Vec::as_slice)
}

/// The annotation alone, to be applied so that the migration does not take it away.
fn annotation_to_keep(object: &Value) -> Option<Value> {
    let annotation = object["metadata"]["annotations"][LAST_APPLIED].as_str()?;
    if entries(object).iter().any(|entry| owns_annotation(entry, "Apply")) {
        return None;
    }
    let mut kept = json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": {"name": object["metadata"]["name"], "annotations": {LAST_APPLIED: annotation}},
    });
    if !object["metadata"]["namespace"].is_null() {
        kept["metadata"]["namespace"] = object["metadata"]["namespace"].clone();
    }
    Some(kept)
}

/// The managed fields once `manager` has what client-side apply managed; `None` where there is nothing to take over.
fn migrated(object: &Value, manager: &str) -> std::result::Result<Option<Vec<Value>>, String> {
    let names: BTreeSet<&str> = entries(object)
        .iter()
        .filter(|entry| owns_annotation(entry, "Update"))
        .filter_map(|entry| entry["manager"].as_str())
        .collect();
    let mut managed = entries(object).to_vec();
    for name in names {
        let former = |entry: &Value| {
            entry["manager"] == name && entry["operation"] == "Update" && entry["subresource"].is_null()
        };
        let own = managed.iter().position(|entry| {
            entry["manager"] == manager && entry["operation"] == "Apply" && entry["subresource"].is_null()
        });
        let Some(at) = own.or_else(|| managed.iter().position(former)) else { continue };
        let version = managed[at]["apiVersion"].clone();
        let mut fields = Set::parse(&managed[at]["fieldsV1"])?;
        if let Some(same) = managed.iter().find(|entry| former(entry) && entry["apiVersion"] == version) {
            fields = fields.union(&Set::parse(&same["fieldsV1"])?);
        }
        managed[at]["manager"] = manager.into();
        managed[at]["operation"] = "Apply".into();
        managed[at]["fieldsV1"] = fields.encode();
        managed.retain(|entry| !former(entry));
    }
    Ok((managed != entries(object)).then_some(managed))
}

async fn migrate(session: &Session, info: &Info, manager: &str, mut object: Value) -> Result<Option<Value>> {
    let change = Change { session, manager: "", validation: "", dry_run: crate::printers::operation::DryRun::None };
    for attempt in 0.. {
        let Some(managed) = migrated(&object, manager).map_err(crate::failure::Failure::Message)? else {
            return Ok(None);
        };
        let patch = json!([
            {"op": "replace", "path": "/metadata/managedFields", "value": managed},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"]},
        ]);
        match change.patch(info, JSON, &patch).await {
            Ok(object) => return Ok(Some(object)),
            Err(failure) if failure.is_conflict() && attempt < CONFLICT_RETRIES => object = info.get(session).await?,
            Err(failure) => return Err(failure),
        }
    }
    Ok(None)
}

/// Whether the configuration is to be applied once more, as fields may go now.
pub async fn run(session: &Session, info: &Info, manager: &str, mut object: Value) -> bool {
    let warn = |what: &str, why: String| {
        session
            .output
            .warn(&format!("Warning: {what}. This is non-fatal and will be retried next time you apply. Error: {why}"));
        false
    };
    if manager == "kubectl"
        && let Some(kept) = annotation_to_keep(&object)
    {
        let call = match session.rest().await.and_then(|rest| Ok(rest.call(http::Method::PATCH, info.path()?))) {
            Ok(call) => call,
            Err(failure) => {
                return warn(
                    "failed to migrate kubectl.kubernetes.io/last-applied-configuration for Server-Side Apply",
                    failure.text(),
                );
            }
        };
        let call = call.query("fieldManager", ANNOTATION_MANAGER).about(&info.resource.qualified(), &info.name);
        match call.body("application/apply-patch+yaml", kept.to_string()).value().await {
            Ok(answer) => object = answer,
            Err(failure) => {
                return warn(
                    "failed to migrate kubectl.kubernetes.io/last-applied-configuration for Server-Side Apply",
                    failure.text(),
                );
            }
        }
    }
    match migrate(session, info, manager, object).await {
        Ok(migrated) => migrated.is_some(),
        Err(failure) => warn("server rejected managed fields migration to Server-Side Apply", failure.text()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn fields_of_client_side_apply_are_taken_over() {
        let annotation = json!({"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/last-applied-configuration": {}}}, "f:data": {"f:old": {}}});
        let check = |managed: Vec<Value>, wanted: Option<Vec<(&str, &str, bool)>>| {
            let object = json!({"metadata": {"managedFields": managed}});
            let found = migrated(&object, "kubectl").unwrap();
            let found = found.as_ref().map(|entries| {
                let shown = |e: &'_ Value| {
                    let has = Set::parse(&e["fieldsV1"]).unwrap().has_fields(&["data", "old"]);
                    (e["manager"].as_str().unwrap().to_string(), e["operation"].as_str().unwrap().to_string(), has)
                };
                entries.iter().map(shown).collect::<Vec<_>>()
            });
            let wanted = wanted
                .map(|rows| rows.iter().map(|(m, o, has)| (m.to_string(), o.to_string(), *has)).collect::<Vec<_>>());
            assert_eq!(found, wanted, "{managed:?}", managed = object["metadata"]["managedFields"]);
        };
        let client_side = entry("kubectl-client-side-apply", "Update", annotation.clone());
        let server_side = entry("kubectl", "Apply", json!({"f:data": {"f:new": {}}}));
        let other = entry("robot", "Update", json!({"f:data": {"f:r": {}}}));
        check(
            vec![client_side.clone(), server_side.clone(), other.clone()],
            Some(vec![("kubectl", "Apply", true), ("robot", "Update", false)]),
        );
        check(vec![client_side], Some(vec![("kubectl", "Apply", true)]));
        check(vec![server_side, other], None);
        check(vec![entry("kubectl-last-applied", "Apply", annotation)], None);
    }
}
