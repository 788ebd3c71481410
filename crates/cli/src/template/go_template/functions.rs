//! The functions a Go template may call: text/template's builtins and kubectl's `exists` and `base64decode`.
//! Called by `execute`; `printf` has its own file.
//! A wrong argument is an error with Go's words.

use std::{borrow::Cow, cmp::Ordering};

use serde_json::Value;

use super::{execute::Operand, printf};
use crate::template::go_format;

/// Names with the least and the greatest number of arguments.
const FUNCTIONS: &[(&str, usize, usize)] = &[
    ("and", 1, usize::MAX),
    ("base64decode", 1, 1),
    ("eq", 1, usize::MAX),
    ("exists", 1, usize::MAX),
    ("ge", 2, 2),
    ("gt", 2, 2),
    ("html", 0, usize::MAX),
    ("index", 1, usize::MAX),
    ("js", 0, usize::MAX),
    ("le", 2, 2),
    ("len", 1, 1),
    ("lt", 2, 2),
    ("ne", 2, 2),
    ("not", 1, 1),
    ("or", 1, usize::MAX),
    ("print", 0, usize::MAX),
    ("printf", 1, usize::MAX),
    ("println", 0, usize::MAX),
    ("slice", 1, usize::MAX),
    ("urlquery", 0, usize::MAX),
];

pub fn exists(name: &str) -> bool {
    FUNCTIONS.iter().any(|(own, ..)| *own == name)
}

pub fn wrong_count(name: &str, count: usize) -> Option<String> {
    let (_, least, most) = FUNCTIONS.iter().find(|(own, ..)| *own == name)?;
    if count < *least && *most == usize::MAX {
        return Some(format!("wrong number of args for {name}: want at least {least} got {count}"));
    }
    let wrong = count < *least || count > *most;
    wrong.then(|| format!("wrong number of args for {name}: want {least} got {count}"))
}

pub fn call<'a>(name: &str, mut arguments: Vec<Operand<'a>>) -> Result<Operand<'a>, String> {
    if let Some(message) = wrong_count(name, arguments.len()) {
        return Err(message);
    }
    match name {
        "not" => Ok(Operand::owned(!arguments[0].is_true())),
        "len" => length(&arguments[0]).map(|length| Operand::Int(length.into())),
        "index" => {
            let item = arguments.remove(0);
            arguments.iter().try_fold(item, |item, key| index(item, key.value()))
        }
        "exists" => {
            let item = arguments.remove(0);
            let found = arguments.iter().try_fold(item, |item, key| match (item.value(), key.value()) {
                (Value::Object(_), Value::String(_)) | (Value::Array(_) | Value::String(_), Value::Number(_)) => {
                    index(item, key.value())
                }
                _ => Err(String::new()),
            });
            Ok(Operand::owned(found.is_ok_and(|found| !found.value().is_null())))
        }
        "slice" => slice(&arguments),
        "eq" => {
            let others = &arguments[1..];
            if others.is_empty() {
                return Err("missing argument for comparison".to_string());
            }
            for other in others {
                if equal(&arguments[0], other)? {
                    return Ok(Operand::owned(true));
                }
            }
            Ok(Operand::owned(false))
        }
        "ne" => equal(&arguments[0], &arguments[1]).map(|equal| Operand::owned(!equal)),
        "lt" | "le" | "gt" | "ge" => {
            let order = order(&arguments[0], &arguments[1])?;
            Ok(Operand::owned(match name {
                "lt" => order.is_lt(),
                "le" => order.is_le(),
                "gt" => order.is_gt(),
                _ => order.is_ge(),
            }))
        }
        "print" => Ok(Operand::owned(printf::sprint(&arguments))),
        "println" => Ok(Operand::owned(printf::sprintln(&arguments))),
        "printf" => match arguments[0].value().clone() {
            Value::String(format) => Ok(Operand::owned(printf::sprintf(&format, &arguments[1..]))),
            other => Err(format!("wrong type for value; expected string; got {}", go_format::type_name(&other))),
        },
        "html" => Ok(Operand::owned(html(&joined(&arguments)))),
        "js" => Ok(Operand::owned(js(&joined(&arguments)))),
        "urlquery" => Ok(Operand::owned(url_query(&joined(&arguments)))),
        "base64decode" => {
            let Value::String(text) = arguments[0].value() else {
                let found = go_format::type_name(arguments[0].value());
                return Err(format!("wrong type for value; expected string; got {found}"));
            };
            base64_decode(text).map(Operand::owned)
        }
        // and, or: evaluated by the caller, which may skip arguments.
        _ => Ok(arguments.pop().unwrap_or(Operand::Missing)),
    }
}

/// One string as it is; anything else as `print` shows it, with nulls as `<no value>`.
fn joined(arguments: &[Operand]) -> String {
    let shown: Vec<Operand> = arguments
        .iter()
        .map(|operand| if operand.value().is_null() { Operand::owned("<no value>") } else { operand.clone() })
        .collect();
    printf::sprint(&shown)
}

fn length(operand: &Operand) -> Result<i64, String> {
    match operand.value() {
        Value::String(text) => Ok(text.len() as i64),
        Value::Array(items) => Ok(items.len() as i64),
        Value::Object(fields) => Ok(fields.len() as i64),
        Value::Null => Err("len of nil pointer".to_string()),
        _ => Err(format!("len of type {}", operand.type_name())),
    }
}

