//! Mount points, ownership and removal of volume directories.
//! Used by `plugins` and `volume_manager`, on blocking threads.
//! Never deletes through a mount point: a directory that still holds a mount is left alone. What pods can change
//! meanwhile is worked on by descriptors, never by names.

use std::{
    fs::Permissions,
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::AtFlags,
    libc,
    mount::{MntFlags, MsFlags, mount, umount2},
    unistd::{Gid, fchownat},
};

use super::ownership_progress::OwnershipProgress;
use crate::files::{remove_tree::remove_tree, safe_open};

/// Of one volume that are given to a group.
const ENTRIES_MAX: u64 = 50_000_000;
/// Of a tmpfs, since Linux 6.4.
const NO_SWAP: &str = "noswap";

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

/// Whether files of what is mounted at `place` can have SELinux labels of their own.
pub fn has_labels(place: &Path) -> io::Result<bool> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(labelled(&text, place))
}

fn labelled(mounts: &str, place: &Path) -> bool {
    let line = mounts.lines().rfind(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(&unescape(at)) == place));
    line.and_then(|line| line.rsplit(' ').next()).is_some_and(|options| options.split(',').any(|o| o == "seclabel"))
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
    let size = size_bytes.filter(|size| *size > 0).map(|size| format!("size={size}"));
    // What is to be in memory alone must not be swapped out, where the kernel can keep it.
    let kept = [Some(NO_SWAP.to_string()), size.clone()].into_iter().flatten().collect::<Vec<_>>().join(",");
    match mount_tmpfs_with(path, Some(&kept)) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => mount_tmpfs_with(path, size.as_deref()),
        done => done,
    }
}

fn mount_tmpfs_with(path: &Path, options: Option<&str>) -> io::Result<()> {
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), options).map_err(io::Error::from)
}

/// Whether the kernel can keep a tmpfs from being swapped out: tried in a directory of its own below `directory`.
pub fn supports_noswap(directory: &Path) -> bool {
    let place = directory.join(format!("tmpfs-noswap-test-{}", std::process::id()));
    let tried = std::fs::create_dir(&place).and_then(|()| mount_tmpfs_with(&place, Some(NO_SWAP)));
    if tried.is_ok()
        && let Err(error) = umount2(&place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
    {
        tracing::warn!(%error, place = %place.display(), "failed to unmount a tmpfs that was only tried");
    }
    if let Err(error) = std::fs::remove_dir(&place) {
        tracing::warn!(%error, place = %place.display(), "failed to remove a directory that was only tried");
    }
    tried.is_ok()
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
        umount2(&place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|error| io::Error::other(format!("failed to unmount {}: {error}", place.display())))?;
    }
    if let Some(left) = mounts_below(directory)?.first() {
        return Err(io::Error::other(format!("{} is still mounted", left.display())));
    }
    remove_tree(directory)
}

/// Gives a volume to a group: files become readable (and writable), directories pass the group on. Other pods may be
/// writing to it meanwhile.
pub fn set_volume_ownership(
    path: &Path,
    group: u32,
    read_only: bool,
    on_root_mismatch: bool,
    progress: &OwnershipProgress,
) -> io::Result<()> {
    // A volume's own path is an administrator's, who may use links.
    let root = safe_open::directory(&path.canonicalize()?)?;
    if on_root_mismatch {
        let meta = safe_open::metadata(&root)?;
        if meta.gid() == group && meta.mode() & 0o2070 == 0o2070 {
            return Ok(());
        }
    }
    progress.begin(path);
    let (of_files, of_directories) = if read_only { (0o440, 0o2550) } else { (0o660, 0o2770) };
    let mut waiting = vec![PathBuf::from(".")];
    let mut entries = 0;
    while let Some(path) = waiting.pop() {
        // Removed, or made into something else, since it was seen.
        let Some(directory) = present(safe_open::directory_in(&root, &path))? else { continue };
        for name in safe_open::names(&directory)? {
            let name = name?;
            entries += 1;
            progress.count_file();
            if entries > ENTRIES_MAX {
                return Err(io::Error::other(format!("there are more than {ENTRIES_MAX} files to give to a group")));
            }
            let Some(place) = present(safe_open::place_in(&directory, &name))? else { continue };
            let meta = safe_open::metadata(&place)?;
            if meta.is_dir() {
                waiting.push(path.join(name));
            } else if !meta.is_symlink() {
                chown_and_chmod(&place, group, of_files)?;
            } else {
                fchownat(&directory, name.as_os_str(), None, Some(Gid::from_raw(group)), AtFlags::AT_SYMLINK_NOFOLLOW)?;
            }
        }
        if path != Path::new(".") {
            chown_and_chmod(&directory, group, of_directories)?;
        }
    }
    // The root last, so that a later look at the root tells whether all was done.
    chown_and_chmod(&root, group, of_directories)
}

