//! `explain`: what a kind and its fields are, from an OpenAPI v3 document.
//! Called by the verb, which finds the resource and reads the document of its group and version.
//! A schema that leads back to itself ends there.

#[cfg(test)]
mod tests;
mod word_wrap;

use serde_json::{Map, Value};

use crate::{
    describe::fields::{list, members, string, text},
    template::go_format::sprint,
};
use word_wrap::wrap;

/// Which resource, as a URL names it.
#[derive(Debug, Clone, Copy)]
pub struct GroupVersionResource<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
}

/// Columns of a description, less its indentation.
const DESCRIPTION_WIDTH: usize = 76;
const FIELD_WIDTH: usize = 78;
/// Values of an enumeration that the list of fields shows.
const ENUM_SHOWN_MAX: usize = 4;
/// Schemas within each other, beyond what references already stop.
const DEPTH_MAX: usize = 128;

/// The text of `kubectl explain`.
pub fn plaintext(
    document: &Value,
    resource: GroupVersionResource,
    path: &[&str],
    recursive: bool,
) -> Result<String, String> {
    let gvk = group_version_kind(document, resource)?;
    let mut out = String::new();
    if !string(&gvk["group"]).is_empty() {
        out.push_str(&format!("GROUP:      {}\n", string(&gvk["group"])));
    }
    out.push_str(&format!("KIND:       {}\nVERSION:    {}\n\n", text(&gvk["kind"]), text(&gvk["version"])));
    let named = |schema: &Value| list(&schema["x-kubernetes-group-version-kind"]).contains(gvk);
    let schemas = members(&document["components"]["schemas"]);
    let Some((_, schema)) = schemas.into_iter().find(|(_, schema)| named(schema)) else {
        return Err(format!("GVK {} not found in OpenAPI schema", sprint(gvk)));
    };
    let explained = Explanation { document, recursive }.output(schema, path, &[], 0);
    if explained.is_empty() {
        return Err(format!("field \"{}\" does not exist", path.last().unwrap_or(&"")));
    }
    out.push_str(&explained);
    out.push('\n');
    Ok(out)
}

fn group_version_kind<'a>(document: &'a Value, resource: GroupVersionResource) -> Result<&'a Value, String> {
    let GroupVersionResource { group, version, resource: name } = resource;
    let prefix = if group.is_empty() { "/api".to_string() } else { format!("/apis/{group}") };
    let paths = [
        format!("{prefix}/{version}/{name}"),
        format!("{prefix}/{version}/{name}/{{name}}"),
        format!("{prefix}/{version}/namespaces/{{namespace}}/{name}"),
        format!("{prefix}/{version}/namespaces/{{namespace}}/{name}/{{name}}"),
    ];
    let operations = paths.iter().flat_map(|path| {
        ["get", "post", "put", "patch", "delete"]
            .map(|method| &document["paths"][path][method]["x-kubernetes-group-version-kind"])
    });
    operations.into_iter().find(|gvk| gvk.is_object()).ok_or_else(|| {
        let group_version = if group.is_empty() { format!("/{version}") } else { format!("{group}/{version}") };
        format!("GVR ({group_version}, Resource={name}) not found in OpenAPI schema")
    })
}

fn indent(amount: usize, text: &str) -> String {
    let pad = " ".repeat(amount);
    format!("{pad}{}", text.replace('\n', &format!("\n{pad}")))
}

struct Explanation<'a> {
    document: &'a Value,
    recursive: bool,
}

