//! A file that calls itself pure is: no input or output, no time, no async, no logging.

use crate::sources::{all, check};

const EFFECTS: &[&str] = &[
    "async fn",
    "async move",
    ".await",
    "std::fs",
    "fs::",
    "TcpStream",
    "UdpSocket",
    "std::process",
    "std::thread",
    "std::env::",
    "tokio::",
    "env::Env",
    "tracing::",
];

/// Whether a line has an effect, and not only a longer name that ends like one.
fn has_effect(line: &str) -> bool {
    let begins = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    EFFECTS.iter().any(|effect| line.match_indices(effect).any(|(at, _)| begins(at)))
}

#[test]
fn pure_files_are_pure() {
    let files = all();
    let pure: Vec<_> = files.iter().filter(|file| file.header().contains("tidy: `pure_files`")).collect();
    assert!(pure.len() >= 5, "there are such files");
    let breaking = pure.iter().flat_map(|file| {
        let lines = file.code().filter(|(_, line)| has_effect(line));
        lines.map(|(number, line)| format!("{}:{number}: {}", file.path, line.trim()))
    });
    check("a pure file has no effects", breaking, &[]);
}
