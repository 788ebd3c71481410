//! Which version of minke used a data directory last.
//! Written at every start by `preflight`; read by `status`, `doctor` and `install`.
//! Invariant: a newer version's data is refused, never guessed at (test: `newer_data_is_refused_with_what_to_do`).

use std::{fs, path::Path};

use anyhow::{Result, bail};

use crate::certificates::pki::write_private;

const FILE: &str = "version";

pub fn own() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// As numbers; what follows them (`-rc.1`, `+debian`) does not change what data looks like.
pub fn parse(version: &str) -> Option<(u64, u64, u64)> {
    let numbers = version.trim().split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let mut parts = numbers.split('.').map(|part| part.parse().ok());
    let parsed = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(parsed)
}

/// The version that used the directory last, if it is newer than this one.
pub fn newer(data: &Path) -> Option<String> {
    let found = fs::read_to_string(data.join(FILE)).ok()?.trim().to_string();
    (parse(&found)? > parse(own())?).then_some(found)
}

/// Refuses what a newer version has written; else records that this one writes now.
pub fn check_and_record(data: &Path) -> Result<()> {
    if let Some(newer) = newer(data) {
        bail!(
            "{} was last used by minke {newer}, and this is {}, which may not understand what that wrote: install {newer} or \
             newer again, or restore a backup of before into an empty directory (`minke store restore`)",
            data.display(),
            own()
        );
    }
    // Data of before there was this file are ours to read.
    match fs::read_to_string(data.join(FILE)) {
        Ok(found) if found.trim() == own() => Ok(()),
        _ => write_private(&data.join(FILE), &format!("{}\n", own())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_data_is_refused_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        check_and_record(directory.path()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap().trim(), own());
        for older in ["0.0.9", "0.0.9-rc.1", "garbage", ""] {
            fs::write(&file, older).unwrap();
            check_and_record(directory.path()).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap().trim(), own(), "{older}");
        }
        for newer in ["99.0.0\n", "99.1.0-rc.1"] {
            fs::write(&file, newer).unwrap();
            let error = check_and_record(directory.path()).unwrap_err().to_string();
            assert!(error.contains("minke 99.") && error.contains("minke store restore"), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), newer, "it stays as it was");
        }
    }
}
