//! Field paths of replacements: `spec.containers.[name=app].env.0.value`, with `*` for every element.
//! Used by `replacements`.
//! A path that leads nowhere gives nothing; it is made only when asked to create.

use serde_json::{Map, Value};

/// Parts of a path; a dot inside brackets or behind a backslash is none.
pub fn parts(path: &str) -> Vec<String> {
    let (mut parts, mut current, mut depth, mut escaped) = (Vec::new(), String::new(), 0, false);
    for c in path.chars() {
        match c {
            '\\' if !escaped => {
                escaped = true;
                continue;
            }
            '[' => depth += 1,
            ']' => depth -= 1,
            '.' if depth == 0 && !escaped => {
                parts.push(std::mem::take(&mut current));
                continue;
            }
            _ => {}
        }
        escaped = false;
        current.push(c);
    }
    parts.push(current);
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

fn condition(part: &str) -> Option<(&str, &str)> {
    part.strip_prefix('[')?.strip_suffix(']')?.split_once('=')
}

pub fn get<'a>(value: &'a Value, parts: &[String]) -> Option<&'a Value> {
    let Some((first, rest)) = parts.split_first() else { return Some(value) };
    if let Some((key, wanted)) = condition(first) {
        let found = value.as_array()?.iter().find(|item| item[key] == wanted)?;
        return get(found, rest);
    }
    match value {
        Value::Array(items) => get(items.get(first.parse::<usize>().ok()?)?, rest),
        value => get(value.get(first)?, rest),
    }
}

/// Calls `change` for every field that the path means; says whether there was one.
pub fn change(value: &mut Value, parts: &[String], create: bool, change_field: &mut impl FnMut(&mut Value)) -> bool {
    let Some((first, rest)) = parts.split_first() else {
        change_field(value);
        return true;
    };
    if let Some((key, wanted)) = condition(first) {
        let Some(items) = value.as_array_mut() else { return false };
        let mut found = false;
        for item in items.iter_mut().filter(|item| item[key] == wanted) {
            found |= change(item, rest, create, change_field);
        }
        if !found && create {
            items.push(Value::Object(Map::from_iter([(key.to_string(), wanted.into())])));
            return items.last_mut().is_some_and(|item| change(item, rest, create, change_field));
        }
        return found;
    }
    match value {
        Value::Array(items) if first == "*" => {
            items.iter_mut().fold(false, |found, item| change(item, rest, create, change_field) | found)
        }
        Value::Array(items) => {
            let at = first.parse::<usize>().ok();
            at.and_then(|at| items.get_mut(at)).is_some_and(|item| change(item, rest, create, change_field))
        }
        Value::Object(fields) if first == "*" => {
            fields.values_mut().fold(false, |found, field| change(field, rest, create, change_field) | found)
        }
        Value::Object(fields) => {
            if !fields.contains_key(first) {
                if !create {
                    return false;
                }
                let empty = if rest.is_empty() { Value::Null } else { Value::Object(Map::new()) };
                fields.insert(first.clone(), empty);
            }
            fields.get_mut(first).is_some_and(|field| change(field, rest, create, change_field))
        }
        _ => false,
    }
}
