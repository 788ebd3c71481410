//! One span per request, so that every line that is logged while it is handled says which request that was.
//! Opened and closed by `server::pipeline`.
//! Costs nothing where nobody listens; never holds a header, a query or a body.

use std::time::Duration;

use http::{HeaderValue, Method};
use tracing::{Span, debug_span, field::Empty, info_span};

use crate::{authn::User, request::request_info::RequestInfo};

/// Requests of this process have no audit id: whoever sends one has a span of its own around it, so theirs is opened
/// only for those who debug.
pub fn request_span(method: &Method, info: &RequestInfo, audit_id: Option<&HeaderValue>) -> Span {
    let path = info.path.as_str();
    match audit_id {
        Some(id) => {
            let audit_id = String::from_utf8_lossy(id.as_bytes());
            info_span!("request", audit_id = &*audit_id, method = method.as_str(), path, user = Empty)
        }
        None => debug_span!("request", method = method.as_str(), path, user = Empty),
    }
}

/// Names who asks, once that is known.
pub fn identified(user: &User) {
    Span::current().record("user", user.name.as_str());
}

pub fn answered(span: &Span, info: &RequestInfo, status: u16, latency: Duration) {
    let _request = span.enter();
    tracing::debug!(verb = %info.verb, status, latency_ms = latency.as_secs_f64() * 1e3, "HTTP");
}
