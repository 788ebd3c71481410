//! The types of hostPath volumes: what must be there, and what is made if it is not.
//! Used by `volume_manager`.
//! Invariant: creates only what `DirectoryOrCreate` and `FileOrCreate` ask for.

use std::{
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::Path,
};

pub fn check(path: &Path, kind: &str) -> Result<(), String> {
    let meta = std::fs::metadata(path);
    let wrong = |what: &str| Err(format!("hostPath type check failed: {} is not {what}", path.display()));
    match (kind, &meta) {
        ("", _) => Ok(()),
        ("DirectoryOrCreate", Err(_)) => std::fs::create_dir_all(path)
            .and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)))
            .map_err(|error| error.to_string()),
        ("FileOrCreate", Err(_)) => std::fs::File::create(path)
            .and_then(|file| file.set_permissions(std::fs::Permissions::from_mode(0o644)))
            .map_err(|error| error.to_string()),
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
