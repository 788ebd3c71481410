//! Sets of paths into an object: who owns what. A tree, written as `FieldsV1`.
//! Steps are in `path`; made from objects in `typed`.
//! Entries are sorted; an entry that is neither a member nor has children does not exist.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use super::path::PathElement;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub element: PathElement,
    /// The path that ends here is in the set.
    pub member: bool,
    pub children: Set,
}

/// How deep `FieldsV1` may nest; objects themselves cannot be decoded any deeper.
const DEPTH_MAX: usize = 128;

impl Set {
    /// Of dotted paths of field names: `status`, `metadata.labels`.
    pub fn of_paths(paths: &[&str]) -> Self {
        let mut set = Set::default();
        for path in paths {
            set.insert_fields(&path.split('.').collect::<Vec<_>>());
        }
        set
    }

    pub fn insert_fields(&mut self, path: &[&str]) {
        let [first, rest @ ..] = path else { return };
        let entry = self.entry(PathElement::field(first));
        if rest.is_empty() {
            entry.member = true;
        } else {
            entry.children.insert_fields(rest);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.entries
    }

    fn entry(&mut self, element: PathElement) -> &mut Entry {
        let at = match self.entries.last() {
            Some(last) if last.element < element => self.entries.len(),
            _ => match self.entries.binary_search_by(|e| e.element.cmp(&element)) {
                Ok(at) => return &mut self.entries[at],
                Err(at) => at,
            },
        };
        self.entries.insert(at, Entry { element, member: false, children: Set::default() });
        &mut self.entries[at]
    }

    /// Adds an entry; nothing when it says nothing.
    pub fn put(&mut self, element: PathElement, member: bool, children: Set) {
        if !member && children.is_empty() {
            return;
        }
        let entry = self.entry(element);
        entry.member |= member;
        if entry.children.is_empty() {
            entry.children = children;
        } else {
            entry.children = entry.children.union(&children);
        }
    }

    pub fn get(&self, element: &PathElement) -> Option<&Entry> {
        self.entries.binary_search_by(|e| e.element.cmp(element)).ok().map(|at| &self.entries[at])
    }

    pub fn has_fields(&self, path: &[&str]) -> bool {
        match path {
            [] => false,
            [last] => self.get(&PathElement::field(last)).is_some_and(|e| e.member),
            [first, rest @ ..] => self.get(&PathElement::field(first)).is_some_and(|e| e.children.has_fields(rest)),
        }
    }

    pub fn union(&self, other: &Set) -> Set {
        self.zip(other, &|a, b| match (a, b) {
            (Some(a), Some(b)) => Some((a.member || b.member, a.children.union(&b.children))),
            (Some(one), None) | (None, Some(one)) => Some((one.member, one.children.clone())),
            (None, None) => None,
        })
    }

    pub fn intersection(&self, other: &Set) -> Set {
        self.zip(other, &|a, b| {
            let (a, b) = (a?, b?);
            Some((a.member && b.member, a.children.intersection(&b.children)))
        })
    }

    /// What is here and not in `other`, path by path: taking a parent leaves its children.
    pub fn difference(&self, other: &Set) -> Set {
        self.zip(other, &|a, b| {
            let a = a?;
            Some(match b {
                Some(b) => (a.member && !b.member, a.children.difference(&b.children)),
                None => (a.member, a.children.clone()),
            })
        })
    }

    /// What is here and not in `other`, nor below anything in `other`.
    pub fn recursive_difference(&self, other: &Set) -> Set {
        self.zip(other, &|a, b| {
            let a = a?;
            match b {
                Some(b) if b.member => None,
                Some(b) => Some((a.member, a.children.recursive_difference(&b.children))),
                None => Some((a.member, a.children.clone())),
            }
        })
    }

    pub fn is_subset(&self, other: &Set) -> bool {
        self.entries.iter().all(|entry| match other.get(&entry.element) {
            Some(found) => (!entry.member || found.member) && entry.children.is_subset(&found.children),
            None => false,
        })
    }

    fn zip(&self, other: &Set, join: &dyn Fn(Option<&Entry>, Option<&Entry>) -> Option<(bool, Set)>) -> Set {
        let mut entries = Vec::with_capacity(self.entries.len().max(other.entries.len()));
        let (mut left, mut right) = (self.entries.iter().peekable(), other.entries.iter().peekable());
        loop {
            let order = match (left.peek(), right.peek()) {
                (Some(l), Some(r)) => l.element.cmp(&r.element),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return Set { entries },
            };
            let l = if order.is_le() { left.next() } else { None };
            let r = if order.is_ge() { right.next() } else { None };
            if let (Some((member, children)), Some(entry)) = (join(l, r), l.or(r))
                && (member || !children.is_empty())
            {
                entries.push(Entry { element: entry.element.clone(), member, children });
            }
        }
    }

    /// Every path in the set as messages show it; the paths of one level before those below it.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        for entry in self.entries.iter().filter(|e| e.member) {
            paths.push(format!("{prefix}{}", entry.element));
        }
        for entry in self.entries.iter().filter(|e| !e.children.is_empty()) {
            entry.children.collect_paths(&format!("{prefix}{}", entry.element), paths);
        }
    }

    /// From `FieldsV1`.
    pub fn parse(fields: &Value) -> Result<Set, String> {
        match fields {
            Value::Null => Ok(Set::default()),
            Value::Object(map) => Ok(Self::parse_map(map, 0)?.0),
            _ => Err("expected map".into()),
        }
    }

    /// The set below, and whether the path up to here is a member.
    fn parse_map(map: &Map<String, Value>, depth: usize) -> Result<(Set, bool), String> {
        if depth > DEPTH_MAX {
            return Err("exceeded max depth".into());
        }
        let mut set = Set::default();
        let mut member = false;
        for (key, value) in map {
            if key == "." {
                member = true;
                continue;
            }
            let element = PathElement::parse(key).map_err(|e| format!("parsing key as path element: {e}"))?;
            let Some(element) = element else { continue };
            let (children, is_member) = match value {
                Value::Object(map) => Self::parse_map(map, depth + 1)?,
                _ => (Set::default(), true),
            };
            set.put(element, is_member, children);
        }
        let member = member || set.is_empty();
        Ok((set, member))
    }

    /// As `FieldsV1`.
    pub fn encode(&self) -> Value {
        let mut map = Map::new();
        for entry in &self.entries {
            let mut inner = entry.children.encode();
            if entry.member
                && !entry.children.is_empty()
                && let Value::Object(inner) = &mut inner
            {
                inner.insert(".".into(), Value::Object(Map::new()));
            }
            map.insert(entry.element.encode(), inner);
        }
        Value::Object(map)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn set(fields: Value) -> Set {
        Set::parse(&fields).unwrap()
    }

    #[test]
    fn fields_round_trip() {
        let check = |fields: Value| assert_eq!(set(fields.clone()).encode(), fields);
        check(json!({}));
        check(json!({"f:spec": {"f:replicas": {}}}));
        check(json!({"f:a": {".": {}, "f:b": {}, "f:c": {".": {}, "k:{\"name\":\"x\"}": {}}}}));
        check(json!({"f:s": {"v:\"x\"": {}, "v:1": {}, "i:0": {}}}));
        check(json!({"f:p": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}));
        assert_eq!(set(json!({"q:later": {}, "f:a": {}})).encode(), json!({"f:a": {}}));
        for wrong in [json!([]), json!({"x": {}}), json!({"fx": {}}), json!({"k:[": {}}), json!({"i:x": {}})] {
            assert!(Set::parse(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sets_combine() {
        let check = |a: Value, b: Value, union: Value, intersection: Value, difference: Value, recursive: Value| {
            let (a, b) = (set(a), set(b));
            assert_eq!(a.union(&b).encode(), union);
            assert_eq!(a.intersection(&b).encode(), intersection);
            assert_eq!(a.difference(&b).encode(), difference);
            assert_eq!(a.recursive_difference(&b).encode(), recursive);
        };
        let a = json!({"f:a": {"f:b": {}, "f:c": {}}, "f:d": {}});
        check(
            a.clone(),
            json!({"f:a": {"f:b": {}}, "f:e": {}}),
            json!({"f:a": {"f:b": {}, "f:c": {}}, "f:d": {}, "f:e": {}}),
            json!({"f:a": {"f:b": {}}}),
            json!({"f:a": {"f:c": {}}, "f:d": {}}),
            json!({"f:a": {"f:c": {}}, "f:d": {}}),
        );
        check(
            a.clone(),
            json!({"f:a": {}}),
            json!({"f:a": {".": {}, "f:b": {}, "f:c": {}}, "f:d": {}}),
            json!({}),
            a.clone(),
            json!({"f:d": {}}),
        );
        assert_eq!(set(a).paths(), [".d", ".a.b", ".a.c"]);
    }

    fn sets() -> impl Strategy<Value = Set> {
        let leaf = Just(json!({}));
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop::collection::btree_map("(f:[ab]|v:[12]|k:\\{\"n\":[12]\\}|\\.)", inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect()))
        })
        .prop_map(|fields| Set::parse(&fields).unwrap())
    }

    proptest! {
        #[test]
        fn laws_hold(a in sets(), b in sets()) {
            prop_assert_eq!(&Set::parse(&a.encode()).unwrap(), &a);
            prop_assert_eq!(a.union(&b), b.union(&a));
            prop_assert_eq!(a.intersection(&b), b.intersection(&a));
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert!(a.is_subset(&a.union(&b)) && a.difference(&b).is_subset(&a));
            prop_assert!(a.difference(&a).is_empty());
        }
    }
}
