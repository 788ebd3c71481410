//! Which test of ours covers which of the official conformance texts about nodes, networks and volumes.
//! `make test-reference` compares the first column with the published list.
//! Invariant: a row names a test that exists.

mod networks;
mod nodes;
mod storage;

use std::{fs, path::Path};

/// Marks that say how upstream runs a text, not what it asks.
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

#[test]
fn the_tests_exist() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    for (text, file, test) in [nodes::TEXTS, networks::TEXTS, storage::TEXTS].concat() {
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(source.contains(&format!("fn {test}(")), "{text}: {file} has no {test}");
    }
}

#[test]
#[ignore = "needs MINKE_REFERENCE; run by make test-reference"]
fn the_published_texts_are_covered() {
    let reference = std::env::var("MINKE_REFERENCE").expect("MINKE_REFERENCE names a checkout of the published API");
    let list = fs::read_to_string(Path::new(&reference).join("conformance.yaml")).unwrap();
    // Long names are folded over lines that begin with more spaces.
    let list = list.replace("\n    ", " ");
    let names = list.lines().filter_map(|line| line.trim().strip_prefix("codename: '"));
    let names: Vec<String> = names.map(|name| name.trim_end_matches('\'').replace("''", "'")).collect();
    let groups =
        [("[sig-node] ", nodes::TEXTS), ("[sig-network] ", networks::TEXTS), ("[sig-storage] ", storage::TEXTS)];
    for (group, covered) in groups {
        let texts: Vec<String> = names.iter().filter_map(|name| name.strip_prefix(group)).map(plain).collect();
        for text in &texts {
            assert!(covered.iter().any(|(known, ..)| known == text), "{group}{text}");
        }
        assert_eq!(texts.len(), covered.len(), "{group}");
    }
}
