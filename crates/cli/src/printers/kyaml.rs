//! Objects as KYAML: YAML's flow style, every string quoted.
//! Used by the printers.
//! Any YAML reader reads it.

use serde_json::{Map, Value};

use super::yaml::resolves;
use crate::template::go_order::Shape;

pub fn to_string(value: &Value) -> String {
    with_order(value, Shape::Untyped)
}

/// As Go encodes a typed object.
pub fn typed(value: &Value) -> String {
    with_order(value, Shape::of(value))
}

fn with_order(value: &Value, shape: Shape) -> String {
    let mut text = String::from("---\n");
    put(&mut text, value, shape, 0);
    text.push('\n');
    text
}

fn indent(text: &mut String, depth: usize) {
    text.extend(std::iter::repeat_n("  ", depth));
}

fn put(text: &mut String, value: &Value, shape: Shape, depth: usize) {
    match value {
        Value::Object(map) if map.is_empty() => text.push_str("{}"),
        Value::Object(map) => {
            text.push_str("{\n");
            entries(text, map, shape, depth + 1);
            indent(text, depth);
            text.push('}');
        }
        Value::Array(list) if list.is_empty() => text.push_str("[]"),
        Value::Array(list) => sequence(text, list, shape.item(), depth),
        Value::String(string) => quoted(text, string, depth),
        other => text.push_str(&other.to_string()),
    }
}

fn entries(text: &mut String, map: &Map<String, Value>, shape: Shape, depth: usize) {
    for (key, value, shape) in shape.entries(map) {
        indent(text, depth);
        match needs_quotes(key) {
            true => text.push_str(&serde_json::to_string(key).unwrap_or_default()),
            false => text.push_str(key),
        }
        text.push_str(": ");
        put(text, value, shape, depth);
        text.push_str(",\n");
    }
}

/// Brackets hug the braces of maps and lists.
fn sequence(text: &mut String, list: &[Value], shape: Shape, depth: usize) {
    let nested =
        |v: &Value| matches!(v, Value::Object(m) if !m.is_empty()) || matches!(v, Value::Array(l) if !l.is_empty());
    if list.iter().all(nested) {
        text.push('[');
        for (index, item) in list.iter().enumerate() {
            if index > 0 {
                text.push_str(", ");
            }
            put(text, item, shape, depth);
        }
        text.push(']');
        return;
    }
    text.push_str("[\n");
    for item in list {
        indent(text, depth + 1);
        put(text, item, shape, depth + 1);
        text.push_str(",\n");
    }
    indent(text, depth);
    text.push(']');
}

fn needs_quotes(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let starts = key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    !starts || !key.chars().all(plain) || resolves(key) || ["t", "T", "f", "F"].contains(&key)
}

/// Lines of a longer text stand below each other.
fn quoted(text: &mut String, string: &str, depth: usize) {
    // A tab stands for itself.
    let escaped = |part: &str| {
        let parts = part.split('\t').map(|part| {
            let json = serde_json::to_string(part).unwrap_or_default();
            json[1..json.len() - 1].to_string()
        });
        parts.collect::<Vec<_>>().join("\t")
    };
    let lines: Vec<&str> = string.split_inclusive('\n').collect();
    if !string.contains('\n') {
        text.push_str(&format!("\"{}\"", escaped(string)));
        return;
    }
    text.push_str("\"\\\n");
    for line in &lines {
        indent(text, depth + 1);
        // A space at the beginning of a line would be lost.
        if line.starts_with(' ') {
            text.push('\\');
        } else {
            text.push(' ');
        }
        text.push_str(&escaped(line));
        text.push_str("\\\n");
    }
    indent(text, depth + 1);
    text.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_and_lists_hug() {
        let value = json!({"a": [{"b": "c"}], "args": ["x"], "true": 1, "e": {}});
        let wanted =
            "---\n{\n  a: [{\n    b: \"c\",\n  }],\n  args: [\n    \"x\",\n  ],\n  e: {},\n  \"true\": 1,\n}\n";
        assert_eq!(to_string(&value), wanted);
    }
}
