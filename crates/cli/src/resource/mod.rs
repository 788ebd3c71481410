//! Which objects a command line names: files, types and names, selectors.
//! Used by the verbs.
//! Reads only.

pub mod yaml;
