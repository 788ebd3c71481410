//! One step of a path into an object, as `FieldsV1` writes it: `f:name`, `k:{"name":"web"}`, `v:"x"`, `i:0`.
//! Used by `set`.
//! Ordered as upstream orders them: fields, keys, values, indices.

use std::{cmp::Ordering, fmt, sync::Arc};

use serde_json::{Map, Value};

#[derive(Debug, Clone)]
pub enum PathElement {
    /// A field of a struct, or a key of a map.
    Field(Arc<str>),
    /// An element of a list, by the values of its key fields, sorted by name.
    Key(Arc<[(String, Value)]>),
    /// An element of a set.
    Value(Arc<Value>),
    Index(i64),
}

impl PathElement {
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// The element named by a key of `FieldsV1`; `None` for kinds of a later version, which are skipped.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some((kind, content)) = text.split_at_checked(2) else {
            return Err("key must be 2 characters long:".into());
        };
        if !kind.ends_with(':') {
            return Err(format!("missing colon: {text}"));
        }
        Ok(Some(match kind {
            "f:" => Self::field(content),
            "v:" => Self::Value(Arc::new(serde_json::from_str(content).map_err(|e| e.to_string())?)),
            "k:" => {
                let key: Map<String, Value> = serde_json::from_str(content).map_err(|e| e.to_string())?;
                let mut fields: Vec<(String, Value)> = key.into_iter().collect();
                fields.sort_by(|a, b| a.0.cmp(&b.0));
                Self::Key(fields.into())
            }
            "i:" => Self::Index(content.parse().map_err(|_| format!("invalid index: {content}"))?),
            _ => return Ok(None),
        }))
    }

    pub fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let key: Map<String, Value> = fields.iter().cloned().collect();
                format!("k:{}", Value::Object(key))
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Key(a), Self::Key(b)) => {
                for ((name_a, a), (name_b, b)) in a.iter().zip(b.iter()) {
                    let order = name_a.cmp(name_b).then_with(|| compare(a, b));
                    if order.is_ne() {
                        return order;
                    }
                }
                a.len().cmp(&b.len())
            }
            (Self::Value(a), Self::Value(b)) => compare(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// As messages show it: `.spec`, `[name="web"]`, `[="x"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                let parts: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", parts.join(","))
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Upstream's order of values; `1` and `1.0` are equal.
pub fn compare(a: &Value, b: &Value) -> Ordering {
    fn rank(value: &Value) -> u8 {
        match value {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().unwrap_or(0.0).total_cmp(&y.as_f64().unwrap_or(0.0)),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Array(x), Value::Array(y)) => {
            x.iter().zip(y).map(|(x, y)| compare(x, y)).find(|o| o.is_ne()).unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        (Value::Object(x), Value::Object(y)) => x
            .iter()
            .zip(y)
            .map(|((kx, x), (ky, y))| kx.cmp(ky).then_with(|| compare(x, y)))
            .find(|o| o.is_ne())
            .unwrap_or_else(|| x.len().cmp(&y.len())),
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Equal as upstream compares values: numbers by value, whatever their form.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, x)| y.get(k).is_some_and(|y| equal(x, y)))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| equal(x, y)),
        (Value::String(x), Value::String(y)) => x == y,
        _ => compare(a, b).is_eq(),
    }
}
