//! Quantities inside objects: canonical text, rounding, comparing.
//! Used by defaults and validation.
//! Invariant: text that is no quantity is left alone, for validation to name.

use serde_json::{Value, json};

/// Billionths; saturates far beyond what resources reach.
pub fn nanos(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => parse(text),
        Value::Number(number) => parse(&number.to_string()),
        _ => None,
    }
}

const BILLION: i128 = 1_000_000_000;

fn parse(text: &str) -> Option<i128> {
    let text = text.trim();
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (multiplier, divisor) = scale(suffix)?;
    let mut total: i128 = 0;
    for digit in whole.bytes() {
        total = total.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
    }
    total = total.saturating_mul(BILLION);
    let mut unit = BILLION / 10;
    let mut inexact = false;
    for digit in fraction.bytes() {
        total = total.saturating_add(i128::from(digit - b'0') * unit);
        inexact |= unit == 0 && digit != b'0';
        unit /= 10;
    }
    let scaled = total.saturating_mul(multiplier);
    let mut result = scaled / divisor;
    if inexact || scaled % divisor != 0 {
        result += 1;
    }
    Some(if negative { -result } else { result })
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, BILLION),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (BILLION, 1),
        "T" => (1_000 * BILLION, 1),
        "P" => (1_000_000 * BILLION, 1),
        "E" => (BILLION * BILLION, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            match exponent {
                0..=18 => (10i128.pow(exponent as u32), 1),
                -9..0 => (1, 10i128.pow(exponent.unsigned_abs())),
                _ => return None,
            }
        }
    })
}

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
        let rounded = nanos(quantity).filter(|n| n % 1_000_000 != 0).map(|n| n.div_euclid(1_000_000) + 1);
        let text = match rounded {
            Some(milli) => canonical_text(&json!(format!("{milli}m"))),
            None => canonical_text(quantity),
        };
        if let Some(text) = text {
            *quantity = json!(text);
        }
    }
}

fn canonical_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.trim().to_string(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let nanos = parse(&text)?;
    let suffix = text.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-'));
    if nanos == 0 {
        return Some("0".to_string());
    }
    let exponent = suffix.len() > 1 && suffix.starts_with(['e', 'E']);
    if suffix.ends_with('i') && nanos % BILLION == 0 && nanos.abs() >= 1024 * BILLION {
        let mut number = nanos / BILLION;
        let mut names = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].iter();
        let mut name = names.next();
        while number % 1024 == 0 {
            match names.next() {
                Some(next) => (number, name) = (number / 1024, Some(next)),
                None => break,
            }
        }
        return Some(format!("{number}{}", name.unwrap_or(&"")));
    }
    let names = if exponent {
        ["e-9", "e-6", "e-3", "", "e3", "e6", "e9", "e12", "e15", "e18"]
    } else {
        ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]
    };
    let (mut number, mut name) = (nanos, 0);
    while number % 1000 == 0 && name + 1 < names.len() {
        (number, name) = (number / 1000, name + 1);
    }
    Some(format!("{number}{}", names[name]))
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
