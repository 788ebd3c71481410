//! What the Burstable class gets of the processors: as much as its pods ask for together.
//! Kept by `container_manager` as pods come, change and go; started from the groups that are there.
//! A change costs the same however many pods there are.

use std::collections::HashMap;

use crate::runtime::container_config::resources;

#[derive(Default)]
pub struct Burstable {
    /// Thousandths of a processor by pod UID.
    requests: HashMap<String, i64>,
    total: i64,
    /// The shares that the class has.
    pub written: Option<i64>,
}

impl Burstable {
    /// What a pod asks for; `None` when it is gone.
    pub fn set(&mut self, uid: &str, milli: Option<i64>) {
        let before = match milli {
            Some(milli) => self.requests.insert(uid.into(), milli),
            None => self.requests.remove(uid),
        };
        self.total += milli.unwrap_or(0) - before.unwrap_or(0);
    }

    /// The shares the class is to have, unless it has them.
    pub fn wanted(&self) -> Option<i64> {
        Some(resources::cpu_shares(self.total)).filter(|shares| self.written != Some(*shares))
    }
}

/// What a pod asked for whose group has these shares.
pub fn milli(shares: i64) -> i64 {
    if shares <= resources::MIN_SHARES { 0 } else { (shares * 1000 + 1023) / 1024 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_gets_the_sum() {
        let mut class = Burstable::default();
        let mut check = |uid: &str, milli, expected: Option<i64>| {
            class.set(uid, milli);
            assert_eq!(class.wanted(), expected, "{uid} {milli:?}");
            class.written = class.wanted().or(class.written);
        };
        check("a", Some(0), Some(2));
        check("b", Some(1500), Some(1536));
        check("c", Some(500), Some(2048));
        check("c", Some(500), None);
        check("c", Some(250), Some(1792));
        check("b", None, Some(256));
        check("nobody", None, None);
        check("c", None, Some(2));
    }

    #[test]
    fn requests_are_read_back_from_shares() {
        for request in [0, 3, 100, 250, 999, 1000, 1500, 64_000] {
            let shares = resources::cpu_shares(request);
            assert_eq!(resources::cpu_shares(milli(shares)), shares, "{request}");
        }
    }
}
