//! Quantities inside objects: canonical text, rounding, comparing.
//! Used by defaults and validation.
//! Text that is no quantity is left alone, for validation to name.

use serde_json::{Value, json};

use crate::quantity::Quantity;

/// Rewrites one field the way upstream prints quantities.
pub fn canonical(value: &mut Value, key: &str) {
    if let Some(text) = value.get(key).and_then(canonical_text) {
        value[key] = json!(text);
    }
}

/// Rewrites a map of resources the way upstream prints them, rounded up to thousandths.
pub fn round_list(value: &mut Value, key: &str) {
    let Some(map) = value.get_mut(key).and_then(Value::as_object_mut) else { return };
    for quantity in map.values_mut() {
        let Some(exact) = Quantity::from_value(quantity) else { continue };
        let rounded = Quantity::from_milli(exact.milli_value(), exact.format());
        // What is too large for thousandths needs no rounding.
        let text = if rounded > exact { rounded.canonical() } else { exact.canonical() };
        *quantity = json!(text);
    }
}

fn canonical_text(value: &Value) -> Option<String> {
    Quantity::from_value(value).map(|quantity| quantity.canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_as_upstream_prints() {
        for (given, canonical) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("1000Mi", "1000Mi"),
            ("0.1Ki", "102400m"),
            ("100k", "100k"),
            ("1e3", "1e3"),
            ("0", "0"),
            ("2000", "2k"),
            ("512Mi", "512Mi"),
            ("-1", "-1"),
        ] {
            assert_eq!(canonical_text(&json!(given)).as_deref(), Some(canonical), "{given}");
        }
        assert_eq!(canonical_text(&json!("1x")), None);
        assert_eq!(canonical_text(&json!(2)).as_deref(), Some("2"));
        let mut list = json!({ "limits": { "cpu": "1u", "memory": "1Gi" } });
        round_list(&mut list, "limits");
        assert_eq!(list["limits"], json!({ "cpu": "1m", "memory": "1Gi" }));
    }
}
