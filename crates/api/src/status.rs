//! Errors as Kubernetes clients see them: a `Status` with upstream's reason, code and words.
//! Made everywhere on the server path; written to the wire by `apiserver`; read back by `client`.
//! Every error a client receives is made here.

use serde_json::{Value, json};

use crate::{field::ErrorList, schema::go_form};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    Unknown,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Gone,
    Invalid,
    ServerTimeout,
    StoreReadError,
    Timeout,
    TooManyRequests,
    BadRequest,
    MethodNotAllowed,
    NotAcceptable,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    InternalError,
    Expired,
    ServiceUnavailable,
}

impl Reason {
    pub fn code(self) -> u16 {
        match self {
            Reason::BadRequest => 400,
            Reason::Unauthorized => 401,
            Reason::Forbidden => 403,
            Reason::NotFound => 404,
            Reason::MethodNotAllowed => 405,
            Reason::NotAcceptable => 406,
            Reason::AlreadyExists | Reason::Conflict => 409,
            Reason::Gone | Reason::Expired => 410,
            Reason::RequestEntityTooLarge => 413,
            Reason::UnsupportedMediaType => 415,
            Reason::Invalid => 422,
            Reason::TooManyRequests => 429,
            Reason::Unknown | Reason::InternalError | Reason::StoreReadError | Reason::ServerTimeout => 500,
            Reason::ServiceUnavailable => 503,
            Reason::Timeout => 504,
        }
    }

    /// The word on the wire; empty for `Unknown`.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Unknown => "",
            Reason::Unauthorized => "Unauthorized",
            Reason::Forbidden => "Forbidden",
            Reason::NotFound => "NotFound",
            Reason::AlreadyExists => "AlreadyExists",
            Reason::Conflict => "Conflict",
            Reason::Gone => "Gone",
            Reason::Invalid => "Invalid",
            Reason::ServerTimeout => "ServerTimeout",
            Reason::StoreReadError => "StorageReadError",
            Reason::Timeout => "Timeout",
            Reason::TooManyRequests => "TooManyRequests",
            Reason::BadRequest => "BadRequest",
            Reason::MethodNotAllowed => "MethodNotAllowed",
            Reason::NotAcceptable => "NotAcceptable",
            Reason::RequestEntityTooLarge => "RequestEntityTooLarge",
            Reason::UnsupportedMediaType => "UnsupportedMediaType",
            Reason::InternalError => "InternalError",
            Reason::Expired => "Expired",
            Reason::ServiceUnavailable => "ServiceUnavailable",
        }
    }

    pub fn parse(word: &str) -> Self {
        const ALL: [Reason; 19] = [
            Reason::Unauthorized,
            Reason::Forbidden,
            Reason::NotFound,
            Reason::AlreadyExists,
            Reason::Conflict,
            Reason::Gone,
            Reason::Invalid,
            Reason::ServerTimeout,
            Reason::StoreReadError,
            Reason::Timeout,
            Reason::TooManyRequests,
            Reason::BadRequest,
            Reason::MethodNotAllowed,
            Reason::NotAcceptable,
            Reason::RequestEntityTooLarge,
            Reason::UnsupportedMediaType,
            Reason::InternalError,
            Reason::Expired,
            Reason::ServiceUnavailable,
        ];
        ALL.into_iter().find(|r| r.as_str() == word).unwrap_or(Reason::Unknown)
    }
}

/// A failed request, as `metav1.Status`. Boxed inside, because most results are not errors.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .0.message)]
pub struct ApiError(Box<Failure>);

#[derive(Debug, Clone)]
pub struct Failure {
    pub code: u16,
    pub reason: Reason,
    pub message: String,
    /// `Status.details`, when there is any.
    pub details: Option<Value>,
    pub retry_after_seconds: Option<u32>,
}

impl std::ops::Deref for ApiError {
    type Target = Failure;
    fn deref(&self) -> &Failure {
        &self.0
    }
}

