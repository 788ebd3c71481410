//! Tables of which test of ours covers which of the official conformance texts, and what is checked of them.
//! Each crate that has such a table calls both functions; `make test-reference` runs the second.
//! Invariant: a row names a test that exists and that runs (test: `only_tests_that_run_count`).

use std::{collections::BTreeMap, fs, path::Path};

use crate::workspace_root;

/// The text without its group and marks, and where it is covered: file and test.
pub type Row = (&'static str, &'static str, &'static str);

/// The rows of one group, for example `sig-node`.
pub type Group<'a> = (&'a str, &'a [&'a [Row]]);

/// All groups there are; each has its rows in one of the tables.
const GROUPS: [&str; 10] = [
    "sig-api-machinery",
    "sig-apps",
    "sig-architecture",
    "sig-auth",
    "sig-cli",
    "sig-instrumentation",
    "sig-network",
    "sig-node",
    "sig-scheduling",
    "sig-storage",
];

/// Every row names a test that runs.
pub fn tests_exist(groups: &[Group<'_>]) {
    let mut sources = BTreeMap::new();
    for (text, file, test) in groups.iter().flat_map(|(_, tables)| tables.concat()) {
        let read = || fs::read_to_string(workspace_root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(has_test(sources.entry(file).or_insert_with(read), test), "{text}: {file} has no test {test}");
    }
}

/// A function of that name, with `#[test]` or the like above it and no `#[ignore]`.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let declared = format!("fn {name}(");
    lines.iter().enumerate().filter(|(_, line)| line.contains(&declared)).any(|(at, _)| {
        let attributes = || lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        attributes().any(|a| a.starts_with("#[test") || a.starts_with("#[tokio::test"))
            && !attributes().any(|a| a.starts_with("#[ignore"))
    })
}

/// The rows of each group are the published texts of it, all of them, each once.
pub fn published_texts_are_covered(groups: &[Group<'_>]) {
    let reference = std::env::var("MINKE_REFERENCE").expect("MINKE_REFERENCE names a checkout of the published API");
    let list = fs::read_to_string(Path::new(&reference).join("conformance.yaml")).expect("the published texts");
    let published = texts(&list);
    for (group, text) in &published {
        assert!(GROUPS.contains(&group.as_str()), "[{group}] {text}: a group that no table knows");
    }
    for (group, tables) in groups {
        let mut ours: Vec<&str> = tables.concat().iter().map(|(text, ..)| *text).collect();
        let mut theirs: Vec<&str> = published.iter().filter(|(g, _)| g == group).map(|(_, t)| t.as_str()).collect();
        ours.sort_unstable();
        theirs.sort_unstable();
        let missing: Vec<_> = theirs.iter().filter(|text| !ours.contains(text)).collect();
        let unknown: Vec<_> = ours.iter().filter(|text| !theirs.contains(text)).collect();
        assert!(missing.is_empty() && unknown.is_empty(), "[{group}] missing: {missing:#?}, unknown: {unknown:#?}");
        assert_eq!(ours, theirs, "[{group}] has a row twice");
    }
}

/// Group and text of every entry.
fn texts(list: &str) -> Vec<(String, String)> {
    // Long names are folded over lines that begin with more spaces.
    let list = list.replace("\n    ", " ");
    let names = list.lines().filter_map(|line| line.trim().strip_prefix("codename: "));
    let names = names.map(|name| name.trim_matches('\'').replace("''", "'"));
    let split = |name: String| {
        let (group, text) = name.strip_prefix('[')?.split_once(']')?;
        Some((group.to_string(), plain(text)))
    };
    names.map(|name| split(name.clone()).unwrap_or_else(|| panic!("a text without a group: {name}"))).collect()
}

/// Without the marks that say how upstream runs a text, not what it asks.
fn plain(text: &str) -> String {
    let mut rest = text;
    let mut plain = String::new();
    while let Some((before, marked)) = rest.split_once('[') {
        plain.push_str(before);
        rest = marked.split_once(']').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_marks() {
        let list = "- testname: A\n  codename: '[sig-apps] It [Serial] can''t be\n    folded [Slow] [Conformance]'\n  release: v1\n";
        assert_eq!(texts(list), [("sig-apps".to_string(), "It can't be folded".to_string())]);
    }

    #[test]
    fn only_tests_that_run_count() {
        for (source, expected) in [
            ("#[test]\nfn a() {", true),
            ("    #[tokio::test(start_paused = true)]\n    async fn a() {", true),
            ("#[test]\n\nfn a() {", false),
            ("fn a() {", false),
            ("#[test]\n#[ignore = \"slow\"]\nfn a() {", false),
            ("#[test]\nfn aa() {", false),
        ] {
            assert_eq!(has_test(source, "a"), expected, "{source}");
        }
    }
}
