//! Go's own text for JSON values: `%v`, `%T`, floats, quoted strings and `encoding/json`.
//! Used by every template printer of this folder and by `describe`.
//! Never fails; a value that Go could not print has the text Go gives it.

pub use api::patch::go_type as type_name;

use super::go_order::Shape;
use serde_json::Value;

/// What `%v` makes of a float64: the shortest digits, with an exponent below 1e-4 and from 1e21 on.
pub fn float(number: f64) -> String {
    exponent_form(number, -4, 21)
}

fn exponent_form(number: f64, low: i32, high: i32) -> String {
    if number.is_nan() {
        return "NaN".to_string();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_string();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && (exponent < low || exponent >= high) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{number}")
}

/// A JSON number as `encoding/json` writes it.
fn json_float(number: f64) -> String {
    let text = exponent_form(number, -6, 21);
    // encoding/json writes e-9 where fmt writes e-09.
    match text.split_once("e-0") {
        Some((mantissa, digit)) => format!("{mantissa}e-{digit}"),
        None => text,
    }
}

pub fn number(number: &serde_json::Number) -> String {
    match (number.as_i64(), number.as_u64()) {
        (Some(n), _) => n.to_string(),
        (None, Some(n)) => n.to_string(),
        _ => float(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// `fmt.Sprint` of a value decoded from JSON.
pub fn sprint(value: &Value) -> String {
    let mut text = String::new();
    write_plain(value, &mut text);
    text
}

fn write_plain(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => out.push_str(&number(n)),
        Value::String(s) => out.push_str(s),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                write_plain(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push_str("map[");
            for (i, (key, field)) in fields.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                write_plain(field, out);
            }
            out.push(']');
        }
    }
}

/// `%#v`: the value in Go's syntax.
pub fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_string(),
        Value::Number(n) if n.is_f64() => number(n),
        Value::Number(n) => number(n),
        Value::String(s) => quote(s),
        Value::Bool(b) => b.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(k, v)| format!("{}:{}", quote(k), go_syntax(v))).collect();
            format!("map[string]interface {{}}{{{}}}", fields.join(", "))
        }
    }
}

/// `strconv.Quote`.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() || c == '\u{a0}' || c == '\u{feff}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `json.Marshal`: one line, and the characters that HTML would act upon escaped.
pub fn json(value: &Value) -> String {
    let mut out = String::new();
    write_json(value, Shape::Untyped, None, 0, &mut out);
    out
}

/// `json.MarshalIndent(value, "", indent)`.
pub fn json_indent(value: &Value, indent: &str) -> String {
    let mut out = String::new();
    write_json(value, Shape::Untyped, Some(indent), 0, &mut out);
    out
}

/// As Go encodes a typed object.
pub fn typed_json(value: &Value, indent: Option<&str>) -> String {
    let mut out = String::new();
    write_json(value, Shape::of(value), indent, 0, &mut out);
    out
}

fn line_break(indent: Option<&str>, depth: usize, out: &mut String) {
    if let Some(indent) = indent {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

fn write_json(value: &Value, shape: Shape, indent: Option<&str>, depth: usize, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) if n.is_f64() => out.push_str(&json_float(n.as_f64().unwrap_or(0.0))),
        Value::Number(n) => out.push_str(&n.to_string()),
        Value::String(s) => write_json_string(s, out),
        Value::Array(items) if items.is_empty() => out.push_str("[]"),
        Value::Object(fields) if fields.is_empty() => out.push_str("{}"),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                line_break(indent, depth + 1, out);
                write_json(item, shape.item(), indent, depth + 1, out);
            }
            line_break(indent, depth, out);
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (i, (key, field, shape)) in shape.entries(fields).into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                line_break(indent, depth + 1, out);
                write_json_string(key, out);
                out.push_str(if indent.is_some() { ": " } else { ":" });
                write_json(field, shape, indent, depth + 1, out);
            }
            line_break(indent, depth, out);
            out.push('}');
        }
    }
}

fn write_json_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `printers.EscapeTerminal`: what a terminal would obey is shown instead.
pub fn escape_terminal(text: &str) -> String {
    if !text.contains(['\u{1b}', '\r']) {
        return text.to_string();
    }
    text.replace('\u{1b}', "^[").replace('\r', "\\r")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_read_as_in_go() {
        let check = |value: Value, plain: &str, marshalled: &str| {
            assert_eq!(sprint(&value), plain);
            assert_eq!(json(&value), marshalled);
        };
        check(json!({"b": 1, "a": ["x", null, true]}), "map[a:[x <nil> true] b:1]", r#"{"a":["x",null,true],"b":1}"#);
        check(json!(1.5), "1.5", "1.5");
        check(json!(1e21), "1e+21", "1e+21");
        check(json!(1e20), "100000000000000000000", "100000000000000000000");
        check(json!(0.00001), "1e-05", "0.00001");
        check(json!(0.00000012), "1.2e-07", "1.2e-7");
        check(json!(2.0), "2", "2");
        check(json!("<a&b>"), "<a&b>", r#""\u003ca\u0026b\u003e""#);
        assert_eq!(go_syntax(&json!({"a": [1, "b"]})), r#"map[string]interface {}{"a":[]interface {}{1, "b"}}"#);
        assert_eq!(json_indent(&json!([{"a": []}]), "    "), "[\n    {\n        \"a\": []\n    }\n]");
        assert_eq!(quote("a\"\n\u{1}é"), r#""a\"\n\x01é""#);
    }
}
