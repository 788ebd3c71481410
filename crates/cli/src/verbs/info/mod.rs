//! Verbs that tell about the client, the server and their resources.
//! Rows of `verbs::ROOT`.
//! None of them changes anything.

pub mod options;
pub mod version;
