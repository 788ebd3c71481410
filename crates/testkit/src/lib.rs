//! What the workspace says about itself, for tests about its shape and about what its tests cover.
//! Used by `tests/tidy` and by the tables of conformance texts.
//! It reads the workspace's own files, cargo's metadata and the published API only.

pub mod conformance;
mod scoped_log;

pub use scoped_log::{ScopedLog, scoped_log};

use std::{collections::BTreeMap, path::PathBuf, process::Command};

use serde_json::Value;

pub fn workspace_root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).unwrap_or(here)
}

/// Our own crates, each with those of ours that it depends on outside of tests.
pub fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(workspace_root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let short = |name: &str| name.strip_prefix("minke-").unwrap_or(name).to_string();
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let ours = |package: &Value| {
        let dependencies = package["dependencies"].as_array().expect("dependencies").iter();
        let normal = dependencies.filter(|d| d["kind"].is_null() && d["path"].is_string());
        normal.map(|d| short(d["name"].as_str().unwrap_or_default())).collect()
    };
    packages.map(|p| (short(p["name"].as_str().unwrap_or_default()), ours(p))).collect()
}
