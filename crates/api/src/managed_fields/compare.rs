//! What changed between two versions of an object, as sets of paths.
//! Used by `apply` and `update`.
//! No path is in more than one of the three sets.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    path::{PathElement, equal},
    set::Set,
    typed::{Shape, Typed, is_void, named},
};
use crate::schema::{ListType, Node};

#[derive(Debug, Default)]
pub struct Comparison {
    pub removed: Set,
    pub modified: Set,
    pub added: Set,
}

#[derive(Clone, Copy, PartialEq)]
enum Mark {
    Same,
    Removed,
    Modified,
    Added,
}

impl Comparison {
    /// Without anything in or below `ignored`.
    pub fn without(mut self, ignored: &Set) -> Self {
        if !ignored.is_empty() {
            for set in [&mut self.removed, &mut self.modified, &mut self.added] {
                *set = set.recursive_difference(ignored);
            }
        }
        self
    }

    fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    fn put(&mut self, name: PathElement, mark: Mark, below: Comparison) {
        let mut put = |set: fn(&mut Comparison) -> &mut Set, member: bool, below: Set| {
            if member || !below.is_empty() {
                set(self).put(name.clone(), member, below);
            }
        };
        put(|c| &mut c.removed, mark == Mark::Removed, below.removed);
        put(|c| &mut c.modified, mark == Mark::Modified, below.modified);
        put(|c| &mut c.added, mark == Mark::Added, below.added);
    }
}

impl Typed<'_> {
    pub fn compare(&self, node: &Node, old: &Value, new: &Value) -> Comparison {
        let mut comparison = Comparison::default();
        self.walk(node, Some(old), Some(new), &mut comparison);
        comparison
    }

    fn walk(&self, node: &Node, old: Option<&Value>, new: Option<&Value>, out: &mut Comparison) -> Mark {
        let leaf = || match (old, new) {
            (None, None) => Mark::Same,
            (None, Some(_)) => Mark::Added,
            (Some(_), None) => Mark::Removed,
            (Some(old), Some(new)) if equal(old, new) => Mark::Same,
            _ => Mark::Modified,
        };
        if is_void(old) && is_void(new) {
            return leaf();
        }
        let shape = |value: Option<&Value>| value.filter(|v| !v.is_null()).map(|v| self.shape(node, v));
        match (shape(old), shape(new)) {
            (Some(Shape::Map), Some(Shape::Map) | None) | (None, Some(Shape::Map)) => self.entries(node, old, new, out),
            (Some(Shape::List(element, kind)), Some(Shape::List(..)) | None)
            | (None, Some(Shape::List(element, kind))) => self.elements(element, kind, old, new, out),
            // From parts to one piece or back: the parts come and go with it.
            (Some(Shape::Map), Some(_)) => {
                self.entries(node, old, None, out);
                return Mark::Modified;
            }
            (Some(_), Some(Shape::Map)) => {
                self.entries(node, None, new, out);
                return Mark::Modified;
            }
            _ => return leaf(),
        }
        match (old, new) {
            (None, _) => Mark::Added,
            (_, None) => Mark::Removed,
            _ => Mark::Same,
        }
    }

    fn entries<'v>(&self, node: &Node, old: Option<&'v Value>, new: Option<&'v Value>, out: &mut Comparison) {
        let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
        let mut visit = |key: &str| {
            let field = self.schema.field(node, key);
            let value = |map: Option<&'v Map<String, Value>>| map?.get(key).or_else(|| self.implied(field));
            let (left, right) = (value(old), value(new));
            let mut below = Comparison::default();
            let mark = self.walk(self.schema.child(node, key), left, right, &mut below);
            // Most fields do not change, and naming one costs an allocation.
            if mark != Mark::Same || !below.is_empty() {
                out.put(PathElement::field(key), mark, below);
            }
        };
        for key in old.into_iter().flat_map(Map::keys) {
            visit(key);
        }
        for key in new.into_iter().flat_map(Map::keys).filter(|key| !old.is_some_and(|m| m.contains_key(*key))) {
            visit(key);
        }
    }

    fn elements(&self, node: &Node, kind: &ListType, old: Option<&Value>, new: Option<&Value>, out: &mut Comparison) {
        let mut pairs: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (name, item) in named(self, node, kind, old) {
            pairs.entry(name).or_default().0.push(item);
        }
        for (name, item) in named(self, node, kind, new) {
            pairs.entry(name).or_default().1.push(item);
        }
        for (name, (old, new)) in pairs {
            let mut below = Comparison::default();
            let mark = match (&old[..], &new[..]) {
                ([_] | [], [_] | []) => self.walk(node, old.first().copied(), new.first().copied(), &mut below),
                // Elements that share a name are compared as one piece.
                ([_, _, ..], [_, _, ..]) => {
                    let same = old.len() == new.len() && old.iter().zip(&new).all(|(a, b)| equal(a, b));
                    if same { Mark::Same } else { Mark::Modified }
                }
                ([_, _, ..], _) => {
                    if let Some(new) = new.first() {
                        self.walk(node, None, Some(new), &mut below);
                    }
                    Mark::Removed
                }
                (_, _) => {
                    if let Some(old) = old.first() {
                        self.walk(node, Some(old), None, &mut below);
                    }
                    Mark::Added
                }
            };
            out.put(name, mark, below);
        }
    }
}
