//! Large answers compressed for clients that accept it.
//! Called by `pipeline` on every answer.
//! Never holds back a watch, and never touches what callers in this process get.

use std::io::Write;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures::stream;
use http::{HeaderValue, Response, header};
use http_body::Body as _;
use http_body_util::BodyExt;

use api::feature_gates::{API_RESPONSE_COMPRESSION, FeatureGates};

use crate::{
    handlers::respond::TotalBytes,
    request::{
        body::{self, Body, BoxError},
        call::Call,
    },
};

/// Smaller answers are not worth it; upstream's threshold.
const COMPRESSED_BYTES_MIN: u64 = 128 << 10;

pub fn compress(call: &Call, gates: &FeatureGates, response: &mut Response<Body>) {
    let accepted = call.header(header::ACCEPT_ENCODING).split(',').any(|e| e.trim() == "gzip");
    // A list that goes out in pieces tells its size apart; a watch has none, and must not be buffered.
    let pieces = response.extensions().get::<TotalBytes>().map(|TotalBytes(bytes)| *bytes);
    let large = pieces.unwrap_or_else(|| response.body().size_hint().lower()) > COMPRESSED_BYTES_MIN;
    let plain = response.status().is_success() && !response.headers().contains_key(header::CONTENT_ENCODING);
    if !accepted || !large || !plain || call.in_process || !gates.enabled(API_RESPONSE_COMPRESSION) {
        return;
    }
    let whole = std::mem::replace(response.body_mut(), body::empty());
    let encoder = GzEncoder::new(Vec::with_capacity(64 << 10), Compression::fast());
    let chunks = stream::unfold((whole, Some(encoder)), |(mut whole, encoder)| async move {
        let mut encoder = encoder?;
        loop {
            match whole.frame().await {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    if let Err(e) = encoder.write_all(&data) {
                        return Some((Err(Box::new(e) as BoxError), (whole, None)));
                    }
                    if encoder.get_ref().len() >= 32 << 10 {
                        let chunk: Bytes = std::mem::take(encoder.get_mut()).into();
                        return Some((Ok(chunk), (whole, Some(encoder))));
                    }
                }
                Some(Err(e)) => return Some((Err(e), (whole, None))),
                None => {
                    let last = encoder.finish().map(Bytes::from).map_err(|e| Box::new(e) as BoxError);
                    return Some((last, (whole, None)));
                }
            }
        }
    });
    *response.body_mut() = body::stream(chunks);
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
}
