//! What an object mentions, as a set; and an object without what a set names.
//! Used by `apply`.
//! Removing what was extracted leaves nothing that was mentioned.

use serde_json::{Map, Value};

use super::{
    path::PathElement,
    set::Set,
    typed::{Shape, Typed, is_void},
};
use crate::schema::{ListType, Node};

impl Typed<'_> {
    /// Every field and element that `value` mentions.
    pub fn field_set(&self, node: &Node, value: &Value) -> Set {
        let mut set = Set::default();
        self.collect(node, value, &mut set);
        set
    }

    /// Collects what is below; says whether the path to `value` is itself mentioned.
    fn collect(&self, node: &Node, value: &Value, set: &mut Set) -> bool {
        match self.shape(node, value) {
            Shape::Leaf => return true,
            Shape::Map => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let mut below = Set::default();
                    let mut member = self.collect(self.schema.child(node, key), value, &mut below);
                    // A struct's field that has parts is only there through them.
                    member |= value.is_null() || (value.is_object() && is_void(Some(value)));
                    member |= self.schema.field(node, key).is_none();
                    set.put(PathElement::field(key), member, below);
                }
            }
            Shape::List(element, kind) => {
                for item in value.as_array().into_iter().flatten() {
                    if let Ok(name) = self.element(element, kind, item) {
                        let mut below = Set::default();
                        // Of elements that share a name, only the name is owned.
                        if set.get(&name).is_none() {
                            self.collect(element, item, &mut below);
                        }
                        set.put(name, true, below);
                    }
                }
            }
        }
        false
    }

    /// `value` without the members of `gone`; `None` when nothing is left.
    pub fn remove(&self, node: &Node, value: &Value, gone: &Set) -> Option<Value> {
        if gone.is_empty() {
            return Some(value.clone());
        }
        match (self.shape(node, value), value) {
            (Shape::Map, Value::Object(map)) => {
                let mut kept = Map::new();
                for (key, value) in map {
                    let left = match gone.get(&PathElement::field(key)) {
                        None => Some(value.clone()),
                        Some(entry) if entry.member => None,
                        Some(entry) => self.remove(self.schema.child(node, key), value, &entry.children),
                    };
                    kept.extend(left.map(|value| (key.clone(), value)));
                }
                (!kept.is_empty()).then_some(Value::Object(kept))
            }
            (Shape::List(element, kind), Value::Array(items)) => {
                let mut kept = Vec::with_capacity(items.len());
                for item in items {
                    let entry = self.element(element, kind, item).ok().and_then(|name| gone.get(&name));
                    match entry {
                        None => kept.push(item.clone()),
                        Some(entry) if entry.member => {}
                        Some(entry) => kept.extend(self.remove(element, item, &entry.children)),
                    }
                }
                (!kept.is_empty()).then_some(Value::Array(kept))
            }
            // An atomic value named in part goes as a whole.
            (Shape::Leaf, Value::Object(_) | Value::Array(_)) => None,
            _ => Some(value.clone()),
        }
    }

    /// The set with the struct fields that its paths pass through as members too.
    pub fn with_parents(&self, node: &Node, set: &Set) -> Set {
        let mut result = Set::default();
        for entry in set.entries() {
            let (child, parent) = match (&entry.element, node) {
                (PathElement::Field(name), _) => {
                    let parent = !entry.children.is_empty() && self.schema.field(node, name).is_some();
                    (self.schema.child(node, name), parent)
                }
                (_, Node::List(element, _)) => (element.as_ref(), false),
                _ => (&Node::Any, false),
            };
            let children = self.with_parents(child, &entry.children);
            result.put(entry.element.clone(), entry.member || parent, children);
        }
        result
    }
    /// Ownership of parts of what has since become atomic (by an upgrade, or a new version of a custom resource)
    /// becomes ownership of the whole.
    pub fn reconcile(&self, node: &Node, set: &mut Set) {
        for entry in set.entries_mut() {
            let child = match (&entry.element, node) {
                (PathElement::Field(name), Node::Struct(_)) => self.schema.field(node, name).map(|field| &field.node),
                (PathElement::Field(_), Node::Map(value, _)) => Some(value.as_ref()),
                (_, Node::List(element, _)) => Some(element.as_ref()),
                _ => None,
            };
            let Some(child) = child.filter(|_| !entry.children.is_empty()) else { continue };
            let atomic = match child {
                Node::Struct(id) => self.schema.get(*id).atomic,
                Node::Map(_, atomic) => *atomic,
                Node::List(_, kind) => *kind == ListType::Atomic,
                _ => false,
            };
            if atomic {
                entry.member = true;
                entry.children = Set::default();
            } else {
                self.reconcile(child, &mut entry.children);
            }
        }
    }
}
