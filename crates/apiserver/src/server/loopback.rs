//! Requests of the API server to itself: bootstrap objects, the status of definitions, whatever its own loops write.
//! Used by the rows of `post_start_hooks` and by admission plugins that write.
//! Takes the whole pipeline, as `system:apiserver` in `system:masters`, as upstream's loopback client does; nobody else
//! can have that identity, since no credential is made for it.

use std::sync::{Arc, OnceLock, Weak};

use http::{Method, Request, header};
use serde_json::Value;

use api::ApiError;

use crate::{authn::User, request::body, server::pipeline::ApiServer};

/// Who the server itself is.
pub const USER: &str = "system:apiserver";
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// The server, for those that are made before it.
#[derive(Clone, Default)]
pub struct Loopback(Arc<OnceLock<Weak<ApiServer>>>);

impl Loopback {
    pub fn connect(&self, server: &Arc<ApiServer>) {
        // Only the first counts, and there is only one.
        let _ = self.0.set(Arc::downgrade(server));
    }

    pub async fn send(&self, method: Method, path: &str, object: &Value) -> Result<Value, ApiError> {
        let server =
            self.0.get().and_then(Weak::upgrade).ok_or_else(|| ApiError::internal("the server is not there"))?;
        send(&server, method, path, object).await
    }
}

pub async fn send(server: &Arc<ApiServer>, method: Method, path: &str, object: &Value) -> Result<Value, ApiError> {
    let body = if object.is_null() { body::empty() } else { body::full(object.to_string()) };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, "kube-apiserver")
        .body(body)
        .map_err(|e| ApiError::internal(e.to_string()))?;
    let user = User::new(USER, &["system:masters"]);
    // Boxed: the pipeline may end here again.
    let response = Box::pin(server.handle(ApiServer::in_process_request(user, request))).await;
    let status = response.status();
    let media_type = response.headers().get(header::CONTENT_TYPE);
    let is_json = media_type.is_some_and(|value| value.as_bytes().starts_with(b"application/json"));
    let bytes = body::read_all(response.into_body(), ANSWER_BYTES_MAX).await?;
    match status.is_success() {
        // Health checks answer with a word.
        true if !is_json => Ok(Value::String(String::from_utf8_lossy(&bytes).into_owned())),
        true => serde_json::from_slice(&bytes).map_err(|e| ApiError::internal(format!("{path} answered no JSON: {e}"))),
        false => Err(ApiError::from_status(status.as_u16(), &bytes)),
    }
}
