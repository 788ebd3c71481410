//! Where our keys lie in etcd: below a prefix, or with one root in the place of another.
//! Asked by the store and its watches for every key, both ways.
//! Invariant: pure (tidy: `pure_files`).

use std::borrow::Cow;

/// How keys are named in etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeySpace {
    /// Our keys that begin so begin with `theirs` in etcd; all others have `others` before them.
    ours: String,
    theirs: String,
    others: String,
}

/// `prefix` before every key.
impl From<&str> for KeySpace {
    fn from(prefix: &str) -> Self {
        Self { ours: String::new(), theirs: prefix.to_string(), others: prefix.to_string() }
    }
}

impl KeySpace {
    /// `theirs` in the place of `ours`; keys beside it are below `theirs` as well, unless both are the same.
    pub fn rooted(ours: &str, theirs: &str) -> Self {
        let others = if ours == theirs { "" } else { theirs };
        Self { ours: ours.to_string(), theirs: theirs.to_string(), others: others.to_string() }
    }

    /// The key in etcd.
    pub(super) fn full<'k>(&self, key: &'k str) -> Cow<'k, str> {
        let full = match key.strip_prefix(&self.ours) {
            Some(_) if self.ours == self.theirs => Cow::Borrowed(key),
            Some(rest) => Cow::Owned(format!("{}{rest}", self.theirs)),
            None if self.others.is_empty() => Cow::Borrowed(key),
            None => Cow::Owned(format!("{}{key}", self.others)),
        };
        // etcd has no empty key; the smallest one stands for it as the start of a range.
        if full.is_empty() { Cow::Borrowed("\0") } else { full }
    }

    /// As others name the key who know the root; who know of a prefix do not count it.
    pub(super) fn shown<'k>(&self, key: &'k str) -> Cow<'k, str> {
        if self.ours.is_empty() { Cow::Borrowed(key) } else { self.full(key) }
    }

    /// How keys are read back that were asked for from `start` on.
    pub(super) fn reader(&self, start: &str) -> KeyReader {
        match start.starts_with(&self.ours) {
            true => KeyReader { strip: self.theirs.clone(), put: self.ours.clone() },
            false => KeyReader { strip: self.others.clone(), put: String::new() },
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct KeyReader {
    strip: String,
    put: String,
}

impl KeyReader {
    /// The key as our callers know it.
    pub fn key(&self, full: &[u8]) -> String {
        let full = String::from_utf8_lossy(full);
        match full.strip_prefix(&self.strip) {
            Some(rest) if self.put.is_empty() => rest.to_string(),
            Some(rest) => format!("{}{rest}", self.put),
            None => full.into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_where_they_are_said_to() {
        let check = |space: &KeySpace, key: &str, full: &str, shown: &str| {
            assert_eq!((space.full(key).as_ref(), space.shown(key).as_ref()), (full, shown), "{space:?}");
            if full != "\0" {
                assert_eq!(space.reader(key).key(full.as_bytes()), key, "{space:?}");
            }
        };
        let plain = KeySpace::from("");
        check(&plain, "/registry/pods/a", "/registry/pods/a", "/registry/pods/a");
        check(&plain, "", "\0", "");
        check(&KeySpace::from("/x"), "/registry/pods/a", "/x/registry/pods/a", "/registry/pods/a");
        let usual = KeySpace::rooted("/registry", "/registry");
        check(&usual, "/registry/pods/a", "/registry/pods/a", "/registry/pods/a");
        check(&usual, "/minke/a", "/minke/a", "/minke/a");
        let second = KeySpace::rooted("/registry", "/second");
        check(&second, "/registry/pods/a", "/second/pods/a", "/second/pods/a");
        check(&second, "/registry0", "/second0", "/second0");
        check(&second, "/minke/a", "/second/minke/a", "/second/minke/a");
        let none = KeySpace::rooted("/registry", "");
        check(&none, "/registry/pods/a", "/pods/a", "/pods/a");
    }
}
