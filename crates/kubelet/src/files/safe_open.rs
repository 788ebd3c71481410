//! Opens what is in places that pods can write to: logs, termination messages, volumes.
//! Used by everything that reads or walks there; `remove_tree` deletes there.
//! No link is followed and no pipe or device is opened; what was opened stays what it is, whatever becomes of its name.
//! The caller is on a thread that may hang (see `file_work`).

use std::{
    ffi::{OsStr, OsString},
    fs::{File, Metadata, OpenOptions},
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    libc,
};

/// How often a look-up that a rename somewhere has disturbed is done again.
const RETRIES_MAX: u32 = 100;

/// Holds what is there without opening it, a link as a link.
const PLACE: OFlag = OFlag::O_PATH;
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NONBLOCK);

fn open(at: impl AsFd, path: &Path, flags: OFlag, resolve: ResolveFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let mut disturbed = 0;
    loop {
        let how = OpenHow::new().flags(flags).resolve(resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match openat2(at.as_fd(), path, how) {
            Err(Errno::EAGAIN | Errno::EINTR) if disturbed < RETRIES_MAX => disturbed += 1,
            other => return Ok(other?),
        }
    }
}

/// A plain file to be read. No part of its path is a link.
pub fn file(path: &Path) -> io::Result<File> {
    plain(&open(AT_FDCWD, path, PLACE, ResolveFlag::RESOLVE_NO_SYMLINKS)?)
}

/// As `file`, at a path that only an administrator can change, who may use links.
pub fn administrators_file(path: &Path) -> io::Result<File> {
    plain(&open(AT_FDCWD, &path.canonicalize()?, PLACE, ResolveFlag::RESOLVE_NO_SYMLINKS)?)
}

/// A place as a plain file to be read.
pub fn plain(place: &OwnedFd) -> io::Result<File> {
    if !metadata(place)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file"));
    }
    // A lease that a pod holds on its file would otherwise be waited for.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    OpenOptions::new().read(true).custom_flags(flags).open(way_to(place))
}

/// The kernel's own way to what is open.
pub fn way_to(place: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", place.as_raw_fd()).into()
}

pub fn metadata(place: &OwnedFd) -> io::Result<Metadata> {
    File::from(place.try_clone()?).metadata()
}

/// What is below a limit of a plain file.
pub fn read_head(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A directory. No part of its path is a link.
pub fn directory(path: &Path) -> io::Result<OwnedFd> {
    open(AT_FDCWD, path, DIRECTORY, ResolveFlag::RESOLVE_NO_SYMLINKS)
}

const ON_THE_SAME_MOUNT: ResolveFlag =
    ResolveFlag::RESOLVE_NO_SYMLINKS.union(ResolveFlag::RESOLVE_BENEATH).union(ResolveFlag::RESOLVE_NO_XDEV);

/// A directory below an open one, on the same mount.
pub fn directory_in(parent: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    open(parent, path, DIRECTORY, ON_THE_SAME_MOUNT)
}

/// Whatever has this name in an open directory, on the same mount.
pub fn place_in(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    open(parent, Path::new(name), PLACE, ON_THE_SAME_MOUNT)
}

/// The names in an open directory, one after the other.
pub fn names(directory: &OwnedFd) -> io::Result<impl Iterator<Item = io::Result<OsString>> + use<>> {
    // Its own description, so that it starts at the beginning.
    let own = open(directory, Path::new("."), DIRECTORY, ON_THE_SAME_MOUNT)?;
    let entries = Dir::from_fd(own)?.into_iter().map(|entry| {
        let entry = entry?;
        Ok(OsStr::from_bytes(entry.file_name().to_bytes()).to_os_string())
    });
    let real = |name: &io::Result<OsString>| !name.as_ref().is_ok_and(|name| name == "." || name == "..");
    Ok(entries.filter(real))
}

/// What has this name in an open directory; a link is a link.
pub fn stat(directory: &OwnedFd, name: &OsStr) -> io::Result<libc::stat> {
    Ok(nix::sys::stat::fstatat(directory, name, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)?)
}

pub fn is_directory(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFDIR
}

pub fn is_plain(stat: &libc::stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn only_plain_files_are_read_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::write(root.join("d/f"), "plain text").unwrap();
        symlink("f", root.join("d/link")).unwrap();
        symlink("d", root.join("way")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), Mode::from_bits_truncate(0o666)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let check = |path: &str, expected: Option<&str>| {
            let place = if path.starts_with('/') { path.into() } else { root.join(path) };
            let found = read_head(&place, 5).ok();
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{path}");
        };
        check("d/f", Some("plain"));
        check("d/link", None);
        check("way/f", None);
        check("d", None);
        check("none", None);
        check("pipe", None);
        check("socket", None);
        check("/dev/null", None);
        check("/dev/tty", None);
        assert!(directory(&root.join("d")).is_ok());
        assert!(directory(&root.join("way")).is_err());
        assert!(administrators_file(&root.join("way/link")).is_ok());
        assert!(administrators_file(&root.join("pipe")).is_err());
        let open = directory(&root).unwrap();
        assert!(directory_in(&open, Path::new("..")).is_err());
        assert!(directory_in(&open, Path::new("way")).is_err());
        assert!(place_in(&open, OsStr::new("d")).is_ok());
        for _ in 0..2 {
            let mut found: Vec<_> = names(&open).unwrap().map(Result::unwrap).collect();
            found.sort();
            assert_eq!(found, ["d", "pipe", "socket", "way"]);
        }
    }
}
