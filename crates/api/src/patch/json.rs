//! JSON patch (RFC 6902), with the reach and the words of the library upstream uses: indices may be negative, and every
//! failure names the operation and the path.
//! Used through `patch`.
//! A patch of more than `JSON_PATCH_OPERATIONS_MAX` is refused before any of it is done; nothing is copied beyond
//! `COPY_BYTES_MAX`, and no more than `MOVED_ITEMS_MAX` list items make room for others.

use std::{fmt, io};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::Value;

use super::unprocessable;
use crate::{
    ApiError, Reason,
    depth::{self, NESTING_DEPTH_MAX, TOO_DEEP},
};

pub const JSON_PATCH_OPERATIONS_MAX: usize = 10_000;
/// What the copies of one patch may add in total, as JSON: otherwise a short patch fills the memory. Upstream's limit.
const COPY_BYTES_MAX: usize = 3 << 20;
/// List items that the insertions and removals of one patch may move in total: ten thousand of them at the front of a
/// list that fills a request would take a minute. This many take less than a second.
const MOVED_ITEMS_MAX: usize = 20_000_000;

/// What a patch has cost so far.
#[derive(Default)]
struct Work {
    copied_bytes: usize,
    moved_items: usize,
}

impl Work {
    /// Counts the items of `list` from `at` on, which move when one is put in or taken out there.
    fn shift(&mut self, list: &[Value], at: usize) -> Result<(), String> {
        self.moved_items += list.len().saturating_sub(at);
        match self.moved_items > MOVED_ITEMS_MAX {
            true => Err(format!("the patch moves more than {MOVED_ITEMS_MAX} items of lists")),
            false => Ok(()),
        }
    }
}

#[derive(Deserialize)]
struct Operation {
    #[serde(default)]
    op: String,
    path: Option<String>,
    from: Option<String>,
    #[serde(default, deserialize_with = "present")]
    value: Option<Value>,
}

/// The operations of a patch up to the limit, and how many there are in all. Those beyond it are only counted.
struct Operations {
    kept: Vec<Operation>,
    count: usize,
}

impl<'de> Deserialize<'de> for Operations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Operations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of operations")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Operations, A::Error> {
                let mut kept = Vec::new();
                while kept.len() < JSON_PATCH_OPERATIONS_MAX
                    && let Some(operation) = items.next_element()?
                {
                    kept.push(operation);
                }
                let mut count = kept.len();
                while count >= JSON_PATCH_OPERATIONS_MAX && items.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Operations { kept, count })
            }
        }

        deserializer.deserialize_seq(List)
    }
}

/// Tells `null` from absent.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Applies `patch` (the request's body) to `doc`. Why one does not fit is not told to clients, as upstream does not.
pub fn json_patch(doc: &Value, patch: &[u8]) -> Result<Value, ApiError> {
    patched(doc, patch)?.map_err(|_| unprocessable())
}

fn patched(doc: &Value, patch: &[u8]) -> Result<Result<Value, String>, ApiError> {
    let operations: Operations = serde_json::from_slice(patch).map_err(|e| {
        ApiError::bad_request(match patch.iter().find(|b| !b.is_ascii_whitespace()) {
            Some(b'{') => {
                "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
                    .to_string()
            }
            _ => format!("error decoding patch: {e}"),
        })
    })?;
    if operations.count > JSON_PATCH_OPERATIONS_MAX {
        let message = format!(
            "The allowed maximum operations in a JSON patch is {JSON_PATCH_OPERATIONS_MAX}, got {}",
            operations.count
        );
        return Err(ApiError::new(Reason::RequestEntityTooLarge, format!("Request entity too large: {message}")));
    }
    let mut result = doc.clone();
    let mut work = Work::default();
    for operation in operations.kept {
        if let Err(cause) = apply(&mut result, operation, &mut work) {
            return Ok(Err(cause));
        }
    }
    Ok(Ok(result))
}

const MISSING: &str = "missing value";

