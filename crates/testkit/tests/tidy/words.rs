//! The field's words: identifiers that only we would understand do not come back.

use std::collections::HashSet;

use crate::sources::{all, check};

/// Words of ours that have given way to the field's, as they would stand in an identifier.
const GIVEN_UP: &[(&str, &str)] = &[
    ("NodeClaim", "NodeNetwork"),
    ("Confirmed", "AppliedState"),
    ("MeshConfig", "PodRoutesConfig"),
    ("run_mesh", "run_pod_routes"),
    ("Sighting", "NftEvent"),
    ("LocalTransport", "InProcessTransport"),
    ("Perseverance", "RetryWithEvents"),
    ("kept_rules", "nft_repair"),
    ("lost_attachments", "ipam_gc"),
    ("local_services", "builtin_api_services"),
    ("follow_aggregation", "the clusterrole-aggregation-controller"),
    ("mesh", "pod routes"),
    ("Surroundings", "a noun that can be pointed at"),
    ("News", "a noun that can be pointed at"),
    ("Contested", "a noun that can be pointed at"),
    ("Prepared", "PreFilterResult"),
    ("MOST", "a constant with its quantity and unit"),
    ("TURN", "a constant with its quantity and unit"),
    ("FOLLOWED", "a constant with its quantity and unit"),
    ("MOMENT", "a constant with its quantity and unit"),
    ("LATE", "a constant with its quantity and unit"),
];

#[test]
fn private_words_do_not_come_back() {
    let files = all();
    let sources = files.iter().filter(|file| !file.path.ends_with("tidy/words.rs"));
    let breaking = sources.flat_map(|file| {
        let words: HashSet<&str> = file.text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let given_up = GIVEN_UP.iter().filter(move |(word, _)| words.contains(word));
        given_up.map(|(word, instead)| format!("{}: {word} is now {instead}", file.path))
    });
    check("the field's words", breaking, &[]);
}