/// `None` for what is not there any more, or is somebody else's mount or a link by now.
fn present(opened: io::Result<OwnedFd>) -> io::Result<Option<OwnedFd>> {
    match opened {
        Ok(place) => Ok(Some(place)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EXDEV) => Ok(None),
            _ => Err(error),
        },
    }
}

fn chown_and_chmod(place: &OwnedFd, group: u32, add: u32) -> io::Result<()> {
    fchownat(place, "", None, Some(Gid::from_raw(group)), AtFlags::AT_EMPTY_PATH)?;
    let mode = safe_open::metadata(place)?.mode() & 0o7777;
    std::fs::set_permissions(safe_open::way_to(place), Permissions::from_mode(mode | add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_the_mount() {
        let mounts = "30 1 8:2 / /a\\040b rw - ext4 /dev/sdb rw,seclabel\n31 1 8:3 / /c rw - ext4 /dev/sdc rw\n\
                      32 1 8:4 / /d rw - ext4 /dev/sdd rw,seclabel\n33 1 8:5 / /d rw - nfs s:/x rw,vers=4.2\n";
        for (place, expected) in [("/a b", true), ("/c", false), ("/d", false), ("/e", false)] {
            assert_eq!(labelled(mounts, Path::new(place)), expected, "{place}");
        }
    }

    #[test]
    fn mount_names_are_read_back() {
        let check = |text: &str, expected: &str| assert_eq!(unescape(text), expected);
        check("/a\\040b", "/a b");
        check("/plain", "/plain");
        check("/end\\", "/end\\");
    }

    #[test]
    fn a_volume_is_given_to_a_group_and_not_what_its_links_lead_to() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let mode = |path: &str| root.join(path).symlink_metadata().unwrap().mode() & 0o7777;
        std::fs::create_dir_all(root.join("volume/d")).unwrap();
        std::fs::write(root.join("volume/d/own"), "").unwrap();
        std::fs::create_dir(root.join("host")).unwrap();
        std::fs::write(root.join("host/file"), "").unwrap();
        for path in ["volume/d/own", "host/file"] {
            std::fs::set_permissions(root.join(path), Permissions::from_mode(0o600)).unwrap();
        }
        for (target, link) in [("../host", "volume/out"), ("../../host/file", "volume/d/file")] {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        nix::unistd::mkfifo(&root.join("volume/pipe"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let host = mode("host");
        // Our own group, so that nobody needs to be root.
        let group = root.metadata().unwrap().gid();
        set_volume_ownership(&root.join("volume"), group, false, false, &OwnershipProgress::default()).unwrap();
        assert_eq!((mode("host"), mode("host/file")), (host, 0o600), "what links lead to is left alone");
        assert_eq!((mode("volume/d/own"), mode("volume/pipe")), (0o660, 0o660));
        assert_eq!((mode("volume") & 0o2770, mode("volume/d") & 0o2770), (0o2770, 0o2770));
        // All was done, as its root shows.
        std::fs::set_permissions(root.join("volume/d/own"), Permissions::from_mode(0o600)).unwrap();
        set_volume_ownership(&root.join("volume"), group, false, true, &OwnershipProgress::default()).unwrap();
        assert_eq!(mode("volume/d/own"), 0o600);
    }

    #[test]
    fn memory_is_kept_from_swap_where_the_kernel_can() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("left out: needs root");
        }
        let directory = tempfile::tempdir().unwrap();
        let possible = supports_noswap(directory.path());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left of the trial");
        for (name, size) in [("any", None), ("small", Some(1 << 20))] {
            let place = directory.path().join(name);
            std::fs::create_dir(&place).unwrap();
            mount_tmpfs(&place, size).unwrap();
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            remove(&place).unwrap();
            let line = mounts.lines().find(|line| line.contains(&*place.to_string_lossy())).unwrap();
            let has = |option: &str| line.split([' ', ',']).any(|found| found == option);
            assert_eq!((has(NO_SWAP), has("size=1024k")), (possible, size.is_some()), "{line}");
        }
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
