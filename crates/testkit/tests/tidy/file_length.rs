//! A file is read in one sitting.

use crate::sources::{all, check};

const LINES_MAX: usize = 600;

const ALLOWED: &[(&str, &str)] = &[
    ("crates/apiserver/src/watch_cache.rs", "to be split: cache, ring and watchers"),
    ("tests/e2e/tests/cluster/cis_benchmark.rs", "one table, a row per check of the benchmark"),
];

#[test]
fn files_are_short() {
    let long = all().iter().filter(|file| file.text.lines().count() > LINES_MAX);
    check("a file has at most 600 lines", long.map(|file| file.path.clone()), ALLOWED);
}
