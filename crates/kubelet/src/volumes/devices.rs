//! File systems on block devices: found, made where there is none, checked and mounted.
//! Used by `plugins::local`, on a thread that may hang.
//! Only a device on which nothing at all is found is ever formatted.

use std::{
    fmt, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Output},
};

use super::file_system;
use crate::files::directories;

const DEFAULT_FS_TYPE: &str = "ext4";
/// `blkid` found nothing; everything else is a failure.
const BLKID_NOTHING_FOUND: i32 = 2;
/// `fsck` found errors and left them.
const FSCK_UNCORRECTED: i32 = 4;

#[derive(Debug, thiserror::Error)]
#[error("local: failed to mount device {} at {} (fstype: {kind}), error {source}", .device.display(), .target.display())]
pub struct DeviceError {
    device: PathBuf,
    target: PathBuf,
    kind: String,
    source: Box<Failure>,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0:?} is not the name of a file system")]
    InvalidType(String),
    #[error("failed to get disk format of disk {}: {source}", .device.display())]
    GetFormat { device: PathBuf, source: Box<Failure> },
    #[error("blkid returns invalid output: {0}")]
    InvalidOutput(String),
    #[error("cannot mount unformatted disk {} as we are manipulating it in read-only mode", .0.display())]
    ReadOnlyUnformatted(PathBuf),
    #[error("format of disk {device:?} failed: type:({kind:?}) output:({output})")]
    Format { device: PathBuf, kind: String, output: CommandOutput },
    #[error("'fsck' found errors on device {} but could not correct them: {output}.", .device.display())]
    Uncorrected { device: PathBuf, output: CommandOutput },
    #[error("mount failed: {0}")]
    Mount(CommandOutput),
    #[error("resize of format {0} is not supported")]
    GrowFormat(String),
    #[error("{program} output: {output}")]
    Grow { program: &'static str, output: CommandOutput },
    #[error("failed to run {program}: {source}")]
    Run { program: String, source: io::Error },
    #[error("{0}")]
    Command(CommandOutput),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What a command wrote, and how it ended.
#[derive(Debug)]
struct CommandOutput {
    text: String,
    status: ExitStatus,
}

impl From<&Output> for CommandOutput {
    fn from(output: &Output) -> Self {
        let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        Self { text: String::from_utf8_lossy(&text).trim().into(), status: output.status }
    }
}

impl fmt::Display for CommandOutput {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.status)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("resize of device {} failed: {source}", .device.display())]
pub struct GrowError {
    device: PathBuf,
    source: Box<Failure>,
}

/// What a volume says of its file system.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FileSystem {
    pub kind: Option<String>,
    pub options: Vec<String>,
}

/// Mounts the device at `target`, as often as it is asked for.
pub fn mount(device: &Path, target: &Path, wanted: &FileSystem, read_only: bool) -> Result<(), DeviceError> {
    if file_system::is_mount_point(target) {
        return Ok(());
    }
    let kind = wanted.kind.as_deref().filter(|kind| !kind.is_empty()).unwrap_or(DEFAULT_FS_TYPE);
    format_and_mount(device, target, kind, &wanted.options, read_only).map_err(|source| DeviceError {
        device: device.into(),
        target: target.into(),
        kind: kind.into(),
        source: Box::new(source),
    })
}

fn format_and_mount(
    device: &Path,
    target: &Path,
    kind: &str,
    options: &[String],
    read_only: bool,
) -> Result<(), Failure> {
    if !kind.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
        return Err(Failure::InvalidType(kind.into()));
    }
    directories::create(target)?;
    // What another pod has mounted must be neither checked nor made.
    if !is_mounted(device)? {
        make_ready(device, kind, read_only)?;
    }
    attach(device, target, kind, options, read_only)
}

fn make_ready(device: &Path, kind: &str, read_only: bool) -> Result<(), Failure> {
    let found =
        get_format(device).map_err(|source| Failure::GetFormat { device: device.into(), source: Box::new(source) })?;
    match (found.is_empty(), read_only) {
        (true, true) => Err(Failure::ReadOnlyUnformatted(device.into())),
        (true, false) => {
            tracing::info!(device = %device.display(), kind, "making a file system on an unformatted device");
            make_file_system(device, kind)
        }
        (false, true) => Ok(()),
        (false, false) => check(device),
    }
}

