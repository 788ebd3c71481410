//! The page's logic that needs no browser, in node: `tests/js`.
//! What needs one is in `tests/browser`, run by `make test-console`.

use std::{path::Path, process::Command};

#[test]
fn the_pages_logic() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/js/logic.test.mjs");
    let output = Command::new("node").arg("--test").arg(script).output();
    let output = output.expect("node runs: `tools/install test` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
