//! Mount points, ownership and removal of volume directories.
//! Used by `volume_manager`, on blocking threads.
//! Invariant: never deletes through a mount point: a directory that still holds a mount is left alone.

use std::{
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown},
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Mount points at or below `directory`, deepest first.
pub fn mounts_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    let mut found: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|place| PathBuf::from(unescape(place)))
        .filter(|place| place.starts_with(directory))
        .collect();
    found.sort_by_key(|place| std::cmp::Reverse(place.components().count()));
    Ok(found)
}

/// The kernel writes blanks and the like as octal escapes.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let raw = text.as_bytes();
    let mut index = 0;
    while index < raw.len() {
        let digits = raw.get(index + 1..index + 4).and_then(|d| std::str::from_utf8(d).ok());
        match (raw[index], digits.and_then(|d| u8::from_str_radix(d, 8).ok())) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                index += 4;
            }
            (byte, _) => {
                bytes.push(byte);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub fn is_mount_point(path: &Path) -> bool {
    match (path.metadata(), path.parent().map(Path::metadata)) {
        (Ok(own), Some(Ok(parent))) => own.dev() != parent.dev(),
        _ => false,
    }
}

pub fn mount_tmpfs(path: &Path, size_bytes: Option<i64>) -> io::Result<()> {
    if is_mount_point(path) {
        return Ok(());
    }
    let options = size_bytes.filter(|size| *size > 0).map(|size| format!("size={size}"));
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), options.as_deref()).map_err(io::Error::from)
}

/// `page_size` as the API writes it; the kernel reads the same.
pub fn mount_hugetlbfs(path: &Path, page_size: &str) -> io::Result<()> {
    let options = format!("pagesize={page_size}");
    mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), Some(options.as_str()))
        .map_err(|error| io::Error::other(format!("failed to mount huge pages of {page_size}: {error}")))
}

/// Unmounts everything at or below the directory and deletes it.
pub fn remove(directory: &Path) -> io::Result<()> {
    for place in mounts_below(directory)? {
        umount2(&place, MntFlags::MNT_DETACH)
            .map_err(|error| io::Error::other(format!("failed to unmount {}: {error}", place.display())))?;
    }
    if let Some(left) = mounts_below(directory)?.first() {
        return Err(io::Error::other(format!("{} is still mounted", left.display())));
    }
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Gives a volume to a group: files become readable (and writable), directories pass the group on.
pub fn give_to_group(root: &Path, group: u32, read_only: bool, on_root_mismatch: bool) -> io::Result<()> {
    if on_root_mismatch {
        let meta = root.metadata()?;
        if meta.gid() == group && meta.mode() & 0o2070 == 0o2070 {
            return Ok(());
        }
    }
    let mut waiting = vec![root.to_path_buf()];
    let mut directories = Vec::new();
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_symlink() {
                lchown(entry.path(), None, Some(group))?;
            } else {
                give(&entry.path(), group, if read_only { 0o440 } else { 0o660 })?;
            }
        }
        directories.push(directory);
    }
    // The root last, so that a later look at the root tells whether all was done.
    for directory in directories.iter().rev() {
        give(directory, group, if read_only { 0o2550 } else { 0o2770 })?;
    }
    Ok(())
}

fn give(path: &Path, group: u32, add: u32) -> io::Result<()> {
    chown(path, None, Some(group))?;
    let mode = path.metadata()?.mode() & 0o7777;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode | add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_names_are_read_back() {
        let check = |text: &str, expected: &str| assert_eq!(unescape(text), expected);
        check("/a\\040b", "/a b");
        check("/plain", "/plain");
        check("/end\\", "/end\\");
    }

    #[test]
    fn huge_pages_are_mounted_in_the_size_asked_for() {
        let has_pages = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists();
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("huge");
        std::fs::create_dir(&place).unwrap();
        let strange = mount_hugetlbfs(&place, "3Ki").unwrap_err().to_string();
        assert!(strange.contains("failed to mount huge pages of 3Ki"), "{strange}");
        if !nix::unistd::geteuid().is_root() || !has_pages {
            return eprintln!("left out: needs root and a kernel with pages of 2 MiB");
        }
        mount_hugetlbfs(&place, "2Mi").unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        remove(&place).unwrap();
        let line = mounts.lines().find(|line| line.contains(&*place.to_string_lossy())).unwrap();
        assert!(line.contains("- hugetlbfs nodev ") && line.ends_with("pagesize=2M"), "{line}");
    }
}
