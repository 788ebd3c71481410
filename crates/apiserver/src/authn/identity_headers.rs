//! Headers that say who somebody is: `Impersonate-*`, and those of a proxy in front.
//! Read by `impersonation` and by the front proxy's row in `x509`.
//! A header that is there is read or refused, never taken as absent.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use api::ApiError;

/// UTF-8, as upstream's clients send names that are not ASCII.
fn text<'a>(name: &str, value: &'a HeaderValue) -> Result<&'a str, ApiError> {
    std::str::from_utf8(value.as_bytes())
        .map_err(|_| ApiError::bad_request(format!("invalid header {name:?}: must be valid UTF-8")))
}

/// Every value of a header, in order.
pub fn values(headers: &HeaderMap, name: &str) -> Result<Vec<String>, ApiError> {
    headers.get_all(name).iter().map(|value| text(name, value).map(str::to_string)).collect()
}

/// The extra fields of a user: every header that begins with `prefix`, by the key that follows it.
pub fn extra(headers: &HeaderMap, prefix: &str) -> Result<BTreeMap<String, Vec<String>>, ApiError> {
    let prefix = prefix.to_ascii_lowercase();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in headers.keys() {
        if let Some(encoded) = name.as_str().strip_prefix(&prefix) {
            extra.entry(unescape(name, encoded)?).or_default().extend(values(headers, name.as_str())?);
        }
    }
    Ok(extra)
}

/// A key that is not percent-encoded properly is taken as it is written, as upstream takes it.
fn unescape(name: &HeaderName, encoded: &str) -> Result<String, ApiError> {
    let is_escape = |digits: &str| digits.as_bytes().iter().take(2).filter(|b| b.is_ascii_hexdigit()).count() == 2;
    if !encoded.split('%').skip(1).all(is_escape) {
        return Ok(encoded.to_string());
    }
    let decoded = percent_decode_str(encoded).decode_utf8();
    let invalid = |_| ApiError::bad_request(format!("invalid header {:?}: must be valid UTF-8", name.as_str()));
    decoded.map(String::from).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_extra_fields_are_unescaped_and_joined() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("x-a%2fb", "1"), ("x-a%2Fb", "2"), ("x-a/b", "3"), ("x-100%", "4"), ("other", "5")] {
            let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
            headers.append(name, HeaderValue::from_static(value));
        }
        let found = extra(&headers, "X-").unwrap();
        let expected = [("100%", vec!["4"]), ("a/b", vec!["1", "2"])];
        let expected = expected.map(|(key, values)| (key.to_string(), values.into_iter().map(String::from).collect()));
        assert_eq!(found, BTreeMap::from(expected));
        headers.append(HeaderName::from_static("x-%ff"), HeaderValue::from_static("6"));
        assert_eq!(extra(&headers, "X-").unwrap_err().code, 400);
    }
}
