//! Something for each host name: the name itself first, then the closest wildcard, then any.
//! Used for the listeners, certificates and passed-through TLS of one port.
//! Pure (tidy: `pure_files`). A wildcard stands for one label or more.

use std::collections::HashMap;

#[derive(Debug)]
pub struct HostMap<T> {
    exact: HashMap<Box<str>, T>,
    /// By what follows the star and its dot.
    wildcards: HashMap<Box<str>, T>,
    any: Option<T>,
}

impl<T> Default for HostMap<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), wildcards: HashMap::new(), any: None }
    }
}

/// How closely a name was matched; more is closer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Closeness {
    Any,
    /// By the length of what follows the star.
    Wildcard(usize),
    Exact,
}

impl<T> HostMap<T> {
    /// The place of `host`, which is a name, `*.` and a name, or empty for any host.
    pub fn entry(&mut self, host: &str, make: impl FnOnce() -> T) -> &mut T {
        match host.strip_prefix("*.") {
            Some(rest) => self.wildcards.entry(rest.into()).or_insert_with(make),
            None if host.is_empty() => self.any.get_or_insert_with(make),
            None => self.exact.entry(host.into()).or_insert_with(make),
        }
    }

    pub fn find(&self, host: &str) -> Option<&T> {
        self.closest(host).map(|(_, found)| found)
    }

    pub fn closest(&self, host: &str) -> Option<(Closeness, &T)> {
        if let Some(found) = self.exact.get(host) {
            return Some((Closeness::Exact, found));
        }
        if !self.wildcards.is_empty() {
            let mut rest = host;
            while let Some((label, parent)) = rest.split_once('.') {
                if !label.is_empty()
                    && let Some(found) = self.wildcards.get(parent)
                {
                    return Some((Closeness::Wildcard(parent.len()), found));
                }
                rest = parent;
            }
        }
        self.any.as_ref().map(|found| (Closeness::Any, found))
    }

    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.wildcards.is_empty() && self.any.is_none()
    }

    pub fn map<U>(self, change: impl Fn(T) -> U) -> HostMap<U> {
        let each = |all: HashMap<Box<str>, T>| all.into_iter().map(|(host, value)| (host, change(value))).collect();
        HostMap { exact: each(self.exact), wildcards: each(self.wildcards), any: self.any.map(&change) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_host_is_found() {
        let mut map = HostMap::default();
        assert!(map.is_empty());
        for host in ["", "*.com", "*.foo.com", "bar.foo.com"] {
            map.entry(host, || host);
        }
        for (host, expected) in [
            ("bar.foo.com", "bar.foo.com"),
            ("baz.foo.com", "*.foo.com"),
            ("a.bar.foo.com", "*.foo.com"),
            ("foo.com", "*.com"),
            ("com", ""),
            (".foo.com", "*.com"),
            ("", ""),
        ] {
            assert_eq!(map.find(host), Some(&expected), "{host}");
        }
        assert!(HostMap::<()>::default().find("a").is_none());
        assert!(map.closest("baz.foo.com").unwrap().0 > map.closest("foo.com").unwrap().0);
    }
}
