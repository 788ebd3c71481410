//! Everything between handlers and the store: keys and stored bytes, the watch cache, and what is read from it.
//! Used by `registry`, `authn`, `authz` and `admission`; the store itself is the crate `store`.

pub mod cluster;
pub mod encryption;
pub mod watch_cache;

pub(crate) mod expiring;
pub(crate) mod index;

mod encoding;
mod keys;

pub use encoding::{decode, decode_event, encode, with_revision, without_revision};
pub use keys::{ROOT, custom_prefix, group_resource, is_custom, local_key, prefix, prefix_of_key};
