//! Values as Go's JSON writer shows upstream's internal types, in which errors show what they found: Go's names and order,
//! everything said, nil as null.
//! Used by `status` for causes; reads `internal_types.table` (written by `tools/schema-table/internal_types.py`), not
//! before the first such error.
//! Whatever has no row there is shown as it came.
//!
//! The table, one line each: `@ALIAS GROUP` a package (`-`: of no group, `core`: the core group), `TYPE`, ` FIELD CODE [?]`
//! (`?` left out when empty; the field `+` stands for all of another type). CODE: `s`tring `b`ool `n`umber b`y`tes
//! `q`uantity int-or-string `x` `t`ime `a`ny, `TYPE` or `ALIAS:TYPE`, after `*`, `[]` or `{}`.

use std::{collections::HashMap, fmt::Write as _, sync::LazyLock};

use serde_json::{Map, Value};

use crate::quantity::Quantity;

struct Row {
    name: &'static str,
    code: &'static str,
    omit_empty: bool,
}

#[derive(Default)]
struct Table {
    types: HashMap<(&'static str, &'static str), Vec<Row>>,
    /// The package of a group.
    groups: HashMap<&'static str, &'static str>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table::default();
    let (mut package, mut name) = ("", "");
    for line in include_str!("internal_types.table").lines().filter(|line| !line.starts_with('#')) {
        if let Some(header) = line.strip_prefix('@') {
            let (alias, group) = header.split_once(' ').unwrap_or((header, "-"));
            table.groups.insert(if group == "core" { "" } else { group }, alias);
            package = alias;
        } else if let Some(row) = line.strip_prefix(' ') {
            let mut words = row.split(' ');
            let (field, code) = (words.next().unwrap_or_default(), words.next().unwrap_or("a"));
            let row = Row { name: field, code, omit_empty: words.next().is_some() };
            table.types.entry((package, name)).or_default().push(row);
        } else {
            name = line;
            table.types.entry((package, name)).or_default();
        }
    }
    table
});

/// Where a type's names are looked up, and its code.
#[derive(Clone, Copy)]
struct Place {
    package: &'static str,
    code: &'static str,
}

impl Place {
    fn with(self, code: &'static str) -> Self {
        Self { code, ..self }
    }

    fn target(self) -> Self {
        self.with(self.code.trim_start_matches('*'))
    }

    /// The rows of a struct, and the package in which their types are named.
    fn rows(self) -> Option<(&'static str, &'static [Row])> {
        let (package, name) = self.code.split_once(':').unwrap_or((self.package, self.code));
        Some((package, TABLE.types.get(&(package, name))?))
    }

    /// The field that JSON calls `json`; upstream's versions and internal types differ in case only.
    fn field(self, json: &str) -> Option<Self> {
        let (package, rows) = self.target().rows()?;
        if json == "metadata" {
            let meta = rows.iter().find(|row| row.name == "+")?;
            return Some(Self { package, code: meta.code });
        }
        let row = rows.iter().find(|row| row.name.eq_ignore_ascii_case(json))?;
        Some(Self { package, code: row.code })
    }
}

/// What stands at `path` of a kind, as upstream shows it; none for values that look alike everywhere.
pub fn shown(group: &str, kind: &str, path: &str, value: &Value) -> Option<String> {
    if !value.is_object() && !value.is_array() {
        return None;
    }
    let (_, &package) = TABLE.groups.iter().find(|(known, _)| **known == group && group != "-")?;
    let (_, name) = TABLE.types.keys().find(|(of, name)| *of == package && *name == kind)?;
    let place = steps(path).try_fold(Place { package, code: name }, |place, step| match step {
        Step::Field(name) => place.field(name),
        Step::Element => {
            let place = place.target();
            place.code.strip_prefix("[]").or(place.code.strip_prefix("{}")).map(|code| place.with(code))
        }
    })?;
    let place = place.target();
    let fits = match value {
        Value::Array(_) => place.code.starts_with("[]"),
        _ => place.code.starts_with("{}") || place.rows().is_some(),
    };
    fits.then(|| {
        let mut text = String::new();
        write(&mut text, place, Some(value));
        text
    })
}

enum Step<'a> {
    Field(&'a str),
    /// Of a list or a map.
    Element,
}

fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if rest.is_empty() {
            return None;
        }
        if let Some(inside) = rest.strip_prefix('[') {
            rest = inside.split_once(']').map_or("", |(_, after)| after);
            return Some(Step::Element);
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        rest = after;
        Some(Step::Field(name))
    })
}

fn write(out: &mut String, place: Place, value: Option<&Value>) {
    let value = value.filter(|value| !value.is_null());
    if place.code.starts_with('*') {
        return match value {
            None => out.push_str("null"),
            Some(value) => write(out, place.target(), Some(value)),
        };
    }
    if let Some(item) = place.code.strip_prefix("[]") {
        let Some(items) = value.and_then(Value::as_array) else { return out.push_str("null") };
        return bracketed(out, ['[', ']'], items, |out, element| write(out, place.with(item), Some(element)));
    }
    if let Some(item) = place.code.strip_prefix("{}") {
        let Some(map) = value.and_then(Value::as_object) else { return out.push_str("null") };
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        return bracketed(out, ['{', '}'], entries, |out, (key, value)| {
            string(out, key);
            out.push(':');
            write(out, place.with(item), Some(value));
        });
    }
    match (place.code, value) {
        ("s", value) => string(out, value.and_then(Value::as_str).unwrap_or_default()),
        ("b", value) => out.push_str(if value.and_then(Value::as_bool).unwrap_or_default() { "true" } else { "false" }),
        ("n" | "x", None) => out.push('0'),
        ("q", value) => string(out, &quantity(value)),
        ("t" | "y" | "a", None) => out.push_str("null"),
        ("n" | "x" | "t" | "y" | "a", Some(value)) => json(out, value),
        (_, value) => structure(out, place, value),
    }
}

