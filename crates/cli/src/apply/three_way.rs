//! The patch that brings a live object to what a file says, and takes away what an earlier file said.
//! Used by `apply`, `diff` and `edit`.
//! Fields that neither file named stay as they are.

use api::schema::{self, Field, Node, Schema, TypeId};
use serde_json::{Map, Value, json};

#[derive(Clone, Copy)]
struct Mode {
    additions: bool,
    deletions: bool,
    retain_keys: bool,
}

type Kind<'a> = (&'a str, &'a str, &'a str);

/// A strategic merge patch; `None` if the kind is not built in.
pub fn strategic_three_way(kind: Kind, original: &Value, modified: &Value, current: &Value) -> Option<Value> {
    let schema = schema::builtin();
    let root = schema.find_kind(kind.0, kind.1, kind.2)?;
    let node = Node::Struct(root);
    let added = Mode { additions: true, deletions: false, retain_keys: false };
    let removed = Mode { additions: false, deletions: true, retain_keys: false };
    let delta = diff_maps(schema, &node, object(current), object(modified), added);
    let deletions = diff_maps(schema, &node, object(original), object(modified), removed);
    Some(Value::Object(merge_patches(schema, &node, deletions, delta)))
}

/// A strategic merge patch from one object to another.
pub fn strategic_two_way(kind: Kind, original: &Value, modified: &Value) -> Option<Value> {
    let schema = schema::builtin();
    let root: TypeId = schema.find_kind(kind.0, kind.1, kind.2)?;
    let both = Mode { additions: true, deletions: true, retain_keys: false };
    Some(Value::Object(diff_maps(schema, &Node::Struct(root), object(original), object(modified), both)))
}

/// A JSON merge patch, for kinds whose lists nobody knows.
pub fn merge_three_way(original: &Value, modified: &Value, current: &Value) -> Value {
    let mut patch = additions(current, modified);
    join(&mut patch, deletions(original, modified));
    patch
}

static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or(&EMPTY)
}

