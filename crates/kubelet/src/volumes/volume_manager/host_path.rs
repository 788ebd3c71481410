//! The types of hostPath volumes: what must be there, and what is made if it is not.
//! Used by `volume_manager`.
//! Invariant: creates only what `DirectoryOrCreate` and `FileOrCreate` ask for.

use std::{
    fs::{DirBuilder, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use nix::libc;

pub fn check(path: &Path, kind: &str) -> Result<(), String> {
    let meta = std::fs::metadata(path);
    let wrong = |what: &str| Err(format!("hostPath type check failed: {} is not {what}", path.display()));
    match (kind, &meta) {
        ("", _) => Ok(()),
        ("DirectoryOrCreate", Err(_)) => make_directory(path).map_err(|error| error.to_string()),
        ("FileOrCreate", Err(_)) => make_file(path).map_err(|error| error.to_string()),
        ("Directory" | "DirectoryOrCreate", Ok(meta)) if meta.is_dir() => Ok(()),
        ("Directory" | "DirectoryOrCreate", _) => wrong("a directory"),
        ("File" | "FileOrCreate", Ok(meta)) if meta.is_file() => Ok(()),
        ("File" | "FileOrCreate", _) => wrong("a file"),
        ("Socket", Ok(meta)) if meta.file_type().is_socket() => Ok(()),
        ("Socket", _) => wrong("a socket file"),
        ("CharDevice", Ok(meta)) if meta.file_type().is_char_device() => Ok(()),
        ("CharDevice", _) => wrong("a character device"),
        ("BlockDevice", Ok(meta)) if meta.file_type().is_block_device() => Ok(()),
        ("BlockDevice", _) => wrong("a block device"),
        (other, _) => Err(format!("{other:?} is an invalid hostPath type")),
    }
}

/// Only what is made here gets the mode; what another made meanwhile, link or pipe, is looked at when it is tried again.
fn make_directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    std::fs::create_dir(path)?;
    let made = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)?;
    made.set_permissions(Permissions::from_mode(0o755))
}

fn make_file(path: &Path) -> io::Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    made.set_permissions(Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    #[test]
    fn types_are_checked_and_made() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let check = |path: &str, kind: &str, ok: bool| {
            let place = if path.starts_with('/') { path.into() } else { dir.path().join(path) };
            assert_eq!(super::check(&place, kind).is_ok(), ok, "{path} {kind}");
        };
        check("none", "", true);
        check("none", "Directory", false);
        check("none", "File", false);
        check("made", "DirectoryOrCreate", true);
        check("made", "Directory", true);
        check("file", "Directory", false);
        check("file", "DirectoryOrCreate", false);
        check("file", "File", true);
        check("made-file", "FileOrCreate", true);
        check("/dev/null", "CharDevice", true);
        check("/dev/null", "BlockDevice", false);
        check("file", "Socket", false);
        check("file", "Spoon", false);
    }
}
