//! Compresses rotated logs with gzip: all but the newest, which collectors may not have read to its end.
//! Used by `log_rotation` after a log was rotated.
//! What a pod has put in the place of a log is neither followed nor overwritten.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use nix::{
    fcntl::{OFlag, openat, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};

use super::log_rotation::{place, rotated};
use crate::files::safe_open;

const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";

fn with_suffix(name: &OsStr, suffix: &str) -> OsString {
    let mut name = name.to_os_string();
    name.push(suffix);
    name
}

fn has_suffix(name: &OsStr, suffix: &str) -> bool {
    name.to_string_lossy().ends_with(suffix)
}

/// Removes what an interrupted compression has left.
pub fn clean(path: &Path) {
    let Ok((directory, _)) = place(path) else { return };
    let rotated = rotated(path);
    let names: Vec<&OsStr> = rotated.iter().filter_map(|log| log.file_name()).collect();
    let is_left = |name: &&OsStr| has_suffix(name, UNFINISHED) || names.contains(&&*with_suffix(name, COMPRESSED));
    for name in names.iter().copied().filter(is_left) {
        let _ = unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir);
    }
}

/// Compresses the rotated files of a log but the newest. One that can't be compressed stays as it is.
pub fn compress_older(path: &Path) {
    let Ok((directory, _)) = place(path) else { return };
    let rotated = rotated(path);
    let older = rotated.iter().rev().skip(1).filter_map(|log| log.file_name());
    for name in older.filter(|name| !has_suffix(name, COMPRESSED)) {
        if let Err(error) = compress(&directory, name) {
            tracing::warn!(log = %path.display(), file = %name.to_string_lossy(), %error, "failed to compress a log");
        }
    }
}

fn compress(directory: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let source = safe_open::plain(&safe_open::place_in(directory, name)?)?;
    let mode = Mode::from_bits_truncate(source.metadata()?.mode() & 0o777);
    let unfinished = with_suffix(name, UNFINISHED);
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let target = File::from(openat(directory, unfinished.as_os_str(), flags, mode)?);
    let written = write(source, target).and_then(|()| {
        let compressed = with_suffix(name, COMPRESSED);
        renameat(directory, unfinished.as_os_str(), directory, compressed.as_os_str()).map_err(io::Error::from)
    });
    // Of the two the one that is not whole goes.
    let superfluous = if written.is_ok() { name } else { unfinished.as_os_str() };
    unlinkat(directory, superfluous, UnlinkatFlags::NoRemoveDir)?;
    written
}

fn write(mut source: File, target: File) -> io::Result<()> {
    let mut encoder = GzEncoder::new(target, Compression::default());
    io::copy(&mut source, &mut encoder)?;
    encoder.finish().map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn all_but_the_newest_are_compressed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let path = root.join("0.log");
        let check = |files: &[&str], expected: &[&str]| {
            for file in files {
                std::fs::write(root.join(file), format!("lines of {file}")).unwrap();
            }
            clean(&path);
            compress_older(&path);
            assert_eq!(names(&root), expected, "{files:?}");
        };
        check(&["0.log"], &["0.log"]);
        check(&["0.log.20260101-000000"], &["0.log", "0.log.20260101-000000"]);
        check(
            &["0.log.20260102-000000", "0.log.20260103-000000"],
            &["0.log", "0.log.20260101-000000.gz", "0.log.20260102-000000.gz", "0.log.20260103-000000"],
        );
        let mut text = String::new();
        let packed = File::open(root.join("0.log.20260102-000000.gz")).unwrap();
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).unwrap();
        assert_eq!(text, "lines of 0.log.20260102-000000");
        // A compression that was interrupted before, or after, it was done.
        check(
            &["0.log.20260101-000000", "0.log.20260102-000000.tmp"],
            &["0.log", "0.log.20260101-000000.gz", "0.log.20260102-000000.gz", "0.log.20260103-000000"],
        );
        assert_eq!(rotated(&path).len(), 3);
    }

    #[test]
    fn what_a_pod_put_there_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (path, secret) = (root.join("0.log"), root.join("secret"));
        std::fs::write(&secret, "of the host").unwrap();
        std::os::unix::fs::symlink(&secret, root.join("0.log.20260101-000000")).unwrap();
        std::fs::write(root.join("0.log.20260102-000000"), "own").unwrap();
        std::os::unix::fs::symlink(&secret, root.join("0.log.20260102-000000.tmp")).unwrap();
        std::fs::write(root.join("0.log.20260103-000000"), "newest").unwrap();
        compress_older(&path);
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "of the host");
        assert_eq!(std::fs::read_to_string(root.join("0.log.20260102-000000")).unwrap(), "own");
        assert!(!names(&root).iter().any(|name| name.ends_with(".gz")));
    }
}
