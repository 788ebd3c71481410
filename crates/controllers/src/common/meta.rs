//! Metadata as every controller needs it; reading it is `api::accessor`.
//! Used by the cores and by what carries their actions out.
//! Absent and empty mean the same.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{DeleteOptions, Preconditions, Time},
    util::intstr::IntOrString,
};

pub use api::accessor::{Accessor as Object, key, labels_of as labels, split_key as split};

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
