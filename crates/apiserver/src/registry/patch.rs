//! `patch`: the four patch types, each a transform of the current object.
//! Part of `registry`; the patches themselves are in `api::patch` and `api::managed_fields`.
//! A patch that loses a race is applied again to the newer version.

use std::sync::Arc;

use serde_json::Value;

use ::cel::blocking::off_worker;
use api::{
    ApiError, Reason,
    field::{ErrorList, Path},
    schema::{Schema, TypeId},
};

use super::{
    Registry, initializers, object_meta, object_reply,
    options::{FieldValidation, WriteOptions},
    update::{AdmissionView, Change, CreateOnUpdate, Transform},
};
use crate::{
    audit,
    discovery::served::Served,
    handlers::{codec, negotiate, respond::Reply},
    request::call::Call,
};

/// A JSON patch beyond this may have thousands of operations, which can take up to a second on a large object.
const LONG_PATCH_BYTES: usize = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    pub(super) fn from_call(call: &Call, served: &Served) -> Result<Self, ApiError> {
        match negotiate::content_type(&call.headers).as_str() {
            "application/json-patch+json" => Ok(PatchType::Json),
            "application/merge-patch+json" => Ok(PatchType::Merge),
            "application/strategic-merge-patch+json" if served.custom.is_none() => Ok(PatchType::Strategic),
            "application/apply-patch+yaml" => Ok(PatchType::Apply),
            _ if served.custom.is_some() => Err(negotiate::unsupported(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
            _ => Err(negotiate::no_route(Reason::UnsupportedMediaType, "415: Unsupported Media Type")),
        }
    }
}

/// From the current object to the patched one.
pub(super) type Patcher<'a> = Box<dyn Fn(&Value) -> Result<Value, ApiError> + Send + Sync + 'a>;

impl Registry {
    pub(super) async fn patch(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let options = WriteOptions::from_query(call, "PatchOptions")?;
        let kind = PatchType::from_call(call, served)?;
        audit::request_patch(body);
        if kind == PatchType::Apply && call.query.text("fieldManager").is_none() {
            let mut errors = ErrorList::new();
            errors.required(&Path::new("fieldManager"), "is required for apply patch");
            return Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", errors));
        }
        if kind != PatchType::Apply && options.force {
            let mut errors = ErrorList::new();
            errors.forbidden(&Path::new("force"), "may not be specified for non-apply patch");
            return Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", errors));
        }
        if kind == PatchType::Apply {
            return Box::pin(self.apply(call, served, body, &options)).await;
        }
        let transform = self.patcher(call, served, kind, body, &options)?;
        self.patch_with(call, served, &options, &*transform, None, false).await
    }

    async fn patch_with(
        &self,
        call: &Call,
        served: &Arc<Served>,
        options: &WriteOptions,
        transform: Transform<'_>,
        otherwise: Option<CreateOnUpdate<'_>>,
        apply: bool,
    ) -> Result<Reply, ApiError> {
        let change = Change {
            call,
            served,
            namespace: &call.info.namespace,
            name: &call.info.name,
            subresource: &call.info.subresource,
            options,
            transform,
            otherwise,
            apply,
            shown: AdmissionView::Whole,
        };
        let (status, object) = Box::pin(self.change(&change)).await?;
        Ok(object_reply(status, served, object))
    }

    /// A patch of one of the first three types as a function of the current object.
    pub(super) fn patcher<'a>(
        &self,
        call: &'a Call,
        served: &'a Served,
        kind: PatchType,
        body: &'a [u8],
        options: &'a WriteOptions,
    ) -> Result<Patcher<'a>, ApiError> {
        let patch: Value = match kind {
            PatchType::Json => Value::Null,
            _ => {
                serde_json::from_slice(body).map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?
            }
        };
        let name = call.info.name.as_str();
        Ok(Box::new(move |old: &Value| {
            let patched = || match kind {
                PatchType::Json if body.len() > LONG_PATCH_BYTES => off_worker(|| api::patch::json_patch(old, body)),
                PatchType::Json => api::patch::json_patch(old, body),
                PatchType::Merge => api::patch::merge_patch(old, &patch),
                _ => match &served.schema {
                    Some((schema, id)) => api::patch::strategic(schema, *id, old, &patch),
                    None => api::patch::merge_patch(old, &patch),
                },
            };
            let refuse = |why: &str| match &served.schema {
                // Told with what it would have led to, which is made once more only then.
                Some((schema, id)) => {
                    refusal(kind, (schema, *id), (body, &patch), || patched().unwrap_or_default(), why)
                }
                _ => unrestorable(patched().unwrap_or_default().to_string(), why),
            };
            checked(call, served, name, patched()?, old, options, &refuse)
        }))
    }

    async fn apply(
        &self,
        call: &Call,
        served: &Arc<Served>,
        body: &[u8],
        options: &WriteOptions,
    ) -> Result<Reply, ApiError> {
        // Without the schema: what it does not know is refused below, whatever the client thinks of strictness.
        let decoded = codec::decode(body, negotiate::Media::Yaml, None)?;
        match options.field_validation {
            FieldValidation::Strict if !decoded.problems.is_empty() => {
                let problems = decoded.problems.join(", ");
                return Err(ApiError::bad_request(format!(
                    "error strict decoding YAML: error converting YAML to JSON: {problems}"
                )));
            }
            _ => super::report_problems(call, &served.kind, &served.version, &decoded.problems, options)?,
        }
        let mut applied = decoded.value;
        self.check_type(body, &applied, &served.api_version(), &served.kind, served.custom.is_some())?;
        // What a cluster-scoped object says of a namespace is forgotten after the merge: until then it is a change.
        if served.namespaced() {
            object_meta::ensure_namespace(&mut applied, served, &call.info.namespace)?;
        }
        let name = call.info.name.as_str();
        let unnamed = object_meta::text(&applied, "name").is_empty();
        if unnamed {
            object_meta::metadata_mut(&mut applied).insert("name".into(), name.into());
        }
        object_meta::check_name(&applied, name)?;
        let now = self.cluster.env.now();
        let subresource = call.info.subresource.as_str();
        let transformed = |old: Option<&Value>| {
            let mut merged = super::managed::apply(served, old, &applied, options, subresource, now)?;
            object_meta::ensure_namespace(&mut merged, served, &call.info.namespace)?;
            match &served.schema {
                Some((schema, id)) => Ok(api::codec::decode_value(merged, schema, *id)?.value),
                None => Ok(merged),
            }
        };
        let made = || match object_meta::text(&applied, "uid") {
            // What is there keeps its name; what is made must say it.
            _ if unnamed => Err(object_meta::unnamed(name)),
            "" => transformed(None),
            uid => {
                let why =
                    format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
                Err(ApiError::conflict(&served.group, &served.plural, name, &why))
            }
        };
        let otherwise: Option<CreateOnUpdate<'_>> = subresource.is_empty().then_some(&made);
        let transform = |old: &Value| transformed(Some(old));
        self.patch_with(call, served, options, &transform, otherwise, true).await
    }
}

