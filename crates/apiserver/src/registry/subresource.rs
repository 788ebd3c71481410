//! Subresources: parts of an object with a path, and often a type, of their own.
//! Part of `registry`; each row of the match is one of them, and ends in `update` or beside it.
//! Invariant: a subresource changes its part of the object and nothing else.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use api::{ApiError, Object};

use super::{
    Registry, not_allowed_path, not_found_path, object_meta, object_reply, options::WriteOptions, patch::PatchType,
    update::Change,
};
use crate::{authn::token_request, call::Call, codec, negotiate, respond::Reply, served::Served};

impl Registry {
    pub(super) async fn subresource(&self, call: &Call, served: &Arc<Served>, body: Bytes) -> Result<Reply, ApiError> {
        let info = &call.info;
        let sub = served.subresource(&info.subresource).ok_or_else(not_found_path)?;
        if !sub.verbs.contains(&info.verb) {
            return Err(not_allowed_path());
        }
        match (info.subresource.as_str(), info.verb.as_str()) {
            ("scale", _) => self.scale(call, served, &body).await,
            ("binding", _) => self.bind(call, served, &body).await,
            ("eviction", _) => self.evict(call, served, &body).await,
            ("token", _) => self.token(call, served, &body).await,
            ("log" | "exec" | "attach" | "portforward" | "proxy", _) => self.connect(call, served, body).await,
            (_, "get") => self.get(call, served).await,
            ("status", "update") => self.put(call, served, &body).await,
            ("status", "patch") => self.patch(call, served, &body).await,
            (part, "update" | "patch") => self.part(call, served, part, &body).await,
            _ => Err(not_allowed_path()),
        }
    }

    /// A subresource that is written as the whole object, of which only a part counts.
    async fn part(&self, call: &Call, served: &Arc<Served>, part: &str, body: &[u8]) -> Result<Reply, ApiError> {
        let put: PutPart = match part {
            "finalize" => |new, old| old["spec"]["finalizers"] = new["spec"]["finalizers"].clone(),
            "approval" => |new, old| old["status"]["conditions"] = new["status"]["conditions"].clone(),
            "ephemeralcontainers" => {
                |new, old| old["spec"]["ephemeralContainers"] = new["spec"]["ephemeralContainers"].clone()
            }
            "resize" => put_resources,
            _ => return Err(not_found_path()),
        };
        let options = WriteOptions::from_query(call, "UpdateOptions")?;
        let merge = |new: Value, old: &Value| {
            let mut merged = old.clone();
            put(&new, &mut merged);
            let version = new["metadata"].get("resourceVersion").cloned();
            object_meta::metadata_mut(&mut merged).insert("resourceVersion".into(), version.unwrap_or_default());
            drop_nulls(&mut merged);
            merged
        };
        let (status, object) = if call.info.verb == "patch" {
            let kind = PatchType::from_call(call, served)?;
            let patcher = self.patcher(call, served, kind, body, &options)?;
            self.change_part(call, served, &options, &|old| Ok(merge(patcher(old)?, old))).await?
        } else {
            let new = self.decode(call, served, body, &options)?;
            self.change_part(call, served, &options, &|old| Ok(merge(new.clone(), old))).await?
        };
        Ok(object_reply(status, served, object))
    }

    pub(super) async fn change_part(
        &self,
        call: &Call,
        served: &Arc<Served>,
        options: &WriteOptions,
        transform: super::update::Transform<'_>,
    ) -> Result<(StatusCode, Arc<Object>), ApiError> {
        let change = Change {
            call,
            served,
            namespace: &call.info.namespace,
            name: &call.info.name,
            subresource: &call.info.subresource,
            options,
            transform,
            otherwise: None,
            apply: false,
        };
        self.change(&change).await
    }

    /// A body of a subresource's own type.
    pub(super) fn decode_as(
        &self,
        call: &Call,
        body: &[u8],
        group: &str,
        version: &str,
        kind: &str,
    ) -> Result<Value, ApiError> {
        let schema = codec::builtin_schema();
        let id = schema.find_kind(group, version, kind);
        let decoded = codec::decode(body, negotiate::input(&call.headers)?, id.map(|id| (&*schema, id)))?;
        let expected = if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
        self.check_type(&decoded.value, &expected, kind)?;
        Ok(decoded.value)
    }

