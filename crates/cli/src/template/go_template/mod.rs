//! Go's text/template as kubectl offers it with `-o go-template`.
//! Start here; `lexer` and `parser` make nodes, `execute` walks them, `functions` and `printf` are the builtins.
//! A template reads one decoded object; nothing it calls has an effect outside the text it makes.

mod execute;
mod functions;
mod lexer;
mod nodes;
mod parser;
mod printf;

use std::collections::BTreeMap;

use serde_json::Value;

use super::go_format;
use nodes::Node;

/// The name kubectl gives its templates; it stands in every message.
const NAME: &str = "output";

/// A parsed template and those it defines.
#[derive(Debug)]
pub struct GoTemplate {
    text: String,
    templates: BTreeMap<String, Vec<Node>>,
    allow_missing_keys: bool,
}

/// A failed execution: what was written before it failed is printed all the same.
#[derive(Debug, PartialEq)]
pub struct ExecutionError {
    pub written: String,
    pub message: String,
}

impl GoTemplate {
    pub fn parse(text: &str) -> Result<Self, String> {
        let templates = parser::parse(text)?;
        Ok(Self { text: text.to_string(), templates, allow_missing_keys: true })
    }

    /// Whether a key that is not there reads `<no value>` instead of being an error.
    pub fn allow_missing_keys(mut self, allow: bool) -> Self {
        self.allow_missing_keys = allow;
        self
    }

    /// What `-o go-template=` prints. On failure `written` holds the output with upstream's help for debugging.
    pub fn render(&self, data: &Value) -> Result<String, ExecutionError> {
        let mut written = String::new();
        let executed = execute::execute(&self.text, &self.templates, self.allow_missing_keys, data, &mut written);
        let Err(error) = executed else { return Ok(written) };
        written.push_str(&format!(
            "Error executing template: {error}. Printing more information for debugging the template:\n\ttemplate \
             was:\n\t\t{}\n\traw data was:\n\t\t{}\n\tobject given to template engine was:\n\t\t{}\n\n",
            self.text,
            go_format::json(data),
            go_format::sprint(data)
        ));
        let message = format!("error executing template {}: {error}", go_format::quote(&self.text));
        Err(ExecutionError { written, message })
    }
}

/// Line (from 1) and column (from 0) of a byte of the template.
fn line_and_column(text: &str, position: usize) -> (usize, usize) {
    let before = &text[..position.min(text.len())];
    let line = before.matches('\n').count() + 1;
    (line, before.len() - before.rfind('\n').map_or(0, |at| at + 1))
}

#[cfg(test)]
mod tests;
