//! Paths and queries of the API.
//! Used by `rest` and `resource`.
//! Pure.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const SEGMENT: &AsciiSet = &QUERY.remove(b':').remove(b'@').remove(b'$').remove(b'&').remove(b'+').remove(b'=');

/// As Go's `url.Values.Encode` writes it.
pub fn query_escape(text: &str) -> String {
    utf8_percent_encode(text, QUERY).to_string().replace("%20", "+")
}

pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// `/api/v1` or `/apis/apps/v1`.
pub fn group_version(group: &str, version: &str) -> String {
    match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    }
}
