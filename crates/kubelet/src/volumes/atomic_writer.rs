//! Writes the files of a volume so that a reader sees all old ones or all new ones, never a mixture.
//! Used for configMap, secret, downwardAPI and projected volumes.
//! User-visible names are links through `..data`, which is replaced by one rename. An unchanged payload changes nothing
//! on disk. Nothing outside the volume is read or removed, whatever is found in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{PermissionsExt, chown, symlink},
    },
    path::{Component, Path, PathBuf},
};

use crate::files::{remove_tree::remove_in, safe_open};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub content: Vec<u8>,
    pub mode: u32,
    /// The owner, where it must not be root (tokens for a non-root container).
    pub owner: Option<u32>,
}

/// By path relative to the volume.
pub type Payload = BTreeMap<String, File>;

/// Brings the directory to `payload`; true when anything changed. `stamp` names the new directory.
pub fn write(directory: &Path, payload: &Payload, group: Option<u32>, stamp: &str) -> io::Result<bool> {
    for path in payload.keys() {
        check_path(path)?;
    }
    let volume = safe_open::directory(directory)?;
    let current = current_version(directory);
    if let Some(current) = &current
        && holds(&volume, current, payload, group)
    {
        return Ok(false);
    }
    let name = format!("..{stamp}");
    fill(&directory.join(&name), payload, group)?;
    remove_in(&volume, OsStr::new(NEW_DATA))?;
    let temporary = directory.join(NEW_DATA);
    symlink(&name, &temporary)?;
    std::fs::rename(&temporary, directory.join(DATA))?;
    link_names(directory, &volume, payload)?;
    if let Some(current) = current {
        remove_in(&volume, OsStr::new(&current))?;
    }
    Ok(true)
}

/// The directory that `..data` leads to: one of ours, in the volume itself. Whatever else it says is not followed, and
/// only replaced.
fn current_version(directory: &Path) -> Option<String> {
    let target = std::fs::read_link(directory.join(DATA)).ok()?;
    let mut parts = target.components();
    let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) else { return None };
    let name = name.to_str().filter(|name| target.as_os_str() == *name)?;
    (name.starts_with("..") && name != DATA && name != NEW_DATA).then(|| name.to_string())
}

fn check_path(path: &str) -> io::Result<()> {
    let parts: Vec<Component> = Path::new(path).components().collect();
    let fine =
        !parts.is_empty() && parts.iter().all(|part| matches!(part, Component::Normal(_))) && !path.starts_with("..");
    if fine { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path: {path}"))) }
}

/// A group that is to read the files can.
fn with_group(mode: u32, group: Option<u32>) -> u32 {
    if group.is_some() { mode | 0o440 } else { mode }
}

fn fill(fresh: &Path, payload: &Payload, group: Option<u32>) -> io::Result<()> {
    let directory_mode = if group.is_some() { 0o2775 } else { 0o755 };
    let make_directory = |path: &Path| -> io::Result<()> {
        match std::fs::create_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path != fresh => return Ok(()),
            made => made?,
        }
        chown(path, None, group)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(directory_mode))
    };
    make_directory(fresh)?;
    for (path, file) in payload {
        let mut place = fresh.to_path_buf();
        let mut parts = Path::new(path).components().peekable();
        while let Some(part) = parts.next() {
            place.push(part);
            if parts.peek().is_some() {
                make_directory(&place)?;
            }
        }
        std::fs::File::create_new(&place)?.write_all(&file.content)?;
        if file.owner.is_some() || group.is_some() {
            chown(&place, file.owner, group)?;
        }
        // After chown, which may clear bits; explicit, so the umask has no say.
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(with_group(file.mode, group)))?;
    }
    Ok(())
}

/// Makes a link for each first component and removes everything else that pods would see.
fn link_names(directory: &Path, volume: &OwnedFd, payload: &Payload) -> io::Result<()> {
    let names: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &names {
        let (link, target) = (directory.join(name), Path::new(DATA).join(name));
        if std::fs::read_link(&link).is_ok_and(|found| found == target) {
            continue;
        }
        remove_in(volume, OsStr::new(name))?;
        symlink(target, link)?;
    }
    for name in safe_open::names(volume)? {
        let name = name?;
        let text = name.to_string_lossy();
        if !text.starts_with("..") && !names.contains(text.as_ref()) {
            remove_in(volume, &name)?;
        }
    }
    Ok(())
}

