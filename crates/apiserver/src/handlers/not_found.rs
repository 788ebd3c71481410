//! The answers to paths that nobody serves: a `Status` where the routes of a built-in group claim the path, plain text
//! everywhere else.
//! Used by `pipeline` and by `registry`.
//! Given only to who is allowed to ask; a stranger is refused before.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use api::ApiError;

use crate::{
    handlers::respond::{Reply, content_response},
    registry::not_found_path,
    request::body::Body,
};

/// The answer to `path`, of which is known that nothing is there.
pub fn reply(path: &str) -> Result<Reply, ApiError> {
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    match parts[..] {
        ["api" | "version", ..] => Err(not_found_path()),
        ["apis", group, ..] if api::kinds::builtin().iter().any(|r| r.group == group) => Err(not_found_path()),
        ["openapi", "v3", ..] => Ok(Reply::Raw(text(StatusCode::NOT_FOUND, ""))),
        _ => Ok(page()),
    }
}

/// What upstream's last handler says.
pub fn page() -> Reply {
    Reply::Raw(text(StatusCode::NOT_FOUND, "404 page not found\n"))
}

/// An error of a handler that speaks no `Status`.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = content_response(status, text.into(), "text/plain; charset=utf-8");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