fn structure(out: &mut String, place: Place, value: Option<&Value>) {
    let empty = Map::new();
    let map = value.and_then(Value::as_object).unwrap_or(&empty);
    let Some((package, rows)) = place.rows() else { return json(out, &Value::Object(map.clone())) };
    let moved = (place.code.rsplit(':').next() == Some("PodSpec")).then(|| with_host_settings(map));
    let map = moved.as_ref().unwrap_or(map);
    let mut fields = Vec::new();
    collect(&mut fields, package, rows, map);
    bracketed(out, ['{', '}'], fields, |out, (row, package, value)| {
        string(out, row.name);
        out.push(':');
        write(out, Place { package, code: row.code }, value);
    });
}

type Shown<'v> = (&'static Row, &'static str, Option<&'v Value>);

fn collect<'v>(out: &mut Vec<Shown<'v>>, package: &'static str, rows: &'static [Row], map: &'v Map<String, Value>) {
    for row in rows {
        if row.name == "+" {
            let meta = map.get("metadata").and_then(Value::as_object);
            if let (Some(meta), Some((package, rows))) = (meta, Place { package, code: row.code }.rows()) {
                collect(out, package, rows, meta);
            }
            continue;
        }
        let value = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(row.name)).map(|(_, value)| value);
        if !(row.omit_empty && value.is_none_or(is_empty)) {
            out.push((row, package, value));
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
    }
}

/// What a pod shares with its node stands in the security context of the internal type.
fn with_host_settings(spec: &Map<String, Value>) -> Map<String, Value> {
    let mut out = spec.clone();
    let mut context = out.remove("securityContext").unwrap_or_default();
    if !context.is_object() {
        context = Value::Object(Map::new());
    }
    for name in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"] {
        if let (Some(value), Some(context)) = (out.remove(name), context.as_object_mut()) {
            context.insert(name.into(), value);
        }
    }
    out.insert("securityContext".into(), context);
    out
}

fn quantity(value: Option<&Value>) -> String {
    let text = match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "0".into(),
    };
    Quantity::parse(&text).map_or(text, |quantity| quantity.canonical().to_string())
}

fn bracketed<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut String, T),
) {
    out.push(open);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        each(out, item);
    }
    out.push(close);
}

fn json(out: &mut String, value: &Value) {
    out.push_str(&escaped(value.to_string()));
}

fn string(out: &mut String, text: &str) {
    json(out, &Value::from(text));
}

/// Go writes JSON that can stand in HTML.
pub fn escaped(json: String) -> String {
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_look_as_upstream_shows_them() {
        let check = |group: &str, kind: &str, path: &str, value: Value, text: Option<&str>| {
            assert_eq!(shown(group, kind, path, &value).as_deref(), text, "{kind} {path}");
        };
        check(
            "apps",
            "ReplicaSet",
            "spec.selector",
            json!({ "matchExpressions": [{ "key": "k", "operator": "In", "values": ["<v>"] }], "matchLabels": { "b": "1", "a": "2" } }),
            Some(
                "{\"matchLabels\":{\"a\":\"2\",\"b\":\"1\"},\"matchExpressions\":[{\"key\":\"k\",\"operator\":\"In\",\
                 \"values\":[\"\\u003cv\\u003e\"]}]}",
            ),
        );
        check(
            "",
            "Service",
            "spec.ports[2]",
            json!({ "port": 443, "protocol": "TCP", "targetPort": 0 }),
            Some(
                "{\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":443,\"TargetPort\":0,\"NodePort\":0}",
            ),
        );
        check(
            "resource.k8s.io",
            "ResourceClaimTemplate",
            "spec",
            json!({ "metadata": { "labels": { "app": "x" } }, "spec": { "devices": {} } }),
            Some(
                "{\"labels\":{\"app\":\"x\"},\"Spec\":{\"Devices\":{\"Requests\":null,\"Constraints\":null,\"Config\":null}}}",
            ),
        );
        check("", "ConfigMap", "metadata", json!({ "name": "n", "labels": {} }), Some("{\"name\":\"n\"}"));
        check("", "ResourceQuota", "spec.scopes", json!(["x"]), Some("[\"x\"]"));
        // Simple values look alike, and what is not known stays as it is.
        check("", "Pod", "spec.nodeName", json!("n"), None);
        check("example.com", "Widget", "spec", json!({}), None);
        check("", "Pod", "spec.nosuch", json!({}), None);
    }

    #[test]
    fn a_pod_shares_with_its_node_in_its_security_context() {
        let value = json!({ "spec": { "hostNetwork": true, "containers": [{ "name": "c", "resources": { "limits": { "cpu": 1 } } }] } });
        let text = shown("batch", "Job", "spec.template", &value).unwrap();
        assert!(
            text.starts_with("{\"Spec\":{\"Volumes\":null,\"InitContainers\":null,\"Containers\":[{\"Name\":\"c\",")
        );
        assert!(
            text.contains("\"Resources\":{\"Limits\":{\"cpu\":\"1\"},\"Requests\":null,\"Claims\":null}"),
            "{text}"
        );
        assert!(text.contains("\"SecurityContext\":{\"HostNetwork\":true,\"HostPID\":false,"), "{text}");
    }
}