/// What is on the device: the name of a file system, or nothing.
fn get_format(device: &Path) -> Result<String, Failure> {
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"];
    let output = run(Command::new("blkid").args(arguments).arg(device))?;
    match output.status.code() {
        Some(0) => read_format(&String::from_utf8_lossy(&output.stdout)),
        Some(BLKID_NOTHING_FOUND) => Ok(String::new()),
        _ => Err(Failure::Command((&output).into())),
    }
}

fn read_format(text: &str) -> Result<String, Failure> {
    let mut kind = String::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match line.split_once('=') {
            // Whole disks have a table of partitions, which no pod may lose.
            Some(("PTTYPE", _)) => return Ok("unknown data, probably partitions".into()),
            Some(("TYPE", value)) => kind = value.into(),
            Some(_) => {}
            None => return Err(Failure::InvalidOutput(text.into())),
        }
    }
    Ok(kind)
}

fn make_file_system(device: &Path, kind: &str) -> Result<(), Failure> {
    let force: &[&str] = match kind {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let output = run(Command::new(format!("mkfs.{kind}")).args(force).arg(device))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::Format { device: device.into(), kind: kind.into(), output: (&output).into() }),
    }
}

fn check(device: &Path) -> Result<(), Failure> {
    let output = match run(Command::new("fsck").arg("-a").arg(device)) {
        Ok(output) => output,
        Err(error) => {
            tracing::warn!(device = %device.display(), %error, "a device's file system is not checked");
            return Ok(());
        }
    };
    match output.status.code() {
        Some(FSCK_UNCORRECTED) => Err(Failure::Uncorrected { device: device.into(), output: (&output).into() }),
        _ => Ok(()),
    }
}

/// Makes the file system on the device, mounted at `target`, as large as the device, as often as it is asked for.
pub fn grow(device: &Path, target: &Path) -> Result<(), GrowError> {
    grow_mounted(device, target).map_err(|source| GrowError { device: device.into(), source: Box::new(source) })
}

fn grow_mounted(device: &Path, target: &Path) -> Result<(), Failure> {
    let (program, arguments): (_, &[&str]) = match get_format(device)?.as_str() {
        // What will be made there has all of it.
        "" => return Ok(()),
        "ext3" | "ext4" => ("resize2fs", &[]),
        "xfs" => ("xfs_growfs", &["-d"]),
        "btrfs" => ("btrfs", &["filesystem", "resize", "max"]),
        other => return Err(Failure::GrowFormat(other.into())),
    };
    let place = if program == "resize2fs" { device } else { target };
    let output = run(Command::new(program).args(arguments).arg(place))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::Grow { program, output: (&output).into() }),
    }
}

fn attach(device: &Path, target: &Path, kind: &str, options: &[String], read_only: bool) -> Result<(), Failure> {
    let with = |first: &str| {
        let all: Vec<&str> = std::iter::once(first).chain(options.iter().map(String::as_str)).collect();
        run(Command::new("mount").args(["-t", kind, "-o", &all.join(",")]).arg(device).arg(target))
    };
    let mut output = with(if read_only { "ro" } else { "defaults" })?;
    // A device that others write to has no second, read-only face; containers see it read-only all the same.
    if read_only && !output.status.success() {
        output = with("defaults")?;
    }
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::Mount((&output).into())),
    }
}

