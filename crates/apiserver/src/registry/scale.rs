//! `scale`: replicas and selector of a workload, in one shape for all kinds.
//! Part of `registry`.
//! Writing a Scale changes the replicas of its object and nothing else.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use api::{ApiError, Object, Verb, selectors::LabelSelector};

use super::{
    Registry, not_allowed_path, object_meta,
    options::WriteOptions,
    patch::{PatchType, decoding_error, refusal},
    update::{AdmissionView, Change, Transform, other_uid},
};
use crate::{
    discovery::served::Served,
    handlers::{codec, respond::Reply},
    request::call::Call,
};

/// Where a kind keeps what a Scale shows; JSON pointers.
struct Paths {
    spec: String,
    status: String,
    selector: Option<String>,
}

fn paths(served: &Served) -> Paths {
    match &served.custom {
        Some(custom) => Paths {
            spec: pointer(&custom.scale.spec_replicas),
            status: pointer(&custom.scale.status_replicas),
            selector: custom.scale.label_selector.as_deref().map(pointer),
        },
        None => Paths {
            spec: "/spec/replicas".into(),
            status: "/status/replicas".into(),
            selector: Some("/spec/selector".into()),
        },
    }
}

/// `.spec.replicas` as `/spec/replicas`.
fn pointer(path: &str) -> String {
    path.replace('.', "/")
}

impl Registry {
    pub(super) async fn scale(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        if call.info.verb == Verb::Get {
            let object = self.get_object(call, served).await?.value();
            if let Some(custom) = served.custom.as_ref().filter(|_| object.pointer(&paths(served).spec).is_none()) {
                let path = &custom.scale.spec_replicas;
                return Err(ApiError::internal(format!("the spec replicas field {path:?} does not exist")));
            }
            return Ok(Reply::Value(StatusCode::OK, scale_of(served, &object)));
        }
        let options = WriteOptions::from_query(call, "UpdateOptions")?;
        let (_, object) = match call.info.verb {
            Verb::Update => {
                let scale = self.decode_as(call, body, "autoscaling", "v1", "Scale")?;
                object_meta::check_name(&scale, &call.info.name)?;
                self.change_scale(call, served, &options, &|old| put(served, old, &scale)).await?
            }
            Verb::Patch => {
                let kind = PatchType::from_call(call, served)?;
                let transform = |old: &Value| {
                    let scale = patched(kind, &scale_of(served, old), body)?;
                    object_meta::check_name(&scale, &call.info.name)?;
                    put(served, old, &scale)
                };
                self.change_scale(call, served, &options, &transform).await?
            }
            _ => return Err(not_allowed_path()),
        };
        Ok(Reply::Value(StatusCode::OK, scale_of(served, &object.value())))
    }

    async fn change_scale(
        &self,
        call: &Call,
        served: &Arc<Served>,
        options: &WriteOptions,
        transform: Transform<'_>,
    ) -> Result<(StatusCode, Arc<Object>), ApiError> {
        let change = Change {
            call,
            served,
            namespace: &call.info.namespace,
            name: &call.info.name,
            subresource: "scale",
            options,
            transform,
            otherwise: None,
            apply: false,
            shown: AdmissionView::Part { of: scale_of, put },
        };
        self.change(&change).await
    }
}

fn patched(kind: PatchType, scale: &Value, body: &[u8]) -> Result<Value, ApiError> {
    let schema = codec::builtin_schema();
    let document =
        || -> Result<Value, ApiError> { Ok(codec::decode(body, crate::handlers::negotiate::Media::Yaml, None)?.value) };
    let id = schema.find_kind("autoscaling", "v1", "Scale").ok_or_else(|| ApiError::internal("Scale has no schema"))?;
    let patch = if kind == PatchType::Json { Value::Null } else { document()? };
    let patched = match kind {
        PatchType::Json => api::patch::json_patch(scale, body),
        PatchType::Strategic => api::patch::strategic(&schema, id, scale, &patch),
        _ => api::patch::merge_patch(scale, &patch),
    }?;
    if let Err(error) = api::codec::decode_value(patched.clone(), &schema, id) {
        let why = decoding_error(&error);
        return Err(refusal(kind, (&schema, id), (body, &patch), || patched, why));
    }
    Ok(patched)
}

fn put(served: &Served, old: &Value, scale: &Value) -> Result<Value, ApiError> {
    let replicas = &scale["spec"]["replicas"];
    let number = if replicas.is_null() { Some(0) } else { replicas.as_i64() };
    let name = object_meta::text(old, "name");
    if let (Some(custom), Some(negative @ ..0)) = (&served.custom, number) {
        // Told of where it would be kept.
        let mut errors = api::field::ErrorList::new();
        let path = api::field::Path::new(&custom.scale.spec_replicas);
        errors.invalid(&path, negative, "should be a non-negative integer");
        return Err(ApiError::invalid(&served.group, &served.kind, name, errors));
    }
    let Some(number) = number.filter(|n| *n >= 0) else {
        let mut errors = api::field::ErrorList::new();
        let path = api::field::Path::new("spec").child("replicas");
        errors.invalid(&path, replicas.clone(), "must be greater than or equal to 0");
        return Err(ApiError::invalid("autoscaling", "Scale", name, errors));
    };
    let uid = object_meta::text(scale, "uid");
    if !uid.is_empty() && uid != object_meta::text(old, "uid") {
        return Err(other_uid(served, scale, old));
    }
    let mut new = old.clone();
    set_at(&mut new, &paths(served).spec, number.into());
    let version = object_meta::text(scale, "resourceVersion").to_string();
    // A custom resource can't be updated without one; then it is the one just read.
    if served.custom.is_none() || !version.is_empty() {
        object_meta::metadata_mut(&mut new).insert("resourceVersion".into(), version.into());
    }
    Ok(new)
}

fn set_at(object: &mut Value, pointer: &str, value: Value) {
    let mut place = object;
    for part in pointer.split('/').filter(|p| !p.is_empty()) {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[part];
    }
    *place = value;
}

fn scale_of(served: &Served, object: &Value) -> Value {
    let paths = paths(served);
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let meta = &object["metadata"];
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = meta.get(field) {
            metadata[field] = value.clone();
        }
    }
    let mut status = json!({ "replicas": number(&paths.status) });
    let selector = paths.selector.as_ref().and_then(|p| object.pointer(p)).and_then(selector_text);
    if let Some(selector) = selector {
        status["selector"] = selector.into();
    }
    // Go leaves none out.
    let spec = match number(&paths.spec) {
        0 => json!({}),
        replicas => json!({ "replicas": replicas }),
    };
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status,
    })
}

/// A selector in its text form: custom resources keep text, ReplicationControllers plain labels, the others structure.
fn selector_text(selector: &Value) -> Option<String> {
    match selector {
        Value::String(text) => Some(text.clone()),
        Value::Object(map) if map.contains_key("matchLabels") || map.contains_key("matchExpressions") => {
            LabelSelector::from_value(selector).ok().map(|s| s.to_string())
        }
        Value::Object(map) => {
            let pairs = map.iter().filter_map(|(k, v)| Some(format!("{k}={}", v.as_str()?)));
            Some(pairs.collect::<Vec<_>>().join(","))
        }
        _ => None,
    }
}
