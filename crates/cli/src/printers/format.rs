//! `-o`: which form objects are printed in.
//! Used by the verbs that print objects.
//! An unknown form is refused before anything is asked.

use serde_json::Value;

use super::{kyaml, yaml};
use crate::{
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    template::{
        custom_columns::CustomColumns,
        go_format,
        go_template::GoTemplate,
        jsonpath::{self, JsonPath},
    },
};

/// The flags of every verb that prints objects.
pub const PRINT: &[Flag] = &[
    boolean("allow-missing-template-keys", "true", "Templates skip fields that are not there"),
    string("output", "", "Form of the output").short('o'),
    boolean("show-managed-fields", "false", "Keep managedFields in JSON and YAML"),
    string("template", "", "Template, or file with one, for the forms that take it"),
];

pub enum Format {
    Json,
    Yaml,
    Kyaml,
    Name,
    JsonPath { text: String, path: JsonPath, as_json: bool },
    GoTemplate(GoTemplate),
    CustomColumns { columns: CustomColumns, headers: bool },
}

const TEMPLATES: [&str; 9] = [
    "go-template-file",
    "go-template",
    "templatefile",
    "template",
    "jsonpath-as-json",
    "jsonpath-file",
    "jsonpath",
    "custom-columns-file",
    "custom-columns",
];

fn readable(file: &str, what: &str) -> Result<String> {
    std::fs::read_to_string(file).map_err(|e| {
        Failure::message(format!(
            "error reading {}template {file}, {}",
            if what.starts_with("custom") { "" } else { "--" },
            go_error(file, &e)
        ))
    })
}

fn go_error(file: &str, error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => format!("open {file}: no such file or directory"),
        _ => format!("open {file}: {error}"),
    }
}

impl Format {
    /// `None` if `-o` is empty. `allowed` are the words for the error, sorted.
    pub fn parse(matches: &Matches, allowed: &str) -> Result<Option<Self>> {
        let output = matches.str("output");
        let template = if matches.has("template") { matches.str("template") } else { "" };
        let allow_missing = !matches.has("allow-missing-template-keys") || matches.bool("allow-missing-template-keys");
        let no_headers = matches.has("no-headers") && matches.bool("no-headers");
        let unknown = || {
            Failure::message(format!(
                "unable to match a printer suitable for the output format {output:?}, allowed formats are: {allowed}"
            ))
        };
        let lower = output.to_lowercase();
        match lower.as_str() {
            "" if template.is_empty() => return Ok(None),
            "" => return Ok(Some(go_template(template, allow_missing)?)),
            "json" => return Ok(Some(Self::Json)),
            "yaml" => return Ok(Some(Self::Yaml)),
            "kyaml" => return Ok(Some(Self::Kyaml)),
            "name" => return Ok(Some(Self::Name)),
            _ => {}
        }
        let (form, inline) = match output.split_once('=') {
            Some((form, text)) => (form, Some(text)),
            None => (output, None),
        };
        if !TEMPLATES.contains(&form)
            || !allowed.contains(form.trim_start_matches("template").trim_end_matches("file"))
                && !allowed.contains("template")
        {
            return Err(unknown());
        }
        let text = inline.filter(|t| !t.is_empty()).unwrap_or(template);
        let missing = |what: &str| Failure::message(what.to_string());
        match form {
            "go-template" | "template" | "go-template-file" | "templatefile" if text.is_empty() => {
                Err(missing("template format specified but no template given"))
            }
            "jsonpath" | "jsonpath-file" | "jsonpath-as-json" if text.is_empty() => {
                Err(missing("template format specified but no template given"))
            }
            "custom-columns" if text.is_empty() => {
                Err(missing("custom-columns format specified but no custom columns given"))
            }
            "custom-columns-file" if text.is_empty() => {
                Err(missing("custom-columns format specified but no custom columns given"))
            }
            "go-template" | "template" => go_template(text, allow_missing).map(Some),
            "go-template-file" | "templatefile" => go_template(&readable(text, form)?, allow_missing).map(Some),
            "jsonpath-file" => json_path(&readable(text, form)?, allow_missing, false).map(Some),
            "jsonpath-as-json" => json_path(text, allow_missing, true).map(Some),
            "jsonpath" => json_path(text, allow_missing, false).map(Some),
            "custom-columns-file" => {
                let columns = CustomColumns::from_template(&readable(text, form)?).map_err(Failure::Message)?;
                Ok(Some(Self::CustomColumns { columns, headers: !no_headers }))
            }
            _ => {
                let columns = CustomColumns::from_spec(text).map_err(Failure::Message)?;
                Ok(Some(Self::CustomColumns { columns, headers: !no_headers }))
            }
        }
    }

