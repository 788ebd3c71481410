//! Strategic merge patch: a merge patch that knows from the schema which lists are merged, and by which key.
//! Used through `patch`; list order is in `order`.
//! No directive (`$patch`, `$retainKeys`, ...) reaches the result.

use serde_json::{Map, Value};

use super::{
    go_text, go_type,
    order::{By, normalize},
    unprocessable,
};
use crate::{
    ApiError, Reason,
    schema::{ANY, Node, Schema, TypeId},
};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList";

const BAD_PRIMITIVE_LIST: &str = "invalid patch format of primitive list";
const BAD_RETAIN_KEYS: &str = "invalid patch format of retainKeys";
const BAD_SET_ORDER: &str = "invalid patch format of setElementOrder list";

type Object = Map<String, Value>;

/// Merges `patch` into `doc`, an object of type `root`.
pub fn strategic(schema: &Schema, root: TypeId, doc: &Value, patch: &Value) -> Result<Value, ApiError> {
    let Value::Object(patch) = patch else {
        return Err(ApiError::bad_request(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            kind_of(patch)
        )));
    };
    let original = doc.as_object().cloned().unwrap_or_default();
    let node = Node::Struct(root);
    Merger { schema }.map(original, patch.clone(), &node).map(Value::Object)
}

struct Merger<'a> {
    schema: &'a Schema,
}

/// As upstream names it in these errors.
fn kind_of(value: &Value) -> &'static str {
    if value.is_null() { "nil" } else { go_type(value) }
}

fn failed(message: String) -> ApiError {
    ApiError::new(Reason::Unknown, message)
}

fn bad_type(expected: &str, found: &Value) -> ApiError {
    failed(format!("expected a {expected}, but received a {}", kind_of(found)))
}

fn no_merge_key(item: &Value, key: &str) -> ApiError {
    failed(format!("map: {} does not contain declared merge key: {key}", go_text(item)))
}

fn directive_key<'k>(key: &'k str, prefix: &str, wrong: &str) -> Result<&'k str, ApiError> {
    match key.split_once('/') {
        Some((head, name)) if head == prefix => Ok(name),
        _ => Err(ApiError::bad_request(wrong)),
    }
}

/// The value of a patch where there is nothing to merge with: without nulls, directives and what they mark.
fn cleaned(value: Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => {
            let kept = map
                .into_iter()
                .filter(|(key, _)| !is_directive(key))
                .filter_map(|(key, value)| cleaned(value).map(|value| (key, value)));
            Some(Value::Object(kept.collect()))
        }
        // Nulls inside lists stay, as upstream keeps them.
        Value::Array(items) => Some(Value::Array(
            items.into_iter().filter_map(|item| if item.is_null() { Some(item) } else { cleaned(item) }).collect(),
        )),
        scalar => Some(scalar),
    }
}

fn is_directive(key: &str) -> bool {
    key == RETAIN_KEYS || key.starts_with(SET_ORDER) || key.starts_with(DELETE_PRIMITIVES)
}

/// What the schema says of one list.
struct ListMeta<'a> {
    merge: bool,
    key: Option<&'a str>,
    element: &'a Node,
}

