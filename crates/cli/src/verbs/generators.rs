//! The subcommands of `create`: objects from flags.
//! Rows of `create`; the objects are made in `generate`.
//! A table only.

use crate::command::Command;

pub static CREATE: &[&Command] = &[];
