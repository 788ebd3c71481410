//! The bytes of an object in the store: JSON, or protobuf in upstream's envelope; both are read whatever is written.
//! Asked by `encryption`, which hands on JSON to everyone else; the table of kinds says which kinds are never protobuf.
//! What can't be read as an object of a known version is an error for its key, and is never written again.

use bytes::Bytes;
use serde_json::Value;

use api::{Resource, codec::protobuf, kinds::stored_definition, schema};

use super::{encode, keys};
use crate::json_fields::text;

/// `--storage-media-type`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StorageMediaType {
    Json,
    Protobuf,
}

impl StorageMediaType {
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "application/json" => Ok(Self::Json),
            "application/vnd.kubernetes.protobuf" => Ok(Self::Protobuf),
            other => Err(format!(
                "--storage-media-type {other:?} is not supported: use application/json or \
                 application/vnd.kubernetes.protobuf"
            )),
        }
    }
}

/// Under these are objects that no client sees, which upstream's servers share with ours.
const BOOKKEEPING: [&str; 2] = ["/registry/masterleases/", "/registry/ranges/"];

/// The object under `key` as JSON, in the version that the caches hold. What lies under the key of no kind stays as it
/// is.
pub fn to_json(key: &str, stored: Bytes) -> Result<Bytes, String> {
    let resource = match keys::prefix_of_key(key) {
        Some(prefix) if keys::is_custom(prefix) => None,
        Some(prefix) => match keys::stored_under(prefix) {
            Some(resource) => Some(resource),
            None => return Ok(stored),
        },
        None => return Ok(stored),
    };
    if stored.starts_with(&protobuf::MAGIC) {
        return from_protobuf(resource, &stored).map(|value| encode(&value));
    }
    match resource {
        _ if !stored.starts_with(b"{") => Err("neither JSON nor protobuf".into()),
        Some(resource) if head(&stored).is_some_and(|(version, kind)| is_own(resource, version, kind)) => Ok(stored),
        None if head(&stored).is_some() => Ok(stored),
        resource => {
            let mut value: Value = serde_json::from_slice(&stored).map_err(|e| e.to_string())?;
            if let Some(resource) = resource {
                let (api_version, kind) = (text(&value, "apiVersion").to_string(), text(&value, "kind").to_string());
                known_version(resource, &api_version, &kind)?;
                if is_definition(resource) && api_version != resource.api_version() {
                    stored_definition::from_v1beta1(&mut value);
                }
                value["apiVersion"] = resource.api_version().into();
            }
            Ok(encode(&value))
        }
    }
}

/// What is written for `json`, the bytes that `encode` made.
pub fn to_stored(key: &str, json: &Bytes, media: StorageMediaType) -> Bytes {
    let prefix = keys::prefix_of_key(key);
    let Some(resource) = prefix.and_then(keys::stored_under) else {
        let shared = prefix.is_some_and(|prefix| BOOKKEEPING.contains(&prefix)) && media == StorageMediaType::Protobuf;
        return shared.then(|| bookkeeping(json)).flatten().unwrap_or_else(|| json.clone());
    };
    let form = &resource.storage;
    let as_json = form.json_only || media == StorageMediaType::Json;
    if as_json && form.api_version == resource.api_version() {
        return json.clone();
    }
    let Ok(mut value) = serde_json::from_slice::<Value>(json) else { return json.clone() };
    if is_definition(resource) {
        stored_definition::to_v1beta1(&mut value);
    }
    value["apiVersion"] = form.api_version.as_str().into();
    let as_protobuf = if as_json { None } else { protobuf_of(resource, &value) };
    // What protobuf has no field for, as initializers, is kept all the same.
    as_protobuf.unwrap_or_else(|| encode(&value))
}

/// Whether `stored`, which is not encrypted, is not what would be written for it now.
pub fn is_outdated(key: &str, stored: &[u8], media: StorageMediaType) -> bool {
    let resource = keys::prefix_of_key(key).and_then(keys::stored_under);
    let Some(resource) = resource.filter(|resource| !resource.storage.json_only) else { return false };
    let written = match stored.starts_with(&protobuf::MAGIC) {
        true => protobuf::open(stored).ok().map(|envelope| (StorageMediaType::Protobuf, envelope.api_version)),
        false => head(stored).map(|(version, _)| (StorageMediaType::Json, version.to_string())),
    };
    let lossless = || has_protobuf(resource);
    written.is_some_and(|(form, version)| {
        version != resource.storage.api_version || (form != media && (media == StorageMediaType::Json || lossless()))
    })
}

fn bookkeeping(json: &Bytes) -> Option<Bytes> {
    let value: Value = serde_json::from_slice(json).ok()?;
    protobuf::encode_object(&value).ok().map(Bytes::from)
}

/// An object of the server's own, from bytes of either form.
pub fn bookkeeping_value(stored: &[u8]) -> Option<Value> {
    match stored.starts_with(&protobuf::MAGIC) {
        true => protobuf::decode(stored, None).ok(),
        false => serde_json::from_slice(stored).ok(),
    }
}

