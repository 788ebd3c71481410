//! OpenAPI v2 as the protobuf that client-go reads: gnostic's `openapi.v2.Document`.
//! Called by `openapi::v2_protobuf` with the JSON document.
//! A table of numbers; what has no row and does not start with `x-` is left out.

use serde_json::{Map, Value};

use crate::codec::protobuf::wire::Writer;

/// A message: its fields by number, and the number that vendor extensions have (0: none).
struct Shape {
    rows: &'static [(u32, &'static str, Kind)],
    extensions: u32,
}

enum Kind {
    Text,
    Flag,
    Whole,
    Real,
    Texts,
    /// A value as YAML text.
    Any,
    Anys,
    One(&'static Shape),
    Many(&'static Shape),
    /// `{1: [{1: name, 2: message}]}`, in the field of that number.
    Named(u32, &'static Shape),
    /// One or several texts inside a message.
    Type,
    /// A schema inside a message.
    Inside(&'static Shape),
    /// A schema or a boolean.
    Additional,
    Parameters,
    /// Parameters by name.
    Definitions,
    Responses,
    Security,
    SecurityDefinitions,
}

use Kind::{
    Additional, Any, Anys, Definitions, Flag, Inside, Many, Named, One, Parameters, Real, Responses, Security,
    SecurityDefinitions, Text, Texts, Type, Whole,
};

static DOCUMENT: Shape = Shape {
    rows: &[
        (1, "swagger", Text),
        (2, "info", One(&INFO)),
        (8, "paths", Named(2, &PATH_ITEM)),
        (9, "definitions", Named(1, &SCHEMA)),
        (10, "parameters", Definitions),
        (12, "security", Security),
        (13, "securityDefinitions", SecurityDefinitions),
    ],
    extensions: 16,
};

static INFO: Shape =
    Shape { rows: &[(1, "title", Text), (2, "version", Text), (3, "description", Text)], extensions: 7 };

static PATH_ITEM: Shape = Shape {
    rows: &[
        (2, "get", One(&OPERATION)),
        (3, "put", One(&OPERATION)),
        (4, "post", One(&OPERATION)),
        (5, "delete", One(&OPERATION)),
        (6, "options", One(&OPERATION)),
        (7, "head", One(&OPERATION)),
        (8, "patch", One(&OPERATION)),
        (9, "parameters", Parameters),
    ],
    extensions: 10,
};

static OPERATION: Shape = Shape {
    rows: &[
        (1, "tags", Texts),
        (3, "description", Text),
        (5, "operationId", Text),
        (6, "produces", Texts),
        (7, "consumes", Texts),
        (8, "parameters", Parameters),
        (9, "responses", Responses),
        (10, "schemes", Texts),
    ],
    extensions: 13,
};

static BODY_PARAMETER: Shape = Shape {
    rows: &[
        (1, "description", Text),
        (2, "name", Text),
        (3, "in", Text),
        (4, "required", Flag),
        (5, "schema", One(&SCHEMA)),
    ],
    extensions: 6,
};

static QUERY_PARAMETER: Shape = Shape {
    rows: &[
        (1, "required", Flag),
        (2, "in", Text),
        (3, "description", Text),
        (4, "name", Text),
        (6, "type", Text),
        (20, "uniqueItems", Flag),
    ],
    extensions: 23,
};

static PATH_PARAMETER: Shape = Shape {
    rows: &[
        (1, "required", Flag),
        (2, "in", Text),
        (3, "description", Text),
        (4, "name", Text),
        (5, "type", Text),
        (19, "uniqueItems", Flag),
    ],
    extensions: 22,
};

static RESPONSE: Shape = Shape { rows: &[(1, "description", Text), (2, "schema", Inside(&SCHEMA))], extensions: 5 };

static API_KEY: Shape =
    Shape { rows: &[(1, "type", Text), (2, "name", Text), (3, "in", Text), (4, "description", Text)], extensions: 5 };

static SCHEMA: Shape = Shape {
    rows: &[
        (1, "$ref", Text),
        (2, "format", Text),
        (3, "title", Text),
        (4, "description", Text),
        (5, "default", Any),
        (6, "multipleOf", Real),
        (7, "maximum", Real),
        (8, "exclusiveMaximum", Flag),
        (9, "minimum", Real),
        (10, "exclusiveMinimum", Flag),
        (11, "maxLength", Whole),
        (12, "minLength", Whole),
        (13, "pattern", Text),
        (14, "maxItems", Whole),
        (15, "minItems", Whole),
        (16, "uniqueItems", Flag),
        (17, "maxProperties", Whole),
        (18, "minProperties", Whole),
        (19, "required", Texts),
        (20, "enum", Anys),
        (21, "additionalProperties", Additional),
        (22, "type", Type),
        (23, "items", Inside(&SCHEMA)),
        (24, "allOf", Many(&SCHEMA)),
        (25, "properties", Named(1, &SCHEMA)),
        (30, "example", Any),
    ],
    extensions: 31,
};

pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    if let Value::Object(map) = document {
        message(&mut out, &DOCUMENT, map);
    }
    out.finish()
}

/// The writer fills from the end, so everything is said last to first.
fn message(out: &mut Writer, shape: &Shape, map: &Map<String, Value>) {
    if shape.extensions != 0 {
        for (name, value) in map.iter().rev().filter(|(name, _)| name.starts_with("x-")) {
            let start = out.len();
            any(out, 2, value);
            out.bytes(1, name.as_bytes());
            out.close(shape.extensions, start);
        }
    }
    for (number, name, kind) in shape.rows.iter().rev() {
        if let Some(value) = map.get(*name) {
            field(out, *number, kind, value);
        }
    }
}

fn field(out: &mut Writer, number: u32, kind: &Kind, value: &Value) {
    match (kind, value) {
        (Text, Value::String(text)) if !text.is_empty() => out.bytes(number, text.as_bytes()),
        (Flag, Value::Bool(true)) => out.integer(number, 1),
        (Whole, value) => value.as_i64().into_iter().filter(|n| *n != 0).for_each(|n| out.integer(number, n)),
        (Real, value) => value.as_f64().into_iter().filter(|n| *n != 0.0).for_each(|n| out.double(number, n)),
        (Texts, Value::Array(items)) => {
            items.iter().rev().filter_map(Value::as_str).for_each(|text| out.bytes(number, text.as_bytes()));
        }
        (Any, value) => any(out, number, value),
        (Anys, Value::Array(items)) => items.iter().rev().for_each(|value| any(out, number, value)),
        (One(shape), Value::Object(map)) => nested(out, number, |out| message(out, shape, map)),
        (Many(shape), Value::Array(items)) => {
            items
                .iter()
                .rev()
                .filter_map(Value::as_object)
                .for_each(|map| nested(out, number, |out| message(out, shape, map)));
        }
        (Inside(shape), Value::Object(map)) => {
            nested(out, number, |out| nested(out, 1, |out| message(out, shape, map)));
        }
        (Type, Value::String(text)) => nested(out, number, |out| out.bytes(1, text.as_bytes())),
        (Type, value @ Value::Array(_)) => nested(out, number, |out| field(out, 1, &Texts, value)),
        (Additional, Value::Object(map)) => nested(out, number, |out| nested(out, 1, |out| message(out, &SCHEMA, map))),
        (Additional, Value::Bool(open)) => nested(out, number, |out| out.integer(2, i64::from(*open))),
        (Named(inner, shape), Value::Object(map)) => nested(out, number, |out| {
            named(out, *inner, map, |out, value| {
                value.as_object().into_iter().for_each(|map| nested(out, 2, |out| message(out, shape, map)));
            });
        }),
        (Parameters, Value::Array(items)) => {
            for item in items.iter().rev() {
                nested(out, number, |out| parameters_item(out, item));
            }
        }
        (Definitions, Value::Object(map)) => nested(out, number, |out| {
            named(out, 1, map, |out, value| nested(out, 2, |out| parameter(out, value)));
        }),
        (Responses, Value::Object(map)) => nested(out, number, |out| {
            named(out, 1, map, |out, value| nested(out, 2, |out| field(out, 1, &One(&RESPONSE), value)));
        }),
        (Security, Value::Array(items)) => {
            for map in items.iter().rev().filter_map(Value::as_object) {
                nested(out, number, |out| {
                    named(out, 1, map, |out, value| nested(out, 2, |out| field(out, 1, &Texts, value)));
                });
            }
        }
        (SecurityDefinitions, Value::Object(map)) => nested(out, number, |out| {
            named(out, 1, map, |out, value| nested(out, 2, |out| field(out, 2, &One(&API_KEY), value)));
        }),
        _ => {}
    }
}

fn nested(out: &mut Writer, number: u32, write: impl FnOnce(&mut Writer)) {
    let start = out.len();
    write(out);
    out.close(number, start);
}

/// A map as a list of names and values.
fn named(out: &mut Writer, number: u32, map: &Map<String, Value>, mut value: impl FnMut(&mut Writer, &Value)) {
    for (name, inner) in map.iter().rev() {
        let start = out.len();
        value(out, inner);
        out.bytes(1, name.as_bytes());
        out.close(number, start);
    }
}

fn parameters_item(out: &mut Writer, item: &Value) {
    match item.get("$ref").and_then(Value::as_str) {
        Some(reference) => nested(out, 2, |out| out.bytes(1, reference.as_bytes())),
        None => nested(out, 1, |out| parameter(out, item)),
    }
}

fn parameter(out: &mut Writer, item: &Value) {
    match item["in"].as_str() {
        Some("body") => field(out, 1, &One(&BODY_PARAMETER), item),
        Some("path") => nested(out, 2, |out| field(out, 4, &One(&PATH_PARAMETER), item)),
        _ => nested(out, 2, |out| field(out, 3, &One(&QUERY_PARAMETER), item)),
    }
}

/// JSON is YAML.
fn any(out: &mut Writer, number: u32, value: &Value) {
    nested(out, number, |out| out.bytes(2, format!("{value}\n").as_bytes()));
}
