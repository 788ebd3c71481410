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
            match text.find("error converting YAML to JSON") {
                Some(at) => Err(as_go_says(&text[at..])),
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
fn as_go_says(text: &str) -> String {
    let text = text.split(" (").next().unwrap_or(text);
    let Some((head, rest)) = text.split_once(": line ") else { return text.to_string() };
    let Some((line, what)) = rest.split_once(": ") else { return text.to_string() };
    let what = what.rsplit(", ").next().unwrap_or(what);
    let what = if what.starts_with("tabs disallowed") { "found character that cannot start any token" } else { what };
    let line: usize = line.parse().unwrap_or(1);
    let shown = if what.starts_with("did not find expected") { line.saturating_sub(1) } else { line };
    format!("{head}: line {shown}: {what}")
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
