//! Which label keys and values are legal, in upstream's words.
//! Used by `labels`; also by validation of metadata.
//! Invariant: returns every complaint; an empty list is legal.

use crate::names;

/// An optional DNS prefix with a slash, and a name of up to 63 characters.
pub fn label_key(key: &str) -> Vec<String> {
    let shape = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                 character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut complaints = Vec::new();
    let name = match key.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                complaints.push("prefix part must be non-empty".into());
            } else {
                complaints.extend(names::dns_subdomain(prefix, false).iter().map(|c| format!("prefix part {c}")));
            }
            name
        }
        _ => {
            let tail = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {shape} {tail}")];
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        complaints.push("name part must be no more than 63 bytes".into());
    }
    if !is_word(name) {
        complaints.push(format!("name part {shape}"));
    }
    complaints
}

/// Empty, or a name of up to 63 characters.
pub fn label_value(value: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if value.len() > 63 {
        complaints.push("must be no more than 63 bytes".into());
    }
    if !value.is_empty() && !is_word(value) {
        complaints.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .into(),
        );
    }
    complaints
}

fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}
