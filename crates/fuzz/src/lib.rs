//! What must bear any input: one function per decoder, patcher and parser that reads bytes of somebody else.
//! Run over the corpus and bent copies of it by `tests/corpus`, and with coverage by `fuzz/` (`make fuzz`).
//! Invariant: a target neither panics, nor answers with an error of its own, nor writes half of something (test:
//! `no_input_breaks_anything`).

mod pure;
mod server;
mod wire;

pub type Target = fn(&[u8]);

/// Each with the name of its corpus and of its binary in `fuzz/`.
pub const TARGETS: &[(&str, Target)] = &[
    ("json", pure::json),
    ("yaml", pure::yaml),
    ("protobuf", pure::protobuf),
    ("json_patch", pure::json_patch),
    ("merge_patch", pure::merge_patch),
    ("strategic_merge_patch", pure::strategic_merge_patch),
    ("apply", pure::apply),
    ("managed_fields", pure::managed_fields),
    ("label_selector", pure::label_selector),
    ("field_selector", pure::field_selector),
    ("quantity", pure::quantity),
    ("cel", pure::cel),
    ("policy_file", pure::policy_file),
    ("token_file", pure::token_file),
    ("spdy", wire::spdy),
    ("websocket", wire::websocket),
    ("dns_message", wire::dns_message),
    ("cni", wire::cni),
    ("image_archive", wire::image_archive),
    ("create", server::create),
    ("patch", server::patch),
    ("delete_options", server::delete_options),
    ("continue_token", server::continue_token),
    ("query", server::query),
    ("accept", server::accept),
    ("definition", server::definition),
    ("path", server::path),
    ("credentials", server::credentials),
];

/// The target of that name.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target is called {name}")).1
}
