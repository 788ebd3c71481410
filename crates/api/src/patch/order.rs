//! The order of a list after a strategic merge: the patch's order where it has one, the live order elsewhere.
//! Used by `strategic`.
//! Only reorders; every element that comes in goes out.

use serde_json::Value;

/// How elements of a list are told apart.
#[derive(Clone, Copy)]
pub enum By<'a> {
    Value,
    Key(&'a str),
}

impl By<'_> {
    pub fn same(self, a: &Value, b: &Value) -> bool {
        match self {
            By::Value => a == b,
            // A key that is null is none.
            By::Key(key) => {
                let of = |item: &'_ Value| item.get(key).filter(|id| !id.is_null()).cloned();
                of(a) == of(b)
            }
        }
    }

    fn index(self, list: &[Value], item: &Value) -> Option<usize> {
        list.iter().position(|other| self.same(other, item))
    }
}

/// `merged` in the order of `wanted`, with what `wanted` does not name put where `live` had it.
pub fn normalize(merged: Vec<Value>, wanted: &[Value], live: &[Value], by: By) -> Vec<Value> {
    let (mut named, mut others): (Vec<_>, Vec<_>) =
        merged.into_iter().partition(|item| by.index(wanted, item).is_some());
    named.sort_by_key(|item| by.index(wanted, item));
    others.sort_by_key(|item| by.index(live, item).unwrap_or(usize::MAX));
    interleave(others, named, live, by)
}

/// Both lists keep their order; an element of `left` goes before the first of `right` that `live` has after it.
fn interleave(left: Vec<Value>, right: Vec<Value>, live: &[Value], by: By) -> Vec<Value> {
    let mut result = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    loop {
        let take_left = match (left.peek(), right.peek()) {
            (Some(l), Some(r)) => match (by.index(live, l), by.index(live, r)) {
                (Some(l), Some(r)) => l < r,
                _ => false,
            },
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return result,
        };
        result.extend(if take_left { left.next() } else { right.next() });
    }
}
