//! A folder is seen at a glance.

use std::collections::BTreeMap;

use crate::sources::{all, check};

const FILES_MAX: usize = 20;

const ALLOWED: &[(&str, &str)] = &[
    ("crates/apiserver/src/admission", "a file per admission plugin"),
    ("crates/apiserver/src/registry", "being sorted"),
    ("crates/apiserver/tests/it", "a file per topic of one integration binary"),
    ("crates/scheduler/src/plugins", "a file per plugin"),
];

#[test]
fn folders_are_narrow() {
    let mut widths: BTreeMap<String, usize> = BTreeMap::new();
    for file in all() {
        *widths.entry(file.folder().to_owned()).or_default() += 1;
    }
    let wide = widths.into_iter().filter(|(_, files)| *files > FILES_MAX);
    check("a folder has at most 20 files", wide.map(|(folder, _)| folder), ALLOWED);
}
