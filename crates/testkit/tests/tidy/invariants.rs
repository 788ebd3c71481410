//! A file's `Invariant:` is held by something, and says by what: a type, a lint, a rule of this folder or a test.

use crate::sources::{Source, all, check};

const HOLDERS: &[&str] = &["type: ", "clippy: ", "tidy: ", "test: "];

/// The names after a holder: `test: `a`, `b``.
fn named<'a>(invariant: &'a str, holder: &'a str) -> impl Iterator<Item = &'a str> {
    let lists = invariant.split(holder).skip(1).map(|rest| rest.split(')').next().unwrap_or_default());
    lists.flat_map(|list| list.split('`').skip(1).step_by(2))
}

fn invariant(file: &Source) -> Option<String> {
    let header = file.header();
    header.split_once("Invariant: ").map(|(_, invariant)| invariant.to_owned())
}

#[test]
fn invariants_name_what_holds_them() {
    let files = all();
    let stated: Vec<(&Source, String)> = files.iter().filter_map(|file| Some((file, invariant(file)?))).collect();
    assert!(stated.len() > 40, "there are invariants");
    let unheld = stated.iter().filter(|(_, invariant)| !HOLDERS.iter().any(|holder| invariant.contains(holder)));
    check("an invariant names what holds it", unheld.map(|(file, _)| file.path.clone()), &[]);
}

#[test]
fn the_tests_and_rules_that_invariants_name_exist() {
    let files = all();
    let exists = |test: &str| {
        let declared = format!("fn {test}(");
        files.iter().any(|file| file.file_name() == test || file.text.contains(&declared))
    };
    let is_rule = |rule: &str| files.iter().any(|file| file.path.ends_with(&format!("tests/tidy/{rule}.rs")));
    let stated: Vec<(&Source, String)> = files.iter().filter_map(|file| Some((file, invariant(file)?))).collect();
    let missing = stated.iter().flat_map(|(file, invariant)| {
        let tests = named(invariant, "test: ").filter(|test| !exists(test));
        let rules = named(invariant, "tidy: ").filter(|rule| !is_rule(rule));
        tests.chain(rules).map(|name| format!("{}: {name}", file.path)).collect::<Vec<_>>()
    });
    check("what an invariant names exists", missing, &[]);
}