    /// Whether the server's `managedFields` are taken out.
    pub fn omits_managed_fields(&self) -> bool {
        matches!(self, Self::Json | Self::Yaml | Self::Kyaml)
    }
}

fn go_template(text: &str, allow_missing: bool) -> Result<Format> {
    let parsed =
        GoTemplate::parse(text).map_err(|e| Failure::message(format!("error parsing template {text}, {e}")))?;
    Ok(Format::GoTemplate(parsed.allow_missing_keys(allow_missing)))
}

fn json_path(text: &str, allow_missing: bool, as_json: bool) -> Result<Format> {
    let parsed = JsonPath::parse(text).map_err(|e| Failure::message(format!("error parsing jsonpath {text}, {e}")))?;
    Ok(Format::JsonPath { text: text.to_string(), path: parsed.allow_missing_keys(allow_missing), as_json })
}

pub fn json_text(value: &Value) -> String {
    format!("{}\n", go_format::json_indent(value, "    "))
}

pub fn without_managed_fields(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    if object["kind"].as_str().is_some_and(|k| k.ends_with("List")) {
        for item in object["items"].as_array_mut().into_iter().flatten() {
            without_managed_fields(item);
        }
    }
}

/// Prints objects one behind another, with what must stand between them.
pub struct Printer {
    pub format: Format,
    pub keep_managed_fields: bool,
    /// Fields in Go's order, not sorted.
    pub typed: bool,
    printed: usize,
}

impl Printer {
    pub fn new(format: Format, keep_managed_fields: bool) -> Self {
        Self { format, keep_managed_fields, typed: false, printed: 0 }
    }

    pub fn of(matches: &Matches, allowed: &str) -> Result<Option<Self>> {
        let keep = matches.has("show-managed-fields") && matches.bool("show-managed-fields");
        Ok(Format::parse(matches, allowed)?.map(|format| Self::new(format, keep)))
    }

    pub fn text(&mut self, object: &Value) -> Result<String> {
        self.printed += 1;
        let mut held;
        let object = match self.format.omits_managed_fields() && !self.keep_managed_fields {
            true => {
                held = object.clone();
                without_managed_fields(&mut held);
                &held
            }
            false => object,
        };
        match &self.format {
            Format::Json if self.typed => Ok(format!("{}\n", go_format::typed_json(object, Some("    ")))),
            Format::Json => Ok(json_text(object)),
            Format::Yaml => {
                let separator = if self.printed > 1 { "---\n" } else { "" };
                Ok(format!("{separator}{}", yaml::to_string(object)))
            }
            Format::Kyaml if self.typed => Ok(kyaml::typed(object)),
            Format::Kyaml => Ok(kyaml::to_string(object)),
            Format::Name => Ok(names(object)),
            Format::JsonPath { text, path, as_json } => {
                let rendered = match as_json {
                    true => path.render_as_json(object),
                    false => path.render(object),
                };
                rendered.map_err(|e| Failure::message(jsonpath::execution_error(text, &e, object)))
            }
            Format::GoTemplate(template) => template
                .render(object)
                .map_err(|e| Failure::Printed { printed: e.written, failure: Box::new(Failure::message(e.message)) }),
            Format::CustomColumns { columns, headers } => {
                let mut writer = super::columns::TabWriter::default();
                if *headers && self.printed == 1 {
                    writer.row(columns.headers.clone());
                }
                let items =
                    match object["kind"].as_str().is_some_and(|k| k.ends_with("List")) && object["items"].is_array() {
                        true => object["items"].as_array().cloned().unwrap_or_default(),
                        false => vec![object.clone()],
                    };
                for item in &items {
                    writer.row(columns.cells(item).map_err(Failure::Message)?);
                }
                Ok(writer.flush())
            }
        }
    }
}

/// `pod/web`, one line for each object.
fn names(object: &Value) -> String {
    // Of a watch, the object that the event is about.
    if object["kind"].is_null() && object["object"].is_object() {
        return names(&object["object"]);
    }
    if object["items"].is_array() && object["kind"].as_str().is_some_and(|k| k.ends_with("List")) {
        return object["items"].as_array().into_iter().flatten().map(names).collect();
    }
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    let name = object["metadata"]["name"].as_str().filter(|name| !name.is_empty()).unwrap_or("<unknown>");
    match version.split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{name}\n"),
        None => format!("{kind}/{name}\n"),
    }
}
