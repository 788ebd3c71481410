//! What comes in from outside, held against `deny.toml`: licences, banned crates, crates in several versions, sources.
//! Advisories need a network and are left to `cargo deny check`.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde::Deserialize;
use testkit::workspace_root;

#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Named>,
    skip: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    /// `name`, or `name@version`.
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    license: String,
    /// Where it comes from if not from the registry.
    source: Option<String>,
}

fn deny() -> Deny {
    let text = std::fs::read_to_string(workspace_root().join("deny.toml")).expect("deny.toml is there");
    toml::from_str(&text).expect("deny.toml can be read")
}

/// What is built for Linux, ours left out.
fn foreign_packages() -> BTreeSet<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--offline", "--locked", "--target", "x86_64-unknown-linux-gnu"])
        .args(["--prefix", "none", "--format", "{p}|{l}"])
        .current_dir(workspace_root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("cargo prints text");
    let found: BTreeSet<_> = tree.lines().filter(|line| !line.is_empty()).map(package).collect();
    assert!(found.len() > 100, "the tree was read");
    found.into_iter().filter(|package| !package.source.as_ref().is_some_and(|source| source.starts_with('/'))).collect()
}

/// A line such as `serde_derive v1.0.0 (proc-macro)|MIT OR Apache-2.0 (*)`; the star says that it was shown before.
fn package(line: &str) -> Package {
    let (package, license) = line.split_once('|').expect("the format has a bar");
    let mut words = package.split(' ');
    let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let source = words.map(|word| word.trim_matches(['(', ')'])).find(|word| *word != "proc-macro");
    Package {
        name: name.into(),
        version: version.trim_start_matches('v').into(),
        license: license.trim_end_matches(" (*)").into(),
        source: source.map(str::to_owned),
    }
}

/// Whether an SPDX expression can be fulfilled with the licences of `allowed` alone. `/` is the old way to write OR.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let verdict = any_of(&mut words, allowed);
    verdict && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words, allowed: &BTreeSet<String>) -> bool {
    let mut verdict = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        verdict |= all_of(words, allowed);
    }
    verdict
}

fn all_of(words: &mut Words, allowed: &BTreeSet<String>) -> bool {
    let mut verdict = single(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        verdict &= single(words, allowed);
    }
    verdict
}

fn single(words: &mut Words, allowed: &BTreeSet<String>) -> bool {
    match words.next() {
        Some("(") => {
            let verdict = any_of(words, allowed);
            verdict && words.next() == Some(")")
        }
        Some(name) => match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
            Some(exception) => allowed.contains(&format!("{name} WITH {exception}")),
            None => allowed.contains(name),
        },
        None => false,
    }
}

#[test]
fn expressions_of_licences_are_read() {
    let allowed = BTreeSet::from(["MIT".to_string(), "Apache-2.0 WITH LLVM-exception".to_string()]);
    let check =
        |expression: &str, expected: bool| assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    check("MIT", true);
    check("GPL-3.0", false);
    check("GPL-3.0 OR MIT", true);
    check("GPL-3.0/MIT", true);
    check("GPL-3.0 AND MIT", false);
    check("(GPL-3.0 OR MIT) AND MIT", true);
    check("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true);
    check("Apache-2.0", false);
    check("", false);
}

#[test]
fn every_licence_is_allowed() {
    let allowed = deny().licenses.allow;
    let refused: Vec<_> = foreign_packages()
        .into_iter()
        .filter(|package| !is_allowed(&package.license, &allowed))
        .map(|package| (package.name, package.license))
        .collect();
    assert!(refused.is_empty(), "deny.toml does not allow the licences of {refused:#?}");
}

#[test]
fn no_crate_is_banned_or_there_twice() {
    let bans = deny().bans;
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in foreign_packages() {
        versions.entry(package.name).or_default().push(package.version);
    }
    for banned in &bans.deny {
        assert!(!versions.contains_key(&banned.name), "{} must not come in: {}", banned.name, banned.reason);
    }
    let mut left: BTreeSet<_> = bans.skip.iter().map(|skip| skip.name.as_str()).collect();
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let excused = versions.iter().filter(|version| left.remove(format!("{name}@{version}").as_str())).count();
        assert!(
            versions.len() - excused <= 1,
            "{name} is built as {versions:?}: move to one, or add to `skip` in deny.toml"
        );
    }
    assert!(left.is_empty(), "`skip` in deny.toml names crates that are there once only: {left:?}");
}

#[test]
fn everything_comes_from_the_one_registry() {
    let strange: Vec<_> = foreign_packages().into_iter().filter_map(|package| package.source).collect();
    assert!(strange.is_empty(), "not from a registry: {strange:?}");
}
