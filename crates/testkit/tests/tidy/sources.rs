//! The workspace's Rust files, as every rule reads them, and the one way a rule has exceptions.
//! Neighbours: every rule of this folder.

use std::{collections::BTreeSet, path::Path, sync::LazyLock};

use testkit::workspace_root;

pub struct Source {
    /// From the workspace's root: `crates/env/src/lib.rs`.
    pub path: String,
    pub text: String,
}

impl Source {
    /// The crate's folder name, `e2e` for the end-to-end tests.
    pub fn crate_name(&self) -> &str {
        self.path.split('/').nth(1).unwrap_or_default()
    }

    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    pub fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// The `//!` lines that it opens with, as one line.
    pub fn header(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("//!"));
        lines.map(str::trim).collect::<Vec<_>>().join(" ")
    }

    /// Whether the file exists only for tests, by its name or place.
    pub fn is_test(&self) -> bool {
        let folders = ["/tests/", "/examples/", "/benches/"];
        folders.iter().any(|f| self.path.contains(f))
            || self.path.starts_with("tests/")
            || self.file_name().ends_with("tests.rs")
    }

    /// The lines of code before the file's own `mod tests`, without comments, with their numbers.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let numbered = self.text.lines().enumerate().map(|(i, line)| (i + 1, line));
        let before_tests = numbered.take_while(|(_, line)| !line.starts_with("mod tests {"));
        before_tests
            .map(|(i, line)| (i, line.split_once("//").map_or(line, |(code, _)| code)))
            .filter(|(_, line)| !line.trim().is_empty())
    }
}

/// Every Rust file of the workspace, in the order of their paths.
pub fn all() -> &'static [Source] {
    static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(read_all);
    &SOURCES
}

fn read_all() -> Vec<Source> {
    let root = workspace_root();
    let mut found = Vec::new();
    for folder in ["crates", "tests"] {
        read(&root, &root.join(folder), &mut found);
    }
    assert!(found.len() > 500, "the tree was read");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn read(root: &Path, folder: &Path, found: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).expect("a readable folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            if entry.file_name() != "target" {
                read(root, &path, found);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).expect("a readable file");
            let path = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
}

/// Fails for what breaks `rule` and has no row in `allowed`, and for a row that nothing needs any more: such lists only
/// shrink. A row is what breaks the rule and why it may.
pub fn check(rule: &str, breaking: impl IntoIterator<Item = String>, allowed: &[(&str, &str)]) {
    let breaking: BTreeSet<String> = breaking.into_iter().collect();
    let new: Vec<_> = breaking.iter().filter(|b| allowed.iter().all(|(row, _)| row != b)).collect();
    assert!(new.is_empty(), "{rule}: broken by {new:#?}");
    let stale: Vec<_> = allowed.iter().filter(|(row, _)| !breaking.contains(*row)).collect();
    assert!(stale.is_empty(), "{rule}: kept now, so take out the rows {stale:#?}");
    assert!(allowed.iter().all(|(_, why)| !why.is_empty()), "{rule}: a row says why");
}
