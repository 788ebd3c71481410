//! Compares our tables and codecs with upstream's published files: golden objects, OpenAPI, discovery.
//! Run by `make test-reference`, which says where the files are.
//! Without the files nothing here passes; it is ignored, and says so.

mod golden;
mod openapi;
mod published;

use std::path::PathBuf;

use serde_json::Value;

fn reference(below: &str) -> PathBuf {
    let root = std::env::var_os("MINKE_REFERENCE").expect("MINKE_REFERENCE names the directory of upstream's files");
    PathBuf::from(root).join(below)
}

fn read_json(path: PathBuf) -> Value {
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Fails once with everything that was found.
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
}