fn apply(doc: &mut Value, operation: Operation, work: &mut Work) -> Result<(), String> {
    let Operation { op, path, from, value } = operation;
    if !["add", "remove", "replace", "move", "test", "copy"].contains(&op.as_str()) {
        return Err(format!("Unexpected kind: {}", if op.is_empty() { "unknown" } else { &op }));
    }
    let path = path.ok_or_else(|| format!("{op} operation failed to decode path: {MISSING}"))?;
    match op.as_str() {
        "add" => {
            let (parent, key) = locate(doc, &path)
                .ok_or_else(|| format!("add operation does not apply: doc is missing path: \"{path}\": {MISSING}"))?;
            let value = value.unwrap_or_default();
            bounded(&path, &value)
                .and_then(|()| insert(parent, &key, value, work))
                .map_err(|e| format!("error in add for path: '{path}': {e}"))
        }
        "remove" => {
            let (parent, key) = locate(doc, &path).ok_or_else(|| {
                format!("remove operation does not apply: doc is missing path: \"{path}\": {MISSING}")
            })?;
            take(parent, &key, work).map(drop).map_err(|e| format!("error in remove for path: '{path}': {e}"))
        }
        "replace" => {
            let value = value.unwrap_or_default();
            if path.is_empty() {
                if !(value.is_object() || value.is_array()) {
                    return Err("replace operation value must be object or array".into());
                }
                bounded(&path, &value)?;
                *doc = value;
                return Ok(());
            }
            let (parent, key) = locate(doc, &path)
                .ok_or_else(|| format!("replace operation does not apply: doc is missing path: {path}: {MISSING}"))?;
            bounded(&path, &value).map_err(|e| format!("error in replace for path: '{path}': {e}"))?;
            // As upstream, what is missing in an object is added: csi-snapshotter's first annotation comes so.
            if let Value::Object(map) = parent {
                map.insert(key, value);
                return Ok(());
            }
            let place = get(parent, &key)
                .map_err(|_| format!("replace operation does not apply: doc is missing key: {path}: {MISSING}"))?;
            *place = value;
            Ok(())
        }
        "test" => {
            let failed = || format!("testing value {path} failed: test failed");
            let found = match path.as_str() {
                "" => Some(&*doc),
                _ => {
                    let (parent, key) = locate(doc, &path)
                        .ok_or_else(|| format!("test operation does not apply: is missing path: {path}: {MISSING}"))?;
                    get(parent, &key).ok().map(|place| &*place)
                }
            };
            let wanted = value.unwrap_or_default();
            if same(found.unwrap_or(&Value::Null), &wanted) { Ok(()) } else { Err(failed()) }
        }
        "move" | "copy" => {
            let from = from.ok_or_else(|| format!("{op} operation failed to decode from: {MISSING}"))?;
            let (parent, key) = locate(doc, &from)
                .ok_or_else(|| format!("{op} operation does not apply: doc is missing from path: {from}: {MISSING}"))?;
            let value = if op == "move" {
                if path.starts_with(&format!("{from}/")) {
                    return Err(format!("error in move for path: '{path}': cannot move a value into itself"));
                }
                take(parent, &key, work).map_err(|e| format!("error in move for path: '{key}': {e}"))?
            } else {
                let is_missing = parent.as_object().is_some_and(|map| !map.contains_key(&key));
                // As upstream, a copy of what is missing in an object is null.
                let value = match is_missing {
                    true => &mut Value::Null,
                    false => get(parent, &key).map_err(|e| format!("error in copy for from: '{from}': {e}"))?,
                };
                work.copied_bytes += json_bytes(value);
                if work.copied_bytes > COPY_BYTES_MAX {
                    return Err(format!(
                        "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit \
                         {COPY_BYTES_MAX}",
                        work.copied_bytes
                    ));
                }
                value.clone()
            };
            let (parent, key) = locate(doc, &path).ok_or_else(|| {
                format!("{op} operation does not apply: doc is missing destination path: {path}: {MISSING}")
            })?;
            bounded(&path, &value).and_then(|()| insert(parent, &key, value, work)).map_err(|e| match op.as_str() {
                "move" => format!("error in move for path: '{path}': {e}"),
                _ => format!("error while adding value during copy: {e}"),
            })
        }
        _ => Err(format!("Unexpected kind: {op}")),
    }
}

