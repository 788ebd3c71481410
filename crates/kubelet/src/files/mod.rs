//! Files that pods can influence: `safe_open` opens them, `remove_tree` deletes them, `file_work` runs such work on
//! threads of its own, `disk` measures, `directories` makes the node's directories.
//! Used all over the crate.

pub mod directories;
pub(crate) mod disk;
pub(crate) mod file_work;
pub(crate) mod remove_tree;
pub(crate) mod safe_open;
