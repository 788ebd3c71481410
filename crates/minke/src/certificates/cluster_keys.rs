//! What makes several servers one cluster: the authority, its key, and the key that signs ServiceAccount tokens.
//! Copied by `up --servers`, handed over by `join_server`; everything else follows from them or is each server's own.
//! Never on a command line.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::certificates::pki::{write_private, write_public};

/// Below `pki`.
pub const FILES: [&str; 3] = ["ca.crt", "ca.key", "sa.key"];

pub fn read(pki: &Path) -> Result<Vec<(String, String)>> {
    let read = |name: &str| {
        let path = pki.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        Ok((name.to_string(), text))
    };
    FILES.into_iter().map(read).collect()
}

/// The certificate last: it is what the rest is found by.
pub fn write(pki: &Path, keys: &[(String, String)]) -> Result<()> {
    for (name, text) in keys.iter().filter(|(name, _)| FILES.contains(&name.as_str())).rev() {
        let path = pki.join(name);
        if name.ends_with(".key") { write_private(&path, text)? } else { write_public(&path, text)? }
    }
    Ok(())
}

pub fn copy(from: &Path, to: &Path) -> Result<()> {
    write(to, &read(from)?)
}