/// Upstream keeps definitions in a version with other fields.
fn is_definition(resource: &Resource) -> bool {
    resource.kind == "CustomResourceDefinition"
}

fn is_own(resource: &Resource, api_version: &str, kind: &str) -> bool {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    resource.group == group && resource.version == version && resource.kind == kind
}

fn known_version(resource: &Resource, api_version: &str, kind: &str) -> Result<(), String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let form = &resource.storage;
    let same = || form.same_versions.iter().any(|same| same == version);
    let known = version == resource.version || api_version == form.api_version || same();
    match known && group == resource.group && kind == resource.kind {
        true => Ok(()),
        false => Err(format!("no kind \"{kind}\" is registered for version \"{api_version}\" in scheme")),
    }
}

/// Protobuf written by any server, as the version that is served.
fn from_protobuf(resource: Option<&std::sync::Arc<Resource>>, stored: &[u8]) -> Result<Value, String> {
    let envelope = protobuf::open(stored).map_err(|e| e.message.clone())?;
    let Some(resource) = resource else {
        return Err(format!("a custom resource as protobuf ({} {})", envelope.api_version, envelope.kind));
    };
    known_version(resource, &envelope.api_version, &envelope.kind)?;
    if resource.storage.json_only && envelope.api_version != resource.api_version() {
        return Err(format!("{} of {} as protobuf", envelope.kind, envelope.api_version));
    }
    // Versions with the same fields have the same numbers: read as the one that is served.
    let schema = served_type(resource).ok_or_else(|| format!("{} has no protobuf form", resource.kind))?;
    let mut value = protobuf::decode_as(stored, schema).map_err(|e| e.message.clone())?;
    value["apiVersion"] = resource.api_version().into();
    Ok(value)
}

fn served_type(resource: &Resource) -> Option<(&'static schema::Schema, schema::TypeId)> {
    schema::find_built_in(&resource.group, &resource.version, &resource.kind)
}

fn has_protobuf(resource: &Resource) -> bool {
    served_type(resource).is_some()
}

fn protobuf_of(resource: &Resource, value: &Value) -> Option<Bytes> {
    let (schema, id) = served_type(resource)?;
    let message = protobuf::encode_lossless(schema, id, value)?;
    Some(protobuf::envelope(text(value, "apiVersion"), text(value, "kind"), &message).into())
}

