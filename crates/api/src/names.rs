//! Which names and other small texts are legal, in upstream's words.
//! Used by `kinds/*` for metadata.name and for the many fields that hold names, keys, ports and addresses.
//! Returns every complaint; an empty list is a legal text.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::LazyLock,
};

use regex::Regex;

fn pattern(text: &str) -> Regex {
    Regex::new(&format!("^(?:{text})$")).expect("the patterns of this file are valid")
}

/// Upstream's way to word a failed pattern.
fn regex_complaint(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    let mut shown = String::new();
    for (index, example) in examples.iter().enumerate() {
        if index > 0 {
            shown.push_str(" or ");
        }
        shown.push_str(&format!("'{example}', "));
    }
    format!("{message} (e.g. {shown}regex used for validation is '{pattern}')")
}

/// With `prefix`, `name` is a generateName prefix: a trailing dash is fine because a suffix follows.
fn masked(name: &str, prefix: bool) -> std::borrow::Cow<'_, str> {
    match name.strip_suffix('-') {
        Some(head) if prefix && !head.is_empty() => format!("{head}a").into(),
        _ => name.into(),
    }
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";

/// By hand: this runs for every name of every request.
fn is_label(name: &str, dots: bool) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |part: &[u8]| {
        !part.is_empty() && edge(part[0]) && edge(part[part.len() - 1]) && part.iter().all(|b| edge(*b) || *b == b'-')
    };
    if dots { name.as_bytes().split(|b| *b == b'.').all(label) } else { label(name.as_bytes()) }
}

/// RFC 1123 subdomain, up to 253 characters: the usual object name.
pub fn dns_subdomain(name: &str, prefix: bool) -> Vec<String> {
    let name = masked(name, prefix);
    let mut complaints = too_long(&name, 253);
    if !is_label(&name, true) {
        complaints.push(regex_complaint(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character",
            SUBDOMAIN,
            &["example.com"],
        ));
    }
    complaints
}

/// RFC 1123 label, up to 63 characters: namespaces, containers, volumes.
pub fn dns_label(name: &str, prefix: bool) -> Vec<String> {
    let name = masked(name, prefix);
    let mut complaints = too_long(&name, 63);
    if !is_label(&name, false) {
        complaints.push(if is_label(&name, true) {
            "must not contain dots".to_string()
        } else {
            regex_complaint(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            )
        });
    }
    complaints
}

