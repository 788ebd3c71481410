//! What the architecture says never happens is held by something, and the sentence names it.

use testkit::workspace_root;

use crate::sources::check;

/// How a sentence may be held: a type, a lint, a rule of this folder or a test, each named after it.
const HOLDERS: &[&str] = &["type:", "clippy:", "tidy:", "test:"];

#[test]
fn every_never_names_what_holds_it() {
    let text = std::fs::read_to_string(workspace_root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("\n## What never happens\n").nth(1).expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let items: Vec<String> = section.split("\n- ").skip(1).map(|item| item.replace("\n  ", " ")).collect();
    assert!(items.len() >= 5, "{items:#?}");
    let unheld = items.iter().filter(|item| !HOLDERS.iter().any(|holder| item.contains(holder)));
    check("a sentence under \"What never happens\" names what holds it", unheld.cloned(), &[]);
    let rules = workspace_root().join("crates/testkit/tests/tidy");
    let named = items.iter().flat_map(|item| item.split("tidy: `").skip(1)).filter_map(|rest| rest.split('`').next());
    let missing = named.filter(|rule| !rules.join(format!("{rule}.rs")).exists());
    check("a rule that the architecture names exists", missing.map(str::to_owned), &[]);
}
