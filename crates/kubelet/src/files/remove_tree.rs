//! Removes directories that pods have written to.
//! Used for pods' directories, volumes' old versions and logs.
//! Works on descriptors, so it neither follows a link nor enters a mount, however the tree changes under it; it holds a
//! bounded number of them, however deep the tree is.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::OwnedFd,
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::renameat,
    unistd::{UnlinkatFlags, unlinkat},
};

use crate::files::safe_open;

/// Directories within each other; what is deeper is moved to the top first.
const DEPTH_MAX: usize = 64;
/// Names that are held at once.
const NAMES_MAX: usize = 1024;

/// Removes the directory (or whatever has its name) and all that is below it; nothing there is fine. What is mounted
/// there is an error, and left alone.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no name", path.display())));
    };
    let removed = match safe_open::directory(parent) {
        Ok(parent) => remove_in(&parent, name),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// As `remove_tree`, by its name in an open directory.
pub fn remove_in(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    if unlinked(parent, name)? {
        return Ok(());
    }
    let top = opened(parent, name)?;
    empty(&top, &top, 1)?;
    remove_directory(parent, name)
}

/// Whether it went as anything but a directory.
fn unlinked(parent: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        // The second is what other file systems say.
        Err(Errno::EISDIR | Errno::EPERM) if is_directory(parent, name) => Ok(false),
        Err(error) => Err(failed(name, error.into())),
    }
}

fn is_directory(parent: &OwnedFd, name: &OsStr) -> bool {
    safe_open::stat(parent, name).is_ok_and(|stat| safe_open::is_directory(&stat))
}

fn opened(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    safe_open::directory_in(parent, Path::new(name)).map_err(|error| match error.raw_os_error() {
        Some(nix::libc::EXDEV) => failed(name, io::Error::new(io::ErrorKind::ResourceBusy, "it is still mounted")),
        _ => failed(name, error),
    })
}

fn empty(top: &OwnedFd, directory: &OwnedFd, depth: usize) -> io::Result<()> {
    loop {
        let names: Vec<OsString> = safe_open::names(directory)?.take(NAMES_MAX).collect::<io::Result<_>>()?;
        if names.is_empty() {
            return Ok(());
        }
        for name in &names {
            if unlinked(directory, name)? {
                continue;
            }
            let inner = opened(directory, name)?;
            if depth < DEPTH_MAX {
                empty(top, &inner, depth + 1)?;
                remove_directory(directory, name)?;
                continue;
            }
            // No other directory of this file system has its number.
            let number = safe_open::stat(directory, name)?.st_ino;
            let raised = OsString::from(format!("..removed-{number}"));
            renameat(directory, name.as_os_str(), top, raised.as_os_str())
                .map_err(|error| failed(name, error.into()))?;
        }
    }
}

fn remove_directory(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(failed(name, error.into())),
    }
}

fn failed(name: &OsStr, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("failed to remove {:?}: {error}", name.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, path::PathBuf};

    use nix::{
        mount::{MntFlags, MsFlags, mount, umount2},
        sys::stat::{Mode, mkdirat},
    };

    use super::*;

    fn root() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        (directory, path)
    }

    #[test]
    fn links_are_removed_and_what_they_lead_to_stays() {
        let (_kept, root) = root();
        std::fs::create_dir_all(root.join("host")).unwrap();
        std::fs::write(root.join("host/file"), "kept").unwrap();
        std::fs::create_dir_all(root.join("pod/a/b")).unwrap();
        std::fs::write(root.join("pod/a/file"), "").unwrap();
        symlink("../../host", root.join("pod/a/out")).unwrap();
        symlink("../../host/file", root.join("pod/a/b/file")).unwrap();
        symlink("host", root.join("link")).unwrap();
        nix::unistd::mkfifo(&root.join("pod/pipe"), Mode::from_bits_truncate(0o666)).unwrap();
        for name in ["pod", "pod", "link", "none/below"] {
            remove_tree(&root.join(name)).unwrap();
        }
        assert!(!root.join("pod").exists() && root.join("link").symlink_metadata().is_err());
        assert_eq!(std::fs::read_to_string(root.join("host/file")).unwrap(), "kept");
        // A link on the way is somebody else's place.
        symlink("host", root.join("way")).unwrap();
        assert!(remove_tree(&root.join("way/file")).is_err());
        assert!(root.join("host/file").exists());
    }

    #[test]
    fn many_files_and_a_tree_deeper_than_any_path_are_removed() {
        let (_kept, root) = root();
        let pod = root.join("pod");
        std::fs::create_dir(&pod).unwrap();
        for number in 0..NAMES_MAX + 10 {
            std::fs::write(pod.join(number.to_string()), "").unwrap();
        }
        let mut place = safe_open::directory(&pod).unwrap();
        for _ in 0..3000 {
            mkdirat(&place, "deeper", Mode::from_bits_truncate(0o700)).unwrap();
            place = safe_open::directory_in(&place, Path::new("deeper")).unwrap();
        }
        remove_tree(&pod).unwrap();
        assert!(!pod.exists());
    }

    #[test]
    fn what_is_mounted_below_is_left_alone() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("left out: needs root to mount");
            return;
        }
        let (_kept, root) = root();
        std::fs::create_dir_all(root.join("data")).unwrap();
        std::fs::write(root.join("data/file"), "kept").unwrap();
        std::fs::create_dir_all(root.join("pod/volume")).unwrap();
        let nothing = None::<&str>;
        // Of the same file system, so that its device number gives nothing away.
        mount(Some(&root.join("data")), &root.join("pod/volume"), nothing, MsFlags::MS_BIND, nothing).unwrap();
        let result = remove_tree(&root.join("pod"));
        umount2(&root.join("pod/volume"), MntFlags::MNT_DETACH).unwrap();
        assert!(result.unwrap_err().to_string().contains("still mounted"));
        assert_eq!(std::fs::read_to_string(root.join("data/file")).unwrap(), "kept");
        remove_tree(&root.join("pod")).unwrap();
        assert!(!root.join("pod").exists());
    }
}