impl<'a> Explanation<'a> {
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let name = string(&schema["$ref"]).rsplit('/').next().unwrap_or_default();
        match &self.document["components"]["schemas"][name] {
            Value::Null => schema,
            found => found,
        }
    }

    /// Follows the path, then describes what it leads to. Empty when it leads nowhere.
    fn output(&self, schema: &'a Value, path: &[&str], seen: &[&str], depth: usize) -> String {
        let reference = string(&schema["$ref"]);
        let resolved = self.resolve(schema);
        let Some(first) = path.first() else { return self.description_and_fields(resolved) };
        if depth > DEPTH_MAX || (!reference.is_empty() && seen.contains(&reference)) {
            return String::new();
        }
        let seen: Vec<&str> = seen.iter().copied().chain([reference]).filter(|one| !one.is_empty()).collect();
        let field = &resolved["properties"][*first];
        if field.is_object() {
            let mut out = String::new();
            if path.len() == 1 {
                out.push_str(&format!("FIELD: {first} <{}>\n{}\n\n", self.type_guess(field, 0), long_enum(field)));
            }
            out.push_str(&self.output(field, &path[1..], &[], depth + 1));
            return out;
        }
        for inner in [&resolved["items"], &resolved["additionalProperties"]] {
            if inner.is_object() {
                return self.output(inner, path, &seen, depth + 1);
            }
        }
        let alternatives = list(&resolved["allOf"]).iter().map(|one| self.output(one, path, &seen, depth + 1));
        alternatives.into_iter().find(|out| !out.is_empty()).unwrap_or_default()
    }

    fn description_and_fields(&self, schema: &'a Value) -> String {
        let described = match self.description(schema, 0) {
            text if text.is_empty() => "<empty>".to_string(),
            text => text,
        };
        let mut out = format!("DESCRIPTION:\n{}\n", indent(4, &wrap(&described, DESCRIPTION_WIDTH)));
        let fields = self.field_list(schema, 1, &[], 0);
        if !fields.is_empty() {
            out.push_str(&format!("FIELDS:\n{fields}"));
        }
        out
    }

    fn description(&self, schema: &'a Value, depth: usize) -> String {
        let resolved = self.resolve(schema);
        let mut out = String::new();
        if depth > DEPTH_MAX {
            return out;
        }
        if !string(&resolved["description"]).is_empty() {
            out.push_str(&format!("{}\n", string(&resolved["description"])));
        }
        let inner = list(&resolved["allOf"]).iter().chain([&resolved["items"], &resolved["additionalProperties"]]);
        for schema in inner.filter(|schema| schema.is_object()) {
            out.push_str(&self.description(schema, depth + 1));
        }
        out
    }

    fn field_list(&self, schema: &'a Value, level: usize, seen: &[&str], depth: usize) -> String {
        let reference = string(&schema["$ref"]);
        if depth > DEPTH_MAX || (!reference.is_empty() && seen.contains(&reference)) {
            return String::new();
        }
        let seen: Vec<&str> = seen.iter().copied().chain([reference]).filter(|one| !one.is_empty()).collect();
        let resolved = self.resolve(schema);
        let mut out = String::new();
        let empty = Map::new();
        for (name, field) in resolved["properties"].as_object().unwrap_or(&empty) {
            out.push_str(&self.field_detail(name, field, &resolved["required"], level));
            if self.recursive {
                out.push_str(&self.field_list(field, level + 1, &seen, depth + 1));
            }
        }
        let inner = list(&resolved["allOf"]).iter().chain([&resolved["items"], &resolved["additionalProperties"]]);
        for schema in inner.filter(|schema| schema.is_object()) {
            out.push_str(&self.field_list(schema, level, &seen, depth + 1));
        }
        out
    }

    fn field_detail(&self, name: &str, field: &'a Value, required: &Value, level: usize) -> String {
        let amount = level * 2;
        let mut out = format!("{}\t<{}>", indent(amount, name), self.type_guess(field, 0));
        if list(required).iter().any(|own| string(own) == name) {
            out.push_str(" -required-");
        }
        out.push_str(&short_enum(field, amount));
        out.push('\n');
        if !self.recursive {
            let description = match string(&field["description"]) {
                "" => "<no description>",
                description => description,
            };
            out.push_str(&indent(amount + 2, &wrap(description, FIELD_WIDTH - amount)));
            out.push_str("\n\n");
        }
        out
    }

    /// `[]Container`, `map[string]string`, `Object`, `integer`.
    fn type_guess(&self, schema: &'a Value, depth: usize) -> String {
        if depth > DEPTH_MAX {
            return "Object".to_string();
        }
        let (items, values) = (&schema["items"], &schema["additionalProperties"]);
        if items.is_object() {
            return format!("[]{}", self.type_guess(items, depth + 1));
        }
        if values.is_object() {
            return format!("map[string]{}", self.type_guess(values, depth + 1));
        }
        if let (false, [one]) = (schema["properties"].is_object(), list(&schema["allOf"])) {
            return self.type_guess(one, depth + 1);
        }
        let reference = string(&schema["$ref"]);
        if !reference.is_empty() {
            let resolved = self.resolve(schema);
            let kind = string(&resolved["type"]);
            if kind.is_empty() || kind == "object" {
                let name = reference.rsplit(['/', '.']).next().unwrap_or_default();
                return if name.is_empty() { "Object".to_string() } else { name.to_string() };
            }
            return kind.to_string();
        }
        match string(&schema["type"]) {
            "" | "object" => "Object".to_string(),
            kind => kind.to_string(),
        }
    }
}

fn enum_value(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "\"\"".to_string(),
        value => sprint(value),
    }
}

fn short_enum(field: &Value, amount: usize) -> String {
    let values = list(&field["enum"]);
    if values.is_empty() {
        return String::new();
    }
    let mut shown = values.iter().take(ENUM_SHOWN_MAX).map(enum_value).collect::<Vec<_>>().join(", ");
    if values.len() > ENUM_SHOWN_MAX {
        shown.push_str(", ....");
    }
    format!("\n{}enum: {shown}", " ".repeat(amount))
}

fn long_enum(field: &Value) -> String {
    let values = list(&field["enum"]);
    if values.is_empty() {
        return String::new();
    }
    let lines: String = values.iter().map(|value| format!("\n    {}", enum_value(value))).collect();
    format!("ENUM:{lines}")
}
