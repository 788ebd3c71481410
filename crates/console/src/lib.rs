//! The console's files, and the answers that carry them.
//! Shown by the API server at `/console/`; `assets.rs` is the table of files, `assets/` has the page itself.
//! Holds no data of any cluster: the page asks the API for that, as whoever signed in.

mod assets;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};

use crate::assets::Asset;

/// Where the page is, with the slash that its relative links need.
pub const ROOT: &str = "/console/";

/// Nothing from elsewhere, nothing inline, nobody may frame it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const HEADERS: &[(&str, &str)] = &[
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
    // Asked again every time, which the tag makes cheap: a page never mixes files of two versions.
    ("cache-control", "no-cache"),
    ("vary", "Accept-Encoding"),
];

/// The answer to a request below `/console`, if a file is meant. Whatever else it may be is for others to say.
pub fn respond(method: &Method, path: &str, headers: &HeaderMap) -> Option<Response<Bytes>> {
    if path == ROOT.trim_end_matches('/') {
        let mut response = answer(StatusCode::MOVED_PERMANENTLY, Bytes::new());
        response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(ROOT));
        return Some(response);
    }
    let asset = assets::find(path.strip_prefix(ROOT)?)?;
    if method != Method::GET && method != Method::HEAD {
        let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, Bytes::new());
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(response);
    }
    Some(file(asset, headers))
}

fn file(asset: &'static Asset, headers: &HeaderMap) -> Response<Bytes> {
    let compressed = accepts_gzip(headers);
    let mut response = match is_known(headers, &asset.tag) {
        true => answer(StatusCode::NOT_MODIFIED, Bytes::new()),
        false => answer(StatusCode::OK, Bytes::from_static(if compressed { &asset.gzip } else { asset.content })),
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, asset.tag.clone());
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.media_type));
    if compressed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn answer(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Whether the client has this version. The tag is weak, since both encodings share it.
fn is_known(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let opaque = |text: &str| text.trim().trim_start_matches("W/").to_string();
    let own = tag.to_str().map(opaque).unwrap_or_default();
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    known.flat_map(|value| value.split(',')).any(|value| value.trim() == "*" || opaque(value) == own)
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = parameters.trim().strip_prefix("q=").is_some_and(|q| q.trim().parse() == Ok(0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}
