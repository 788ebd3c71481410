//! Images without a registry: our own pause and demo images, and archives that people import.
//! Used by `agent` when it starts and by `minke image`.
//! Needs no network.

use std::{
    fs::File,
    io::{BufReader, Write},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use image::Image;
use tokio::process::Command;

pub const PAUSE: &str = "minke.local/pause:1";
pub const DEMO: &str = "minke.local/demo:1";

const PAUSE_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));
const DEMO_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/demo"));
/// The largest images that people have, with room to spare.
const ARCHIVE_BYTES_MAX: u64 = 64 << 30;
const BUSYBOX: &str = "/bin/busybox";

pub fn pause_archive() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    Image::new().file("pause", 0o755, PAUSE_PROGRAM)?.entrypoint(&["/pause"]).write(PAUSE, &mut bytes)?;
    Ok(bytes)
}

/// The demo server, with a shell for `kubectl exec` where Debian's static busybox is installed.
pub fn demo_archive() -> Result<Vec<u8>> {
    let mut image =
        Image::new().file("demo", 0o755, DEMO_PROGRAM)?.directory("bin", 0o755)?.directory("tmp", 0o1777)?;
    if let Ok(busybox) = std::fs::read(BUSYBOX) {
        image = image.file("bin/busybox", 0o755, &busybox)?;
        for applet in ["sh", "ls", "cat", "ps", "wget", "nslookup", "ip", "sleep", "env", "hostname"] {
            image = image.symlink(&format!("bin/{applet}"), "/bin/busybox")?;
        }
    }
    let mut bytes = Vec::new();
    image.env(&["PATH=/bin"]).entrypoint(&["/demo"]).write(DEMO, &mut bytes)?;
    Ok(bytes)
}

/// Imports one archive through containerd's own client, which unpacks it as well. Returns the names it printed.
pub async fn import(socket: &Path, archive: &Path) -> Result<Vec<String>> {
    let output = ctr(socket)
        .args(["images", "import", "--all-platforms=false"])
        .arg(archive)
        .stdin(Stdio::null())
        .output()
        .await
        .context("failed to run ctr: install it with apt-get install containerd")?;
    if !output.status.success() {
        bail!("containerd did not take {}: {}", archive.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names =
        text.lines().filter_map(|line| line.strip_prefix("unpacking ")).filter_map(|l| l.split_whitespace().next());
    Ok(names.map(str::to_string).collect())
}

/// Imports an archive that we made, unless containerd has it.
pub async fn import_own(socket: &Path, reference: &str, archive: Vec<u8>) -> Result<()> {
    let listed = ctr(socket).args(["images", "ls", "-q", &format!("name=={reference}")]).output().await?;
    if String::from_utf8_lossy(&listed.stdout).lines().any(|line| line == reference) {
        return Ok(());
    }
    let mut file = tempfile::NamedTempFile::new().context("failed to make a temporary file for an image")?;
    file.write_all(&archive)?;
    import(socket, file.path()).await.map(drop)
}

/// Pushes through containerd's own client, which knows registries by the same directory as containerd.
pub async fn push(socket: &Path, registries: &Path, local: &str, remote: &str) -> Result<()> {
    let mut command = ctr(socket);
    command.args(["images", "push", "--hosts-dir"]).arg(registries).args([remote, local]);
    run(command, || format!("{remote} was not pushed")).await
}

/// Takes a name away from an image that has others.
pub async fn untag(socket: &Path, reference: &str) -> Result<()> {
    let mut command = ctr(socket);
    command.args(["images", "rm", reference]);
    run(command, || format!("{reference} was not removed")).await
}

/// Writes an archive whole or not at all.
pub async fn export(socket: &Path, archive: &Path, references: &[String]) -> Result<()> {
    let mut partial = archive.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let mut command = ctr(socket);
    command.args(["images", "export"]).arg(&partial).args(references);
    let written = run(command, || format!("{} was not written", archive.display())).await;
    let kept = written.and_then(|()| {
        std::fs::rename(&partial, archive).with_context(|| format!("can't write {}", archive.display()))
    });
    if kept.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    kept
}

async fn run(mut command: Command, failed: impl Fn() -> String) -> Result<()> {
    let output = command.output().await.context("failed to run ctr: install it with apt-get install containerd")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{}: {}", failed(), text.lines().last().unwrap_or_default().trim_start_matches("ctr: "));
    }
    Ok(())
}

/// Prints every image: name, size, digest.
pub async fn list(socket: &Path) -> Result<()> {
    let runtime = cri::RemoteRuntime::new(&socket.display().to_string(), None);
    let mut images = cri::Runtime::list_images(&runtime, None).await?;
    images.sort_by(|a, b| a.repo_tags.cmp(&b.repo_tags));
    println!("{:<60} {:>10}  ID", "IMAGE", "SIZE");
    for image in images {
        // Each of its names is one by which it can be run or removed.
        let unnamed = image.repo_digests.first().cloned().unwrap_or_default();
        let names = if image.repo_tags.is_empty() { vec![unnamed] } else { image.repo_tags };
        for name in names {
            println!("{name:<60} {:>8.1}MB  {}", image.size as f64 / 1e6, image.id.get(..19).unwrap_or(&image.id));
        }
    }
    Ok(())
}

fn ctr(socket: &Path) -> Command {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket).args(["--namespace", "k8s.io"]).stdin(Stdio::null());
    command
}

/// The archive as containerd wants it: plain. Compressed ones are unpacked into a temporary file.
pub fn plain(path: &Path) -> Result<(PathBuf, Option<tempfile::NamedTempFile>)> {
    let file = File::open(path).with_context(|| format!("can't open {}", path.display()))?;
    let mut unpacked = tempfile::NamedTempFile::new()?;
    match image::unpack(BufReader::new(file), &mut unpacked, ARCHIVE_BYTES_MAX) {
        Ok(true) => Ok((unpacked.path().to_path_buf(), Some(unpacked))),
        Ok(false) => Ok((path.to_path_buf(), None)),
        Err(error) => Err(error).with_context(|| format!("{} is damaged", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_keeps_only_the_system_calls_it_needs_and_ends_when_told() {
        use std::os::unix::fs::PermissionsExt;

        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("pause");
        std::fs::write(&program, PAUSE_PROGRAM).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Another test may be starting a process, which holds what we wrote open for a moment.
        let mut pause = loop {
            match std::process::Command::new(&program).spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                started => break started.unwrap(),
            }
        };
        let status = format!("/proc/{}/status", pause.id());
        let guarded = || std::fs::read_to_string(&status).is_ok_and(|text| text.contains("Seccomp:\t2"));
        while !guarded() {
            assert!(pause.try_wait().unwrap().is_none(), "it ended");
            std::thread::yield_now();
        }
        let pid = nix::unistd::Pid::from_raw(pause.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(pause.wait().unwrap().success());
    }

    #[test]
    fn compressed_archives_are_unpacked() {
        let directory = tempfile::tempdir().unwrap();
        let archive = pause_archive().unwrap();
        let check = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            let (plain, _kept) = plain(&path).unwrap();
            assert_eq!(std::fs::read(plain).unwrap(), archive, "{name}");
        };
        check("plain", &archive);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&archive).unwrap();
        check("gzip", &gzip.finish().unwrap());
        check("zstd", &zstd::encode_all(archive.as_slice(), 1).unwrap());
        let error = plain(&directory.path().join("absent")).unwrap_err();
        assert!(error.to_string().contains("can't open"), "{error}");
    }
}
