//! Who a process is in leader election: random, and the same after a restart, which then need not wait for its own lease
//! to expire.
//! Used where controllers or scheduler may run more than once.
//! Two processes never have the same identity, though they share a data directory: it is held by a lock.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
};

use anyhow::{Context, Result};
use env::Env;
use nix::fcntl::{Flock, FlockArg};

use crate::cluster::{
    file_modes::{self, PRIVATE_FILE_MODE},
    host,
    instance::Instance,
};

const UUID_LENGTH: usize = 36;

/// Held for the life of the process.
pub struct LeaderIdentity {
    /// As upstream's: host name, `_`, UUID.
    pub name: String,
    _lock: Option<Flock<File>>,
}

impl LeaderIdentity {
    /// That of `component` in this data directory. A second process of it gets one that nobody keeps.
    pub fn take(instance: &Instance, component: &str, env: &Env) -> Result<Self> {
        let directory = instance.data.join("leader-identity");
        let failed = || format!("failed to keep who we are in {}", directory.display());
        file_modes::private_directory(&directory)?;
        let file = directory.join(component);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(PRIVATE_FILE_MODE);
        let file = options.open(&file).with_context(failed)?;
        let host = host::node_name().unwrap_or_default();
        let Ok(mut lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            return Ok(Self { name: format!("{host}_{}", env.uuid()), _lock: None });
        };
        let mut kept = String::new();
        lock.read_to_string(&mut kept).with_context(failed)?;
        // A crash may have left half of it.
        if kept.trim().len() != UUID_LENGTH {
            kept = env.uuid();
            lock.set_len(0).and_then(|()| lock.rewind()).with_context(failed)?;
            lock.write_all(kept.as_bytes()).and_then(|()| lock.sync_all()).with_context(failed)?;
        }
        Ok(Self { name: format!("{host}_{}", kept.trim()), _lock: Some(lock) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_random_kept_and_never_shared() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let env = Env::real();
        let take = |directory: &tempfile::TempDir, component: &str| {
            LeaderIdentity::take(&Instance::new(directory.path()), component, &env).unwrap()
        };
        let first = take(&one, "server");
        let uuid = first.name.rsplit_once('_').unwrap().1.to_string();
        assert_eq!(uuid.len(), 36, "{uuid}");
        assert_ne!(take(&one, "server").name, first.name, "another process beside it");
        assert_ne!(take(&one, "scheduler").name, first.name);
        assert_ne!(take(&two, "server").name, first.name);
        let name = first.name.clone();
        drop(first);
        assert_eq!(take(&one, "server").name, name, "the same after a restart");
    }
}
