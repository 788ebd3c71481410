//! The small JSONPath of printer columns: fields, indices, `[*]` and filters by equality.
//! Used by `custom`.
//! A path that means nothing finds nothing.

use serde_json::Value;

/// The first value a path like `.status.conditions[?(@.type=="Ready")].status` finds.
pub fn first<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut found = vec![object];
    let mut rest = path.trim().trim_start_matches('{').trim_end_matches('}');
    while !rest.is_empty() {
        let (step, after) = step(rest)?;
        found = found.into_iter().flat_map(|v| step.select(v)).collect();
        rest = after;
    }
    found.into_iter().next()
}

enum Step<'a> {
    Field(String),
    Index(i64),
    All,
    Equal(&'a str, &'a str),
}

impl Step<'_> {
    fn select<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        match (self, value) {
            (Step::Field(name), _) => value.get(name).into_iter().collect(),
            (Step::Index(index), Value::Array(items)) => {
                let index = if *index < 0 { items.len() as i64 + index } else { *index };
                usize::try_from(index).ok().and_then(|i| items.get(i)).into_iter().collect()
            }
            (Step::All, Value::Array(items)) => items.iter().collect(),
            (Step::All, Value::Object(map)) => map.values().collect(),
            (Step::Equal(field, wanted), Value::Array(items)) => {
                let fits = |item: &&Value| match first(item, field) {
                    Some(Value::String(text)) => text == wanted,
                    Some(Value::Bool(flag)) => *wanted == if *flag { "true" } else { "false" },
                    Some(Value::Number(number)) => wanted.parse().is_ok_and(|w: serde_json::Number| w == *number),
                    Some(_) => false,
                    None => false,
                };
                items.iter().filter(fits).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn step(path: &str) -> Option<(Step<'_>, &str)> {
    if let Some(inside) = path.strip_prefix('[') {
        let end = match inside.strip_prefix("?(") {
            Some(_) => inside.find(")]")? + 1,
            None => inside.find(']')?,
        };
        let (inside, rest) = (&inside[..end], &inside[end + 1..]);
        if inside == "*" {
            return Some((Step::All, rest));
        }
        if let Some(filter) = inside.strip_prefix("?(").and_then(|f| f.strip_suffix(')')) {
            let (field, wanted) = filter.split_once("==")?;
            let wanted = wanted.trim().trim_matches(['"', '\'']);
            return Some((Step::Equal(field.trim().strip_prefix('@')?, wanted), rest));
        }
        if let Some(name) = inside.strip_prefix(['\'', '"']) {
            return Some((Step::Field(name.trim_end_matches(['\'', '"']).to_string()), rest));
        }
        return Some((Step::Index(inside.parse().ok()?), rest));
    }
    let name = path.strip_prefix('.').unwrap_or(path);
    let mut field = String::new();
    let mut characters = name.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => field.extend(characters.next().map(|(_, c)| c)),
            '.' | '[' => return Some((Step::Field(field), &name[at..])),
            other => field.push(other),
        }
    }
    (!field.is_empty()).then_some((Step::Field(field), ""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn finds_what_columns_ask_for() {
        let object = json!({
            "spec": { "a": { "b": 1 }, "list": [{ "n": "x" }, { "n": "y" }] },
            "metadata": { "labels": { "app.kubernetes.io/name": "n" } },
            "status": { "conditions": [{ "type": "A", "status": "False" }, { "type": "Ready", "status": "True" }] },
        });
        for (path, expected) in [
            (".spec.a.b", json!(1)),
            (".spec.list[1].n", json!("y")),
            (".spec.list[*].n", json!("x")),
            (".status.conditions[?(@.type==\"Ready\")].status", json!("True")),
            (".metadata.labels.app\\.kubernetes\\.io/name", json!("n")),
            (".metadata.labels['app.kubernetes.io/name']", json!("n")),
            (".spec.none.b", json!(null)),
            (".[", json!(null)),
        ] {
            assert_eq!(super::first(&object, path).cloned().unwrap_or_default(), expected, "{path}");
        }
    }
}
