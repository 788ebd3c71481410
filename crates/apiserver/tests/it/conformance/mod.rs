//! Which test of ours covers which of the official conformance texts about the API, identity, clients and events.
//! Checked by `testkit`; `make test-reference` compares the first column with the published list.
//! A row names a test that exists.

mod admission;
mod clients;
mod identity;
mod machinery;

use testkit::conformance::{self, Group};

const GROUPS: &[Group<'_>] = &[
    ("sig-api-machinery", &[admission::TEXTS, machinery::TEXTS]),
    ("sig-auth", &[identity::TEXTS]),
    ("sig-cli", &[clients::TEXTS]),
    ("sig-instrumentation", &[clients::EVENTS]),
    ("sig-architecture", &[clients::ARCHITECTURE]),
];

#[test]
fn the_tests_exist() {
    conformance::tests_exist(GROUPS);
}

#[test]
#[ignore = "needs MINKE_REFERENCE; run by make test-reference"]
fn the_published_texts_are_covered() {
    conformance::published_texts_are_covered(GROUPS);
}
