//! The `fieldPath` of a rule: where in the part it is about its errors are.
//! Used by `declared` (whether it leads anywhere) and `rules` (how it is shown).
//! Leads only to fields and keys the schema knows.

use serde_json::Value;

use api::field::Path;

/// `.spec['a.b']`, as errors show it; `None` if the schema has no such place.
pub fn shown(field_path: &str, schema: &Value) -> Option<Path> {
    let mut path = Path::default();
    let (mut rest, mut schema) = (field_path, schema);
    while !rest.is_empty() {
        let (name, left) = step(rest)?;
        if schema["properties"].is_object() {
            schema = schema["properties"].get(&name)?;
            path = path.child(&name);
        } else {
            schema = Some(&schema["additionalProperties"]).filter(|s| s.is_object())?;
            path = path.key(&name);
        }
        rest = left;
    }
    Some(path)
}

/// One name, and what follows it.
fn step(path: &str) -> Option<(String, &str)> {
    if let Some(quoted) = path.strip_prefix("['") {
        let mut name = String::new();
        let mut signs = quoted.char_indices();
        loop {
            match signs.next()? {
                (at, '\'') => return Some((name, quoted[at + 1..].strip_prefix(']')?)),
                (_, '\\') => name.push(match signs.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    same @ ('\'' | '\\') => same,
                    _ => return None,
                }),
                (_, other) => name.push(other),
            }
        }
    }
    let name = path.strip_prefix('.')?;
    let end = name.find(['.', '[', ']']).unwrap_or(name.len());
    (end > 0).then(|| (name[..end].to_string(), &name[end..]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_to_what_there_is() {
        let schema = json!({ "properties": {
            "a": { "properties": { "b.c": { "type": "string" }, "it's": { "type": "string" } } },
            "map": { "additionalProperties": { "properties": { "x": {} } } },
        } });
        for (path, expected) in [
            (".a", Some("a")),
            (".a['b.c']", Some("a.b.c")),
            (".a['it\\'s']", Some("a.it's")),
            (".map.key.x", Some("map[key].x")),
            (".map['k']['x']", Some("map[k].x")),
            (".b", None),
            ("a", None),
            (".a.", None),
            (".a['b.c'", None),
            (".map.key.y", None),
        ] {
            assert_eq!(shown(path, &schema).map(|p| p.to_string()).as_deref(), expected, "{path}");
        }
    }
}
