//! Small parts of OpenAPI schemas: the words that `crds` is written in.
//! Pure (tidy: `pure_files`): values in, values out.

use serde_json::{Map, Value, json};

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

pub fn string(minimum: usize, maximum: usize) -> Value {
    match minimum {
        0 => json!({ "type": "string", "maxLength": maximum }),
        _ => json!({ "type": "string", "minLength": minimum, "maxLength": maximum }),
    }
}

/// Adds fields to a schema.
pub fn with(mut schema: Value, more: Value) -> Value {
    if let (Value::Object(schema), Value::Object(more)) = (&mut schema, more) {
        schema.extend(more);
    }
    schema
}

pub fn pattern(schema: Value, pattern: &str) -> Value {
    with(schema, json!({ "pattern": pattern }))
}

pub fn default(schema: Value, value: Value) -> Value {
    with(schema, json!({ "default": value }))
}

pub fn choice(values: &[&str]) -> Value {
    json!({ "type": "string", "enum": values })
}

pub fn integer(minimum: i64, maximum: Option<i64>) -> Value {
    let schema = json!({ "type": "integer", "format": "int32", "minimum": minimum });
    match maximum {
        Some(maximum) => with(schema, json!({ "maximum": maximum })),
        None => schema,
    }
}

/// `name!` is a field that has to be there.
pub fn object(fields: Value) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    if let Value::Object(fields) = fields {
        for (name, schema) in fields {
            match name.strip_suffix('!') {
                Some(name) => {
                    required.push(Value::from(name));
                    properties.insert(name.to_string(), schema);
                }
                None => _ = properties.insert(name, schema),
            }
        }
    }
    let schema = json!({ "type": "object", "properties": properties });
    if required.is_empty() { schema } else { with(schema, json!({ "required": required })) }
}

/// Replaced as a whole.
pub fn list(items: Value, maximum: usize) -> Value {
    json!({ "type": "array", "items": items, "maxItems": maximum, "x-kubernetes-list-type": "atomic" })
}

pub fn at_least_one(list: Value) -> Value {
    with(list, json!({ "minItems": 1 }))
}

pub fn set(items: Value, maximum: usize) -> Value {
    with(list(items, maximum), json!({ "x-kubernetes-list-type": "set" }))
}

/// Merged by `key`.
pub fn map(items: Value, maximum: usize, key: &str) -> Value {
    let kind = json!({ "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key] });
    with(list(items, maximum), kind)
}

/// Expressions that have to be true, each with what is said when it is not.
pub fn rules(schema: Value, rules: &[(&str, &str)]) -> Value {
    let rules: Vec<Value> = rules.iter().map(|(rule, message)| json!({ "rule": rule, "message": message })).collect();
    with(schema, json!({ "x-kubernetes-validations": rules }))
}

pub fn dns_name() -> String {
    format!("{LABEL}(\\.{LABEL})*")
}

pub fn group() -> Value {
    pattern(string(0, 253), &format!("^$|^{}$", dns_name()))
}

pub fn kind() -> Value {
    pattern(string(1, 63), "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$")
}

pub fn name() -> Value {
    string(1, 253)
}

pub fn namespace() -> Value {
    pattern(string(1, 63), &format!("^{LABEL}$"))
}

/// Of a listener, rule or port.
pub fn section() -> Value {
    pattern(string(1, 253), &format!("^{}$", dns_name()))
}

pub fn hostname() -> Value {
    pattern(string(1, 253), &format!("^(\\*\\.)?{}$", dns_name()))
}

pub fn precise_hostname() -> Value {
    section()
}

pub fn port() -> Value {
    integer(1, Some(65535))
}

pub fn header_name() -> Value {
    pattern(string(1, 256), "^[A-Za-z0-9!#$%&'*+\\-.^_\\x60|~]+$")
}

pub fn controller_name() -> Value {
    pattern(string(1, 253), &format!("^{}\\/[A-Za-z0-9\\/\\-._~%!$&'()*+,;=:]+$", dns_name()))
}

pub fn conditions() -> Value {
    let condition = object(json!({
        "type!": string(1, 316),
        "status!": choice(&["True", "False", "Unknown"]),
        "reason!": string(1, 1024),
        "message!": string(0, 32768),
        "lastTransitionTime!": { "type": "string", "format": "date-time" },
        "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
    }));
    map(condition, 8, "type")
}

/// What stands in a status until somebody has looked.
pub fn pending(kinds: &[&str]) -> Value {
    let pending = |kind: &&str| {
        json!({ "type": kind, "status": "Unknown", "reason": "Pending", "message": "No controller has looked at it yet",
            "lastTransitionTime": "1970-01-01T00:00:00Z" })
    };
    kinds.iter().map(pending).collect()
}

pub fn label_selector() -> Value {
    let strings = list(json!({ "type": "string" }), 64);
    let expression =
        object(json!({ "key!": { "type": "string" }, "operator!": { "type": "string" }, "values": strings }));
    let selector = object(json!({
        "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
        "matchExpressions": list(expression, 64),
    }));
    with(selector, json!({ "x-kubernetes-map-type": "atomic" }))
}
