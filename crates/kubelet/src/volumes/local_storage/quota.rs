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

/// The mount that `directory` is on, if that has project quotas.
fn mount_with_quotas(mounts: &str, directory: &Path) -> Option<PathBuf> {
    let parsed = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let place = PathBuf::from(before.split(' ').nth(4)?);
        let has = matches!(kind, "xfs" | "ext4") && options.split(',').any(|o| matches!(o, "prjquota" | "pquota"));
        directory.starts_with(&place).then_some((place, has))
    });
    // Of mounts on one place the last one is seen.
    let (place, has) = parsed.max_by_key(|(place, _)| place.components().count())?;
    has.then_some(place)
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
                      32 22 0:5 / /tmp rw - tmpfs tmpfs rw,prjquota\n";
        let check = |path: &str, expected: Option<&str>| {
            assert_eq!(mount_with_quotas(mounts, path.as_ref()), expected.map(PathBuf::from), "{path}");
        };
        check("/home/volumes", Some("/"));
        check("/var/volumes", None);
        check("/var/lib/data/volumes", Some("/var/lib/data"));
        check("/var/lib/database", None);
        check("/tmp/volumes", None);
    }
}
