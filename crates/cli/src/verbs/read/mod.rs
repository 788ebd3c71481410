//! Verbs that show objects.
//! Rows of `verbs::ROOT`.
//! None of them changes anything.

pub mod get;
mod get_watch;
mod sorting;
