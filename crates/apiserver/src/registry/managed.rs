//! Who wrote which field: `metadata.managedFields`, kept on every write.
//! Used by `create`, `update` and `patch`; the rules are in `api::managed_fields`.
//! A write that changes nothing but timestamps of managers is no write.

use jiff::Timestamp;
use serde_json::Value;

use api::{ApiError, managed_fields};

use super::options::WriteOptions;
use crate::discovery::served::Served;

/// Records the fields that `new` changes as the manager's own. `old` is absent when the object is created.
pub fn track(
    served: &Served,
    old: Option<&Value>,
    new: &mut Value,
    options: &WriteOptions,
    subresource: &str,
    now: Timestamp,
) {
    let Some((schema, id)) = &served.schema else { return };
    let api_version = served.api_version();
    managed_fields::track_update_with(schema, *id, old, new, &ours(served, options, subresource, &api_version, now));
}

fn ours<'a>(
    served: &Served,
    options: &'a WriteOptions,
    subresource: &'a str,
    api_version: &'a str,
    now: Timestamp,
) -> managed_fields::Options<'a> {
    // Built-in kinds know what each endpoint resets; custom ones do so only if they have a status endpoint.
    let reset: Option<&[&str]> = match (&served.custom, subresource) {
        (None, _) => None,
        (Some(_), "status") => Some(&["spec", "metadata"]),
        (Some(_), "") if served.subresource("status").is_some() => Some(&["status"]),
        (Some(_), _) => Some(&[]),
    };
    managed_fields::Options {
        manager: &options.field_manager,
        force: options.force,
        subresource,
        api_version,
        now,
        reset,
    }
}

/// Server-side apply: `old` is absent when the object is to be created.
pub fn apply(
    served: &Served,
    old: Option<&Value>,
    applied: &Value,
    options: &WriteOptions,
    subresource: &str,
    now: Timestamp,
) -> Result<Value, ApiError> {
    let Some((schema, id)) = &served.schema else {
        return Err(ApiError::bad_request("this resource has no schema to apply by"));
    };
    let api_version = served.api_version();
    managed_fields::apply(schema, *id, old, applied, ours(served, options, subresource, &api_version, now))
}

/// Whether two versions say the same.
pub fn same(new: &Value, old: &Value) -> bool {
    let fields = |v: &Value| v.as_object().map_or(0, |m| m.len());
    if fields(new) != fields(old) {
        return false;
    }
    let rest_same = new.as_object().into_iter().flatten().all(|(k, v)| k == "metadata" || old.get(k) == Some(v));
    rest_same && same_metadata(&new["metadata"], &old["metadata"])
}

fn same_metadata(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    let count = |m: &serde_json::Map<String, Value>| m.keys().filter(|k| *k != "managedFields").count();
    let plain = new.iter().filter(|(k, _)| *k != "managedFields").all(|(k, v)| old.get(k) == Some(v));
    plain && count(new) == count(old) && same_managers(new.get("managedFields"), old.get("managedFields"))
}

fn same_managers(new: Option<&Value>, old: Option<&Value>) -> bool {
    fn entries(v: Option<&Value>) -> &[Value] {
        v.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }
    let timeless = |entry: &Value| entry.as_object().map_or(0, |m| m.keys().filter(|k| *k != "time").count());
    let same = |(a, b): (&Value, &Value)| {
        let fields = a.as_object().into_iter().flatten();
        timeless(a) == timeless(b) && fields.filter(|(k, _)| *k != "time").all(|(k, v)| b.get(k) == Some(v))
    };
    let (new, old) = (entries(new), entries(old));
    new.len() == old.len() && new.iter().zip(old).all(same)
}
