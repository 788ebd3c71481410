//! A file that a page of ours names is there.

use std::path::Path;

use testkit::workspace_root;

use crate::sources::{all, check};

fn pages(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "md") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(&path).expect("a readable page")));
        }
    }
}

/// The end of a path is enough, and `proxy/run.rs` is short for `proxy/src/run.rs`.
fn exists(path: &str) -> bool {
    let long = path.replacen('/', "/src/", 1);
    let ends = [format!("/{path}"), format!("/{long}")];
    all().iter().any(|file| file.path == path || ends.iter().any(|end| file.path.ends_with(end)))
}

#[test]
fn files_that_pages_name_are_there() {
    let root = workspace_root();
    let mut texts = Vec::new();
    for folder in ["", "docs", "docs/decisions"] {
        pages(&root.join(folder), &mut texts);
    }
    assert!(texts.len() > 5, "there are pages");
    let missing = texts.iter().filter(|(name, _)| name != "CHANGELOG.md").flat_map(|(name, text)| {
        let quoted = text.split('`').skip(1).step_by(2);
        let paths = quoted
            .filter(|path| path.ends_with(".rs") && path.contains('/') && !path.contains(['{', '<', ' ', '*', '…']));
        paths.filter(|path| !exists(path)).map(move |path| format!("{name}: {path}"))
    });
    check("a file that a page names is there", missing, &[]);
}
