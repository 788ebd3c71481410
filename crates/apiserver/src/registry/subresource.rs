//! Subresources: parts of an object with a path, and often a type, of their own.
//! Part of `registry`; each row of the match is one of them, and ends in `update` or beside it.
//! A subresource changes its part of the object and nothing else.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use api::{ApiError, Reason, Verb, feature_gates::TOKEN_REQUEST_SERVICE_ACCOUNT_UID_VALIDATION};

use super::{
    Registry, not_allowed_path, not_found_path, object_meta,
    options::WriteOptions,
    update::{AdmissionView, Change},
};
use crate::{
    admission::{Attributes, Operation},
    audit,
    authn::token_request,
    discovery::served::Served,
    handlers::{codec, negotiate, respond::Reply},
    request::call::Call,
};

const PROXY_METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// Evictions of this version are still taken; they differ in nothing but its name.
const OLD_POLICY: &str = "policy/v1beta1";

impl Registry {
    pub(super) async fn subresource(&self, call: &Call, served: &Arc<Served>, body: Bytes) -> Result<Reply, ApiError> {
        let info = &call.info;
        let sub = served.subresource(&info.subresource).ok_or_else(|| match served.custom.is_some() {
            true => ApiError::not_found(&served.group, &served.plural, &info.name),
            false => not_found_path(),
        })?;
        // What is behind a proxy decides for itself which methods it knows.
        let passed_on = info.subresource == "proxy" && PROXY_METHODS.contains(&call.method.as_str());
        if !passed_on && !sub.verbs.contains(&info.verb) {
            return Err(match served.custom.is_some() {
                true => ApiError::method_not_allowed(&served.group, &served.plural, info.verb.as_str()),
                false => not_allowed_path(),
            });
        }
        match (info.subresource.as_str(), &info.verb) {
            ("scale", _) => self.scale(call, served, &body).await,
            ("binding", _) => self.bind(call, served, &body).await,
            ("eviction", _) => self.evict(call, served, &body).await,
            ("token", _) => self.token(call, served, &body).await,
            ("log" | "exec" | "attach" | "portforward" | "proxy", _) => self.connect(call, served, body).await,
            (_, Verb::Get) => self.get(call, served).await,
            // Written as the whole object, of which the kind takes the part that the subresource is for.
            (_, Verb::Update) => self.put(call, served, &body).await,
            (_, Verb::Patch) => self.patch(call, served, &body).await,
            _ => Err(not_allowed_path()),
        }
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
        let mut value = decoded.value;
        if value["apiVersion"] == OLD_POLICY && expected == "policy/v1" {
            value["apiVersion"] = expected.clone().into();
        }
        self.check_type(body, &value, &expected, kind, false)?;
        value["apiVersion"] = expected.into();
        value["kind"] = kind.into();
        audit::request_object(&value, "", kind);
        Ok(value)
    }

    /// Shows admission the creation of a subresource's own body, which is all that it sees of what comes of it.
    pub(super) async fn admit_body(
        &self,
        call: &Call,
        served: &Served,
        options: &WriteOptions,
        body: Value,
    ) -> Result<Value, ApiError> {
        self.admit_completed(call, served, options, body, |_| Ok(())).await
    }

    /// The same for a body that is completed between the plugins that change it and those that judge it.
    async fn admit_completed(
        &self,
        call: &Call,
        served: &Served,
        options: &WriteOptions,
        mut body: Value,
        complete: impl FnOnce(&mut Value) -> Result<(), ApiError> + Send,
    ) -> Result<Value, ApiError> {
        object_meta::ensure_namespace(&mut body, served, &call.info.namespace)?;
        let mut attributes = Attributes {
            user: &call.user,
            operation: Operation::Create,
            resource: &served.resource,
            subresource: &call.info.subresource,
            namespace: &call.info.namespace,
            name: &call.info.name,
            object: body,
            old: Value::Null,
            dry_run: options.dry_run,
            options: options.to_value("CreateOptions"),
            warnings: Vec::new(),
        };
        self.admission.admit(&mut attributes).await?;
        complete(&mut attributes.object)?;
        self.admission.validate(&mut attributes).await?;
        attributes.warnings.iter().for_each(|w| call.warn(w));
        Ok(attributes.object)
    }

    /// `pods/NAME/binding`: the scheduler's decision.
    pub(super) async fn bind(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let options = WriteOptions::from_query(call, "CreateOptions")?;
        let binding = self.decode_as(call, body, "", "v1", "Binding")?;
        let name = object_meta::text(&binding, "name");
        if name != call.info.name {
            return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
        }
        let binding = self.admit_body(call, served, &options, binding).await?;
        self.bind_pod(call, served, &binding, &options).await
    }

    /// For a Binding that admission has seen.
    pub(super) async fn bind_pod(
        &self,
        call: &Call,
        served: &Arc<Served>,
        binding: &Value,
        options: &WriteOptions,
    ) -> Result<Reply, ApiError> {
        let target = binding["target"]["name"].as_str().unwrap_or_default().to_string();
        let mut errors = api::field::ErrorList::new();
        api::kinds::pod_update::validate_binding(&mut errors, binding);
        if !errors.is_empty() {
            // Upstream makes no kind of error of them.
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let message = if all.len() == 1 { all[0].clone() } else { format!("[{}]", all.join(", ")) };
            return Err(ApiError::new(Reason::Unknown, message));
        }
        let name = call.info.name.as_str();
        let now = object_meta::timestamp(self.cluster.env.now());
        let transform = |old: &Value| {
            let conflict = |why: String| Err(ApiError::conflict("", "pods/binding", name, &why));
            for (field, title) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
                let (wanted, found) = (object_meta::text(binding, field), object_meta::text(old, field));
                if !wanted.is_empty() && wanted != found {
                    return conflict(format!(
                        "Precondition failed: {title} in precondition: {wanted}, {title} in object meta: {found}"
                    ));
                }
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
            for field in ["annotations", "labels"] {
                for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
                    new["metadata"][field][key] = value.clone();
                }
            }
            // Room is made for it no longer: it has its place.
            if let Some(status) = new["status"].as_object_mut() {
                status.remove("nominatedNodeName");
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
            shown: AdmissionView::Nothing,
        };
        self.change(&change).await?;
        Ok(Reply::Value(StatusCode::CREATED, created()))
    }

    async fn token(&self, call: &Call, served: &Arc<Served>, body: &[u8]) -> Result<Reply, ApiError> {
        let options = WriteOptions::from_query(call, "CreateOptions")?;
        let mut request = self.decode_as(call, body, "authentication.k8s.io", "v1", "TokenRequest")?;
        let account = self.get_object(call, served).await?;
        let max = self.config.service_accounts.max_token_expiration.as_secs() as i64;
        let keys = &self.tokens.keys;
        token_request::default_expiration(&mut request);
        let checks_uid = self.config.feature_gates.enabled(TOKEN_REQUEST_SERVICE_ACCOUNT_UID_VALIDATION);
        let complete =
            |request: &mut Value| token_request::complete(&self.cluster, keys, &account, checks_uid, request);
        let request = self.admit_completed(call, served, &options, request, complete).await?;
        let (answer, warning) = token_request::issue(&self.cluster, keys, max, &account, request).await?;
        warning.into_iter().for_each(|w| call.warn(w));
        Ok(Reply::Value(StatusCode::CREATED, answer))
    }
}

pub(super) fn created() -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201 })
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
