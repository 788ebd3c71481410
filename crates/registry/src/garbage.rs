//! Removes blobs that no manifest names.
//! Called by `handler` after a manifest was deleted.
//! What is young stays: a push brings blobs before the manifest that names them.

use std::{collections::BTreeSet, fs, io, path::Path, time::Duration};

use env::Env;

use crate::{
    digest::Digest,
    storage::{Storage, named_by},
};

/// The longest push, with room to spare.
pub const BLOB_AGE_MIN: Duration = Duration::from_secs(3600);

pub fn is_older(path: &Path, age: Duration, env: &Env) -> bool {
    let modified = fs::metadata(path).and_then(|found| found.modified()).ok();
    let modified = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    let now = Duration::from_secs(u64::try_from(env.now().as_second()).unwrap_or(0));
    modified.is_some_and(|modified| now.saturating_sub(modified) > age)
}

impl Storage {
    /// Returns how many blobs went.
    pub fn collect_garbage(&self, age: Duration, env: &Env) -> io::Result<usize> {
        let _naming = self.naming.lock();
        let mut used: BTreeSet<Digest> = BTreeSet::new();
        for name in self.repositories() {
            for (digest, _) in self.manifests(&name) {
                let bytes = fs::read(self.blob(&digest)).unwrap_or_default();
                let manifest = serde_json::from_slice(&bytes).unwrap_or_default();
                used.extend(named_by(&manifest).unwrap_or_default().into_iter().map(|named| named.digest));
                used.insert(digest);
            }
        }
        let mut removed = 0;
        for entry in fs::read_dir(self.blobs())?.flatten() {
            let digest = entry.file_name().to_str().and_then(Digest::of_hex);
            if digest.is_none_or(|digest| !used.contains(&digest)) && is_older(&entry.path(), age, env) {
                fs::remove_file(entry.path())?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}