/// Between the kind of a body and what is wrong with it.
const HANDLED_AS: &str = " cannot be handled as a ";

fn without_kind<'e>((_, rest): (&str, &'e str)) -> &'e str {
    rest.split_once(": ").map_or(rest, |(_, why)| why)
}

/// A patch after which the document is none of its kind.
fn unrestorable(shown: String, why: &str) -> ApiError {
    let mut errors = ErrorList::new();
    errors.invalid(&Path::new("patch"), shown, why);
    ApiError::invalid("", "", "", errors)
}

/// What is said of a patch after which the document is none of its kind; `patch` is its body and what that says.
pub(super) fn refusal(
    kind: PatchType,
    (schema, id): (&Schema, TypeId),
    (body, patch): (&[u8], &Value),
    patched: impl FnOnce() -> Value,
    why: &str,
) -> ApiError {
    let touched = match kind {
        // Go has the patch as a map, and never the document as text.
        PatchType::Strategic => {
            return unrestorable(api::patch::go_text(patch), &api::patch::restore_error(schema, why));
        }
        PatchType::Json => api::patch::places(&serde_json::from_slice(body).unwrap_or_default()),
        _ => patch.clone(),
    };
    unrestorable(api::patch::shown(schema, id, &patched(), &touched), why)
}

/// What was wrong with a decoded document, without the kind that it was decoded as.
pub(super) fn decoding_error(error: &ApiError) -> &str {
    error.message.split_once(HANDLED_AS).map_or("", without_kind)
}

/// A patched document must still be an object of its kind under its name.
fn checked(
    call: &Call,
    served: &Served,
    name: &str,
    mut patched: Value,
    old: &Value,
    options: &WriteOptions,
    refuse: &dyn Fn(&str) -> ApiError,
) -> Result<Value, ApiError> {
    if !patched.is_object() {
        return Err(ApiError::bad_request("the patched document is not an object"));
    }
    api::depth::check(&patched)?;
    if let Some((schema, id)) = &served.schema {
        // Only objects that have been given initializers have the field at all.
        let list = if old["metadata"]["initializers"].is_null() { None } else { initializers::take(&mut patched) };
        let retyped = api::codec::decode_value(patched, schema, *id);
        let mut retyped = retyped.map_err(|e| refuse(decoding_error(&e)))?;
        if served.custom.is_some() {
            super::sort_problems(&mut retyped.problems);
        }
        if options.field_validation == FieldValidation::Strict && !retyped.problems.is_empty() {
            return Err(refuse(&format!("strict decoding error: {}", retyped.problems.join(", "))));
        }
        super::report_problems(call, &served.kind, &served.version, &retyped.problems, options)?;
        patched = retyped.value;
        initializers::put_back(&mut patched, list);
    }
    if patched["kind"] != old["kind"] || patched["apiVersion"] != old["apiVersion"] {
        object_meta::set_type(&mut patched, served);
    }
    object_meta::check_name(&patched, name)?;
    let uid = object_meta::text(&patched, "uid");
    if !uid.is_empty() && uid != object_meta::text(old, "uid") {
        // Not a precondition, as it is in a PUT. Upstream looks twice.
        let mut errors = ErrorList::new();
        let path = Path::new("metadata").child("uid");
        (0..2).for_each(|_| errors.invalid(&path, uid, "field is immutable"));
        return Err(ApiError::invalid(&served.group, &served.kind, name, errors));
    }
    Ok(patched)
}
