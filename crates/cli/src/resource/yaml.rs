//! Documents out of files: YAML or JSON, several in one.
//! Used by `resource` and `kubeconfig`.
//! An error names the line, as counted in the document.

use api::codec::{ContentType, decode};
use serde_json::Value;

/// What the reader's stack bears.
const DEPTH_MAX: usize = 64;

/// One document. The message is without the file's name.
pub fn read(bytes: &[u8]) -> Result<Value, String> {
    match decode(bytes, ContentType::Yaml, None) {
        Ok(decoded) => Ok(decoded.value),
        Err(error) => {
            let text = error.to_string();
            match text.split_once(": yaml: ") {
                Some((_, why)) => Err(as_go_says(why, &String::from_utf8_lossy(bytes))),
                None => Err(text),
            }
        }
    }
}

/// One document as kustomize reads it: YAML 1.2, where `Y` and `on` are words.
pub fn read_core(bytes: &[u8]) -> Result<Value, String> {
    let mut options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    if let Some(budget) = &mut options.budget {
        budget.max_depth = DEPTH_MAX;
    }
    serde_saphyr::from_slice_with_options(bytes, options).map_err(|error| format!("yaml: {}", error.without_snippet()))
}

/// The YAML reader's words as those of Go's: a parser names the line before, a scanner the line itself.
fn as_go_says(text: &str, document: &str) -> String {
    let head = "error converting YAML to JSON: yaml";
    let text = text.split(" (").next().unwrap_or(text);
    // The first line is not named.
    let (line, what): (usize, &str) = match text.strip_prefix("line ").and_then(|rest| rest.split_once(": ")) {
        Some((line, what)) => (line.parse().unwrap_or(1), what),
        None => (1, text),
    };
    let what = what.rsplit(", ").next().unwrap_or(what);
    let unclosed = what.starts_with("unclosed bracket");
    // The document ended too early.
    let open = |bracket: char| document.trim_end().ends_with(bracket);
    let what = match what {
        "unclosed bracket '['" | "unclosed bracket '{'" if open('[') || open('{') => {
            "did not find expected node content"
        }
        "unclosed bracket '['" => "did not find expected ',' or ']'",
        "unclosed bracket '{'" => "did not find expected ',' or '}'",
        // A quote that is open at the end is taken for a line that is not indented enough.
        "unclosed quote" | "invalid indentation in multiline quoted scalar" => {
            let last = document.lines().count() + usize::from(document.ends_with('\n'));
            return format!("{head}: line {last}: found unexpected end of stream");
        }
        "alias references unknown anchor" => {
            let alias = document.split('*').nth(1).unwrap_or_default();
            let name: String = alias.chars().take_while(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
            return format!("{head}: unknown anchor '{name}' referenced");
        }
        "recursive references require weak recursion types" => {
            let anchor = document.split('&').nth(1).unwrap_or_default();
            let name: String = anchor.chars().take_while(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
            return format!("{head}: anchor '{name}' value contains itself");
        }
        // A new key where a bracket is still open.
        "illegal placement of ':' indicator" => match opened_last(document) {
            Some('[') => "did not find expected ',' or ']'",
            Some(_) => "did not find expected ',' or '}'",
            None => what,
        },
        what => what,
    };
    let starts_no_token = ["tabs disallowed", "unexpected character"].iter().any(|words| what.starts_with(words));
    let what = if starts_no_token { "found character that cannot start any token" } else { what };
    let by_parser = what.starts_with("did not find expected") && !(open('[') || open('{') || unclosed);
    let (shown, what) = match what {
        // Found missing on the line behind.
        "simple key expected ':'" => (line + 1, "could not find expected ':'"),
        what if by_parser => (line.saturating_sub(1), what),
        // A scanner that fails on the first line does not count it.
        what if line == 1 && !unclosed && !what.starts_with("did not find") => (0, what),
        what => (line, what),
    };
    match shown {
        0 => format!("{head}: {what}"),
        shown => format!("{head}: line {shown}: {what}"),
    }
}

/// The bracket that was opened last and is still open, quotes apart.
fn opened_last(document: &str) -> Option<char> {
    let mut open = Vec::new();
    for letter in document.chars() {
        match letter {
            '[' | '{' => open.push(letter),
            ']' | '}' => drop(open.pop()),
            _ => {}
        }
    }
    open.pop()
}

/// The documents of a stream, split where a line is `---`.
pub fn documents(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let is_separator = line.trim_end() == "---" || line.starts_with("--- ") || line.starts_with("---\t");
        if is_separator {
            found.push(&text[start..at]);
            start = at + line.len();
        }
        at += line.len();
    }
    found.push(&text[start..]);
    let says_something = |text: &&str| text.lines().any(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#'));
    found.into_iter().filter(says_something).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_yaml_is_said_as_go_says_it() {
        let check = |text: &str, wanted: &str| {
            let why = read(text.as_bytes()).err();
            assert_eq!(why, Some(format!("error converting YAML to JSON: yaml: {wanted}")), "{text:?}");
        };
        check("a: [\n", "line 1: did not find expected node content");
        check("a: b\nc: {name: x\n", "line 2: did not find expected ',' or '}'");
        check("\"unterminated\n", "line 2: found unexpected end of stream");
        check("a: &x [*y]\n", "unknown anchor 'y' referenced");
        check("kind: Pod\nmetadata:\n\tname: x\n", "line 3: found character that cannot start any token");
        check("a:\n  b: c\n d: 1\n", "line 2: did not find expected key");
        check("a:\n  b: {c: d\n  e: f\ng: {}\n", "line 2: did not find expected ',' or '}'");
        check("a: \"x\n", "line 2: found unexpected end of stream");
        check("a: &a [*a]\n", "anchor 'a' value contains itself");
        check("a: b: c\n", "mapping values are not allowed in this context");
        check("x: y\na: b: c\n", "line 2: mapping values are not allowed in this context");
        check("a: @b\n", "found character that cannot start any token");
        check("x: y\na: `b\n", "line 2: found character that cannot start any token");
        check("key: [a, b\nother: c\n", "line 1: did not find expected ',' or ']'");
        check("a: |\n b\nc\n", "line 4: could not find expected ':'");
    }
}
