//! Each flag of upstream's API server that acts is given in some test.
//! Read from the table in `minke/src/flags/upstream/apiserver.rs`; those that do nothing are checked row by row there.

use crate::sources::{all, check};

const TABLE: &str = "crates/minke/src/flags/upstream/apiserver.rs";
/// Backends whose flags have the same endings: a test gives them by `--audit-{backend}-…`.
const AUDIT_BACKENDS: [&str; 2] = ["log", "webhook"];

/// The flags of rows that say `Acts`.
fn acting(table: &str) -> Vec<&str> {
    let rows = table.split("(\"").skip(1).filter_map(|row| {
        let (name, rest) = row.split_once('"')?;
        let end = rest.find("),").unwrap_or(rest.len());
        rest[..end].ends_with("Acts").then_some(name)
    });
    rows.collect()
}

fn is_given(tests: &str, flag: &str) -> bool {
    let is_end = |at: usize| !tests[at..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
    tests.match_indices(flag).any(|(at, _)| is_end(at + flag.len()))
}

#[test]
fn flags_that_act_are_given_in_a_test() {
    let files = all();
    let table = files.iter().find(|file| file.path == TABLE).expect("the table");
    let flags = acting(&table.text);
    assert!(flags.len() > 80, "{}", flags.len());
    let tests: String = files
        .iter()
        .map(|file| match file.text.find("#[cfg(test)]") {
            _ if file.is_test() => file.text.as_str(),
            Some(at) => &file.text[at..],
            None => "",
        })
        .collect();
    let missing = flags.iter().filter(|name| {
        let spellings = std::iter::once(format!("--{name}")).chain(AUDIT_BACKENDS.iter().filter_map(|backend| {
            name.strip_prefix(&format!("audit-{backend}-")).map(|rest| format!("--audit-{{backend}}-{rest}"))
        }));
        !spellings.into_iter().any(|flag| is_given(&tests, &flag))
    });
    check("a flag that acts has a test", missing.map(|name| format!("{TABLE}: --{name}")), &[]);
}