fn additions(current: &Value, modified: &Value) -> Value {
    let mut patch = Map::new();
    for (key, value) in object(modified) {
        match object(current).get(key) {
            Some(live) if live == value => {}
            Some(live @ Value::Object(_)) if value.is_object() => {
                let inner = additions(live, value);
                if !object(&inner).is_empty() {
                    patch.insert(key.clone(), inner);
                }
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

fn deletions(original: &Value, modified: &Value) -> Value {
    let mut patch = Map::new();
    for (key, value) in object(original) {
        match object(modified).get(key) {
            None => {
                patch.insert(key.clone(), Value::Null);
            }
            Some(kept @ Value::Object(_)) if value.is_object() => {
                let inner = deletions(value, kept);
                if !object(&inner).is_empty() {
                    patch.insert(key.clone(), inner);
                }
            }
            Some(_) => {}
        }
    }
    Value::Object(patch)
}

fn join(into: &mut Value, from: Value) {
    let (Value::Object(into), Value::Object(from)) = (into, from) else { return };
    for (key, value) in from {
        match into.get_mut(&key) {
            Some(mine @ Value::Object(_)) if value.is_object() => join(mine, value),
            Some(_) => {}
            None => {
                into.insert(key, value);
            }
        }
    }
}

fn field<'a>(schema: &'a Schema, node: &Node, key: &str) -> Option<&'a Field> {
    match node {
        Node::Struct(id) => schema.get(*id).field(key),
        _ => None,
    }
}

fn inner_node(node: &Node, field: Option<&Field>) -> Node {
    match (node, field) {
        (_, Some(field)) => field.node.clone(),
        (Node::Map(inner, _), None) => (**inner).clone(),
        _ => Node::Any,
    }
}

fn item_node(node: &Node) -> Node {
    match node {
        Node::List(inner, _) => (**inner).clone(),
        _ => Node::Any,
    }
}

fn diff_maps(
    schema: &Schema,
    node: &Node,
    original: &Map<String, Value>,
    modified: &Map<String, Value>,
    mode: Mode,
) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, old) in original {
        let known = field(schema, node, key);
        let Some(new) = modified.get(key) else {
            if mode.deletions {
                patch.insert(key.clone(), Value::Null);
            }
            continue;
        };
        let replaces = known.is_some_and(|f| f.wire.said_replace);
        match (old, new) {
            (Value::Object(a), Value::Object(b)) if !replaces => {
                let retain_keys = known.is_some_and(|f| f.patch_retain_keys);
                let inner = diff_maps(schema, &inner_node(node, known), a, b, Mode { retain_keys, ..mode });
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (Value::Array(a), Value::Array(b)) if known.is_some_and(|f| f.patch_merge) => {
                let known = known.map_or((None, false), |f| (f.patch_merge_key.as_deref(), f.patch_retain_keys));
                let item = item_node(&inner_node(node, field(schema, node, key)));
                diff_lists(schema, &item, key, known, a, b, mode, &mut patch);
            }
            _ if old == new => {}
            _ if mode.additions => {
                patch.insert(key.clone(), new.clone());
            }
            _ => {}
        }
    }
    if mode.additions {
        for (key, new) in modified.iter().filter(|(key, _)| !original.contains_key(*key)) {
            patch.insert(key.clone(), new.clone());
        }
    }
    let extra = original.keys().any(|key| !modified.contains_key(key));
    if mode.retain_keys && !modified.is_empty() && (!patch.is_empty() || extra) {
        patch.insert("$retainKeys".to_string(), modified.keys().cloned().collect());
    }
    patch
}

#[allow(clippy::too_many_arguments)]
fn diff_lists(
    schema: &Schema,
    item: &Node,
    key: &str,
    (merge_key, retain_keys): (Option<&str>, bool),
    original: &[Value],
    modified: &[Value],
    mode: Mode,
    patch: &mut Map<String, Value>,
) {
    let Some(merge_key) = merge_key else {
        return diff_primitives(key, original, modified, mode, patch);
    };
    let find = |list: &[Value], id: &Value| list.iter().position(|i| &i[merge_key] == id);
    let mut found = Vec::new();
    for new in modified {
        match find(original, &new[merge_key]) {
            Some(at) => {
                let inner = diff_maps(schema, item, object(&original[at]), object(new), Mode { retain_keys, ..mode });
                if !inner.is_empty() {
                    let mut inner = inner;
                    inner.insert(merge_key.to_string(), new[merge_key].clone());
                    found.push(Value::Object(inner));
                }
            }
            None if mode.additions => found.push(new.clone()),
            None => {}
        }
    }
    if mode.deletions {
        for old in original.iter().filter(|old| find(modified, &old[merge_key]).is_none()) {
            found.push(json!({"$patch": "delete", merge_key: old[merge_key]}));
        }
    }
    let order = |list: &[Value]| -> Vec<Value> { list.iter().map(|i| i[merge_key].clone()).collect() };
    let (before, after) = (order(original), order(modified));
    let kept = |list: &[Value], other: &[Value]| -> Vec<Value> {
        list.iter().filter(|id| other.contains(id)).cloned().collect()
    };
    let same_order = kept(&before, &after) == kept(&after, &before);
    if !found.is_empty() || !same_order {
        let ids: Vec<Value> = after.iter().map(|id| json!({merge_key: id})).collect();
        patch.insert(format!("$setElementOrder/{key}"), ids.into());
    }
    if !found.is_empty() {
        patch.insert(key.to_string(), found.into());
    }
}

fn diff_primitives(key: &str, original: &[Value], modified: &[Value], mode: Mode, patch: &mut Map<String, Value>) {
    let missing = |from: &[Value], of: &[Value]| -> Vec<Value> {
        from.iter().filter(|item| !of.contains(item)).cloned().collect()
    };
    let added = if mode.additions { missing(modified, original) } else { Vec::new() };
    let removed = if mode.deletions { missing(original, modified) } else { Vec::new() };
    if added.is_empty() && removed.is_empty() && original == modified {
        return;
    }
    if !added.is_empty() || !removed.is_empty() {
        patch.insert(format!("$setElementOrder/{key}"), modified.to_vec().into());
    }
    if !added.is_empty() {
        patch.insert(key.to_string(), added.into());
    }
    if !removed.is_empty() {
        patch.insert(format!("$deleteFromPrimitiveList/{key}"), removed.into());
    }
}

/// Deletions and additions as one patch.
fn merge_patches(
    schema: &Schema,
    node: &Node,
    mut into: Map<String, Value>,
    from: Map<String, Value>,
) -> Map<String, Value> {
    for (key, value) in from {
        let known = field(schema, node, &key);
        match (into.remove(&key), value) {
            (Some(Value::Object(a)), Value::Object(b)) => {
                let merged = merge_patches(schema, &inner_node(node, known), a, b);
                into.insert(key, Value::Object(merged));
            }
            (Some(Value::Array(mut a)), Value::Array(b)) if !key.starts_with('$') => {
                let merge_key = known.and_then(|f| f.patch_merge_key.clone());
                let item = item_node(&inner_node(node, known));
                for new in b {
                    let same = merge_key.as_ref().and_then(|k| a.iter().position(|old| old[k] == new[k]));
                    match (same, new) {
                        (Some(at), Value::Object(new)) => {
                            let Value::Object(old) = a[at].take() else { continue };
                            a[at] = Value::Object(merge_patches(schema, &item, old, new));
                        }
                        (_, new) => a.push(new),
                    }
                }
                into.insert(key, a.into());
            }
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
    into
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPLOYMENT: Kind = ("apps", "v1", "Deployment");

    #[test]
    fn patches_name_only_what_changes() {
        let check = |original: Value, modified: Value, current: Value, wanted: Value| {
            assert_eq!(strategic_three_way(DEPLOYMENT, &original, &modified, &current), Some(wanted));
        };
        let file = json!({"spec": {"replicas": 1}});
        check(file.clone(), file.clone(), json!({"spec": {"replicas": 1, "paused": true}}), json!({}));
        check(file.clone(), json!({"spec": {"replicas": 2}}), file.clone(), json!({"spec": {"replicas": 2}}));
        check(file.clone(), json!({"spec": {}}), file.clone(), json!({"spec": {"replicas": null}}));
        let with = |containers: Value| json!({"spec": {"template": {"spec": {"containers": containers}}}});
        check(
            with(json!([{"name": "a"}, {"name": "b"}])),
            with(json!([{"name": "a", "image": "x"}])),
            with(json!([{"name": "a"}, {"name": "b"}, {"name": "injected"}])),
            json!({"spec": {"template": {"spec": {
                "$setElementOrder/containers": [{"name": "a"}],
                "containers": [{"$patch": "delete", "name": "b"}, {"image": "x", "name": "a"}]}}}}),
        );
    }

    #[test]
    fn what_the_patch_makes_is_what_the_file_says() {
        let original = json!({"spec": {"replicas": 3, "template": {"spec": {"containers": [
            {"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]}}}});
        let modified = json!({"spec": {"template": {"spec": {"containers": [
            {"name": "a", "env": [{"name": "Y", "value": "3"}]}, {"name": "b"}]}}}});
        let patch = strategic_three_way(DEPLOYMENT, &original, &modified, &original).unwrap_or_default();
        let schema = schema::builtin();
        let root = schema.find_kind("apps", "v1", "Deployment").unwrap_or_else(|| panic!("a Deployment"));
        let patched = api::patch::strategic(schema, root, &original, &patch).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(patched, modified);
    }

    #[test]
    fn merge_patches_keep_what_nobody_named() {
        let patch = merge_three_way(
            &json!({"spec": {"a": 1, "b": 2}}),
            &json!({"spec": {"a": 5}}),
            &json!({"spec": {"a": 1, "b": 2, "c": 3}}),
        );
        assert_eq!(patch, json!({"spec": {"a": 5, "b": null}}));
    }
}