/// A value that would be nested too deeply at `path` is not put there: a few short operations could otherwise make a
/// document that nobody can read.
fn bounded(path: &str, value: &Value) -> Result<(), String> {
    let steps = path.bytes().filter(|byte| *byte == b'/').count();
    match NESTING_DEPTH_MAX.checked_sub(steps) {
        Some(levels) if !depth::exceeds(value, levels) => Ok(()),
        _ => Err(TOO_DEEP.into()),
    }
}

/// How long a value is as JSON, without writing it anywhere.
fn json_bytes(value: &Value) -> usize {
    struct Count(usize);

    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count(0);
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        // Neither the value nor the writer can fail; if one did, the copy is refused.
        Err(_) => usize::MAX / 2,
    }
}

/// Equal as JSON: `1` and `1.0` are the same number.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same(v, w)))
        }
        _ => a == b,
    }
}

/// The container that holds the last step of `path`, and that step.
fn locate<'a>(doc: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let mut steps = path.split('/').skip(1).map(|s| s.replace("~1", "/").replace("~0", "~"));
    let mut key = steps.next()?;
    let mut parent = doc;
    for next in steps {
        parent = get(parent, &key).ok()?;
        key = next;
    }
    (parent.is_object() || parent.is_array()).then_some((parent, key))
}

/// An index into a list of `length`, negative from the end.
fn index(key: &str, length: usize) -> Result<usize, String> {
    let number: i64 = key.parse().map_err(|_| format!("value was not a proper array index: '{key}'"))?;
    let at = if number < 0 { number + length as i64 } else { number };
    usize::try_from(at).map_err(|_| format!("Unable to access invalid index: {number}: invalid index referenced"))
}

fn get<'a>(parent: &'a mut Value, key: &str) -> Result<&'a mut Value, String> {
    match parent {
        Value::Object(map) => {
            map.get_mut(key).ok_or_else(|| format!("unable to get nonexistent key: {key}: {MISSING}"))
        }
        Value::Array(list) => {
            let at = index(key, list.len())?;
            list.get_mut(at).ok_or_else(|| format!("Unable to access invalid index: {key}: invalid index referenced"))
        }
        _ => Err(MISSING.into()),
    }
}

fn take(parent: &mut Value, key: &str, work: &mut Work) -> Result<Value, String> {
    match parent {
        Value::Object(map) => {
            map.remove(key).ok_or_else(|| format!("Unable to remove nonexistent key: {key}: {MISSING}"))
        }
        Value::Array(list) => {
            let at = index(key, list.len())?;
            if at >= list.len() {
                return Err(format!("Unable to access invalid index: {key}: invalid index referenced"));
            }
            work.shift(list, at)?;
            Ok(list.remove(at))
        }
        _ => Err(MISSING.into()),
    }
}

