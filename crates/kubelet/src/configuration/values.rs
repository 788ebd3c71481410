//! Values of configuration fields as the program uses them.
//! Used by `fields`.
//! Invariant: pure; a wrong type is named together with what was found (tidy: `pure_files`).

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use super::error::FieldError;
use api::quantity;

pub use api::codec::parse_unsigned_duration as parse_duration;

fn expected<T>(what: &'static str, found: &Value) -> Result<T, FieldError> {
    Err(FieldError::Expected { what, found: found.clone() })
}

pub fn text(value: &Value) -> Result<String, FieldError> {
    value.as_str().map_or_else(|| expected("a text", value), |text| Ok(text.to_string()))
}

pub fn flag(value: &Value) -> Result<bool, FieldError> {
    value.as_bool().map_or_else(|| expected("true or false", value), Ok)
}

pub fn number<N: TryFrom<i64>>(value: &Value) -> Result<N, FieldError> {
    let number = value.as_i64().and_then(|number| N::try_from(number).ok());
    number.map_or_else(|| expected("a whole number", value), Ok)
}

pub fn parsed<T: std::str::FromStr>(value: &Value, what: &'static str) -> Result<T, FieldError> {
    value.as_str().and_then(|text| text.parse().ok()).map_or_else(|| expected(what, value), Ok)
}

pub fn list(value: &Value) -> Result<Vec<Value>, FieldError> {
    value.as_array().map_or_else(|| expected("a list", value), |list| Ok(list.clone()))
}

pub fn texts(value: &Value) -> Result<Vec<String>, FieldError> {
    list(value)?.iter().map(text).collect()
}

pub fn map(value: &Value) -> Result<BTreeMap<String, String>, FieldError> {
    let Some(map) = value.as_object() else { return expected("a map", value) };
    map.iter().map(|(key, value)| Ok((key.clone(), text(value)?))).collect()
}

pub fn bytes(text: &str) -> Result<i64, FieldError> {
    quantity::value(&Quantity(text.into())).ok_or_else(|| FieldError::NotQuantity(text.into()))
}

pub fn milli(text: &str) -> Result<i64, FieldError> {
    quantity::milli_value(&Quantity(text.into())).ok_or_else(|| FieldError::NotQuantity(text.into()))
}

pub fn duration(value: &Value) -> Result<Duration, FieldError> {
    value.as_str().and_then(parse_duration).map_or_else(|| expected("a duration like \"1m30s\"", value), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, expected) in [
            ("10s", Some(10_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("100ms", Some(100)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("10", None),
            ("s", None),
            ("", None),
            ("-1s", None),
            ("5 s", None),
        ] {
            assert_eq!(parse_duration(text).map(|d| d.as_millis() as u64), expected, "{text}");
        }
    }
}
