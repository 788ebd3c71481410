//! Reads resource quantities ("100m", "64Mi", "1e3") as numbers.
//! Used wherever the node turns a request or a limit into bytes or shares.
//! Invariant: rounds up, as the API does, and never panics on foreign text.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The quantity in thousandths, rounded up; `None` when it is not one or does not fit.
pub fn milli(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '+' || c == '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (negative, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    // As a ratio: digits / 10^places * factor * 1000, in 128 bits, rounded up at the end.
    let fraction = &fraction[..fraction.len().min(12)];
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let (numerator, denominator) = scale(suffix)?;
    let top = digits.checked_mul(numerator)?.checked_mul(1000)?;
    let bottom = 10i128.pow(fraction.len() as u32).checked_mul(denominator)?;
    let value = (top + bottom - 1) / bottom;
    i64::try_from(if negative { -value } else { value }).ok()
}

/// The quantity in whole units, rounded up.
pub fn value(quantity: &Quantity) -> Option<i64> {
    // Large byte counts overflow in thousandths, so whole ones are read directly.
    let text = quantity.0.trim();
    if let Ok(plain) = text.parse::<i64>() {
        return Some(plain);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if let (Ok(number), Some((numerator, 1))) = (text[..end].parse::<i128>(), scale(&text[end..])) {
        return i64::try_from(number.checked_mul(numerator)?).ok();
    }
    milli(quantity).map(|m| if m > 0 { (m + 999) / 1000 } else { m / 1000 })
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (10i128.pow(15), 1),
        "E" => (10i128.pow(18), 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            match power {
                0..=18 => (10i128.pow(power as u32), 1),
                -18..0 => (1, 10i128.pow(-power as u32)),
                _ => return None,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_the_api_means_them() {
        let check = |text: &str, in_milli: Option<i64>, whole: Option<i64>| {
            let quantity = Quantity(text.into());
            assert_eq!((milli(&quantity), value(&quantity)), (in_milli, whole), "{text}");
        };
        check("100m", Some(100), Some(1));
        check("1", Some(1000), Some(1));
        check("1.5", Some(1500), Some(2));
        check("64Mi", Some(67_108_864_000), Some(67_108_864));
        check("0.5Gi", Some(536_870_912_000), Some(536_870_912));
        check("1e3", Some(1_000_000), Some(1000));
        check("8Ei", None, None);
        check("4Ei", None, Some(4 << 60));
        check("1n", Some(1), Some(1));
        check("-1", Some(-1000), Some(-1));
        check("lots", None, None);
        check("", None, None);
    }
}
