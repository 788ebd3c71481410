//! Writes the files of a volume so that a reader sees all old ones or all new ones, never a mixture.
//! Used for configMap, secret, downwardAPI and projected volumes.
//! Invariant: user-visible names are links through `..data`, which is replaced by one rename. An unchanged payload
//! changes nothing on disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Component, Path, PathBuf},
};

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
    let current = std::fs::read_link(directory.join(DATA)).ok();
    let old = match &current {
        Some(target) => read_tree(&directory.join(target))?,
        None => BTreeMap::new(),
    };
    let wanted: BTreeMap<String, (Vec<u8>, u32)> = payload
        .iter()
        .map(|(path, file)| (path.clone(), (file.content.clone(), with_group(file.mode, group))))
        .collect();
    if current.is_some() && old == wanted {
        return Ok(false);
    }
    let name = format!("..{stamp}");
    let fresh = directory.join(&name);
    fill(&fresh, payload, group)?;
    let temporary = directory.join(NEW_DATA);
    let _ = std::fs::remove_file(&temporary);
    symlink(&name, &temporary)?;
    std::fs::rename(&temporary, directory.join(DATA))?;
    link_names(directory, payload)?;
    if let Some(target) = current {
        std::fs::remove_dir_all(directory.join(target))?;
    }
    Ok(true)
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
        if !path.exists() {
            std::fs::create_dir(path)?;
            chown(path, None, group)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(directory_mode))?;
        }
        Ok(())
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
        std::fs::write(&place, &file.content)?;
        if file.owner.is_some() || group.is_some() {
            chown(&place, file.owner, group)?;
        }
        // After chown, which may clear bits; explicit, so the umask has no say.
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(with_group(file.mode, group)))?;
    }
    Ok(())
}

/// Makes a link for each first component and removes those of names that are gone.
fn link_names(directory: &Path, payload: &Payload) -> io::Result<()> {
    let names: BTreeSet<&str> = payload.keys().filter_map(|path| path.split('/').next()).collect();
    for name in &names {
        let link = directory.join(name);
        if link.symlink_metadata().is_err() {
            symlink(Path::new(DATA).join(name), link)?;
        }
    }
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if !text.starts_with("..") && !names.contains(text.as_ref()) {
            std::fs::remove_file(directory.join(&name))?;
        }
    }
    Ok(())
}

fn read_tree(root: &Path) -> io::Result<BTreeMap<String, (Vec<u8>, u32)>> {
    let mut result = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(relative) = waiting.pop() {
        let entries = match std::fs::read_dir(root.join(&relative)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let path = relative.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                waiting.push(path);
            } else {
                let content = (std::fs::read(entry.path())?, entry.metadata()?.permissions().mode() & 0o7777);
                result.insert(path.to_string_lossy().into_owned(), content);
            }
        }
    }
    Ok(result)
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
}