    /// `pods/NAME/binding`: the scheduler's decision.
    pub(super) async fn bind(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let options = WriteOptions::from_query(call, "CreateOptions")?;
        let binding = self.decode_as(call, body, "", "v1", "Binding")?;
        self.bind_pod(call, served, &binding, &options).await
    }

    pub(super) async fn bind_pod(
        &self,
        call: &Call,
        served: &Arc<Served>,
        binding: &Value,
        options: &WriteOptions,
    ) -> Result<Reply, ApiError> {
        let target = binding["target"]["name"].as_str().unwrap_or_default().to_string();
        let kind = binding["target"]["kind"].as_str().unwrap_or_default();
        let mut errors = api::field::ErrorList::new();
        let path = api::field::Path::new("target");
        if target.is_empty() {
            errors.required(&path.child("name"), "");
        }
        if !matches!(kind, "" | "Node") {
            errors.not_supported(&path.child("kind"), kind, &["Node", "<empty>"]);
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid("", "Binding", &call.info.name, errors));
        }
        let name = call.info.name.as_str();
        let now = object_meta::timestamp(self.cluster.env.now());
        let transform = |old: &Value| {
            let conflict = |why: String| Err(ApiError::conflict("", "pods/binding", name, &why));
            let uid = object_meta::text(binding, "uid");
            if !uid.is_empty() && uid != object_meta::text(old, "uid") {
                return conflict(format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    object_meta::text(old, "uid")
                ));
            }
            if old["metadata"]["deletionTimestamp"].is_string() {
                return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
            }
            if let Some(node) = old["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
                return conflict(format!("pod {name} is already assigned to node {node:?}"));
            }
            if old["spec"]["schedulingGates"].as_array().is_some_and(|g| !g.is_empty()) {
                return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
            }
            let mut new = old.clone();
            new["spec"]["nodeName"] = target.as_str().into();
            for (key, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
                new["metadata"]["annotations"][key] = value.clone();
            }
            set_condition(&mut new, json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": now }));
            object_meta::metadata_mut(&mut new).remove("resourceVersion");
            Ok(new)
        };
        let change = Change {
            call,
            served,
            namespace: &call.info.namespace,
            name,
            subresource: "binding",
            options,
            transform: &transform,
            otherwise: None,
            apply: false,
        };
        self.change(&change).await?;
        Ok(Reply::Value(StatusCode::CREATED, created()))
    }

    async fn token(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let mut request = self.decode_as(call, body, "authentication.k8s.io", "v1", "TokenRequest")?;
        if !request["spec"].is_object() {
            request["spec"] = json!({});
        }
        let account = self.get_object(call, served).await?;
        let max = self.config.service_accounts.max_token_expiration.as_secs() as i64;
        let keys = &self.tokens.keys;
        let (answer, warning) = token_request::issue(&self.cluster, keys, max, &account, request).await?;
        warning.into_iter().for_each(|w| call.warn(w));
        Ok(Reply::Value(StatusCode::CREATED, answer))
    }
}

type PutPart = fn(&Value, &mut Value);

pub(super) fn created() -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 })
}

/// The resources and resize policies of each container, by name.
fn put_resources(new: &Value, old: &mut Value) {
    for list in ["containers", "initContainers"] {
        let wanted = new["spec"][list].as_array().cloned().unwrap_or_default();
        for container in old["spec"][list].as_array_mut().into_iter().flatten() {
            if let Some(wanted) = wanted.iter().find(|w| w["name"] == container["name"]) {
                for field in ["resources", "resizePolicy"] {
                    container[field] = wanted[field].clone();
                }
            }
        }
    }
    if !new["spec"]["resources"].is_null() {
        old["spec"]["resources"] = new["spec"]["resources"].clone();
    }
}

/// Fields that were absent in what was put in must not become null.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn set_condition(pod: &mut Value, condition: Value) {
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let Some(conditions) = pod["status"]["conditions"].as_array_mut() else { return };
    match conditions.iter_mut().find(|c| c["type"] == condition["type"]) {
        Some(found) => *found = condition,
        None => conditions.push(condition),
    }
}