impl<'a> Merger<'a> {
    fn list_meta<'n>(&self, node: &'n Node, key: &str) -> ListMeta<'n>
    where
        'a: 'n,
    {
        let element = match self.schema.child(node, key) {
            Node::List(element, _) => element,
            _ => &ANY,
        };
        let field = self.schema.field(node, key);
        ListMeta {
            merge: field.is_some_and(|f| f.patch_merge),
            key: field.and_then(|f| f.patch_merge_key.as_deref()),
            element,
        }
    }

    fn map(&self, mut original: Object, mut patch: Object, node: &Node) -> Result<Object, ApiError> {
        if let Some(directive) = patch.get(DIRECTIVE) {
            return match directive.as_str() {
                Some("replace") => {
                    patch.remove(DIRECTIVE);
                    Ok(patch)
                }
                Some("delete") => Ok(Object::new()),
                _ => {
                    let (directive, map) = (go_text(directive), go_text(&Value::Object(patch.clone())));
                    Err(failed(format!("unknown patch type: {directive} in map: {map}")))
                }
            };
        }
        retain_keys(&mut original, &mut patch)?;
        self.ordered_lists(&mut original, &mut patch, node)?;
        for (key, value) in patch {
            if key.starts_with(DELETE_PRIMITIVES) {
                let name = directive_key(&key, DELETE_PRIMITIVES, BAD_PRIMITIVE_LIST)?;
                delete_primitives(&mut original, name, value)?;
                continue;
            }
            if value.is_null() {
                original.remove(&key);
                continue;
            }
            let merged = match (original.remove(&key), value) {
                (Some(Value::Object(old)), Value::Object(new)) => {
                    Some(Value::Object(self.map(old, new, self.schema.child(node, &key))?))
                }
                (Some(Value::Array(old)), Value::Array(new)) => {
                    let meta = self.list_meta(node, &key);
                    Some(Value::Array(if meta.merge { self.list(old, new, &meta)? } else { new }))
                }
                (_, new) => cleaned(new),
            };
            if let Some(merged) = merged {
                original.insert(key, merged);
            }
        }
        Ok(original)
    }

    /// Merges and orders the lists for which the patch has a `$setElementOrder`.
    fn ordered_lists(&self, original: &mut Object, patch: &mut Object, node: &Node) -> Result<(), ApiError> {
        let orders: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
        for key in orders {
            let wanted = match patch.remove(&key) {
                Some(Value::Array(wanted)) => wanted,
                other => return Err(bad_type("[]interface {}", &other.unwrap_or_default())),
            };
            let name = directive_key(&key, SET_ORDER, BAD_SET_ORDER)?;
            let list_of = |value: Option<Value>| match value {
                None => Ok(None),
                Some(Value::Array(list)) => Ok(Some(list)),
                Some(other) => Err(bad_type("[]interface {}", &other)),
            };
            // A null in the patch deletes the list, whatever its order.
            if patch.get(name).is_some_and(Value::is_null) {
                continue;
            }
            let old = list_of(original.get(name).cloned())?;
            let new = list_of(patch.remove(name))?;
            let meta = self.list_meta(node, name);
            let by = meta.key.map_or(By::Value, By::Key);
            check_order(new.as_deref().unwrap_or_default(), &wanted, by)?;
            let live = old.clone().unwrap_or_default();
            let merged = match (old, new) {
                (Some(old), None) => old,
                (None, Some(new)) => match cleaned(Value::Array(new)) {
                    Some(Value::Array(list)) => list,
                    _ => continue,
                },
                (Some(old), Some(new)) if meta.merge => self.list(old, new, &meta)?,
                (Some(_), Some(new)) => new,
                (None, None) => continue,
            };
            require_keys(&merged, by)?;
            original.insert(name.to_string(), Value::Array(normalize(merged, &wanted, &live, by)));
        }
        Ok(())
    }

    fn list(&self, mut original: Vec<Value>, patch: Vec<Value>, meta: &ListMeta) -> Result<Vec<Value>, ApiError> {
        if original.is_empty() && patch.is_empty() {
            return Ok(original);
        }
        if !of_maps(&original, &patch)? {
            let live = original.clone();
            for item in &patch {
                if !original.contains(item) {
                    original.push(item.clone());
                }
            }
            let mut merged: Vec<Value> = Vec::with_capacity(original.len());
            for item in original {
                if !merged.contains(&item) {
                    merged.push(item);
                }
            }
            return Ok(normalize(merged, &patch, &live, By::Value));
        }
        let Some(key) = meta.key else {
            return Err(failed(format!("cannot merge lists without merge key for {}", self.type_name(meta.element))));
        };
        let (original, patch) = list_directives(original, patch, key)?;
        let live = original.clone();
        let (mut merged, mut added) = (original, Vec::new());
        for item in &patch {
            let Some(id) = item.get(key) else {
                return Err(no_merge_key(item, key));
            };
            let place = merged.iter_mut().chain(&mut added).find(|old| old.get(key) == Some(id));
            match (place, item) {
                (Some(place), Value::Object(new)) => {
                    let old = std::mem::take(place);
                    let old = if let Value::Object(old) = old { old } else { Object::new() };
                    *place = Value::Object(self.map(old, new.clone(), meta.element)?);
                }
                _ => added.extend(cleaned(item.clone())),
            }
        }
        let by = By::Key(key);
        require_keys(&merged, by)?;
        merged.extend(added);
        // An element that is new may have its key as null, and so has none: it goes first, as whatever the patch names.
        Ok(normalize(merged, &patch, &live, by))
    }

    fn type_name(&self, node: &Node) -> String {
        match node {
            Node::Struct(id) => self.schema.get(*id).name.clone(),
            _ => "map".into(),
        }
    }
}

