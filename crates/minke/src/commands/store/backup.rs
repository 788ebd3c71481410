//! `minke store backup|restore`: of the embedded store, of an etcd that is given, or of the one that `up --servers` made.
//! Called by `commands`; files have one form, so that what was in one kind of store can be restored into the other.
//! A file is there whole or not at all, and was read back; an etcd that holds objects is not written over unasked.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use env::Env;
use store::{EmbeddedStore, Store};

use crate::{
    cluster::{file_modes, instance::Instance, members::etcd},
    commands::store::migrate,
    flags::store_flags::StoreFlags,
};

pub async fn backup(instance: &Instance, flags: &StoreFlags, file: &Path, env: &Env) -> Result<String> {
    let Some(etcd) = open(instance, flags, env).await? else {
        return Ok(store::files::backup(&instance.store(), file)?);
    };
    let scratch = Scratch::beside(file)?;
    let partial = scratch.0.join("backup");
    let (directory, out) = (scratch.0.join("store"), file_modes::open_log(&partial)?);
    let keys = migrate::back_up(etcd, &partial, out, &directory, env).await?;
    fs::rename(&partial, file).with_context(|| format!("can't write {}", file.display()))?;
    Ok(format!("wrote {} ({keys} keys), and read it back", file.display()))
}

pub async fn restore(instance: &Instance, flags: &StoreFlags, file: &Path, replace: bool, env: &Env) -> Result<String> {
    let Some(etcd) = open(instance, flags, env).await? else {
        if replace {
            bail!("--replace is for etcd: the embedded store is restored into an empty directory");
        }
        let wall_ms = u64::try_from(env.now().as_millisecond())?;
        return Ok(store::files::restore(&instance.store(), file, wall_ms)?);
    };
    let scratch = Scratch::beside(file)?;
    let directory = scratch.0.join("store");
    // The same revision each time: a restore that was cut off goes on where it was.
    store::files::restore(&directory, file, 0)?;
    let source = EmbeddedStore::open(&directory, env.clone())?;
    let name = format!("backup {}", file.canonicalize()?.display());
    if replace {
        migrate::clear(&*etcd).await?;
    }
    let keys = migrate::fill(&source, &name, &*etcd, env).await?;
    Ok(format!("restored {keys} keys of {} into etcd; both sides come to the same hash", file.display()))
}

/// None for the embedded store.
async fn open(instance: &Instance, flags: &StoreFlags, env: &Env) -> Result<Option<Arc<dyn Store>>> {
    if flags.is_shared() {
        return flags.open_etcd(env).await.map(Some);
    }
    match etcd::access(instance)? {
        Some(access) => StoreFlags::of_etcd(&access).open_etcd(env).await.map(Some),
        None => Ok(None),
    }
}

/// A directory that is gone in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn beside(file: &Path) -> Result<Self> {
        let mut path = std::path::absolute(file)?.into_os_string();
        path.push(".partial");
        let path = PathBuf::from(path);
        // Of a run that was killed.
        if path.is_dir() {
            fs::remove_dir_all(&path)?;
        }
        file_modes::private_directory(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, directory = %self.0.display(), "failed to remove what a backup was checked with");
        }
    }
}
