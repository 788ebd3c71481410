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

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

fn deny() -> Deny {
    let text = std::fs::read_to_string(workspace_root().join("deny.toml")).expect("deny.toml is there");
    toml::from_str(&text).expect("deny.toml can be read")
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .args(["--offline", "--locked"])
        .current_dir(workspace_root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo prints text")
}

/// What is built for Linux, ours left out. Cargo's metadata also has what is behind features that are off; its tree does
/// not.
fn foreign_packages() -> Vec<Package> {
    let target = ["--target", "x86_64-unknown-linux-gnu"];
    let tree = cargo(&[&["tree", "--workspace", "--prefix", "none", "--format", "{p}"], &target[..]].concat());
    let built: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect();
    let metadata: Metadata =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1"])).expect("cargo prints JSON");
    let is_built = |package: &Package| built.contains(&(package.name.as_str(), package.version.as_str()));
    metadata.packages.into_iter().filter(|package| package.source.is_some() && is_built(package)).collect()
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
        .filter(|package| !package.license.as_ref().is_some_and(|license| is_allowed(license, &allowed)))
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
    let strange: Vec<_> = foreign_packages()
        .into_iter()
        .filter(|package| !package.source.as_ref().is_some_and(|source| source.starts_with("registry+")))
        .map(|package| package.name)
        .collect();
    assert!(strange.is_empty(), "not from a registry: {strange:?}");
}
