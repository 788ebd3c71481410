//! What a page for people names is there: source files in back quotes, and links to other pages.

use std::{collections::BTreeSet, fs, path::Path};

use testkit::workspace_root;

/// Every file of ours below `directory`, as a path from the root.
fn files(root: &Path, directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() {
            files(root, &path, found);
        }
        if let Ok(path) = path.strip_prefix(root) {
            found.insert(path.to_string_lossy().into_owned());
        }
    }
}

/// `a/{b,c}.rs` names two.
fn expand(word: &str) -> Vec<String> {
    match (word.find('{'), word.find('}')) {
        (Some(open), Some(close)) if open < close => word[open + 1..close]
            .split(',')
            .map(|part| format!("{}{part}{}", &word[..open], &word[close + 1..]))
            .collect(),
        _ => vec![word.to_string()],
    }
}

/// Whether a word in back quotes is meant as the path of a source file.
fn is_source_path(word: &str) -> bool {
    word.ends_with(".rs") && !word.contains(['<', '*', ' '])
}

/// `watch_cache.rs` and `kubelet/src/pleg.rs` both name a file below `crates/`; `kubelet/pleg.rs` leaves out `src`.
fn names_a_file(word: &str, files: &BTreeSet<String>) -> bool {
    files.iter().any(|file| {
        let short = file.replace("/src/", "/");
        [file.as_str(), &short]
            .iter()
            .any(|file| file.strip_suffix(word).is_some_and(|before| before.is_empty() || before.ends_with('/')))
    })
}

#[test]
fn pages_name_files_that_are_there() {
    let root = workspace_root();
    let mut all = BTreeSet::new();
    files(&root, &root, &mut all);
    let mut missing = Vec::new();
    for page in all.iter().filter(|file| file.ends_with(".md") && *file != "CHANGELOG.md") {
        let text = fs::read_to_string(root.join(page)).expect("a page can be read");
        let quoted = text.split('`').skip(1).step_by(2);
        let words = quoted.flat_map(str::split_whitespace).filter(|word| is_source_path(word));
        for path in words.flat_map(expand).filter(|path| !names_a_file(path, &all)) {
            missing.push(format!("{page}: {path}"));
        }
    }
    assert!(missing.is_empty(), "these pages name files that are not there: {missing:#?}");
}

#[test]
fn links_between_pages_lead_somewhere() {
    let root = workspace_root();
    let mut all = BTreeSet::new();
    files(&root, &root, &mut all);
    let mut broken = Vec::new();
    for page in all.iter().filter(|file| file.ends_with(".md")) {
        let text = fs::read_to_string(root.join(page)).expect("a page can be read");
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://") && !target.starts_with('#')) {
            let file = target.split('#').next().unwrap_or_default();
            if !root.join(page).parent().is_some_and(|folder| folder.join(file).exists()) {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "these links lead nowhere: {broken:#?}");
}
