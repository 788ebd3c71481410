//! An applied configuration merged into the live object.
//! Used by `apply`.
//! Removes nothing, except what the configuration sets to null.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{
    path::PathElement,
    typed::{Shape, Typed, is_void, named},
};
use crate::schema::{ListType, Node};

impl Typed<'_> {
    /// `live` with what `config` says. `None` when nothing is left.
    pub fn merge(&self, node: &Node, live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
        let Some(config) = config else {
            return live.cloned();
        };
        let live = live.filter(|v| !v.is_null());
        if is_void(live) && is_void(Some(config)) {
            return self.leaf(node, config);
        }
        let shapes = (live.map(|v| self.shape(node, v)), self.shape(node, config));
        match shapes {
            (Some(Shape::Map) | None, Shape::Map) => self.merge_maps(node, live, config),
            (Some(Shape::List(..)) | None, Shape::List(element, kind)) => self.merge_lists(element, kind, live, config),
            (Some(Shape::Map), _) if config.is_null() => live.cloned(),
            _ => self.leaf(node, config),
        }
    }

    /// A null says that there is nothing, except where a null can be kept.
    fn leaf(&self, node: &Node, config: &Value) -> Option<Value> {
        (!config.is_null() || *node == Node::Any).then(|| config.clone())
    }

    fn merge_maps(&self, node: &Node, live: Option<&Value>, config: &Value) -> Option<Value> {
        let mut result: Map<String, Value> = live.and_then(Value::as_object).cloned().unwrap_or_default();
        for (key, value) in config.as_object().into_iter().flatten() {
            let old = result.get(key);
            match self.merge(self.schema.child(node, key), old, Some(value)) {
                Some(value) => {
                    result.insert(key.clone(), value);
                }
                None if value.is_null() && self.schema.field(node, key).is_some_and(|f| f.nullable) => {
                    result.insert(key.clone(), Value::Null);
                }
                None => {
                    result.remove(key);
                }
            }
        }
        (!result.is_empty()).then_some(Value::Object(result))
    }

    /// Elements in the configuration's order, with the live ones that it does not name where they were.
    fn merge_lists(&self, node: &Node, kind: &ListType, live: Option<&Value>, config: &Value) -> Option<Value> {
        let (left, right) = (named(self, node, kind, live), named(self, node, kind, Some(config)));
        // A live element whose name is not unique has no one to merge with.
        let mut live_by_name: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
        for (name, item) in &left {
            live_by_name.entry(name).and_modify(|seen| *seen = None).or_insert(Some(item));
        }
        let config_names: BTreeSet<&PathElement> = right.iter().map(|(name, _)| name).collect();
        let mut shared = right.iter().map(|(name, _)| name).filter(|name| live_by_name.contains_key(name)).peekable();
        let mut merged: BTreeSet<&PathElement> = BTreeSet::new();
        let mut result = Vec::with_capacity(left.len().max(right.len()));
        let (mut l, mut r) = (0, 0);
        while l < left.len() || r < right.len() {
            if let Some((name, item)) = left.get(l) {
                let named_too = config_names.contains(name);
                if !named_too {
                    result.push((*item).clone());
                    l += 1;
                    continue;
                }
                let at_right = right.get(r).is_some_and(|(other, _)| other == name);
                let wanted_next = shared.peek().is_some_and(|next| *next == name);
                if merged.contains(name) || (!at_right && !wanted_next && shared.peek().is_some()) {
                    l += 1;
                    continue;
                }
                if at_right {
                    l += 1;
                }
            }
            if let Some((name, item)) = right.get(r) {
                let old = live_by_name.get(name).copied().flatten();
                result.extend(self.merge(node, old, Some(item)));
                merged.insert(name);
                if shared.peek().is_some_and(|next| *next == name) {
                    shared.next();
                }
                r += 1;
            }
        }
        (!result.is_empty()).then_some(Value::Array(result))
    }
}
