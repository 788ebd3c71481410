//! The string formats an `openAPIV3Schema` may ask for.
//! Used by `check`.
//! An unknown format is not checked, as upstream has it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine;
use regex::Regex;

/// Formats that say something of a value. Others, those of numbers among them, are as if they were not there.
const KNOWN: &[&str] = &[
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "date-time",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

pub fn is_known(format: &str) -> bool {
    KNOWN.contains(&format)
}

pub fn fits(format: &str, text: &str) -> bool {
    match format {
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "byte" => base64::prelude::BASE64_STANDARD.decode(text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "ip" => text.parse::<IpAddr>().is_ok(),
        "cidr" => text.parse::<ipnet::IpNet>().is_ok(),
        "uri" => text.contains(':') && text.parse::<http::Uri>().is_ok() || text.starts_with('/'),
        "hostname" => text.len() <= 255 && api::names::dns_subdomain(&text.to_ascii_lowercase(), false).is_empty(),
        "email" => matches(text, r"^[^@\s]+@[^@\s]+\.[^@\s]+$") || matches(text, r"^[^@\s]+@[^@\s]+$"),
        "mac" => matches(text, r"^([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}$"),
        "uuid" => matches(text, r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        "uuid3" => matches(text, r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        "uuid4" => matches(text, r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        "uuid5" => matches(text, r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        "hexcolor" => matches(text, r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
        "duration" => is_duration(text),
        _ => true,
    }
}

fn matches(text: &str, pattern: &str) -> bool {
    Regex::new(pattern).is_ok_and(|r| r.is_match(text))
}

/// Go's durations: `1h30m`, `1.5s`.
fn is_duration(text: &str) -> bool {
    text == "0"
        || matches(
            text,
            r"^[-+]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d|w)((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h|d|w))*$",
        )
}
