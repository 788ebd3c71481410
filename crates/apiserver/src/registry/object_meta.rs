//! The metadata only the server writes: names, uids, timestamps, generations.
//! Used by `create` and `update`.
//! A client can neither set nor lose any of it.

use serde_json::{Map, Value, json};

use api::ApiError;
use env::Env;
use jiff::Timestamp;

use crate::discovery::served::Served;

/// Longest generated name; the suffix takes five.
const GENERATED_NAME_LENGTH_MAX: usize = 63;
const NAME_SUFFIX_LENGTH: usize = 5;

pub fn timestamp(now: Timestamp) -> String {
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"].as_object_mut().expect("made an object above")
}

pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// The type of the body is the type of the resource, whether the client wrote it or not.
pub fn set_type(object: &mut Value, served: &Served) {
    object["kind"] = served.kind.as_str().into();
    object["apiVersion"] = served.api_version().into();
}

/// The namespace of the request is the namespace of the object.
pub fn ensure_namespace(object: &mut Value, served: &Served, namespace: &str) -> Result<(), ApiError> {
    let expected = if served.namespaced() { namespace } else { "" };
    let found = text(object, "namespace");
    if found == expected {
        return Ok(());
    }
    if expected.is_empty() {
        // What a cluster-scoped object says of a namespace is forgotten.
        metadata_mut(object).remove("namespace");
        return Ok(());
    }
    if !found.is_empty() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    metadata_mut(object).insert("namespace".into(), expected.into());
    Ok(())
}

/// An object that is written is the one that the path names.
pub fn check_name(object: &Value, name: &str) -> Result<(), ApiError> {
    match text(object, "name") {
        "" => Err(unnamed(name)),
        found if found != name => Err(ApiError::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({name})"
        ))),
        _ => Ok(()),
    }
}

pub fn unnamed(name: &str) -> ApiError {
    let why = "was undeterminable: name must be provided";
    ApiError::bad_request(format!("the name of the object ({name} based on URL) {why}"))
}

/// Forgets what a client may not bring to a creation. A resourceVersion stays for admission to see: it is refused when
/// the object is stored.
pub fn clear_system_fields(object: &mut Value) {
    let keeps_version = has_resource_version(object);
    let metadata = metadata_mut(object);
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
        metadata.remove(field);
    }
    if !keeps_version {
        metadata.remove("resourceVersion");
    }
    drop_empty(metadata);
}

/// Whether the object names a revision; what is no number counts as none, as upstream has it.
pub fn has_resource_version(object: &Value) -> bool {
    text(object, "resourceVersion").parse::<u64>().is_ok_and(|version| version != 0)
}

/// Fields that are absent when empty, as Go's `omitempty` has them.
fn drop_empty(metadata: &mut Map<String, Value>) {
    metadata.retain(|_, v| match v {
        Value::Null => false,
        Value::String(s) => !s.is_empty(),
        Value::Array(a) => !a.is_empty(),
        Value::Object(o) => !o.is_empty(),
        _ => true,
    });
}

/// True if the name was generated and may be generated again when it is taken.
pub fn generate_name(object: &mut Value, env: &Env) -> bool {
    let prefix = text(object, "generateName").to_string();
    if prefix.is_empty() || !text(object, "name").is_empty() {
        return false;
    }
    regenerate_name(object, env);
    true
}

pub fn regenerate_name(object: &mut Value, env: &Env) {
    let mut base = text(object, "generateName").to_string();
    while base.len() > GENERATED_NAME_LENGTH_MAX - NAME_SUFFIX_LENGTH {
        base.pop();
    }
    metadata_mut(object).insert("name".into(), format!("{base}{}", env.name_suffix(NAME_SUFFIX_LENGTH)).into());
}

pub fn fill_system_fields(object: &mut Value, served: &Served, env: &Env) {
    let generation = served.behavior.has_generation();
    let metadata = metadata_mut(object);
    metadata.insert("uid".into(), env.uuid().into());
    metadata.insert("creationTimestamp".into(), timestamp(env.now()).into());
    if generation {
        metadata.insert("generation".into(), 1.into());
    }
}

/// What an update cannot change stays as it was, whatever the client sent.
pub fn keep_system_fields(object: &mut Value, old: &Value, namespaced: bool) {
    let old = &old["metadata"];
    let metadata = metadata_mut(object);
    let mut fields = vec!["creationTimestamp", "generation", "uid", "generateName"];
    // What an update says of a deletion that was not asked for is refused; of one that was, it changes nothing.
    if old.get("deletionTimestamp").is_some_and(|time| !time.is_null()) {
        fields.push("deletionTimestamp");
    }
    if metadata.get("deletionGracePeriodSeconds").is_none_or(Value::is_null) {
        fields.push("deletionGracePeriodSeconds");
    }
    if namespaced {
        fields.push("namespace");
    } else {
        metadata.remove("namespace");
    }
    for field in fields {
        match old.get(field) {
            Some(value) => {
                metadata.insert(field.into(), value.clone());
            }
            None => {
                metadata.remove(field);
            }
        }
    }
    metadata.remove("selfLink");
    drop_empty(metadata);
}

/// The generation grows when anything but metadata and status changed. Where nothing writes the status apart
/// (`whole`), it counts too.
pub fn bump_generation(object: &mut Value, old: &Value, whole: bool, metadata: &[&str]) {
    let differs = |field: &&str| object["metadata"].get(*field) != old["metadata"].get(*field);
    let metadata_differs = metadata.iter().any(differs);
    let desired = |v: &Value| -> Vec<(String, Value)> {
        let fields = v.as_object().into_iter().flatten();
        let kept = fields.filter(|(k, _)| match k.as_str() {
            "metadata" | "apiVersion" | "kind" => false,
            "status" => whole,
            _ => true,
        });
        kept.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    if desired(object) != desired(old) || metadata_differs {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        metadata_mut(object).insert("generation".into(), generation.into());
    }
}
