//! Paths inside volumes, opened so that nobody can lead them elsewhere, and shown to the runtime as mounts of their own.
//! Used by `mounts`; `volume_manager` unmounts what is below a pod's directory when the pod ends.
//! What is mounted is what was opened: no name inside a volume is looked up again, and no link is followed while it is.

use std::{
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open, openat},
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::{Mode, mkdirat},
};

use crate::files::{
    directories,
    safe_open::{self, metadata},
};

/// A path in a volume.
#[derive(Debug)]
pub struct SubPath {
    /// Holds the place, whatever its names come to mean.
    place: OwnedFd,
    is_directory: bool,
}

impl SubPath {
    /// Opens `sub_path` in the volume at `root`. What is missing of it is made, as directories.
    pub fn open(root: &Path, sub_path: &str) -> Result<Self, String> {
        let relative = Path::new(sub_path);
        if relative.is_absolute() || relative.components().any(|c| matches!(c, Component::ParentDir)) {
            return Err(format!("subPath {sub_path:?} must be relative and must not contain \"..\""));
        }
        let root = root.canonicalize().map_err(|error| format!("failed to resolve {}: {error}", root.display()))?;
        if root.is_file() {
            return Err(format!("subPath {sub_path:?} in a volume that is a file"));
        }
        let failed = |error: io::Error| format!("failed to prepare subPath {sub_path:?}: {error}");
        let (there, missing) = resolve(&root, relative).map_err(failed)?;
        let mut place = open_root(&root).map_err(failed)?;
        for part in &there {
            place = step(&place, part).map_err(failed)?;
        }
        for part in &missing {
            place = make(&place, part).map_err(failed)?;
        }
        let is_directory = metadata(&place).map_err(failed)?.is_dir();
        Ok(Self { place, is_directory })
    }

    /// Mounts it at `target`, in place of what an earlier incarnation of the container had there.
    pub fn bind(&self, target: &Path, shared: bool) -> Result<(), String> {
        let bind = || -> io::Result<()> {
            while umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).is_ok() {}
            self.make_target(target)?;
            let nothing = None::<&str>;
            mount(Some(&self.path()), target, nothing, MsFlags::MS_BIND, nothing)?;
            if !shared {
                // Mounts that appear in the volume are seen, but unmounting ours never unmounts those.
                mount(nothing, target, nothing, MsFlags::MS_SLAVE, nothing)?;
            }
            Ok(())
        };
        bind().map_err(|error| format!("failed to mount a subPath at {}: {error}", target.display()))
    }

    fn path(&self) -> PathBuf {
        safe_open::way_to(&self.place)
    }

    /// A directory is mounted on a directory, anything else on a file.
    fn make_target(&self, target: &Path) -> io::Result<()> {
        let fits = |meta: std::fs::Metadata| meta.is_dir() == self.is_directory;
        match target.symlink_metadata().map(fits) {
            Ok(true) => return Ok(()),
            Ok(false) if self.is_directory => std::fs::remove_file(target)?,
            Ok(false) => std::fs::remove_dir(target)?,
            Err(_) => {}
        }
        match (self.is_directory, target.parent()) {
            (false, Some(parent)) => {
                directories::create(parent)?;
                std::fs::File::create_new(target).map(drop)
            }
            _ => directories::create(target),
        }
    }
}

/// A plain file in the volume at `root`, to be read. Nothing is made, and nothing that could hang is opened.
pub fn open_file(root: &Path, path: &str) -> io::Result<std::fs::File> {
    let relative = Path::new(path.trim_start_matches('/'));
    if relative.components().any(|c| matches!(c, Component::ParentDir)) {
        return Err(io::Error::other("it must not contain \"..\""));
    }
    let root = root.canonicalize()?;
    let (there, missing) = resolve(&root, relative)?;
    if !missing.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut place = open_root(&root)?;
    for part in &there {
        place = step(&place, part)?;
    }
    safe_open::plain(&place)
}

/// The parts of the path that are there, without links, and those that are not.
fn resolve(root: &Path, relative: &Path) -> io::Result<(Vec<String>, Vec<String>)> {
    let text = |part: Component| part.as_os_str().to_string_lossy().into_owned();
    let mut parts = relative.components().filter(|part| matches!(part, Component::Normal(_)));
    let mut current = root.to_path_buf();
    let mut missing = Vec::new();
    for part in parts.by_ref() {
        let next = current.join(part);
        if next.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            missing.push(text(part));
            break;
        }
        current = next.canonicalize()?;
        if !current.starts_with(root) {
            return Err(io::Error::other("it leads out of its volume"));
        }
    }
    missing.extend(parts.map(text));
    let inside = current.strip_prefix(root).map_err(io::Error::other)?;
    Ok((inside.components().map(text).collect(), missing))
}

