//! Bodies of requests and responses, over sockets and in process alike.
//! Used by every handler; `server` adapts hyper's own body to it.
//! A body is never read without a limit.

use bytes::{Bytes, BytesMut};
use futures::{Stream, TryStreamExt};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};

use api::{ApiError, Reason};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub fn empty() -> Body {
    full(Bytes::new())
}

pub fn stream(chunks: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static) -> Body {
    StreamBody::new(chunks.map_ok(Frame::data)).boxed_unsync()
}

/// The body, with something that lives exactly as long.
pub fn with_companion(body: Body, companion: impl Send + 'static) -> Body {
    let mut companion = Some(companion);
    // Kept by the closure: it goes when the body does.
    body.map_frame(move |frame| {
        let _ = &mut companion;
        frame
    })
    .boxed_unsync()
}

/// Objects and arrays in one JSON body. Each takes hundreds of times its two bytes when it is parsed, so this limits what
/// a body weighs then; the YAML reader has the same limit of its own.
const JSON_CONTAINERS_MAX: usize = 250_000;

/// Refuses a JSON body that would weigh out of all proportion to its size.
pub fn refuse_dense(body: &[u8]) -> Result<(), ApiError> {
    // Each has an opening and a closing bracket.
    let small = body.len() <= 2 * JSON_CONTAINERS_MAX;
    if small || !matches!(body.trim_ascii_start().first(), Some(b'{' | b'[')) || containers(body) <= JSON_CONTAINERS_MAX
    {
        return Ok(());
    }
    let message = format!("Request entity too large: limit is {JSON_CONTAINERS_MAX} objects and arrays");
    Err(ApiError::new(Reason::RequestEntityTooLarge, message))
}

/// How many objects and arrays a JSON text opens, outside of its strings.
fn containers(json: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (0, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

/// Beyond this, a client that sends too much is cut off before it is answered.
const DISCARD_BYTES_MAX: usize = 64 << 20;

/// Reads the rest for nothing: most clients look for an answer only once they have sent everything.
async fn discard(mut body: Body) {
    let mut seen = 0;
    while seen < DISCARD_BYTES_MAX {
        match body.frame().await {
            Some(Ok(frame)) => seen += frame.data_ref().map_or(0, Bytes::len),
            _ => return,
        }
    }
}

/// The whole body, or the error a client gets when it is longer than `limit` or breaks off.
pub async fn read_all(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    read_counted(body, limit, |_| Ok(())).await
}

/// The same; `count` is told of bytes that have arrived, and may refuse them.
pub async fn read_counted(
    mut body: Body,
    limit: usize,
    mut count: impl FnMut(usize) -> Result<(), ApiError>,
) -> Result<Bytes, ApiError> {
    let too_large =
        || ApiError::new(Reason::RequestEntityTooLarge, format!("Request entity too large: limit is {limit}"));
    if body.size_hint().lower() > limit as u64 {
        discard(body).await;
        return Err(too_large());
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ApiError::bad_request(format!("error reading the request body: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            discard(body).await;
            return Err(too_large());
        }
        count(data.len())?;
        // Most bodies come in one piece and need no copy.
        match first.is_empty() {
            true => first = data,
            false => rest.extend_from_slice(&data),
        }
    }
    if rest.is_empty() {
        return Ok(first);
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_too_many_objects_are_refused() {
        assert_eq!(containers(br#"{"a":[{},{"b":"{[\"{[\\"}],"{":[]}"#), 5);
        let check =
            |body: String, fine: bool| assert_eq!(refuse_dense(body.as_bytes()).is_ok(), fine, "{}", body.len());
        let many = |item: &str, count: usize| format!("[{}0]", item.repeat(count));
        check(many("{},", JSON_CONTAINERS_MAX - 1), true);
        check(many("{},", JSON_CONTAINERS_MAX), false);
        check(many(r#""{{{{{{{{","#, JSON_CONTAINERS_MAX), true);
        check(many("- {}\n", JSON_CONTAINERS_MAX).replace('[', ""), true);
        assert_eq!(refuse_dense(many("{},", JSON_CONTAINERS_MAX).as_bytes()).unwrap_err().code, 413);
    }
}
