//! Which names are legal, in upstream's words.
//! Used by `kinds/*` for metadata.name and for the many fields that hold names.
//! Invariant: returns every complaint; an empty list is a legal name.

use std::sync::LazyLock;

use regex::Regex;

fn matches(pattern: &'static LazyLock<Regex>, text: &str) -> bool {
    pattern.is_match(text)
}

/// With `prefix`, `name` is a generateName prefix: a trailing dash is fine because a suffix follows.
fn masked(name: &str, prefix: bool) -> String {
    match name.strip_suffix('-') {
        Some(head) if prefix => format!("{head}a"),
        _ => name.to_string(),
    }
}

/// RFC 1123 subdomain, up to 253 characters: the usual object name.
pub fn dns_subdomain(name: &str, prefix: bool) -> Vec<String> {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$").expect("valid")
    });
    let name = masked(name, prefix);
    let mut complaints = too_long(&name, 253);
    if !matches(&PATTERN, &name) {
        complaints.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into(),
        );
    }
    complaints
}

/// RFC 1123 label, up to 63 characters: namespaces, containers, volumes.
pub fn dns_label(name: &str, prefix: bool) -> Vec<String> {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$").expect("valid"));
    let name = masked(name, prefix);
    let mut complaints = too_long(&name, 63);
    if !matches(&PATTERN, &name) {
        complaints.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
             end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .into(),
        );
    }
    complaints
}

/// RFC 1035 label: services.
pub fn dns1035_label(name: &str, prefix: bool) -> Vec<String> {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^[a-z]([-a-z0-9]*[a-z0-9])?$").expect("valid"));
    let name = masked(name, prefix);
    let mut complaints = too_long(&name, 63);
    if !matches(&PATTERN, &name) {
        complaints.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
             character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
             validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .into(),
        );
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
    if name.len() > max { vec![format!("must be no more than {max} bytes")] } else { Vec::new() }
}