/// Whether this version is exactly what is wanted. What can't be read is not.
fn holds(volume: &OwnedFd, version: &str, payload: &Payload, group: Option<u32>) -> bool {
    let mut found = 0;
    let mut waiting = vec![PathBuf::from(version)];
    while let Some(place) = waiting.pop() {
        let names = safe_open::directory_in(volume, &place).and_then(|open| Ok((safe_open::names(&open)?, open)));
        let Ok((names, open)) = names else { return false };
        for name in names {
            let Ok(name) = name else { return false };
            let Ok(stat) = safe_open::stat(&open, &name) else { return false };
            let path = place.join(&name);
            if safe_open::is_directory(&stat) {
                waiting.push(path);
                continue;
            }
            let wanted = path.strip_prefix(version).ok().and_then(|path| payload.get(path.to_str()?));
            if !wanted.is_some_and(|wanted| is_same(&open, &name, wanted, group)) {
                return false;
            }
            found += 1;
        }
    }
    found == payload.len()
}

fn is_same(directory: &OwnedFd, name: &OsStr, wanted: &File, group: Option<u32>) -> bool {
    let read = || -> io::Result<(Vec<u8>, u32)> {
        let file = safe_open::plain(&safe_open::place_in(directory, name)?)?;
        let mode = file.metadata()?.permissions().mode() & 0o7777;
        let mut content = Vec::new();
        file.take(wanted.content.len() as u64 + 1).read_to_end(&mut content)?;
        Ok((content, mode))
    };
    read().is_ok_and(|(content, mode)| content == wanted.content && mode == with_group(wanted.mode, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str, u32)]) -> Payload {
        let file = |content: &str, mode| File { content: content.into(), mode, owner: None };
        files.iter().map(|(path, content, mode)| (path.to_string(), file(content, *mode))).collect()
    }

    #[test]
    fn readers_see_whole_versions() {
        let dir = tempfile::tempdir().unwrap();
        let check = |files: &[(&str, &str, u32)], stamp: &str, changed: bool| {
            assert_eq!(write(dir.path(), &payload(files), None, stamp).unwrap(), changed, "{stamp}");
            for (path, content, mode) in files {
                let place = dir.path().join(path);
                assert_eq!(std::fs::read_to_string(&place).unwrap(), *content);
                assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, *mode);
            }
            let mut names: Vec<String> = std::fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                .filter(|name| !name.starts_with(".."))
                .collect();
            names.sort();
            let mut expected: Vec<&str> = files.iter().map(|(path, _, _)| path.split('/').next().unwrap()).collect();
            expected.dedup();
            assert_eq!(names, expected);
        };
        check(&[("a", "1", 0o644), ("d/x", "2", 0o400), ("d/y", "3", 0o644)], "one", true);
        check(&[("a", "1", 0o644), ("d/x", "2", 0o400), ("d/y", "3", 0o644)], "two", false);
        check(&[("a", "1", 0o600)], "three", true);
        check(&[("a", "9", 0o600), ("b", "", 0o644)], "four", true);
        check(&[], "five", true);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "only ..data and its target are left");
        assert!(write(dir.path(), &payload(&[("../x", "", 0o644)]), None, "six").is_err());
    }

    #[test]
    fn data_that_leads_elsewhere_is_neither_followed_nor_removed() {
        let check = |target: &str| {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            let volume = root.join("volume");
            for place in ["host/..inner", "volume/d"] {
                std::fs::create_dir_all(root.join(place)).unwrap();
                std::fs::write(root.join(place).join("a"), "kept").unwrap();
            }
            std::fs::write(root.join("host/a"), "kept").unwrap();
            symlink("../host", volume.join("..link")).unwrap();
            let target = target.replace("ROOT", root.to_str().unwrap());
            symlink(&target, volume.join(DATA)).unwrap();
            // What it leads to is as wanted already, and must not pass for the volume's own.
            assert!(write(&volume, &payload(&[("a", "kept", 0o644)]), None, "new").unwrap(), "{target}");
            assert_eq!(std::fs::read_link(volume.join(DATA)).unwrap(), Path::new("..new"), "{target}");
            assert_eq!(std::fs::read_to_string(volume.join("a")).unwrap(), "kept");
            for place in ["host/a", "host/..inner/a"] {
                assert_eq!(std::fs::read_to_string(root.join(place)).unwrap(), "kept", "{target}");
            }
        };
        for target in [
            "ROOT/host",
            "../host",
            "..",
            "../host/..inner",
            "..link/..inner",
            "..link",
            ".",
            "..data",
            "d",
            "..d/../../host",
        ] {
            check(target);
        }
    }

    #[test]
    fn names_that_are_something_else_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(volume.join("b/c")).unwrap();
        std::fs::create_dir(volume.join(NEW_DATA)).unwrap();
        symlink("/etc/passwd", volume.join("a")).unwrap();
        std::fs::write(volume.join("left"), "").unwrap();
        assert!(write(&volume, &payload(&[("a", "1", 0o644), ("b", "2", 0o644)]), None, "one").unwrap());
        let read = |name: &str| std::fs::read_to_string(volume.join(name)).unwrap();
        assert_eq!((read("a"), read("b"), volume.join("left").exists()), ("1".into(), "2".into(), false));
    }
}