/// `apiVersion` and `kind` of JSON that begins as `encode` writes it: `{"kind":…,"apiVersion":…,"metadata":{`. Only
/// such bytes can take a resourceVersion without being parsed.
fn head(json: &[u8]) -> Option<(&str, &str)> {
    fn string<'j>(json: &'j [u8], before: &[u8]) -> Option<(&'j str, &'j [u8])> {
        let rest = json.strip_prefix(before)?;
        let end = rest.iter().position(|byte| *byte == b'"')?;
        let text = std::str::from_utf8(&rest[..end]).ok()?;
        (!text.contains('\\')).then(|| (text, &rest[end + 1..]))
    }
    let (kind, rest) = string(json, b"{\"kind\":\"")?;
    let (api_version, rest) = string(rest, b",\"apiVersion\":\"")?;
    (rest.starts_with(b",\"metadata\":{") && json.ends_with(b"}")).then_some((api_version, kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PROTOBUF: StorageMediaType = StorageMediaType::Protobuf;

    fn named(api_version: &str, kind: &str, more: Value) -> Value {
        let mut object = json!({ "kind": kind, "apiVersion": api_version, "metadata": { "name": "a" } });
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    }

    #[test]
    fn objects_come_back_as_they_were_in_either_form() {
        let check = |key: &str, object: Value, begins: &[u8]| {
            let json = encode(&object);
            for media in [StorageMediaType::Json, PROTOBUF] {
                let stored = to_stored(key, &json, media);
                assert!(!is_outdated(key, &stored, media), "{key}");
                let back: Value = serde_json::from_slice(&to_json(key, stored.clone()).unwrap()).unwrap();
                assert_eq!(back, object, "{key} {media:?}");
                if media == PROTOBUF {
                    assert!(stored.starts_with(begins), "{key}: {stored:?}");
                }
            }
        };
        let proto = &b"k8s\0"[..];
        check("/registry/configmaps/d/a", named("v1", "ConfigMap", json!({ "data": { "k": "v" } })), proto);
        let class = named("storage.k8s.io/v1", "VolumeAttributesClass", json!({ "driverName": "d" }));
        check("/registry/volumeattributesclasses/a", class, b"k8s\0\n/\n\x16storage.k8s.io/v1beta1");
        let policy = json!({ "spec": { "policyName": "p" } });
        let policy = named("admissionregistration.k8s.io/v1beta1", "MutatingAdmissionPolicyBinding", policy);
        check("/registry/mutatingadmissionpolicybindings/a", policy, proto);
        // As JSON: what upstream keeps so, custom resources, and what protobuf has no field for.
        let service = json!({ "spec": { "groupPriorityMinimum": 1, "versionPriority": 1 }, "status": {} });
        let service = named("apiregistration.k8s.io/v1", "APIService", service);
        check("/registry/apiregistration.k8s.io/apiservices/a", service, b"{");
        let versions = json!([{ "name": "v1", "served": true, "storage": true }]);
        let definition = json!({ "spec": { "versions": versions, "conversion": { "strategy": "None" } } });
        let definition = named("apiextensions.k8s.io/v1", "CustomResourceDefinition", definition);
        let head = br#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1","metadata":{"#;
        check("/registry/apiextensions.k8s.io/customresourcedefinitions/a", definition, head);
        check("/registry/example.com/widgets/d/a", named("example.com/v1", "Widget", json!({})), b"{");
        let mut pending = named("v1", "ConfigMap", json!({}));
        pending["metadata"]["initializers"] = json!({ "pending": [{ "name": "x" }] });
        let stored = to_stored("/registry/configmaps/d/a", &encode(&pending), PROTOBUF);
        assert_eq!(stored, encode(&pending));
    }

    #[test]
    fn older_versions_with_the_same_fields_are_read() {
        let lease = named("coordination.k8s.io/v1", "Lease", json!({ "spec": { "holderIdentity": "x" } }));
        let (schema, id) = served_type(api::kinds::stored_under("leases").unwrap()).unwrap();
        let message = protobuf::encode(schema, id, &lease).unwrap();
        let key = "/registry/leases/d/a";
        let old: Bytes = protobuf::envelope("coordination.k8s.io/v1beta1", "Lease", &message).into();
        let mut old_json = lease.clone();
        old_json["apiVersion"] = "coordination.k8s.io/v1beta1".into();
        for stored in [old, encode(&old_json)] {
            assert!(is_outdated(key, &stored, PROTOBUF));
            let back: Value = serde_json::from_slice(&to_json(key, stored).unwrap()).unwrap();
            assert_eq!(back, lease);
        }
        assert!(is_outdated(key, &encode(&lease), PROTOBUF));
    }

    #[test]
    fn json_of_other_servers_takes_a_version() {
        // Upstream's custom resources have their members in order, so metadata may not come first.
        let written =
            br#"{"apiVersion":"example.com/v1","data":{"metadata":{}},"kind":"Widget","metadata":{"name":"a"}}"#;
        let json = to_json("/registry/example.com/widgets/d/a", Bytes::from_static(written)).unwrap();
        let object = crate::storage::decode(&json, 7).unwrap().value();
        assert_eq!(
            (&object["metadata"]["resourceVersion"], &object["data"]),
            (&json!("7"), &json!({ "metadata": {} }))
        );
        let line = b"{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"}}\n";
        assert!(to_json("/registry/configmaps/d/a", Bytes::from_static(line)).unwrap().ends_with(b"}"));
        // A definition of the served version is none of v1beta1, however it is written.
        let definition = named("apiextensions.k8s.io/v1", "CustomResourceDefinition", json!({ "spec": {} }));
        let key = "/registry/apiextensions.k8s.io/customresourcedefinitions/a";
        let back = to_json(key, format!("{definition}\n").into()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&back).unwrap(), definition);
    }

    #[test]
    fn what_is_not_known_is_refused_or_left_alone() {
        let envelope = |version: &str, kind: &str| Bytes::from(protobuf::envelope(version, kind, b"\x0a\x00"));
        for (key, stored, why) in [
            ("/registry/pods/d/a", envelope("v2", "Pod"), "no kind \"Pod\" is registered for version \"v2\""),
            ("/registry/pods/d/a", envelope("v1", "Secret"), "no kind \"Secret\""),
            ("/registry/pods/d/a", Bytes::from_static(b"k8s\0\xff"), "proto"),
            ("/registry/pods/d/a", Bytes::from_static(b"\xff\x00"), "neither JSON nor protobuf"),
            ("/registry/pods/d/a", Bytes::from_static(b"{\"kind\":\"Pod\"}"), "no kind"),
            ("/registry/pods/d/a", Bytes::from_static(b"{"), "EOF"),
            (
                "/registry/example.com/widgets/d/a",
                envelope("example.com/v1", "Widget"),
                "a custom resource as protobuf",
            ),
        ] {
            let refused = to_json(key, stored.clone()).unwrap_err();
            assert!(refused.contains(why), "{key}: {refused}");
        }
        for key in ["/registry/kindsofthefuture/a", "/registry/ranges/servicenodeports", "/minke/node-ports/3"] {
            for stored in [envelope("x/v9", "Y"), Bytes::from_static(b"\xff")] {
                assert_eq!(to_json(key, stored.clone()).unwrap(), stored);
                assert!(!is_outdated(key, &stored, PROTOBUF));
            }
        }
    }
}
