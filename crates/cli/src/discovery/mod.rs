//! Which resources the server has.
//! Asked by `resource`; cached under `~/.kube/cache`.
//! Never changes anything on the server.

/// What the server serves.
pub struct Discovery;
