//! Kinds that are asked, not stored: access and token reviews, and the old binding and component status.
//! Part of `registry`.
//! Writes nothing, except that a Binding binds its pod.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use api::{
    ApiError,
    field::{ErrorList, Path},
    kinds::Handler,
    schema::go_form,
};

use super::{Registry, managed, not_found_path, object_meta, options::WriteOptions, timestamp};
use crate::{
    authn::User,
    authz::{Attributes, Decision, selectors::Selector},
    discovery::served::Served,
    handlers::respond::{ListReply, Reply},
    request::call::Call,
    server::component_health::COMPONENTS,
    storage,
};

impl Registry {
    pub(super) async fn review(&self, call: &Call, served: &Arc<Served>, body: Bytes) -> Result<Reply, ApiError> {
        let options = WriteOptions::from_query(call, "CreateOptions")?;
        let handler = served.behavior.handler();
        if handler == Handler::ComponentStatus {
            return self.component_statuses(call, served).await;
        }
        let mut review = self.decode(call, served, &body, &options)?;
        object_meta::set_type(&mut review, served);
        object_meta::metadata_mut(&mut review);
        object_meta::ensure_namespace(&mut review, served, &call.info.namespace)?;
        if handler != Handler::Binding {
            managed::track(served, None, &mut review, &options, "", self.cluster.env.now());
        }
        if matches!(
            handler,
            Handler::SelfSubjectAccessReview | Handler::SubjectAccessReview | Handler::LocalSubjectAccessReview
        ) {
            validate_access(&review, handler)?;
        }
        let status = match handler {
            Handler::SelfSubjectReview => {
                review["metadata"] = json!({ "creationTimestamp": timestamp(self.cluster.env.now()) });
                json!({ "userInfo": call.user.info() })
            }
            Handler::TokenReview => self.review_token(&review).await?,
            Handler::SelfSubjectAccessReview => self.review_access(&review, call.user.clone()).await?,
            Handler::SubjectAccessReview | Handler::LocalSubjectAccessReview => {
                self.review_access(&review, spec_user(&review)).await?
            }
            Handler::SelfSubjectRulesReview => {
                let namespace = review["spec"]["namespace"].as_str().unwrap_or_default();
                if namespace.is_empty() {
                    return Err(ApiError::bad_request("no namespace on request"));
                }
                let status = self.review_rules(&call.user, namespace).await;
                // The answer is a document of its own, as upstream's.
                (review["metadata"], review["spec"]) = (json!({}), json!({}));
                status
            }
            Handler::Binding => {
                let pods = self.cluster.served.find("", "v1", "pods").ok_or_else(not_found_path)?;
                let mut pod_call_info = call.info.clone();
                pod_call_info.name = object_meta::text(&review, "name").to_string();
                let named = call.with_info(pod_call_info);
                let binding = self.admit_body(&named, served, &options, review).await?;
                return self.bind_pod(&named, &pods, &binding, &options).await;
            }
            Handler::Storage | Handler::ComponentStatus => return Err(not_found_path()),
        };
        review["status"] = status;
        Ok(Reply::Value(StatusCode::CREATED, review))
    }

    async fn review_token(&self, review: &Value) -> Result<Value, ApiError> {
        let token = review["spec"]["token"].as_str().unwrap_or_default();
        if token.is_empty() {
            return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
        }
        let wanted: Vec<String> = review["spec"]["audiences"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|a| a.as_str().map(str::to_string))
            .collect();
        Ok(match self.authentication.review(token, &wanted).await {
            Ok(believed) => json!({
                "authenticated": true, "user": believed.user.info(), "audiences": believed.audiences,
            }),
            Err(_) => json!({ "user": {}, "error": "invalid bearer token" }),
        })
    }

    async fn review_access(&self, review: &Value, user: User) -> Result<Value, ApiError> {
        let spec = &review["spec"];
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let of = |v: &Value, field: &str| v[field].as_str().unwrap_or_default().to_string();
        // Refused before where they cannot be read.
        let [field_selector, label_selector] = [Selector::Field, Selector::Label]
            .map(|which| which.text(&resource[which.field_name()], &Path::default(), &mut ErrorList::new()));
        let attributes = match resource.is_object() {
            true => Attributes {
                user,
                is_resource: true,
                verb: of(resource, "verb").as_str().into(),
                group: of(resource, "group"),
                version: of(resource, "version"),
                resource: of(resource, "resource"),
                subresource: of(resource, "subresource"),
                namespace: of(resource, "namespace"),
                name: of(resource, "name"),
                field_selector,
                label_selector,
                ..Attributes::default()
            },
            false => Attributes {
                user,
                verb: of(path, "verb").as_str().into(),
                path: of(path, "path"),
                ..Attributes::default()
            },
        };
        let (allowed, denied, reason) = match self.authorizer.authorize(&attributes).await {
            Decision::Allow(reason) => (true, false, reason),
            Decision::Deny(reason) => (false, true, reason),
            Decision::NoOpinion(reason) => (false, false, reason),
        };
        let mut status = json!({ "allowed": allowed });
        if denied {
            status["denied"] = true.into();
        }
        if !reason.is_empty() {
            status["reason"] = reason.into();
        }
        Ok(status)
    }