fn is_mounted(device: &Path) -> std::io::Result<bool> {
    let number = device.metadata()?.rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let wanted = format!("{major}:{minor}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mounts.lines().any(|line| line.split(' ').nth(2) == Some(wanted.as_str())))
}

fn run(command: &mut Command) -> Result<Output, Failure> {
    let path = std::env::var("PATH").unwrap_or_default();
    // Services are often started without what is for administrators.
    let path = format!("{path}:/usr/sbin:/sbin");
    let program = command.get_program().to_string_lossy().into_owned();
    command.env("PATH", path).output().map_err(|source| Failure::Run { program, source })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A device that is a file.
    struct Loop(PathBuf);

    impl Loop {
        /// `None` where there are no such devices.
        fn new(file: &Path) -> Option<Self> {
            let tools = ["losetup", "blkid", "mkfs.ext4", "resize2fs", "mount"];
            let has = |tool: &&str| run(Command::new(tool).arg("--version")).is_ok();
            if !nix::unistd::geteuid().is_root() || !tools.iter().all(has) {
                eprintln!("left out: needs root, losetup and mkfs.ext4");
                return None;
            }
            std::fs::File::create(file).and_then(|file| file.set_len(16 << 20)).unwrap();
            let output = run(Command::new("losetup").args(["--find", "--show"]).arg(file)).unwrap();
            let device = String::from_utf8_lossy(&output.stdout).trim().to_string();
            if !output.status.success() || device.is_empty() {
                eprintln!("left out: no loop devices here: {}", CommandOutput::from(&output));
                return None;
            }
            Some(Self(device.into()))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = run(Command::new("losetup").arg("--detach").arg(&self.0));
        }
    }

    /// Unmounts in the end, whatever fails before.
    struct Target(PathBuf);

    impl Drop for Target {
        fn drop(&mut self) {
            let _ = file_system::remove(&self.0);
        }
    }

    #[test]
    fn an_empty_device_is_formatted_once() {
        let directory = tempfile::tempdir().unwrap();
        let Some(device) = Loop::new(&directory.path().join("disk")) else { return };
        let target = |name: &str| Target(directory.path().join(name));
        let (first, second, third) = (target("first"), target("second"), target("third"));
        let plain = FileSystem::default();
        let refused = mount(&device.0, &first.0, &plain, true).unwrap_err().to_string();
        assert!(refused.contains("cannot mount unformatted disk"), "{refused}");
        assert!(refused.contains("(fstype: ext4)"), "{refused}");
        let strange = FileSystem { kind: Some("../x".into()), ..Default::default() };
        let refused = mount(&device.0, &first.0, &strange, false).unwrap_err().to_string();
        assert!(refused.contains("not the name of a file system"), "{refused}");
        mount(&device.0, &first.0, &plain, false).unwrap();
        std::fs::write(first.0.join("kept"), "yes").unwrap();
        mount(&device.0, &first.0, &plain, false).unwrap();
        // For another pod at the same time, and for one after all have gone.
        mount(&device.0, &second.0, &plain, true).unwrap();
        let kept = |target: &Target| std::fs::read_to_string(target.0.join("kept")).unwrap();
        assert_eq!((kept(&first), kept(&second)), ("yes".into(), "yes".into()));
        drop((first, second));
        let options = FileSystem { kind: Some("ext4".into()), options: vec!["noexec".into()] };
        mount(&device.0, &third.0, &options, true).unwrap();
        assert_eq!(kept(&third), "yes");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.contains(&*third.0.to_string_lossy())).unwrap();
        assert!(line.contains(" ro,noexec"), "{line}");
    }

    #[test]
    fn a_mounted_file_system_grows_with_its_device() {
        let directory = tempfile::tempdir().unwrap();
        let disk = directory.path().join("disk");
        let Some(device) = Loop::new(&disk) else { return };
        // Nothing is there to grow before there is a file system.
        let target = Target(directory.path().join("target"));
        grow(&device.0, &target.0).unwrap();
        mount(&device.0, &target.0, &FileSystem::default(), false).unwrap();
        let room =
            || nix::sys::statvfs::statvfs(&target.0).map(|found| found.blocks() * found.fragment_size()).unwrap();
        let before = room();
        std::fs::File::options().write(true).open(&disk).and_then(|file| file.set_len(48 << 20)).unwrap();
        assert!(run(Command::new("losetup").arg("--set-capacity").arg(&device.0)).unwrap().status.success());
        for _ in 0..2 {
            grow(&device.0, &target.0).unwrap();
            assert!(room() > 2 * before, "{before} {}", room());
        }
        let Some(old) = Loop::new(&directory.path().join("old")) else { return };
        make_file_system(&old.0, "ext2").unwrap();
        let refused = grow(&old.0, &target.0).unwrap_err().to_string();
        let expected = format!("resize of device {} failed: resize of format ext2 is not supported", old.0.display());
        assert_eq!(refused, expected);
    }

    #[test]
    fn what_is_on_a_device_is_read() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(read_format(text).ok().as_deref(), expected, "{text:?}");
        };
        check("DEVNAME=/dev/sda\nTYPE=xfs\n", Some("xfs"));
        check("PTTYPE=gpt\n", Some("unknown data, probably partitions"));
        check("TYPE=ext4\nPTTYPE=dos\n", Some("unknown data, probably partitions"));
        check("", Some(""));
        check("nonsense", None);
    }
}
