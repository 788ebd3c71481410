//! How far clients may rely on a metric: upstream's promise, by name (`stability.table`, of v1.35).
//! Shown before each family's help, as upstream does; what only we have promises nothing and says nothing.

use std::{collections::HashMap, sync::LazyLock};

static LEVELS: LazyLock<HashMap<&'static str, &'static str>> = LazyLock::new(|| {
    let mut level = "";
    let mut levels = HashMap::new();
    for line in include_str!("stability.table").lines() {
        match line.strip_prefix("= ") {
            Some(next) => level = next,
            None => levels.extend(line.split(' ').map(|name| (name, level))),
        }
    }
    levels
});

/// `STABLE`, `BETA` or `ALPHA`, for upstream's metrics.
pub fn level(name: &str) -> Option<&'static str> {
    LEVELS.get(name).copied()
}

/// The names of one level, sorted.
pub fn names(level: &str) -> Vec<&'static str> {
    let mut names: Vec<_> = LEVELS.iter().filter(|(_, of)| **of == level).map(|(name, _)| *name).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_levels() {
        assert_eq!(level("apiserver_request_total"), Some("STABLE"));
        assert_eq!(level("kubernetes_feature_enabled"), Some("BETA"));
        assert_eq!(level("scheduler_goroutines"), Some("ALPHA"));
        assert_eq!(level("minke_something"), None);
        assert_eq!((names("STABLE").len(), names("BETA").len()), (37, 23));
    }
}
