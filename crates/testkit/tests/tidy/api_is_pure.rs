//! `api` is data and plain functions: no input, no output, no async runtime.

use testkit::workspace_root;

use crate::sources::{all, check};

/// The ways out of the process, and into the async runtime.
const WAYS_OUT: &[&str] =
    &["std::fs", "std::net::Tcp", "std::net::Udp", "std::process", "std::thread", "tokio", "async fn", "std::env::"];

#[test]
fn api_does_no_io() {
    let manifest = std::fs::read_to_string(workspace_root().join("crates/api/Cargo.toml")).unwrap();
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    assert!(!dependencies.lines().any(|line| line.starts_with("tokio")), "api depends on tokio");
    let files = all();
    let own = files.iter().filter(|file| file.path.starts_with("crates/api/src/") && !file.is_test());
    let breaking = own.flat_map(|file| {
        let used = |line: &str| WAYS_OUT.iter().any(|way| line.contains(way));
        let lines = file.code().filter(move |(_, line)| used(line));
        lines.map(|(_, line)| format!("{}: {}", file.path, line.trim()))
    });
    check("`api` does no I/O and has no async", breaking, &[]);
}