impl ApiError {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Failure { code: reason.code(), reason, message, details: None, retry_after_seconds: None }))
    }

    pub fn with_code(mut self, code: u16) -> Self {
        self.0.code = code;
        self
    }

    pub fn with_message_prefix(mut self, prefix: &str) -> Self {
        self.0.message.insert_str(0, prefix);
        self
    }

    pub fn with_details(mut self, details: Value) -> Self {
        self.0.details = Some(details);
        self
    }

    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.0.retry_after_seconds = Some(seconds);
        self
    }

    /// `group_resource` is upstream's `GroupResource.String()`: `pods`, `deployments.apps`.
    fn about(reason: Reason, group: &str, kind_or_resource: &str, name: &str, message: String) -> Self {
        let mut details = json!({});
        if !kind_or_resource.is_empty() {
            details["kind"] = kind_or_resource.into();
        }
        if !name.is_empty() {
            details["name"] = name.into();
        }
        if !group.is_empty() {
            details["group"] = group.into();
        }
        Self::new(reason, message).with_details(details)
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", group_resource(group, resource));
        Self::about(Reason::NotFound, group, resource, name, message)
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", group_resource(group, resource));
        Self::about(Reason::AlreadyExists, group, resource, name, message)
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", group_resource(group, resource));
        Self::about(Reason::Conflict, group, resource, name, message)
    }

    /// The conflict of an update with an old `resourceVersion`.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, resource, name, why)
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let subject = group_resource(group, resource);
        let message = match (resource, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{subject} is forbidden: {why}"),
            _ => format!("{subject} \"{name}\" is forbidden: {why}"),
        };
        Self::about(Reason::Forbidden, group, resource, name, message)
    }

    /// 422 with every cause listed. `kind` is the Go kind, as upstream prints it (`Pod`, `Deployment.apps`).
    pub fn invalid(group: &str, kind: &str, name: &str, mut errors: ErrorList) -> Self {
        errors.show_values(|path, value| go_form::shown(group, kind, &path.to_string(), value));
        let causes: Vec<Value> = errors.iter().map(|e| e.cause()).collect();
        // Said once, however many causes say it.
        let mut texts: Vec<String> = Vec::new();
        for text in errors.iter().map(ToString::to_string) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let text = match &texts[..] {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("{} \"{name}\" is invalid: {text}", group_resource(group, kind));
        let mut error = Self::about(Reason::Invalid, group, kind, name, message);
        if let Some(details) = &mut error.0.details {
            details["causes"] = causes.into();
        }
        error
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    pub fn unauthorized() -> Self {
        Self::new(Reason::Unauthorized, "Unauthorized")
    }

    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let details = json!({ "causes": [{ "message": message }] });
        Self::new(Reason::InternalError, format!("Internal error occurred: {message}")).with_details(details)
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(Reason::Expired, message)
    }

    pub fn method_not_allowed(group: &str, resource: &str, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind \"{}\"", group_resource(group, resource));
        Self::about(Reason::MethodNotAllowed, group, resource, "", message)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(Reason::TooManyRequests, message)
            .with_details(json!({ "retryAfterSeconds": retry_after_seconds }))
            .with_retry_after(retry_after_seconds)
    }

    pub fn is_not_found(&self) -> bool {
        self.reason == Reason::NotFound
    }

    pub fn is_conflict(&self) -> bool {
        self.reason == Reason::Conflict
    }

    pub fn is_already_exists(&self) -> bool {
        self.reason == Reason::AlreadyExists
    }

    /// The `metav1.Status` document.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": self.message, "code": self.code,
        });
        if self.reason != Reason::Unknown {
            status["reason"] = self.reason.as_str().into();
        }
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }

    /// Reads a `metav1.Status` back; `code` is the HTTP status it came with.
    pub fn from_status(code: u16, body: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(body).unwrap_or_default();
        let Some(message) = status["message"].as_str() else {
            // A path that nobody serves is told of in plain text.
            if code == 404 {
                return Self::new(Reason::NotFound, "the server could not find the requested resource");
            }
            let text = String::from_utf8_lossy(body);
            return Self::new(Reason::Unknown, format!("the server answered {code}: {text}")).with_code(code);
        };
        let reason = Reason::parse(status["reason"].as_str().unwrap_or_default());
        let mut error = Self::new(reason, message).with_code(code);
        error.0.details = status.get("details").cloned();
        error.0.retry_after_seconds = status["details"]["retryAfterSeconds"].as_u64().map(|s| s as u32);
        error
    }
}

/// Upstream's `GroupResource.String()` and `GroupKind.String()`.
fn group_resource(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_string() } else { format!("{resource}.{group}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_upstreams() {
        let check = |error: ApiError, code: u16, message: &str| {
            assert_eq!((error.code, error.message.as_str()), (code, message));
            let back = ApiError::from_status(code, error.to_status().to_string().as_bytes());
            assert_eq!((back.reason, &back.message), (error.reason, &error.message));
        };
        let plain = ApiError::from_status(404, b"404 page not found\n");
        assert_eq!((plain.is_not_found(), plain.code), (true, 404));
        check(ApiError::not_found("", "pods", "web"), 404, "pods \"web\" not found");
        check(ApiError::already_exists("apps", "deployments", "web"), 409, "deployments.apps \"web\" already exists");
        check(
            ApiError::modified("", "pods", "web"),
            409,
            "Operation cannot be fulfilled on pods \"web\": the object has been modified; \
             please apply your changes to the latest version and try again",
        );
        check(ApiError::forbidden("", "pods", "", "no"), 403, "pods is forbidden: no");
        check(ApiError::unauthorized(), 401, "Unauthorized");
    }
}
