//! Which test of ours covers which of the official conformance texts about nodes, networks and volumes.
//! Checked by `testkit`; `make test-reference` compares the first column with the published list.
//! A row names a test that exists.

mod networks;
mod nodes;
mod storage;

use testkit::conformance::{self, Group};

const GROUPS: &[Group<'_>] =
    &[("sig-node", &[nodes::TEXTS]), ("sig-network", &[networks::TEXTS]), ("sig-storage", &[storage::TEXTS])];

#[test]
fn the_tests_exist() {
    conformance::tests_exist(GROUPS);
}

#[test]
#[ignore = "needs MINKE_REFERENCE; run by make test-reference"]
fn the_published_texts_are_covered() {
    conformance::published_texts_are_covered(GROUPS);
}