/// Whether the elements are maps (or else scalars). Mixed lists and lists of lists cannot be merged.
fn of_maps(original: &[Value], patch: &[Value]) -> Result<bool, ApiError> {
    let mut types = original.iter().chain(patch).map(go_type);
    let Some(first) = types.next() else {
        return Ok(false);
    };
    if first == "[]interface {}" {
        return Err(unprocessable());
    }
    if types.any(|other| other != first) {
        let text = |list: &[Value]| go_text(&Value::Array(list.to_vec()));
        let shown = format!("[{} {}]", text(original), text(patch));
        return Err(failed(format!("list element types are not identical: {shown}")));
    }
    Ok(first == "map[string]interface {}")
}

/// Carries out the `$patch` elements of a list: what is left of the original, and of the patch.
fn list_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), ApiError> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut replace = false;
    for item in patch {
        let Some(directive) = item.get(DIRECTIVE) else {
            plain.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let id = item.get(key).ok_or_else(|| no_merge_key(&item, key))?;
                original.retain(|old| old.get(key) != Some(id));
            }
            Some("replace") => replace = true,
            Some("merge") => return Err(failed("merging lists cannot yet be specified in the patch".into())),
            _ => {
                let (directive, map) = (go_text(directive), go_text(&item));
                return Err(failed(format!("unknown patch type: {directive} in map: {map}")));
            }
        }
    }
    Ok(if replace { (plain, Vec::new()) } else { (original, plain) })
}

fn require_keys(list: &[Value], by: By) -> Result<(), ApiError> {
    let By::Key(key) = by else {
        return Ok(());
    };
    match list.iter().find(|item| item.get(key).is_none()) {
        Some(item) if !item.is_object() => Err(bad_type("map[string]interface {}", item)),
        Some(item) => Err(no_merge_key(item, key)),
        None => Ok(()),
    }
}

/// The patch's elements must all be in the wanted order, in that order.
fn check_order(patch: &[Value], wanted: &[Value], by: By) -> Result<(), ApiError> {
    if patch.is_empty() || wanted.is_empty() {
        return Ok(());
    }
    let items: Vec<&Value> = patch.iter().filter(|item| item.get(DIRECTIVE).is_none()).collect();
    for list in [&items, &wanted.iter().collect::<Vec<_>>()] {
        let list: Vec<Value> = list.iter().map(|v| (*v).clone()).collect();
        require_keys(&list, by)?;
    }
    let mut rest = wanted.iter();
    if items.iter().all(|item| rest.any(|other| by.same(item, other))) {
        return Ok(());
    }
    let text = |list: &[Value]| go_text(&Value::Array(list.to_vec()));
    Err(failed(format!(
        "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
        text(patch),
        text(wanted)
    )))
}

/// Drops from the original what `$retainKeys` does not name; the patch may set nothing else.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), ApiError> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(keys) = directive else {
        return Err(ApiError::bad_request(BAD_RETAIN_KEYS));
    };
    let named = |key: &str| keys.iter().any(|k| k == key);
    let stray = patch.iter().any(|(key, value)| !value.is_null() && !is_directive(key) && !named(key));
    if stray {
        return Err(ApiError::bad_request(BAD_RETAIN_KEYS));
    }
    original.retain(|key, _| named(key));
    Ok(())
}

fn delete_primitives(original: &mut Object, name: &str, gone: Value) -> Result<(), ApiError> {
    match (original.get_mut(name), gone) {
        (Some(Value::Array(list)), Value::Array(gone)) => {
            list.retain(|item| !gone.contains(item));
            Ok(())
        }
        // Nothing to delete from, or nothing to delete.
        (_, Value::Array(_) | Value::Null) => Ok(()),
        _ => Err(ApiError::bad_request(BAD_PRIMITIVE_LIST)),
    }
}

#[cfg(test)]
#[path = "strategic_tests.rs"]
mod tests;