fn insert(parent: &mut Value, key: &str, value: Value, work: &mut Work) -> Result<(), String> {
    match parent {
        Value::Object(map) => {
            map.insert(key.to_string(), value);
            Ok(())
        }
        Value::Array(list) if key == "-" => {
            list.push(value);
            Ok(())
        }
        Value::Array(list) => {
            // One past the end is a place to insert at, also when counted from the end.
            let at = index(key, list.len() + usize::from(key.starts_with('-')))?;
            if at > list.len() {
                return Err(format!("Unable to access invalid index: {key}: invalid index referenced"));
            }
            work.shift(list, at)?;
            list.insert(at, value);
            Ok(())
        }
        _ => Err(MISSING.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_apply() {
        let check = |doc: Value, patch: Value, result: Value| {
            assert_eq!(json_patch(&doc, patch.to_string().as_bytes()).unwrap(), result, "{doc} + {patch}");
        };
        check(json!({"a": 1}), json!([{"op": "add", "path": "/b", "value": 2}]), json!({"a": 1, "b": 2}));
        check(json!({"a": [1, 3]}), json!([{"op": "add", "path": "/a/1", "value": 2}]), json!({"a": [1, 2, 3]}));
        check(json!({"a": [1]}), json!([{"op": "add", "path": "/a/-", "value": 2}]), json!({"a": [1, 2]}));
        check(json!({"a": [1, 2]}), json!([{"op": "remove", "path": "/a/-1"}]), json!({"a": [1]}));
        check(json!({"a": 1}), json!([{"op": "replace", "path": "/a", "value": null}]), json!({"a": null}));
        check(
            json!({"a": {}}),
            json!([{"op": "replace", "path": "/a/b", "value": {"c": 1}}]),
            json!({"a": {"b": {"c": 1}}}),
        );
        check(json!({"a": {"b": 1}}), json!([{"op": "move", "from": "/a/b", "path": "/c"}]), json!({"a": {}, "c": 1}));
        check(json!({"a": 1}), json!([{"op": "copy", "from": "/a", "path": "/b"}]), json!({"a": 1, "b": 1}));
        check(json!({"a": 1}), json!([{"op": "copy", "from": "/c", "path": "/b"}]), json!({"a": 1, "b": null}));
        check(json!({"a": 1}), json!([{"op": "test", "path": "/a", "value": 1.0}]), json!({"a": 1}));
        check(json!({}), json!([{"op": "test", "path": "/a", "value": null}]), json!({}));
        check(json!({"a/b~": 1}), json!([{"op": "remove", "path": "/a~1b~0"}]), json!({}));
    }

    #[test]
    fn a_patch_that_moves_the_items_of_long_lists_again_and_again_is_refused() {
        let front = |count: usize| Value::from(vec![json!({"op": "add", "path": "/a/0", "value": 1}); count]);
        let long = json!({ "a": vec![0; 300_000] });
        let cause = patched(&long, front(JSON_PATCH_OPERATIONS_MAX).to_string().as_bytes()).unwrap().unwrap_err();
        assert!(cause.contains("the patch moves more than 20000000 items of lists"), "{cause}");
        let removals = Value::from(vec![json!({"op": "remove", "path": "/a/0"}); JSON_PATCH_OPERATIONS_MAX]);
        assert_eq!(json_patch(&long, removals.to_string().as_bytes()).unwrap_err().code, 422);
        // At the end nothing moves, and short lists are no matter.
        let end = Value::from(vec![json!({"op": "add", "path": "/a/-", "value": 1}); JSON_PATCH_OPERATIONS_MAX]);
        assert_eq!(json_patch(&long, end.to_string().as_bytes()).unwrap()["a"].as_array().unwrap().len(), 310_000);
        let short = json_patch(&json!({ "a": [] }), front(5_000).to_string().as_bytes()).unwrap();
        assert_eq!(short["a"].as_array().unwrap().len(), 5_000);
    }

    #[test]
    fn failures_are_told_in_upstreams_words() {
        let check = |patch: Value, code: u16, message: &str| {
            let doc = json!({"a": {"b": [1]}});
            let error = json_patch(&doc, patch.to_string().as_bytes()).unwrap_err();
            let cause = patched(&doc, patch.to_string().as_bytes()).ok().and_then(Result::err);
            assert_eq!((error.code, cause.unwrap_or_else(|| error.message.clone()).as_str()), (code, message));
            assert!(code != 422 || error.details.as_ref() == Some(&json!({})), "{error:?}");
        };
        check(json!([{"op": "test", "path": "/a/b/0", "value": 2}]), 422, "testing value /a/b/0 failed: test failed");
        check(
            json!([{"op": "remove", "path": "/a/c"}]),
            422,
            "error in remove for path: '/a/c': Unable to remove nonexistent key: c: missing value",
        );
        check(
            json!([{"op": "replace", "path": "/a/b/7", "value": 1}]),
            422,
            "replace operation does not apply: doc is missing key: /a/b/7: missing value",
        );
        check(
            json!([{"op": "replace", "path": "/x/y", "value": 1}]),
            422,
            "replace operation does not apply: doc is missing path: /x/y: missing value",
        );
        check(
            json!([{"op": "add", "path": "/x/y", "value": 1}]),
            422,
            "add operation does not apply: doc is missing path: \"/x/y\": missing value",
        );
        check(
            json!([{"op": "add", "path": "/a/b/7", "value": 1}]),
            422,
            "error in add for path: '/a/b/7': Unable to access invalid index: 7: invalid index referenced",
        );
        check(json!([{"op": "swap", "path": "/x"}]), 422, "Unexpected kind: swap");
        let many = vec![json!({"op": "test", "path": "/x"}); JSON_PATCH_OPERATIONS_MAX + 1];
        check(
            Value::from(many),
            413,
            "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001",
        );
        assert_eq!(json_patch(&json!({}), b"[{").unwrap_err().code, 400);
        assert_eq!(json_patch(&json!({}), b"{}").unwrap_err().code, 400);
    }

    #[test]
    fn copies_in_a_json_patch_are_limited_by_their_bytes() {
        let check = |doc: &Value, copies: usize, expected: Option<&str>| {
            let patch = vec![json!({"op": "copy", "from": "/data/a", "path": "/data/b"}); copies];
            let cause = patched(doc, Value::from(patch).to_string().as_bytes()).unwrap().err();
            assert_eq!(cause.as_deref(), expected);
        };
        // With its quotes the string has 1 MiB.
        let megabyte = json!({"data": {"a": "x".repeat((1 << 20) - 2)}});
        check(&megabyte, 3, None);
        let text = "Unable to complete the copy, the accumulated size increase of copy is 4194304, exceeding the limit 3145728";
        check(&megabyte, 4, Some(text));
        let doubling = vec![json!({"op": "copy", "from": "/list", "path": "/list/-"}); 40];
        let doubled = json_patch(&json!({"list": [1]}), Value::from(doubling).to_string().as_bytes());
        assert_eq!(doubled.unwrap_err().code, 422);
    }

    #[test]
    fn a_json_patch_cannot_nest_beyond_the_limit() {
        let check = |patch: Value, expected: Option<&str>| {
            let found = patched(&json!({"a": {}}), patch.to_string().as_bytes()).unwrap().err();
            assert_eq!(found.as_deref(), expected);
        };
        // Every round puts what there is one level further in.
        let round = [
            json!({"op": "add", "path": "/b", "value": {}}),
            json!({"op": "move", "from": "/a", "path": "/b/a"}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
        ];
        let rounds = |count: usize| Value::from(vec![round.to_vec(); count].concat());
        check(rounds(90), None);
        check(rounds(3000), Some("error in move for path: '/b/a': exceeded max depth"));
        let long = "/a".repeat(100_000);
        let missing = format!("add operation does not apply: doc is missing path: \"{long}\": missing value");
        check(json!([{"op": "add", "path": long, "value": 1}]), Some(&missing));
    }

    proptest! {
        #[test]
        fn never_panics(
            ops in prop::collection::vec(
                ("(add|remove|replace|move|test|copy|x)", "(/[ab01-]{0,2}){0,3}", "(/[ab01-]{0,2}){0,3}"), 0..6,
            ),
        ) {
            let doc = json!({"a": {"b": [1, {"a": 2}]}, "b": [[]]});
            let patch: Vec<Value> = ops
                .into_iter()
                .map(|(op, path, from)| json!({"op": op, "path": path, "from": from, "value": {"a": [0]}}))
                .collect();
            let _ = json_patch(&doc, Value::from(patch).to_string().as_bytes());
        }
    }
}
