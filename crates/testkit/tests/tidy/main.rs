//! The shape of the workspace, checked: one file per rule, each a row below.
//! Neighbours: `ARCHITECTURE.md` names the rule that holds a sentence under "What never happens".
//! Rules read the workspace's files and cargo's metadata, and write nothing.

mod sources;

mod api_is_pure;
mod dependencies;
mod file_headers;
mod file_length;
mod flags_have_tests;
mod folder_width;
mod invariants;
mod kinds_in_one_table;
mod module_names;
mod never_happens;
mod one_home;
mod paths_in_docs;
mod pure_files;
mod store_knows_no_kinds;
mod store_writes_through_disk;
mod supply_chain;
mod unbounded_channels;
mod words;
