//! Field selectors: `metadata.name=web,status.phase!=Running`.
//! Read by `apiserver`, which knows the fields of each kind.
//! Says nothing about which fields exist.

use std::fmt;

use super::check_size;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRequirement {
    pub field: String,
    pub value: String,
    /// `!=` rather than `=`.
    pub negated: bool,
}

/// All requirements must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector(Vec<FieldRequirement>);

impl FieldSelector {
    pub fn parse(text: &str) -> Result<Self, String> {
        check_size(text)?;
        let mut terms = split_terms(text);
        terms.sort_unstable();
        let mut requirements = Vec::new();
        for term in terms.into_iter().filter(|t| !t.is_empty()) {
            let (field, negated, value) =
                split_term(term).ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{term}'"))?;
            let (field, value) = (field.to_string(), unescape(value)?);
            // A term that asks nothing of nothing is dropped, as upstream does.
            if !(field.is_empty() && value.is_empty()) {
                requirements.push(FieldRequirement { field, value, negated });
            }
        }
        Ok(Self(requirements))
    }

    /// One field with one value.
    pub fn one(field: &str, value: &str) -> Self {
        Self(vec![FieldRequirement { field: field.into(), value: value.into(), negated: false }])
    }

    /// `lookup` answers the value of a field, empty where there is none.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> &'a str) -> bool {
        self.0.iter().all(|r| (lookup(&r.field) == r.value) != r.negated)
    }

    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value that `field` must have, when the selector says so.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|r| r.field == field && !r.negated).map(|r| r.value.as_str())
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    for (i, _) in term.char_indices() {
        for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
            if let Some(value) = term[i..].strip_prefix(operator) {
                return Some((&term[..i], negated, value));
            }
        }
    }
    None
}

fn unescape(text: &str) -> Result<String, String> {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => value.push(c),
                other => {
                    let sequence: String = ['\\'].into_iter().chain(other).collect();
                    return Err(format!("invalid field selector: invalid escape sequence: {sequence}"));
                }
            },
            ',' | '=' => {
                return Err(format!("invalid field selector: unescaped character in value: {}", c as u32));
            }
            _ => value.push(c),
        }
    }
    Ok(value)
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, r) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let operator = if r.negated { "!=" } else { "=" };
            let value = r.value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
            write!(f, "{comma}{}{operator}{value}", r.field)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_match() {
        let check = |selector: &str, matches: bool| {
            let parsed = FieldSelector::parse(selector).unwrap();
            let lookup = |field: &str| match field {
                "metadata.name" => "web",
                "odd" => "a,b=c\\",
                _ => "",
            };
            assert_eq!(parsed.matches(lookup), matches, "{selector}");
            assert_eq!(FieldSelector::parse(&parsed.to_string()).unwrap(), parsed);
        };
        check("", true);
        check("metadata.name=web", true);
        check("metadata.name==web", true);
        check("metadata.name!=web", false);
        check("metadata.name=web,spec.nodeName=", true);
        check("metadata.name=web,spec.nodeName!=", false);
        check(r"odd=a\,b\=c\\", true);
        check(",metadata.name=web,", true);
    }

    #[test]
    fn errors_are_upstreams() {
        let check = |selector: &str, error: &str| assert_eq!(FieldSelector::parse(selector).unwrap_err(), error);
        check("a", "invalid selector: 'a'; can't understand 'a'");
        check("a=b,c", "invalid selector: 'a=b,c'; can't understand 'c'");
        check(r"a=\x", r"invalid field selector: invalid escape sequence: \x");
        check("a=b=c", "invalid field selector: unescaped character in value: 61");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "[a-c=!,\\\\\\PC]{0,30}") {
            if let Ok(selector) = FieldSelector::parse(&text) {
                let _ = (selector.to_string(), selector.matches(|_| ""));
            }
        }
    }
}
