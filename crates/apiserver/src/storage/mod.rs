//! Everything between handlers and the store: keys and stored bytes, the watch cache, and what is read from it.
//! Used by `registry`, `authn`, `authz` and `admission`; the store itself is the crate `store`.

pub mod cluster;
pub mod encryption;
pub mod watch_cache;

pub(crate) mod expiring;
pub(crate) mod index;

mod encoding;
mod key_migration;
mod keys;
mod stored_form;

pub use encoding::{decode, decode_event, encode, with_revision, without_revision};
pub use key_migration::migrate_keys;
pub use keys::{
    ROOT, UNFINISHED_MIGRATION, builtin_key, builtin_prefix, custom_prefix, group_resource, holds_objects, is_custom,
    local_key, prefix, prefix_of_key, stored_under,
};
pub use stored_form::{StorageMediaType, bookkeeping_value, to_json, to_stored};
