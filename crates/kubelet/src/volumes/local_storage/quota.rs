//! Project quotas: hold what is below a directory to a size, where its file system is mounted with them.
//! Used by `local_storage`; the host's `chattr` and `setquota` tell the kernel.
//! A file system without them, or a host without the programs, is no error: `find` says so.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};

/// Keeps clear of the small numbers that administrators give.
const PROJECT_FIRST: u32 = 0x8000_0000;
const PROGRAM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Where the quotas of a file system are set.
#[derive(Debug, PartialEq)]
pub struct ProjectQuota {
    mount_point: PathBuf,
}

/// Those of the file system that `directory` is on.
pub fn find(directory: &Path) -> Option<ProjectQuota> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount_point = mount_with_quotas(&mounts, directory)?;
    let installed = |program: &str| PROGRAM_DIRECTORIES.iter().any(|place| Path::new(place).join(program).is_file());
    (installed("chattr") && installed("setquota")).then_some(ProjectQuota { mount_point })
}

/// Where the file system that `directory` is on is mounted, if that has project quotas. `setquota` knows no mounts of parts
/// of a file system, so one of the whole comes first.
fn mount_with_quotas(mounts: &str, directory: &Path) -> Option<PathBuf> {
    struct Mount<'a> {
        device: &'a str,
        is_whole: bool,
        place: PathBuf,
        has_quotas: bool,
    }
    let parse = |line| -> Option<Mount> {
        let (before, after): (&str, &str) = str::split_once(line, " - ")?;
        let (mut before, mut after) = (before.split(' ').skip(2), after.split(' '));
        let (kind, options) = (after.next()?, after.nth(1)?);
        let has = matches!(kind, "xfs" | "ext4") && options.split(',').any(|o| matches!(o, "prjquota" | "pquota"));
        let (device, root, place) = (before.next()?, before.next()?, before.next()?);
        Some(Mount { device, is_whole: root == "/", place: place.into(), has_quotas: has })
    };
    let all: Vec<Mount> = mounts.lines().filter_map(parse).collect();
    let above = all.iter().filter(|mount| directory.starts_with(&mount.place));
    // Of mounts on one place the last one is seen.
    let own = above.max_by_key(|mount| mount.place.components().count()).filter(|mount| mount.has_quotas)?;
    let whole = all.iter().find(|mount| mount.device == own.device && mount.is_whole);
    Some(whole.unwrap_or(own).place.clone())
}

impl ProjectQuota {
    /// What is written below the directory from now on counts, and ends at `bytes`.
    pub fn limit(&self, directory: &Path, bytes: i64) -> io::Result<()> {
        // The number of a directory is its own as long as it is there.
        let number = PROJECT_FIRST | (directory.metadata()?.ino() as u32 & !PROJECT_FIRST);
        let project = number.to_string();
        run(Command::new("chattr").args(["-p", &project, "+P"]).arg(directory))?;
        let kibibytes = bytes.max(0).div_euclid(1024).to_string();
        run(Command::new("setquota").args(["-P", &project, "0", &kibibytes, "0", "0"]).arg(&self.mount_point))
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let program = command.get_program().to_string_lossy().into_owned();
            let why = String::from_utf8_lossy(&output.stderr).trim().to_string();
            Err(io::Error::other(format!("{program}: {why}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_those_of_the_mount_that_a_directory_is_on() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw,prjquota\n\
                      30 22 8:2 / /var rw shared:1 - xfs /dev/sdb rw,attr2,noquota\n\
                      31 30 8:3 / /var/lib/data rw - xfs /dev/sdc rw,prjquota\n\
                      32 22 0:5 / /tmp rw - tmpfs tmpfs rw,prjquota\n\
                      33 30 8:3 /part /var/part rw shared:2 - xfs /dev/sdc rw,prjquota\n";
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(mount_with_quotas(mounts, path.as_ref()), expected.map(PathBuf::from), "{path}");
        };
        check("/home/volumes", Some("/"));
        check("/var/volumes", None);
        check("/var/lib/data/volumes", Some("/var/lib/data"));
        check("/var/lib/database", None);
        check("/tmp/volumes", None);
        check("/var/part/volumes", Some("/var/lib/data"));
    }

    /// Unmounts and detaches in the end, whatever fails before.
    struct Disk {
        device: String,
        mounts: Vec<PathBuf>,
    }

    impl Drop for Disk {
        fn drop(&mut self) {
            for place in self.mounts.iter().rev() {
                let _ = Command::new("umount").arg(place).output();
            }
            let _ = Command::new("losetup").args(["--detach", &self.device]).output();
        }
    }

    #[test]
    fn a_directory_holds_as_much_as_it_may() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().canonicalize().unwrap();
        let (file, place, part) = (root.join("disk"), root.join("disk-of-quotas"), root.join("part"));
        let has = |program: &str| PROGRAM_DIRECTORIES.iter().any(|d| Path::new(d).join(program).is_file());
        if !nix::unistd::geteuid().is_root()
            || !["setquota", "chattr", "losetup", "mkfs.ext4", "setpriv"].into_iter().all(has)
        {
            return eprintln!("left out: needs root, setquota, chattr, setpriv and mkfs.ext4");
        }
        std::fs::File::create(&file).and_then(|file| file.set_len(64 << 20)).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
        let device = String::from_utf8_lossy(&output.stdout).trim().to_string();
        if device.is_empty() {
            return eprintln!("left out: no loop devices here");
        }
        let mut disk = Disk { device: device.clone(), mounts: Vec::new() };
        let format = ["-q", "-O", "quota,project", "-E", "quotatype=prjquota", &device];
        assert!(Command::new("mkfs.ext4").args(format).output().unwrap().status.success());
        for (arguments, place) in [
            (vec!["-o".to_string(), "prjquota".into(), device.clone()], &place),
            (vec!["--bind".to_string(), place.join("kubelet").display().to_string()], &part),
        ] {
            std::fs::create_dir_all(place).unwrap();
            let output = Command::new("mount").args(&arguments).arg(place).output().unwrap();
            if !output.status.success() {
                return eprintln!("left out: no project quotas here: {}", String::from_utf8_lossy(&output.stderr));
            }
            disk.mounts.push(place.clone());
            std::fs::create_dir_all(place.join("kubelet")).unwrap();
        }
        // As seen through a mount of a part, where the node has its volumes.
        let quota = find(&part).expect("the file system has project quotas");
        assert_eq!(quota.mount_point, place);
        // As containers: who may take more than is allotted is held by no quota.
        let fill = |name: &str, megabytes: usize| {
            let file = format!("of={}", part.join(name).join("f").display());
            let count = format!("count={megabytes}");
            let dropped = ["--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource"];
            let written = ["dd", "if=/dev/zero", "bs=1M", &count, &file];
            let output = Command::new("setpriv").args(dropped).args(written).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(()) } else { Err(said) }
        };
        for name in ["one", "two"] {
            std::fs::create_dir(part.join(name)).unwrap();
            quota.limit(&part.join(name), 4 << 20).unwrap();
        }
        fill("one", 3).unwrap();
        let full = fill("one", 5).unwrap_err();
        assert!(full.contains("Disk quota exceeded") || full.contains("No space left"), "{full}");
        fill("two", 3).unwrap();
        std::fs::create_dir(part.join("free")).unwrap();
        fill("free", 8).unwrap();
        // It grows with its claim.
        quota.limit(&part.join("one"), 8 << 20).unwrap();
        fill("one", 6).unwrap();
    }
}