/// RFC 1035 label: services.
pub fn dns1035_label(name: &str, prefix: bool) -> Vec<String> {
    let name = masked(name, prefix);
    let mut complaints = too_long(&name, 63);
    if !is_label(&name, false) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        complaints.push(regex_complaint(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    complaints
}

/// `*.example.com`: hosts of ingresses.
pub fn wildcard_subdomain(name: &str) -> Vec<String> {
    let mut complaints = too_long(name, 253);
    if !name.strip_prefix("*.").is_some_and(|rest| is_label(rest, true)) {
        complaints.push(regex_complaint(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
             consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            &format!("\\*\\.{SUBDOMAIN}"),
            &["*.example.com"],
        ));
    }
    complaints
}

/// A search path of a resolver, where an underscore is common.
pub fn subdomain_with_underscore(name: &str) -> Vec<String> {
    const PATTERN: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
    static REGEX: LazyLock<Regex> = LazyLock::new(|| pattern(PATTERN));
    let mut complaints = too_long(name, 253);
    if !REGEX.is_match(name) {
        complaints.push(regex_complaint(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and \
             must start and end with an alphanumeric character",
            PATTERN,
            &["example.com"],
        ));
    }
    complaints
}

/// What may stand as one segment of a URL path: RBAC names and the like.
pub fn path_segment(name: &str, _prefix: bool) -> Vec<String> {
    match name {
        "." | ".." => return vec![format!("may not be '{name}'")],
        _ => {}
    }
    ["/", "%"].iter().filter(|c| name.contains(*c)).map(|c| format!("may not contain '{c}'")).collect()
}

fn too_long(name: &str, max: usize) -> Vec<String> {
    if name.len() > max { vec![format!("must be no more than {max} characters")] } else { Vec::new() }
}

const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const KEY_EXAMPLES: [&str; 3] = ["MyName", "my.name", "123-abc"];
const KEY_MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                           alphanumeric character";

fn is_key(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// The key of a label, annotation or finalizer: an optional subdomain, a slash, a name.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                complaints.push("prefix part must be non-empty".to_string());
            } else {
                let found = dns_subdomain(prefix, false).into_iter();
                complaints.extend(found.map(|c| format!("prefix part {}", c.replace("253 characters", "253 bytes"))));
            }
            *name
        }
        _ => {
            let words = regex_complaint(KEY_MESSAGE, KEY, &KEY_EXAMPLES);
            return vec![format!(
                "a valid label key {words} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".to_string());
    } else if name.len() > 63 {
        complaints.push("name part must be no more than 63 bytes".to_string());
    }
    if !is_key(name) {
        complaints.push(format!("name part {}", regex_complaint(KEY_MESSAGE, KEY, &KEY_EXAMPLES)));
    }
    complaints
}

pub fn label_value(text: &str) -> Vec<String> {
    // Labels are counted in bytes, names in characters, as upstream has it.
    let mut complaints = Vec::new();
    if text.len() > 63 {
        complaints.push("must be no more than 63 bytes".to_string());
    }
    if !text.is_empty() && !is_key(text) {
        complaints.push(regex_complaint(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character",
            &format!("({KEY})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    complaints
}

/// A key of a ConfigMap or Secret.
pub fn config_map_key(key: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if key.len() > 253 {
        complaints.push("must be no more than 253 characters".to_string());
    }
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')) {
        complaints.push(regex_complaint(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match key {
        "." | ".." => complaints.push(format!("must not be '{key}'")),
        _ if key.starts_with("..") => complaints.push("must not start with '..'".to_string()),
        _ => {}
    }
    complaints
}

/// An environment variable: anything printable but `=`.
pub fn environment_variable(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["environment variable name must be non-empty".to_string()];
    }
    if name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_string()]
}

/// The name of a port (RFC 6335).
pub fn port_name(name: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if name.len() > 15 {
        complaints.push("must be no more than 15 characters".to_string());
    }
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        complaints.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_string());
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        complaints.push("must contain at least one letter (a-z)".to_string());
    }
    if name.contains("--") {
        complaints.push("must not contain consecutive hyphens".to_string());
    }
    if name.starts_with('-') || name.ends_with('-') {
        complaints.push("must not begin or end with a hyphen".to_string());
    }
    complaints
}

pub fn port_number(number: i64) -> Vec<String> {
    in_range(number, 1, 65535)
}

pub fn in_range(number: i64, low: i64, high: i64) -> Vec<String> {
    if (low..=high).contains(&number) {
        Vec::new()
    } else {
        vec![format!("must be between {low} and {high}, inclusive")]
    }
}

pub fn percent(text: &str) -> Vec<String> {
    let digits = text.strip_suffix('%').unwrap_or("");
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return Vec::new();
    }
    vec![regex_complaint(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

pub fn http_header(name: &str) -> Vec<String> {
    if !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    vec![regex_complaint(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// A CEL variable and the like.
pub fn c_identifier(name: &str) -> Vec<String> {
    let mut bytes = name.bytes();
    let legal = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if legal {
        return Vec::new();
    }
    vec![regex_complaint(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric \
         characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

pub fn ip(text: &str) -> Vec<String> {
    if parse_ip(text).is_some() {
        return Vec::new();
    }
    vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_string()]
}

/// Zones are no part of an address here.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok()
}

pub fn cidr(text: &str) -> Vec<String> {
    if parse_cidr(text).is_some() {
        return Vec::new();
    }
    vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_string()]
}

pub fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = parse_ip(address)?;
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    (length <= most).then_some((address, length))
}

/// What an endpoint or an external address may not be.
/// What Go calls a global unicast address: no loopback, link-local, multicast, broadcast or unspecified one, however it
/// is written (`::ffff:127.0.0.1` is `127.0.0.1`). Private networks count.
pub fn is_global_unicast(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !local && !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

pub fn endpoint_ip(text: &str) -> Vec<String> {
    let Some(address) = parse_ip(text) else { return vec!["must be a valid IP address".to_string()] };
    let address = address.to_canonical();
    let mut complaints = Vec::new();
    if address.is_unspecified() {
        complaints.push(format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        complaints.push("may not be in the loopback range (127.0.0.0/8, ::1/128)".to_string());
    }
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if link_local {
        complaints.push("may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_string());
    }
    let multicast = match address {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02 && v6 != Ipv6Addr::UNSPECIFIED,
    };
    if multicast {
        complaints.push("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_string());
    }
    complaints
}

/// How many letters to change, add or leave out: for "did you mean".
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.to_lowercase().chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(before + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legal_and_illegal() {
        let check = |complaints: Vec<String>, expected: usize| assert_eq!(complaints.len(), expected, "{complaints:?}");
        check(dns_subdomain("a.b-c", false), 0);
        check(dns_subdomain("A", false), 1);
        check(dns_subdomain("a..b", false), 1);
        check(dns_subdomain("a-", true), 0);
        check(dns_subdomain("a-", false), 1);
        check(dns_label("a.b", false), 1);
        check(dns1035_label("1a", false), 1);
        check(qualified_name("example.com/My_name"), 0);
        check(qualified_name("/x"), 1);
        check(qualified_name("a/b/c"), 1);
        check(qualified_name("Example.com/x"), 1);
        check(label_value(""), 0);
        check(label_value("-a"), 1);
        check(config_map_key("a_b.C-1"), 0);
        check(config_map_key("a/b"), 1);
        check(config_map_key(".."), 1);
        check(port_name("http"), 0);
        check(port_name("8080"), 1);
        check(percent("25%"), 0);
        check(percent("25"), 1);
        check(cidr("10.0.0.0/8"), 0);
        check(cidr("10.0.0.0/33"), 1);
        check(endpoint_ip("127.0.0.1"), 1);
        check(wildcard_subdomain("*.a.b"), 0);
        check(environment_variable("A=B"), 1);
    }

    #[test]
    fn words() {
        assert_eq!(
            dns_subdomain("A", false)[0],
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        );
        assert_eq!(
            label_value("_")[0],
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
        );
    }
}
