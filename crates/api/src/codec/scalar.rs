//! Values that are strings in JSON and something more in Go: times, durations, base64.
//! Used by `typed` (to check and normalize) and by `protobuf` (to pack and unpack).
//! What is returned reads back as itself.

use std::time::Duration;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use jiff::Timestamp;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

pub(super) fn parse_time(text: &str) -> Result<Timestamp, String> {
    parse_as("2006-01-02T15:04:05Z07:00", text)
}

pub(super) fn parse_micro_time(text: &str) -> Result<Timestamp, String> {
    parse_as("2006-01-02T15:04:05.000000Z07:00", text)
}

/// In Go's words, where it cannot be read.
fn parse_as(layout: &str, text: &str) -> Result<Timestamp, String> {
    // Stricter than jiff, which takes more of ISO 8601 than RFC 3339 allows.
    let shaped = text.len() >= 20
        && text.as_bytes()[4] == b'-'
        && text.as_bytes()[7] == b'-'
        && text.as_bytes()[10] == b'T'
        && text.as_bytes()[13] == b':'
        && text.as_bytes()[16] == b':';
    match text.parse::<Timestamp>() {
        Ok(time) if shaped => Ok(time),
        _ => Err(format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"")),
    }
}

/// `2006-01-02T15:04:05Z`: whole seconds, UTC.
pub(super) fn format_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `2006-01-02T15:04:05.000000Z`.
pub(super) fn format_micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

pub(super) fn decode_base64(text: &str) -> Result<Vec<u8>, String> {
    let clean: std::borrow::Cow<'_, str> = match text.contains(['\n', '\r']) {
        true => text.replace(['\n', '\r'], "").into(),
        false => text.into(),
    };
    BASE64.decode(clean.as_bytes()).map_err(|e| {
        let at = match e {
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
            _ => text.len(),
        };
        format!("illegal base64 data at input byte {at}")
    })
}

pub(super) fn encode_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// As Go's `strconv.ParseBool`.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Go's duration text, in nanoseconds.
pub fn parse_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {text:?}");
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return Err(invalid());
        }
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(|| format!("time: missing unit in duration {text:?}"))?;
        let (number, after) = rest.split_at(digits);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let (_, scale) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| format!("time: unknown unit {unit:?} in duration {text:?}"))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 25 {
            return Err(invalid());
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        total += whole * scale;
        let mut place = *scale;
        for digit in fraction.bytes() {
            place /= 10;
            total += i128::from(digit - b'0') * place;
        }
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

/// The same, of one that may not be negative.
pub fn parse_unsigned_duration(text: &str) -> Option<Duration> {
    parse_duration(text).ok().and_then(|nanos| u64::try_from(nanos).ok()).map(Duration::from_nanos)
}

/// As Go prints a duration: `1h0m0s`, `1.5s`, `300ms`.
pub(crate) fn format_duration(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".into();
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let size = nanos.unsigned_abs();
    let decimal = |value: u64, scale: u64, unit: &str| {
        let fraction = format!("{:0width$}", value % scale, width = scale.ilog10() as usize);
        let fraction = fraction.trim_end_matches('0');
        let dot = if fraction.is_empty() || scale == 1 { "" } else { "." };
        let fraction = if scale == 1 { "" } else { fraction };
        format!("{}{dot}{fraction}{unit}", value / scale)
    };
    let text = match size {
        0..1_000 => format!("{size}ns"),
        1_000..1_000_000 => decimal(size, 1_000, "\u{b5}s"),
        1_000_000..1_000_000_000 => decimal(size, 1_000_000, "ms"),
        _ => {
            let minutes = size / 60_000_000_000;
            let seconds = decimal(size % 60_000_000_000, 1_000_000_000, "s");
            match minutes {
                0 => seconds,
                1..60 => format!("{minutes}m{seconds}"),
                _ => format!("{}h{}m{seconds}", minutes / 60, minutes % 60),
            }
        }
    };
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, nanos, back) in [
            ("1h", 3_600_000_000_000, "1h0m0s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            ("300ms", 300_000_000, "300ms"),
            ("-2m3s", -123_000_000_000, "-2m3s"),
            ("0", 0, "0s"),
            ("1500us", 1_500_000, "1.5ms"),
        ] {
            assert_eq!(parse_duration(text), Ok(nanos), "{text}");
            assert_eq!(format_duration(nanos), back);
            assert_eq!(parse_duration(back), Ok(nanos));
        }
        for bad in ["", "1", "h", "1x", "1.2.3s", "..s", "99999999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        let check = |text: &str, whole: &str, micro: &str| {
            let time = parse_time(text).unwrap();
            assert_eq!((format_time(time).as_str(), format_micro_time(time).as_str()), (whole, micro));
        };
        check("2004-01-01T01:01:01Z", "2004-01-01T01:01:01Z", "2004-01-01T01:01:01.000000Z");
        check("2004-01-01T03:01:01.123456789+02:00", "2004-01-01T01:01:01Z", "2004-01-01T01:01:01.123456Z");
        for bad in ["", "yesterday", "2004-01-01", "20040101T010101Z", "2004-01-01T01:01:01", "2004-13-01T01:01:01Z"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
