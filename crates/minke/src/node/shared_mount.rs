//! Makes the kubelet's directory a shared mount, where the machine does not: what a CSI driver's container mounts there must
//! be seen by the node, and runtimes refuse such containers on a private mount (machines without systemd have those).
//! Called by `agent` before the kubelet starts; `minke down` unmounts it with everything else below the data directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::mount::{MsFlags, mount};

/// Twice is once. Leaves a directory alone that is shared already, with or without its file system.
pub fn ensure(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let directory = directory.canonicalize()?;
    // Those of this thread: tests have mounts of their own.
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo")?;
    if is_shared(&mounts, &directory) {
        return Ok(());
    }
    // Each would be there twice, once out of reach. They are of an older version whose pods still run.
    if has_mounts(&mounts, &directory) {
        let directory = directory.display();
        tracing::warn!(%directory, "is no shared mount, so drivers can't mount volumes; `minke down` and `up` make it one");
        return Ok(());
    }
    let none: Option<&str> = None;
    mount(Some(&directory), &directory, none, MsFlags::MS_BIND, none)?;
    mount(none, &directory, none, MsFlags::MS_SHARED, none)?;
    tracing::info!(directory = %directory.display(), "made a shared mount, for drivers that mount volumes");
    Ok(())
}

fn has_mounts(mounts: &str, directory: &Path) -> bool {
    let place = |line: &str| Some(PathBuf::from(line.split(' ').nth(4)?.replace("\\040", " ")));
    mounts.lines().filter_map(place).any(|place| place.starts_with(directory))
}

/// Whether the mount that the directory is on passes on what is mounted below it.
fn is_shared(mounts: &str, directory: &Path) -> bool {
    let of_line = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        let place = PathBuf::from(fields.next()?.replace("\\040", " "));
        let shared = fields.skip(1).take_while(|field| *field != "-").any(|field| field.starts_with("shared:"));
        directory.starts_with(&place).then(|| (place.components().count(), shared))
    };
    // Of mounts on one place the last one is seen.
    mounts.lines().filter_map(of_line).max_by_key(|(depth, _)| *depth).is_some_and(|(_, shared)| shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_that_counts_is_the_nearest() {
        let mounts = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      30 27 254:1 / /var rw shared:3 master:2 - ext4 /dev/vdb rw\n\
                      31 30 254:2 / /var/lib rw master:3 - ext4 /dev/vdc rw\n\
                      32 27 254:3 / /a\\040b rw - ext4 /dev/vdd rw\n33 27 254:3 / /a\\040b rw shared:7 - ext4 /dev/vdd rw\n";
        let check = |directory: &str, expected: bool| {
            assert_eq!(is_shared(mounts, directory.as_ref()), expected, "{directory}");
        };
        check("/opt/kubelet", false);
        check("/var/kubelet", true);
        check("/var/lib/kubelet", false);
        check("/variable", false);
        check("/a b/kubelet", true);
        assert!(has_mounts(mounts, "/var".as_ref()) && has_mounts(mounts, "/a b".as_ref()));
        assert!(!has_mounts(mounts, "/var/lib/kubelet".as_ref()) && !has_mounts(mounts, "/va".as_ref()));
    }

    /// In a mount namespace of its own, so that the machine keeps its mounts.
    #[test]
    fn what_is_private_becomes_shared_once() {
        use nix::sched::{CloneFlags, unshare};
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("left out: needs root");
        }
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap().join("kubelet");
        let of_thread = place.clone();
        let alone = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none).unwrap();
            let own = || fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            assert!(!is_shared(&own(), &of_thread));
            fs::create_dir_all(&of_thread).unwrap();
            fs::write(of_thread.join("kept"), "yes").unwrap();
            for _ in 0..2 {
                ensure(&of_thread).unwrap();
            }
            let lines = own().lines().filter(|line| line.contains(&*of_thread.to_string_lossy())).count();
            assert_eq!((lines, is_shared(&own(), &of_thread)), (1, true));
            assert_eq!(fs::read_to_string(of_thread.join("kept")).unwrap(), "yes");
        });
        alone.join().unwrap();
    }
}