    async fn review_rules(&self, user: &User, namespace: &str) -> Value {
        let rules = self.authorizer.rules(user, namespace).await;
        let mut status = json!({ "resourceRules": rules.resources, "nonResourceRules": rules.paths, "incomplete": rules.incomplete });
        if !rules.error.is_empty() {
            status["evaluationError"] = rules.error.into();
        }
        status
    }
}

fn spec_user(review: &Value) -> User {
    let spec = &review["spec"];
    let texts = |v: &Value| v.as_array().into_iter().flatten().filter_map(|t| t.as_str().map(str::to_string)).collect();
    User {
        name: spec["user"].as_str().unwrap_or_default().to_string(),
        uid: spec["uid"].as_str().unwrap_or_default().to_string(),
        groups: texts(&spec["groups"]),
        extra: spec["extra"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), texts(v))).collect(),
    }
}

/// An access review must ask one question, of somebody, and be nothing else. Upstream's error names no kind.
fn validate_access(review: &Value, handler: Handler) -> Result<(), ApiError> {
    let mut errors = ErrorList::new();
    let (spec, path) = (&review["spec"], Path::new("spec"));
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let text = |value: &Value| Value::from(value.as_str().unwrap_or_default());
    let shown = || format!("{{\"Path\":{},\"Verb\":{}}}", text(&other["path"]), text(&other["verb"]));
    match (resource.is_object(), other.is_object()) {
        (true, true) => errors.invalid_shown(
            &path.child("nonResourceAttributes"),
            shown(),
            "cannot be specified in combination with resourceAttributes",
        ),
        (false, false) => errors.invalid(
            &path.child("resourceAttributes"),
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        _ => {}
    }
    let user = spec_user(review);
    if handler != Handler::SelfSubjectAccessReview && user.name.is_empty() && user.groups.is_empty() {
        errors.invalid(&path.child("user"), "", "at least one of user or group must be specified");
    }
    let of_resource = path.child("resourceAttributes");
    for which in [Selector::Field, Selector::Label] {
        let name = which.field_name();
        which.text(&resource[name], &of_resource.child(name), &mut errors);
    }
    let is_local = handler == Handler::LocalSubjectAccessReview;
    let mut metadata = review["metadata"].clone();
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("managedFields");
        if is_local {
            fields.remove("namespace");
        }
    }
    if metadata.as_object().is_some_and(|fields| !fields.is_empty()) {
        let why = if is_local { "must be empty except for namespace" } else { "must be empty" };
        // The error names no kind by which its form would be known.
        let shown = go_form::shown("authorization.k8s.io", "SubjectAccessReview", "metadata", &review["metadata"]);
        errors.invalid_shown(&Path::new("metadata"), shown.unwrap_or_default(), why);
    }
    if is_local {
        if resource.is_object() && text(&resource["namespace"]) != text(&review["metadata"]["namespace"]) {
            let why = "must match metadata.namespace";
            errors.invalid(&of_resource.child("namespace"), text(&resource["namespace"]), why);
        }
        if other.is_object() {
            let why = "disallowed on this kind of request";
            errors.invalid_shown(&path.child("nonResourceAttributes"), shown(), why);
        }
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(ApiError::invalid("authorization.k8s.io", "", "", errors)),
    }
}

impl Registry {
    /// Deprecated, and made anew for every question.
    async fn component_statuses(&self, call: &Call, served: &Arc<Served>) -> Result<Reply, ApiError> {
        let status = |name: &'static str| async move {
            let condition = match self.config.component_health.ask(&self.cluster, name).await {
                Ok(()) => json!({ "type": "Healthy", "status": "True", "message": "ok" }),
                Err(error) => json!({ "type": "Healthy", "status": "False", "error": error }),
            };
            let status = json!({ "kind": served.kind, "apiVersion": served.api_version(), "metadata": { "name": name }, "conditions": [condition] });
            storage::decode(&storage::encode(&status), 0).map(Arc::new)
        };
        let asked = call.info.name.as_str();
        if asked.is_empty() {
            let objects = futures::future::try_join_all(COMPONENTS.map(status)).await?;
            let served = served.clone();
            return Ok(Reply::List(ListReply { served, objects, revision: 0, next: None, remaining: None }));
        }
        let known = COMPONENTS.into_iter().find(|name| *name == asked);
        let known = known.ok_or_else(|| ApiError::not_found(&served.group, &served.plural, asked))?;
        Ok(Reply::Object(StatusCode::OK, served.clone(), status(known).await?))
    }
}
