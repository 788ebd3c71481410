//! Conditions on a request beside its host and path: method, headers, query parameters.
//! Part of a route (`routes`); made from HTTPRoutes and GRPCRoutes, empty for Ingresses.
//! Pure (tidy: `pure_files`). A regular expression has to match the whole value.

use std::{borrow::Cow, cmp::Reverse};

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::pattern::{Pattern, PatternBudget};

/// What is looked at of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead<'a> {
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    pub query: Option<&'a str>,
    pub budget: &'a PatternBudget,
}

#[derive(Debug, Clone)]
pub enum ValueMatch {
    Exact(String),
    Pattern(Pattern),
}

impl ValueMatch {
    fn takes(&self, value: &str, budget: &PatternBudget) -> bool {
        match self {
            Self::Exact(wanted) => wanted == value,
            Self::Pattern(pattern) => pattern.takes(value, budget),
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct RequestMatch {
    pub method: Option<Method>,
    pub headers: Vec<(HeaderName, ValueMatch)>,
    pub query: Vec<(String, ValueMatch)>,
}

impl RequestMatch {
    pub fn takes(&self, head: &RequestHead<'_>) -> bool {
        self.method.as_ref().is_none_or(|wanted| wanted == head.method)
            && self.headers.iter().all(|(name, value)| header_takes(head, name, value))
            && (self.query.is_empty() || self.takes_query(head))
    }

    fn takes_query(&self, head: &RequestHead<'_>) -> bool {
        let query = head.query.unwrap_or_default();
        self.query.iter().all(|(name, wanted)| {
            // Of a parameter that is there more than once the first counts.
            let first = parameters(query).find(|(found, _)| found == name);
            first.is_some_and(|(_, value)| wanted.takes(&value, head.budget))
        })
    }

    /// Of two that take a request, the one with the smaller rank comes first.
    pub fn rank(&self) -> impl Ord + Copy {
        (self.method.is_none(), Reverse(self.headers.len()), Reverse(self.query.len()))
    }
}

/// A header that is there more than once is the list of its values.
fn header_takes(head: &RequestHead<'_>, name: &HeaderName, wanted: &ValueMatch) -> bool {
    let mut values = head.headers.get_all(name).iter().map(HeaderValue::as_bytes).map(String::from_utf8_lossy);
    let Some(first) = values.next() else { return false };
    let rest: Vec<Cow<'_, str>> = values.collect();
    match rest.is_empty() {
        true => wanted.takes(&first, head.budget),
        false => wanted.takes(&format!("{first},{}", rest.join(",")), head.budget),
    }
}

fn parameters(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    })
}

fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let (mut decoded, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let escaped = (byte == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(if byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(value: &str) -> ValueMatch {
        ValueMatch::Exact(value.into())
    }

    #[test]
    fn all_conditions_have_to_hold() {
        let wanted = RequestMatch {
            method: Some(Method::POST),
            headers: vec![
                (HeaderName::from_static("version"), exact("two")),
                (HeaderName::from_static("color"), ValueMatch::Pattern(Pattern::new("gr.*n").unwrap())),
            ],
            query: vec![
                ("animal".into(), exact("blue whale")),
                ("n".into(), ValueMatch::Pattern(Pattern::new("[0-9]+").unwrap())),
            ],
        };
        let check = |method: Method, headers: &[(&'static str, &'static str)], query: &str, expected: bool| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(*name, HeaderValue::from_static(value));
            }
            let budget = &PatternBudget::default();
            let head = RequestHead { method: &method, headers: &map, query: Some(query), budget };
            assert_eq!(wanted.takes(&head), expected, "{method} {headers:?} {query}");
        };
        let (version, color, query) = (("version", "two"), ("color", "green"), "animal=blue+whale&n=12");
        check(Method::POST, &[version, color], query, true);
        check(Method::POST, &[version, color], "n=7&x&animal=blue%20whale&animal=dolphin", true);
        check(Method::GET, &[version, color], query, false);
        check(Method::POST, &[version], query, false);
        check(Method::POST, &[version, ("color", "greenish")], query, false);
        check(Method::POST, &[version, ("version", "one"), color], query, false);
        check(Method::POST, &[version, color], "animal=blue%20whale", false);
        check(Method::POST, &[version, color], "animal=dolphin&animal=blue+whale&n=1", false);
        check(Method::POST, &[version, color], "animal=blue+whale&n=1a", false);
        check(Method::POST, &[version, color], "", false);
    }

    #[test]
    fn more_conditions_come_first_and_a_method_before_all() {
        let ranked = |method: Option<Method>, headers: usize, query: usize| RequestMatch {
            method,
            headers: vec![(HeaderName::from_static("a"), exact("b")); headers],
            query: vec![("a".into(), exact("b")); query],
        };
        let ordered = [
            ranked(Some(Method::GET), 0, 0),
            ranked(None, 2, 0),
            ranked(None, 1, 1),
            ranked(None, 1, 0),
            ranked(None, 0, 3),
        ];
        assert!(ordered.is_sorted_by(|one, other| one.rank() < other.rank()));
    }
}
