//! Verbs about who may do what: auth, certificate.
//! Rows of `verbs::ROOT`.
//! The server decides; nothing is judged here.

pub mod auth;
mod can_i;
pub mod certificate;
mod reconcile;
