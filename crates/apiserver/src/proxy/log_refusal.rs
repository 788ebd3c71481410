//! A kubelet's answer that is no log, as the Status that clients understand.
//! Used by `streaming`, for logs only: what other subresources answer is passed on as it is.
//! Reads no more of the answer than a message may have.

use api::{ApiError, Reason};
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::request::{
    body::{self, BoxError},
    call::Call,
};

const TEXT_BYTES_MAX: usize = 50_000;

pub async fn status_of(call: &Call, response: Response<Incoming>) -> ApiError {
    let code = response.status().as_u16();
    let whole = response.into_body().map_err(|e| Box::new(e) as BoxError).boxed_unsync();
    let text = body::read_all(whole, TEXT_BYTES_MAX).await.unwrap_or_default();
    as_status(code, &String::from_utf8_lossy(&text), &call.info.name)
}

fn as_status(code: u16, text: &str, pod: &str) -> ApiError {
    let place = format!("( pods/log {pod})");
    match code {
        400 => ApiError::bad_request(text),
        404 => ApiError::new(Reason::NotFound, format!("the server could not find the requested resource {place}")),
        500 => ApiError::internal(text),
        503 => ApiError::new(Reason::ServiceUnavailable, format!("{text} {place}")),
        _ => ApiError::new(
            Reason::InternalError,
            format!("an error on the server ({text:?}) has prevented the request from succeeding {place}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelets_refusal_is_a_status() {
        let check = |code: u16, wanted: (Reason, &str)| {
            let error = as_status(code, "no such log", "web");
            assert_eq!((error.reason, error.message.as_str()), wanted, "{code}");
        };
        check(400, (Reason::BadRequest, "no such log"));
        check(404, (Reason::NotFound, "the server could not find the requested resource ( pods/log web)"));
        check(500, (Reason::InternalError, "Internal error occurred: no such log"));
        check(503, (Reason::ServiceUnavailable, "no such log ( pods/log web)"));
    }
}
