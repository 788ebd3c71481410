//! Verbs that show objects.
//! Rows of `verbs::ROOT`.
//! None of them changes anything.

pub mod describe;
pub mod events;
pub mod get;
mod get_watch;
pub mod reader;
mod sorting;
pub mod wait;
