//! The names of fields that are no identifiers, as rules write them: `a-b` is `a__dash__b`.
//! Used by the checker and the cost estimate, and where custom resources become values.
//! `unescape` undoes `escape`.

const WORDS: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

const SIGNS: [(&str, &str); 4] = [("__", "underscores"), (".", "dot"), ("-", "dash"), ("/", "slash")];

/// Whether a field of this name is found escaped and as it is: after a dot a keyword can only be a field.
pub fn is_keyword(name: &str) -> bool {
    WORDS.contains(&name)
}

/// `None` for a name that no rule can write.
pub fn escape(name: &str) -> Option<String> {
    if WORDS.contains(&name) {
        return Some(format!("__{name}__"));
    }
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut escaped = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(next) = rest.chars().next() {
        if let Some((sign, word)) = SIGNS.iter().find(|(sign, _)| rest.starts_with(sign)) {
            escaped.extend(["__", word, "__"]);
            rest = &rest[sign.len()..];
        } else if next.is_ascii_alphanumeric() || next == '_' {
            escaped.push(next);
            rest = &rest[1..];
        } else {
            return None;
        }
    }
    Some(escaped)
}

pub fn unescape(name: &str) -> String {
    let word = name.strip_prefix("__").and_then(|n| n.strip_suffix("__"));
    if let Some(word) = word.filter(|w| WORDS.contains(w)) {
        return word.to_string();
    }
    let mut plain = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once("__") {
        let sign = SIGNS.iter().find_map(|(sign, word)| Some((*sign, after.strip_prefix(word)?.strip_prefix("__")?)));
        let (sign, left) = sign.unwrap_or(("__", after));
        plain.extend([before, sign]);
        rest = left;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_written_and_read() {
        for (name, expected) in [
            ("plain", Some("plain")),
            ("snake_case", Some("snake_case")),
            ("a__b", Some("a__underscores__b")),
            ("__dot__", Some("__underscores__dot__underscores__")),
            ("a.b-c/d", Some("a__dot__b__dash__c__slash__d")),
            ("namespace", Some("__namespace__")),
            ("int", Some("int")),
            ("a b", None),
            ("1a", None),
            ("", None),
        ] {
            let found = escape(name);
            assert_eq!(found.as_deref(), expected, "{name}");
            if let Some(escaped) = found {
                assert_eq!(unescape(&escaped), name);
            }
        }
    }
}
