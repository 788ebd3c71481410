//! Answers and errors in the form that clients of registries expect.
//! Made by `handler`.

use std::io;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full, combinators::UnsyncBoxBody};
use serde_json::{Value, json};

pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The codes of the specification, with what to say.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("blob unknown to registry")]
    BlobUnknown,
    #[error("blob upload unknown to registry")]
    UploadUnknown,
    #[error("blob upload invalid: {0}")]
    UploadInvalid(String),
    #[error("chunk out of order: the upload has {0} bytes")]
    RangeInvalid(u64),
    #[error("provided digest did not match uploaded content")]
    DigestInvalid,
    #[error("manifest unknown to registry")]
    ManifestUnknown,
    #[error("manifest invalid: {0}")]
    ManifestInvalid(String),
    #[error("manifest references {0}, which is unknown to registry: push it first")]
    ManifestBlobUnknown(String),
    #[error("invalid repository name or reference")]
    NameInvalid,
    #[error("repository name not known to registry")]
    NameUnknown,
    #[error("requested access to the resource is denied: {0}")]
    Denied(&'static str),
    #[error("the operation is unsupported")]
    Unsupported,
    #[error("no such page")]
    NotFound,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Problem {
    fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::BlobUnknown => (StatusCode::NOT_FOUND, "BLOB_UNKNOWN"),
            Self::UploadUnknown => (StatusCode::NOT_FOUND, "BLOB_UPLOAD_UNKNOWN"),
            Self::UploadInvalid(_) => (StatusCode::BAD_REQUEST, "BLOB_UPLOAD_INVALID"),
            Self::RangeInvalid(_) => (StatusCode::RANGE_NOT_SATISFIABLE, "BLOB_UPLOAD_INVALID"),
            Self::DigestInvalid => (StatusCode::BAD_REQUEST, "DIGEST_INVALID"),
            Self::ManifestUnknown => (StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN"),
            Self::ManifestInvalid(_) => (StatusCode::BAD_REQUEST, "MANIFEST_INVALID"),
            Self::ManifestBlobUnknown(_) => (StatusCode::NOT_FOUND, "MANIFEST_BLOB_UNKNOWN"),
            Self::NameInvalid => (StatusCode::BAD_REQUEST, "NAME_INVALID"),
            Self::NameUnknown => (StatusCode::NOT_FOUND, "NAME_UNKNOWN"),
            Self::Denied(_) => (StatusCode::FORBIDDEN, "DENIED"),
            Self::Unsupported => (StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED"),
            Self::NotFound => (StatusCode::NOT_FOUND, "UNSUPPORTED"),
            Self::Io(error) if error.kind() == io::ErrorKind::StorageFull => {
                (StatusCode::INSUFFICIENT_STORAGE, "UNKNOWN")
            }
            Self::Io(_) => (StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN"),
        }
    }

    pub fn answer(&self) -> Response<Body> {
        let (status, code) = self.code();
        if status.is_server_error() {
            tracing::error!(error = %self, "a request to the registry failed");
        }
        let errors = json!({ "errors": [{ "code": code, "message": self.to_string() }] });
        json_answer(status, &errors)
    }
}

pub fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    let mut answer = bytes_answer(status, Bytes::from(value.to_string()));
    set(&mut answer, header::CONTENT_TYPE, "application/json");
    answer
}

pub fn bytes_answer(status: StatusCode, bytes: Bytes) -> Response<Body> {
    let length = bytes.len();
    let mut answer = body_answer(status, Full::new(bytes).map_err(|never| match never {}).boxed_unsync());
    set(&mut answer, header::CONTENT_LENGTH, &length.to_string());
    answer
}

pub fn empty_answer(status: StatusCode) -> Response<Body> {
    body_answer(status, Empty::new().map_err(|never| match never {}).boxed_unsync())
}

pub fn body_answer(status: StatusCode, body: Body) -> Response<Body> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert("docker-distribution-api-version", HeaderValue::from_static("registry/2.0"));
    answer
}

/// A header whose value is ours, and so is one that can be sent.
pub fn set(answer: &mut Response<Body>, name: impl http::header::IntoHeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        answer.headers_mut().insert(name, value);
    }
}
