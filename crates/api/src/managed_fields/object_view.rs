//! The bytes of an object as components read it: without `metadata.managedFields`.
//! Used by `Object::typed`. Nobody in the process reads who wrote which field, and as nested maps it would take more
//! room than all the rest of a pod; a server keeps what it knows when an update says nothing about it.
//! Bytes that are not as expected are left as they are.

use std::{borrow::Cow, ops::Range};

pub fn without_managed_fields(json: &[u8]) -> Cow<'_, [u8]> {
    match managed_fields(json) {
        Some(cut) => Cow::Owned([&json[..cut.start], &json[cut.end..]].concat()),
        None => Cow::Borrowed(json),
    }
}

/// The field with one of the commas beside it.
fn managed_fields(json: &[u8]) -> Option<Range<usize>> {
    let (_, metadata) = field(json, skip_space(json, 0), b"metadata")?;
    let (start, value) = field(json, metadata.start, b"managedFields")?;
    let next = skip_space(json, value.end);
    if json.get(next) == Some(&b',') {
        return Some(start..next + 1);
    }
    let before = json[..start].iter().rposition(|byte| !byte.is_ascii_whitespace())?;
    Some(if json[before] == b',' { before..value.end } else { start..value.end })
}

/// Where a field of the object that begins at `at` begins, and its value.
fn field(json: &[u8], at: usize, name: &[u8]) -> Option<(usize, Range<usize>)> {
    let mut at = (json.get(at)? == &b'{').then_some(at + 1)?;
    loop {
        let start = skip_space(json, at);
        let end = skip_string(json, start)?;
        let colon = skip_space(json, end);
        let value = (json.get(colon)? == &b':').then(|| skip_space(json, colon + 1))?;
        let value = value..skip_value(json, value)?;
        if &json[start + 1..end - 1] == name {
            return Some((start, value));
        }
        let comma = skip_space(json, value.end);
        at = (json.get(comma)? == &b',').then_some(comma + 1)?;
    }
}

fn skip_space(json: &[u8], at: usize) -> usize {
    at + json[at.min(json.len())..].iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

fn skip_string(json: &[u8], at: usize) -> Option<usize> {
    let mut at = (json.get(at)? == &b'"').then_some(at + 1)?;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn skip_value(json: &[u8], at: usize) -> Option<usize> {
    let (mut at, mut depth) = (at, 0usize);
    loop {
        match json.get(at)? {
            b'"' => at = skip_string(json, at)?,
            b'{' | b'[' => (at, depth) = (at + 1, depth + 1),
            b'}' | b']' => (at, depth) = (at + 1, depth.checked_sub(1)?),
            _ => at += 1,
        }
        let ends = matches!(json.get(at), None | Some(b',' | b'}' | b']'));
        if depth == 0 && (ends || matches!(json[at - 1], b'"' | b'}' | b']')) {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_field_itself_goes() {
        let check = |json: &str, expected: &str| {
            let found = without_managed_fields(json.as_bytes());
            assert_eq!(String::from_utf8_lossy(&found), expected, "{json}");
        };
        let same = |json: &str| check(json, json);
        let fields = r#""managedFields":[{"fieldsV1":{"f:a":{},"k:{\"name\":\"]}\"}":{}},"time":"t"}]"#;
        check(
            &format!(r#"{{"kind":"Pod","metadata":{{"name":"a",{fields}}},"spec":{{}}}}"#),
            r#"{"kind":"Pod","metadata":{"name":"a"},"spec":{}}"#,
        );
        check(&format!(r#"{{"metadata":{{{fields},"name":"a"}}}}"#), r#"{"metadata":{"name":"a"}}"#);
        check(&format!(r#"{{"metadata":{{{fields}}}}}"#), r#"{"metadata":{}}"#);
        check(
            &format!("{{ \"a\" : -1.5e3 , \"metadata\" : {{ \"n\" : null , {fields} }} }}"),
            "{ \"a\" : -1.5e3 , \"metadata\" : { \"n\" : null  } }",
        );
        same(r#"{"metadata":{"name":"a","labels":{"managedFields":"x"}},"spec":{"managedFields":[1]}}"#);
        same(&format!(r#"{{"spec":{{{fields}}}}}"#));
        for broken in
            ["", "{", "[]", r#"{"metadata""#, r#"{"metadata":{"managedFields":["#, r#"{"a\"#, "nul", r#"{"a":]}"#]
        {
            same(broken);
        }
    }
}
