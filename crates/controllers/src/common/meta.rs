//! Small readings of metadata that every controller needs.
//! Used by the cores and by what carries their actions out.
//! Invariant: absent and empty mean the same.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    Metadata, Resource,
    apimachinery::pkg::{
        apis::meta::v1::{DeleteOptions, ObjectMeta, OwnerReference, Preconditions, Time},
        util::intstr::IntOrString,
    },
};

/// Any built-in object.
pub trait Object: Resource + Metadata<Ty = ObjectMeta> {
    fn meta(&self) -> &ObjectMeta {
        self.metadata()
    }

    fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    fn key(&self) -> String {
        key(self.namespace(), self.name())
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.metadata().labels.as_ref()?.get(name).map(String::as_str)
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata().annotations.as_ref()?.get(name).map(String::as_str)
    }

    fn deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }

    fn created(&self) -> Option<Timestamp> {
        self.metadata().creation_timestamp.as_ref().map(|t| t.0)
    }

    fn finalizers(&self) -> &[String] {
        self.metadata().finalizers.as_deref().unwrap_or_default()
    }

    fn controller(&self) -> Option<&OwnerReference> {
        controller_of(self.metadata())
    }

    fn controlled_by(&self, uid: &str) -> bool {
        self.controller().is_some_and(|o| o.uid == uid)
    }

    /// The reference that makes this object the controller of another.
    fn as_controller(&self) -> OwnerReference {
        OwnerReference {
            api_version: Self::API_VERSION.to_string(),
            kind: Self::KIND.to_string(),
            name: self.name().to_string(),
            uid: self.uid().to_string(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

impl<K: Resource + Metadata<Ty = ObjectMeta>> Object for K {}

pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|o| o.controller == Some(true))
}

pub fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_string() } else { format!("{namespace}/{name}") }
}

/// The namespace and the name of a queue's key.
pub fn split(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

pub fn labels(meta: &ObjectMeta) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    meta.labels.as_ref().unwrap_or(&NONE)
}

/// Whole seconds, the precision that objects keep.
pub fn time(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// Counters that upstream leaves out when they are zero.
pub fn count(number: usize) -> Option<i32> {
    Some(number as i32).filter(|n| *n != 0)
}

/// Deletes this very object, not a later one of the same name.
pub fn delete_options(uid: &str) -> DeleteOptions {
    DeleteOptions {
        preconditions: Some(Preconditions { uid: Some(uid.to_string()), resource_version: None }),
        ..DeleteOptions::default()
    }
}

pub fn delete_in_background(uid: &str) -> DeleteOptions {
    DeleteOptions { propagation_policy: Some("Background".into()), ..delete_options(uid) }
}

/// A count, or a percentage of `total` rounded up or down. Text that is no percentage counts as `None`.
pub fn scaled(value: &IntOrString, total: i32, round_up: bool) -> Option<i32> {
    match value {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            let product = percent * i64::from(total);
            Some((if round_up { (product + 99).div_euclid(100) } else { product.div_euclid(100) }) as i32)
        }
    }
}

/// 32-bit FNV-1a in the alphabet of generated names: what `pod-template-hash` and revision names are made of.
pub fn safe_hash(bytes: &[u8], collisions: Option<i32>) -> String {
    let mut hash: u32 = 0x811c_9dc5;
    let extra = collisions.map(|c| c.to_le_bytes());
    for byte in bytes.iter().chain(extra.iter().flatten()) {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    safe_encode(&hash.to_string())
}

fn safe_encode(text: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    text.bytes().map(|b| ALPHABET[b as usize % ALPHABET.len()] as char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages() {
        let check = |value: IntOrString, total, up, expected| assert_eq!(scaled(&value, total, up), expected);
        let percent = |text: &str| IntOrString::String(text.into());
        check(IntOrString::Int(3), 10, true, Some(3));
        check(percent("25%"), 10, true, Some(3));
        check(percent("25%"), 10, false, Some(2));
        check(percent("100%"), 7, false, Some(7));
        check(percent("x"), 7, false, None);
    }

    #[test]
    fn hashes_use_the_safe_alphabet() {
        let (one, two) = (safe_hash(b"template", None), safe_hash(b"template", Some(1)));
        assert_ne!(one, two);
        assert_eq!(one, safe_hash(b"template", None));
        assert!(one.len() <= 10 && one.bytes().all(|b| b"bcdfghjklmnpqrstvwxz2456789".contains(&b)));
    }
}
