//! What `minke store` does with a cluster's objects: back up, restore, migrate, encrypt anew.
//! Called by `commands`.

pub mod backup;
pub mod migrate;
pub mod reencrypt;