fn position(index: &Value, length: usize) -> Result<usize, String> {
    let number = match index {
        Value::Number(number) if !number.is_f64() => number.as_i64().unwrap_or(i64::MAX),
        Value::Null => return Err("cannot index slice/array with nil".to_string()),
        other => return Err(format!("cannot index slice/array with type {}", go_format::type_name(other))),
    };
    match usize::try_from(number) {
        Ok(number) if number <= length => Ok(number),
        _ => Err(format!("index out of range: {number}")),
    }
}

fn index<'a>(item: Operand<'a>, key: &Value) -> Result<Operand<'a>, String> {
    match item.value() {
        Value::Null => Err("index of untyped nil".to_string()),
        Value::Object(fields) => {
            let Value::String(key) = key else {
                return Err(format!("value has type {}; should be string", go_format::type_name(key)));
            };
            let found = fields.get(key).cloned();
            match &item {
                Operand::Found(Cow::Borrowed(Value::Object(fields))) => {
                    Ok(fields.get(key).map_or(Operand::owned(Value::Null), |v| Operand::Found(Cow::Borrowed(v))))
                }
                _ => Ok(Operand::owned(found.unwrap_or(Value::Null))),
            }
        }
        Value::Array(items) => {
            let at = position(key, items.len())?;
            if at == items.len() {
                return Err(format!("index out of range: {at}"));
            }
            match &item {
                Operand::Found(Cow::Borrowed(Value::Array(items))) => Ok(Operand::Found(Cow::Borrowed(&items[at]))),
                _ => Ok(Operand::owned(items[at].clone())),
            }
        }
        Value::String(text) => {
            let at = position(key, text.len())?;
            let byte = text.as_bytes().get(at).ok_or_else(|| format!("index out of range: {at}"))?;
            Ok(Operand::owned(*byte))
        }
        other => Err(format!("can't index item of type {}", go_format::type_name(other))),
    }
}

fn slice<'a>(arguments: &[Operand<'a>]) -> Result<Operand<'a>, String> {
    let (item, bounds) = (arguments[0].value(), &arguments[1..]);
    if item.is_null() {
        return Err("slice of untyped nil".to_string());
    }
    if bounds.len() > 3 {
        return Err(format!("too many slice indexes: {}", bounds.len()));
    }
    let length = match item {
        Value::String(_) if bounds.len() == 3 => return Err("cannot 3-index slice a string".to_string()),
        Value::String(text) => text.len(),
        Value::Array(items) => items.len(),
        other => return Err(format!("can't slice item of type {}", go_format::type_name(other))),
    };
    let mut range = [0, length, length];
    for (place, bound) in range.iter_mut().zip(bounds) {
        *place = position(bound.value(), length)?;
    }
    let [from, to, _] = range;
    if from > to {
        return Err(format!("invalid slice index: {from} > {to}"));
    }
    Ok(match item {
        Value::String(text) => Operand::owned(String::from_utf8_lossy(&text.as_bytes()[from..to]).into_owned()),
        _ => Operand::owned(item.as_array().map_or(Vec::new(), |items| items[from..to].to_vec())),
    })
}

fn is_basic(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Array(_) | Value::Object(_))
}

fn equal(left: &Operand, right: &Operand) -> Result<bool, String> {
    let (a, b) = (left.value(), right.value());
    if a.is_null() || b.is_null() {
        return Ok(a.is_null() && b.is_null());
    }
    match (is_basic(a), is_basic(b)) {
        (true, true) => order_any(left, right).map(Ordering::is_eq),
        (false, false) => Err(format!(
            "non-comparable types {}: {}, {}: {}",
            go_format::sprint(a),
            go_format::type_name(a),
            go_format::type_name(b),
            go_format::sprint(b)
        )),
        _ => Err(incompatible(left, right)),
    }
}

fn incompatible(left: &Operand, right: &Operand) -> String {
    format!("incompatible types for comparison: {} and {}", left.type_name(), right.type_name())
}

fn order(left: &Operand, right: &Operand) -> Result<Ordering, String> {
    let (a, b) = (left.value(), right.value());
    if !is_basic(a) || !is_basic(b) || (a.is_boolean() && b.is_boolean()) {
        return Err("invalid type for comparison".to_string());
    }
    order_any(left, right)
}

fn order_any(left: &Operand, right: &Operand) -> Result<Ordering, String> {
    match (left.value(), right.value()) {
        (Value::String(a), Value::String(b)) => Ok(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) if a.is_f64() == b.is_f64() => {
            let whole = a.as_i64().zip(b.as_i64()).map(|(a, b)| a.cmp(&b));
            let float = || a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Less);
            Ok(whole.unwrap_or_else(float))
        }
        _ => Err(incompatible(left, right)),
    }
}

fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push('\u{fffd}'),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

fn js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '\'' | '"' => {
                out.push('\\');
                out.push(c);
            }
            '<' | '>' | '&' | '=' => out.push_str(&format!("\\u{:04X}", c as u32)),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out
}

fn url_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            byte if byte.is_ascii_alphanumeric() => out.push(byte as char),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn base64_decode(text: &str) -> Result<String, String> {
    let decoded = crate::kubeconfig::from_base64(text).map_err(|why| format!("base64 decode failed: {why}"))?;
    Ok(String::from_utf8_lossy(&decoded).into_owned())
}
