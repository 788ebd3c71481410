//! A module is called by what it holds.

use crate::sources::{all, check};

/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["table", "util", "utils", "helper", "helpers", "misc", "common", "shell"];

const ALLOWED: &[(&str, &str)] = &[
    ("crates/api/src/kinds/common/mod.rs", "what kinds of several groups share, each under its own name"),
    ("crates/api/src/kinds/table.rs", "the table of kinds"),
    ("crates/apiserver/src/handlers/table.rs", "the API's Table form of a list"),
    ("crates/controllers/src/common/mod.rs", "what several controllers share, each under its own name"),
];

#[test]
fn module_names_say_something() {
    let empty = all().iter().filter(|file| {
        let name = if file.file_name() == "mod.rs" { file.folder() } else { file.path.trim_end_matches(".rs") };
        EMPTY_NAMES.contains(&name.rsplit('/').next().unwrap_or_default())
    });
    check("a module's name says what it holds", empty.map(|file| file.path.clone()), ALLOWED);
}
