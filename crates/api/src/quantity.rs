//! `resource.Quantity`: fixed-point numbers with suffixes (`100m`, `1.5Gi`, `12e6`), as upstream reads and writes them.
//! Used by `kinds/*` (validation), the scheduler (requests), the kubelet and quota.
//! Never holds anything finer than a nano; arithmetic saturates, it does not wrap or panic.

use std::{borrow::Cow, cmp::Ordering, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What the suffix family was; kept so that `1Gi + 1Gi` is written `2Gi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `12e6`
    DecimalExponent,
    /// `12Mi`
    BinarySI,
    /// `12M`
    #[default]
    DecimalSI,
}

/// `mantissa * 10^scale`.
#[derive(Debug, Clone, Default)]
pub struct Quantity {
    mantissa: i128,
    /// At least -9.
    scale: i32,
    format: Format,
    /// The text as written, where upstream keeps it because it is canonical already.
    text: Option<Box<str>>,
}

pub const FORMAT_WRONG: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const NUMERIC: &str = "unable to parse numeric part of quantity";
const SUFFIX: &str = "unable to parse quantity's suffix";

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(&'static str);

const NANO: i32 = -9;
/// Digits upstream's fast path takes; beyond it the written text is not kept.
const FAST_DIGITS: usize = 18;

const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [(&str, i32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// The pieces of a quantity's text.
struct Pieces<'a> {
    negative: bool,
    /// Without leading zeroes; may be empty.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

fn split(text: &str) -> Result<Pieces<'_>, ParseError> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, mut rest) = rest.split_at(digits(rest));
    let mut fraction = "";
    if let Some(after) = rest.strip_prefix('.') {
        (fraction, rest) = after.split_at(digits(after));
    }
    let letters = rest.bytes().take_while(|b| b"eEinumkKMGTP".contains(b)).count();
    let tail = &rest[letters..];
    let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail);
    if digits(tail) != tail.len() {
        return Err(ParseError(FORMAT_WRONG));
    }
    Ok(Pieces { negative, whole: whole.trim_start_matches('0'), fraction, suffix: rest })
}

/// The base, exponent and format of a suffix.
fn interpret(suffix: &str) -> Result<(u32, i32, Format), ParseError> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
        return Ok((10, *exponent, Format::DecimalSI));
    }
    if let Some((_, exponent)) = BINARY.iter().find(|(s, _)| *s == suffix) {
        return Ok((2, *exponent, Format::BinarySI));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).and_then(|e| e.parse::<i32>().ok()).ok_or(ParseError(SUFFIX))?;
    Ok((10, exponent, Format::DecimalExponent))
}

fn pow10(exponent: u32) -> Option<i128> {
    10i128.checked_pow(exponent)
}

/// Divides by `10^digits`, away from zero; whether nothing was lost.
fn shrink(value: i128, digits: u32) -> (i128, bool) {
    let Some(divisor) = pow10(digits) else {
        return (value.signum(), value == 0);
    };
    let (quotient, remainder) = (value / divisor, value % divisor);
    if remainder == 0 { (quotient, true) } else { (quotient + value.signum(), false) }
}

impl Quantity {
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            return Err(ParseError(FORMAT_WRONG));
        }
        let Pieces { negative, whole, fraction, suffix } = split(text)?;
        let (base, exponent, mut format) = interpret(suffix)?;
        let digits = whole.len() + fraction.len();
        // More fraction digits than i128 holds cannot change the result beyond "there was something".
        let kept = fraction.len().min(37usize.saturating_sub(whole.len()));
        let lost = fraction[kept..].bytes().any(|b| b != b'0');
        let shifted = format!("{whole}{}", &fraction[..kept]);
        let mut mantissa: i128 =
            if shifted.is_empty() { 0 } else { shifted.parse().map_err(|_| ParseError(NUMERIC))? };
        let mut scale = -(kept as i32);
        if base == 2 {
            mantissa = mantissa.checked_mul(1i128 << exponent).unwrap_or(i128::MAX);
        } else {
            scale = scale.saturating_add(exponent);
        }
        if scale < NANO {
            mantissa = shrink(mantissa, (NANO - scale) as u32).0.max(i128::from(lost));
            scale = NANO;
        } else if lost {
            mantissa = mantissa.saturating_add(1);
        }
        if mantissa == 0 {
            scale = 0;
        }
        let mut quantity = Self { mantissa, scale, format, text: None };
        if format == Format::BinarySI {
            let most = Self { mantissa: i128::from(i64::MAX), ..Self::default() };
            if quantity > most {
                (quantity.mantissa, quantity.scale) = (most.mantissa, 0);
            }
            let one = Self { mantissa: 1, ..Self::default() };
            if mantissa > 0 && quantity < one {
                format = Format::DecimalSI;
            }
        }
        quantity.format = format;
        if negative {
            quantity.mantissa = -quantity.mantissa;
        }
        if kept_as_written(text, whole, fraction, digits, exponent, format) {
            quantity.text = Some(text.into());
        }
        Ok(quantity)
    }

    /// The quantity in a JSON value: a text or a number.
    pub fn from_value(value: &serde_json::Value) -> Option<Self> {
        match value {
            serde_json::Value::String(text) => Self::parse(text.trim()).ok(),
            serde_json::Value::Number(number) => Self::parse(&number.to_string()).ok(),
            _ => None,
        }
    }

    pub fn new(value: i64, format: Format) -> Self {
        Self { mantissa: value.into(), scale: 0, format, text: None }
    }

    pub fn from_milli(value: i64, format: Format) -> Self {
        Self { mantissa: value.into(), scale: -3, format, text: None }
    }

    pub fn from_nano(value: i64, format: Format) -> Self {
        Self { mantissa: value.into(), scale: NANO, format, text: None }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Rounded up to a whole number, saturating.
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// Rounded up to thousandths, saturating.
    pub fn milli_value(&self) -> i64 {
        self.scaled(-3)
    }

    /// The value in units of `10^scale`, rounded up, saturating.
    pub fn scaled(&self, scale: i32) -> i64 {
        let value = if self.scale < scale {
            shrink(self.mantissa, (scale - self.scale) as u32).0
        } else {
            self.at_scale(scale).unwrap_or(if self.mantissa < 0 { i128::MIN } else { i128::MAX })
        };
        value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    pub fn as_f64(&self) -> f64 {
        self.mantissa as f64 * 10f64.powi(self.scale)
    }

    pub fn is_zero(&self) -> bool {
        self.mantissa == 0
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        self.mantissa.signum() as i32
    }

    /// The mantissa at a finer scale; `None` when it does not fit.
    fn at_scale(&self, scale: i32) -> Option<i128> {
        if self.mantissa == 0 {
            return Some(0);
        }
        let digits = u32::try_from(self.scale.checked_sub(scale)?).ok()?;
        self.mantissa.checked_mul(pow10(digits)?)
    }

    pub fn add(&mut self, other: &Quantity) {
        self.combine(other, i128::checked_add, i128::saturating_add);
    }

    pub fn sub(&mut self, other: &Quantity) {
        self.combine(other, i128::checked_sub, i128::saturating_sub);
    }

    fn combine(&mut self, other: &Quantity, exact: fn(i128, i128) -> Option<i128>, saturating: fn(i128, i128) -> i128) {
        self.text = None;
        if self.is_zero() {
            self.format = other.format;
            self.scale = other.scale;
        }
        let scale = if other.is_zero() { self.scale } else { self.scale.min(other.scale) };
        let sum = self.at_scale(scale).zip(other.at_scale(scale)).and_then(|(a, b)| exact(a, b));
        match sum {
            Some(sum) => (self.mantissa, self.scale) = (sum, scale),
            // Too far apart for i128: keep the larger scale, as precision there is beyond any use.
            None => {
                let scale = self.scale.max(other.scale);
                let at = |q: &Quantity| pow10((scale - q.scale) as u32).map_or(0, |divisor| q.mantissa / divisor);
                (self.mantissa, self.scale) = (saturating(at(self), at(other)), scale);
            }
        }
    }

    pub fn mul(&mut self, factor: i64) {
        self.text = None;
        self.mantissa = self.mantissa.saturating_mul(factor.into());
    }

    pub fn neg(&mut self) {
        self.text = None;
        self.mantissa = self.mantissa.saturating_neg();
    }

    /// The number and its power of ten, a multiple of three.
    fn decimal_parts(&self) -> (i128, i32) {
        let (mut mantissa, mut exponent) = (self.mantissa, self.scale);
        while mantissa % 10 == 0 && mantissa != 0 {
            mantissa /= 10;
            exponent += 1;
        }
        while exponent % 3 != 0 {
            mantissa = mantissa.saturating_mul(10);
            exponent -= 1;
        }
        (mantissa, exponent)
    }

    /// The canonical text: no fraction, the largest suffix that keeps it exact.
    pub fn canonical(&self) -> String {
        if self.is_zero() {
            return "0".into();
        }
        let small = *self < Self::new(1024, Format::BinarySI) && *self > Self::new(-1024, Format::BinarySI);
        if self.format == Format::BinarySI && !small {
            let whole = if self.scale >= 0 {
                self.at_scale(0)
            } else {
                Some(shrink(self.mantissa, -self.scale as u32)).filter(|(_, exact)| *exact).map(|(whole, _)| whole)
            };
            if let Some(mut whole) = whole {
                let mut times = 0;
                while whole % 1024 == 0 && times < BINARY.len() {
                    whole /= 1024;
                    times += 1;
                }
                let suffix = if times == 0 { "" } else { BINARY[times - 1].0 };
                return format!("{whole}{suffix}");
            }
        }
        let (mut number, mut exponent) = self.decimal_parts();
        if self.format == Format::DecimalExponent {
            return if exponent == 0 { number.to_string() } else { format!("{number}e{exponent}") };
        }
        while exponent > 18 {
            number = number.saturating_mul(1000);
            exponent -= 3;
        }
        let suffix = DECIMAL.iter().find(|(_, e)| *e == exponent).map_or("", |(s, _)| *s);
        format!("{number}{suffix}")
    }
}

/// Whether upstream writes the text back as it was read.
fn kept_as_written(text: &str, whole: &str, fraction: &str, digits: usize, exponent: i32, format: Format) -> bool {
    let first = whole.bytes().chain(fraction.bytes()).next().unwrap_or(b'0');
    if format == Format::BinarySI {
        let fits = 15i64 - whole.len() as i64 - i64::from(exponent * 3 / 10) > 0;
        let odd = whole.parse::<i64>().is_ok_and(|value| value & 7 != 0);
        return fraction.is_empty() && fits && odd && text.ends_with('i');
    }
    let scale = i64::from(exponent) - fraction.len() as i64;
    let ends_in_thousands =
        fraction.len() + whole.len() >= 3 && whole.bytes().chain(fraction.bytes()).rev().take(3).all(|b| b == b'0');
    (1..=FAST_DIGITS).contains(&digits)
        && scale >= i64::from(NANO)
        && scale % 3 == 0
        && !ends_in_thousands
        && first != b'0'
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => f.write_str(&self.canonical()),
        }
    }
}

impl FromStr for Quantity {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text)
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        let signs = self.mantissa.signum().cmp(&other.mantissa.signum());
        if signs.is_ne() || self.is_zero() {
            return signs;
        }
        let scale = self.scale.min(other.scale);
        match (self.at_scale(scale), other.at_scale(scale)) {
            (Some(a), Some(b)) => a.cmp(&b),
            // The one that does not fit is the larger in size.
            (None, _) if self.mantissa > 0 => Ordering::Greater,
            (None, _) => Ordering::Less,
            (_, None) if self.mantissa > 0 => Ordering::Less,
            (_, None) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// By value: `1` equals `1000m`.
impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Quantity {}

impl Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written<'a> {
            Text(#[serde(borrow)] Cow<'a, str>),
            Number(serde_json::Number),
            Null(()),
        }
        let parsed = match Written::deserialize(deserializer)? {
            Written::Text(text) => Self::parse(text.trim()),
            Written::Number(number) => Self::parse(&number.to_string()),
            Written::Null(()) => Ok(Self::default()),
        };
        parsed.map_err(serde::de::Error::custom)
    }
}

/// A quantity of the API in whole units, rounded up; `None` when it is not one.
pub fn value(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> Option<i64> {
    Quantity::parse(quantity.0.trim()).ok().map(|quantity| quantity.value())
}

/// A quantity of the API in thousandths, rounded up; `None` when it is not one.
pub fn milli_value(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> Option<i64> {
    Quantity::parse(quantity.0.trim()).ok().map(|quantity| quantity.milli_value())
}

impl From<&k8s_openapi::apimachinery::pkg::api::resource::Quantity> for Quantity {
    /// What the API server has let through is valid; anything else counts as zero.
    fn from(quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity) -> Self {
        Self::parse(&quantity.0).unwrap_or_default()
    }
}

impl From<Quantity> for k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    fn from(quantity: Quantity) -> Self {
        Self(quantity.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_as_upstream_writes_them() {
        let check = |text: &str, written: &str| match Quantity::parse(text) {
            Ok(quantity) => assert_eq!(quantity.to_string(), written, "{text}"),
            Err(error) => panic!("{text}: {error}"),
        };
        for same in ["100m", "1", "0", "5Gi", "12e6", "1e3", "+5", "3Mi", "10G", "7k", "50e-3", "100Ti"] {
            check(same, same);
        }
        check("1000m", "1");
        check("0.5", "500m");
        check("1.5Gi", "1536Mi");
        check("1024Mi", "1Gi");
        check("8Mi", "8Mi");
        check("1024", "1024");
        check("0.1Mi", "104857600m");
        check("00100m", "00100m");
        check("0.0000000001", "1n");
        check("-0.0000000001", "-1n");
        check("1.2345678901", "1234567891n");
        check("1e-10", "1e-9");
        check("10e3", "10e3");
        check("1000e3", "1e6");
        check("0Mi", "0");
        check(".5", "500m");
        check("5.", "5.");
        check("1Ki", "1Ki");
        check("1000Ki", "1000Ki");
        check("9223372036854775808Ki", "9223372036854775807");
        check("1000E", "1000E");
        check("12.000", "12");
        check("1E", "1E");
        check("1E3", "1E3");
    }

    #[test]
    fn wrong_texts_are_refused_in_upstreams_words() {
        let check =
            |text: &str, error: &str| assert_eq!(Quantity::parse(text).unwrap_err().to_string(), error, "{text}");
        check("", FORMAT_WRONG);
        check("1.1.1", FORMAT_WRONG);
        check("five", FORMAT_WRONG);
        check("1 Gi", FORMAT_WRONG);
        check("1mi", SUFFIX);
        check("1KI", FORMAT_WRONG);
        check("1Kii", SUFFIX);
        check("1e", SUFFIX);
        check("1e999999999999", SUFFIX);
        check(&"9".repeat(60), NUMERIC);
    }

    #[test]
    fn values_round_up_and_compare() {
        let check = |text: &str, value: i64, milli: i64| {
            let quantity = Quantity::parse(text).unwrap();
            assert_eq!((quantity.value(), quantity.milli_value()), (value, milli), "{text}");
        };
        check("1", 1, 1000);
        check("1m", 1, 1);
        check("1n", 1, 1);
        check("-1n", -1, -1);
        check("1.5Gi", 1610612736, 1610612736000);
        check("8E", 8_000_000_000_000_000_000, i64::MAX);
        check("1e30", i64::MAX, i64::MAX);
        let q = |text: &str| Quantity::parse(text).unwrap();
        assert_eq!(q("1"), q("1000m"));
        assert!(q("1Gi") > q("1G") && q("-1") < q("1n") && q("1e100") > q("1E") && q("1e100") < q("1e101"));
    }

    #[test]
    fn sums_keep_the_format() {
        let check = |a: &str, b: &str, sum: &str, difference: &str| {
            let (a, b) = (Quantity::parse(a).unwrap(), Quantity::parse(b).unwrap());
            let mut plus = a.clone();
            plus.add(&b);
            let mut minus = a;
            minus.sub(&b);
            assert_eq!((plus.to_string().as_str(), minus.to_string().as_str()), (sum, difference));
        };
        check("1Gi", "1Gi", "2Gi", "0");
        check("0", "3Mi", "3Mi", "-3Mi");
        check("1", "250m", "1250m", "750m");
        check("3Mi", "0", "3Mi", "3Mi");
        check("1e50", "1", "100e48", "100e48");
    }

    #[test]
    fn json_takes_numbers_and_texts() {
        let read: Vec<Quantity> = serde_json::from_str(r#"["1", 2, 0.5, null]"#).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"["1","2","500m","0"]"#);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[+-]?[0-9.]{0,45}[eEinumkKMGTP]{0,2}[+-]?[0-9]{0,4}", other in "[0-9]{1,40}[eEKMi]{0,2}[0-9]{0,3}") {
            if let Ok(mut quantity) = Quantity::parse(&text) {
                let again = Quantity::parse(&quantity.to_string());
                proptest::prop_assert!(again.is_err() || again.unwrap() == quantity || quantity.mantissa.abs() > 1 << 100);
                if let Ok(other) = Quantity::parse(&other) {
                    quantity.add(&other);
                    quantity.sub(&other);
                    quantity.mul(3);
                    quantity.neg();
                }
                let _ = (quantity.value(), quantity.milli_value(), quantity.as_f64(), quantity.canonical());
            }
        }
    }
}
