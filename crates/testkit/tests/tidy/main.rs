//! The shape of the workspace, checked: one file per rule, each a row below.
//! Neighbours: `ARCHITECTURE.md` names the rule that holds a sentence under "What never happens".
//! Invariant: rules read the workspace's files and cargo's metadata, and write nothing.

mod sources;

mod dependencies;
mod file_headers;
