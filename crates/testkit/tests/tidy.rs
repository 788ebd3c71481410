//! The shape of the workspace: who may depend on whom, and how files open.

use std::path::{Path, PathBuf};

use testkit::{dependencies, workspace_root};

/// Dependencies point one way. Only `minke`, `in_process`, `sim`, `fuzz` and tests see both the server and its clients.
const ALLOWED: &[(&str, &[&str])] = &[
    ("env", &[]),
    ("serve", &["env"]),
    ("api", &["env"]),
    ("store", &["env", "api"]),
    ("apiserver", &["env", "serve", "api", "store", "metrics"]),
    ("client", &["env", "api", "metrics"]),
    ("controllers", &["env", "api", "client", "metrics"]),
    ("scheduler", &["env", "api", "client", "metrics"]),
    ("cri", &["env"]),
    ("cni", &["env"]),
    ("metrics", &["env", "serve"]),
    ("kubelet", &["env", "serve", "api", "client", "cri", "cni", "metrics"]),
    ("proxy", &["env", "serve", "api", "client", "metrics"]),
    ("dns", &["env", "serve", "api", "client", "metrics"]),
    ("image", &[]),
    ("testkit", &[]),
    ("e2e", &["env", "api", "client", "image"]),
];

#[test]
fn dependencies_point_one_way() {
    let found = dependencies();
    for (name, uses) in &found {
        if ["minke", "sim", "in_process", "fuzz"].contains(&name.as_str()) {
            continue;
        }
        let (_, allowed) =
            ALLOWED.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("{name} has no row in ALLOWED"));
        for used in uses {
            assert!(allowed.contains(&used.as_str()), "{name} must not depend on {used}");
        }
    }
    assert!(found.len() >= ALLOWED.len(), "cargo metadata shows every crate");
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_file_opens_with_its_purpose() {
    let mut files = Vec::new();
    rust_files(&workspace_root().join("crates"), &mut files);
    assert!(files.len() > 50, "the tree was read");
    let without: Vec<_> =
        files.iter().filter(|f| !std::fs::read_to_string(f).is_ok_and(|text| text.starts_with("//"))).collect();
    assert!(without.is_empty(), "these files do not say what they are for: {without:#?}");
}