fn open_root(root: &Path) -> io::Result<OwnedFd> {
    Ok(open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// One part further. A link here was put in the place of what was looked at.
fn step(place: &OwnedFd, part: &str) -> io::Result<OwnedFd> {
    let next = openat(place, part, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    match metadata(&next)?.is_symlink() {
        true => Err(io::Error::other(format!("{part:?} became a link"))),
        false => Ok(next),
    }
}

/// A new directory, with the mode and the owner of the one it is in.
fn make(place: &OwnedFd, part: &str) -> io::Result<OwnedFd> {
    match mkdirat(place, part, Mode::from_bits_truncate(0o750)) {
        Ok(()) => {}
        Err(Errno::EEXIST) => return step(place, part),
        Err(error) => return Err(error.into()),
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = openat(place, part, flags, Mode::empty())?;
    let parent = metadata(place)?;
    let directory = std::fs::File::from(made);
    let _ = std::os::unix::fs::fchown(&directory, Some(parent.uid()), Some(parent.gid()));
    let _ = directory.set_permissions(std::fs::Permissions::from_mode(parent.mode() & 0o7777));
    Ok(directory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_paths_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("volume");
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("out")).unwrap();
        std::os::unix::fs::symlink("a", root.join("in")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("dangling")).unwrap();
        std::fs::write(root.join("file"), "x").unwrap();
        let check = |path: &str, expected: Option<&str>| {
            let real = root.canonicalize().unwrap();
            let opened = SubPath::open(&root, path).ok().map(|open| std::fs::read_link(open.path()).unwrap());
            assert_eq!(opened, expected.map(|e| real.join(e)), "{path}");
        };
        check("a", Some("a"));
        check("a/new/deep", Some("a/new/deep"));
        check("in/x", Some("a/x"));
        check("./a//new", Some("a/new"));
        check("file", Some("file"));
        check("file/x", None);
        check("out", None);
        check("out/passwd", None);
        check("dangling", None);
        check("../x", None);
        check("/etc", None);
    }

    #[test]
    fn new_directories_are_like_the_one_they_are_in() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o2775)).unwrap();
        SubPath::open(dir.path(), "a/b").unwrap();
        assert_eq!(dir.path().join("a/b").metadata().unwrap().mode() & 0o7777, 0o2775);
    }

    /// What a container does that wants to see a file of the host: swap a part for a link once it was looked at.
    #[test]
    fn what_was_opened_stays_whatever_becomes_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("volume");
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::fs::write(root.join("a/own"), "ours").unwrap();
        let (there, _) = resolve(&root.canonicalize().unwrap(), Path::new("a")).unwrap();
        let opened = SubPath::open(&root, "a").unwrap();
        std::fs::rename(root.join("a"), root.join("b")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("a")).unwrap();
        assert_eq!(std::fs::read_to_string(opened.path().join("own")).unwrap(), "ours");
        let place = open_root(&root).unwrap();
        assert!(step(&place, &there[0]).unwrap_err().to_string().contains("became a link"));
        assert!(make(&place, "a").unwrap_err().to_string().contains("became a link"));
    }

    #[test]
    fn mounts_show_what_was_opened_and_can_be_made_again() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("left out: needs root to mount");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (root, target) = (dir.path().join("volume"), dir.path().join("volume-subpaths/v/c/0"));
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::fs::write(root.join("a/own"), "ours").unwrap();
        std::fs::write(root.join("file"), "plain").unwrap();
        let opened = SubPath::open(&root, "a").unwrap();
        std::fs::rename(root.join("a"), root.join("b")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("a")).unwrap();
        for _ in 0..2 {
            opened.bind(&target, false).unwrap();
            assert_eq!(std::fs::read_to_string(target.join("own")).unwrap(), "ours");
        }
        let file = SubPath::open(&root, "file").unwrap();
        file.bind(&target, false).unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "plain");
        umount2(&target, MntFlags::MNT_DETACH).unwrap();
        assert!(umount2(&target, MntFlags::MNT_DETACH).is_err(), "one mount however often it was made");
    }
}
