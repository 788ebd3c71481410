//! A real containerd in a temporary directory, with a busybox image made on the spot.
//! Used by the tests of `cri` and, by path, of `kubelet`.
//! Everything is below one temporary directory and is ended by `stop`.

use std::{io::Write, path::Path, process::Command};

use cri::containerd::{Containerd, ContainerdConfig};
use sha2::{Digest, Sha256};

pub const IMAGE: &str = "docker.io/library/minke-test:1";

/// Whether this machine can run such a test; says why when it cannot.
pub fn possible() -> bool {
    let has = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    let possible = root && has("containerd") && has("runc") && Path::new("/bin/busybox").exists();
    if !possible {
        eprintln!("skipped: needs root, containerd, runc and busybox-static");
    }
    possible
}

pub fn config(dir: &Path) -> ContainerdConfig {
    let mut config = ContainerdConfig::new(dir.join("d"), dir.join("s"), IMAGE);
    config.cni_bin_dir = "/usr/lib/cni".into();
    config
}

pub async fn start(dir: &Path) -> Containerd {
    let containerd = Containerd::start(config(dir), env::Env::real()).await.expect("containerd starts");
    let archive = dir.join("image.tar");
    std::fs::write(&archive, docker_archive(IMAGE)).unwrap();
    let output = Command::new("ctr")
        .arg("-a")
        .arg(containerd.socket())
        .args(["-n", "k8s.io", "images", "import"])
        .arg(&archive)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    containerd
}

/// A docker archive with busybox as its only program; without a command it sleeps, so it serves as a sandbox too.
pub fn docker_archive(name: &str) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    let busybox = std::fs::read("/bin/busybox").unwrap();
    for dir in ["bin/", "etc/", "tmp/", "dev/", "proc/", "sys/"] {
        append(&mut layer, dir, &[], 0o755, tar::EntryType::Directory);
    }
    append(&mut layer, "bin/busybox", &busybox, 0o755, tar::EntryType::Regular);
    for applet in ["sh", "sleep", "cat", "echo", "ls", "touch", "true", "false", "wget", "httpd", "env", "id", "stat"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        layer.append_link(&mut header, format!("bin/{applet}"), "/bin/busybox").unwrap();
    }
    append(&mut layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644, tar::EntryType::Regular);
    let layer = layer.into_inner().unwrap();
    let diff_id = format!("sha256:{}", hex(&Sha256::digest(&layer)));
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": ["/bin/busybox"], "Cmd": ["sleep", "1000000"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    })
    .to_string();
    let manifest =
        serde_json::json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).to_string();
    let mut archive = tar::Builder::new(Vec::new());
    append(&mut archive, "config.json", config.as_bytes(), 0o644, tar::EntryType::Regular);
    append(&mut archive, "layer.tar", &layer, 0o644, tar::EntryType::Regular);
    append(&mut archive, "manifest.json", manifest.as_bytes(), 0o644, tar::EntryType::Regular);
    let mut bytes = archive.into_inner().unwrap();
    bytes.flush().unwrap();
    bytes
}

fn append(archive: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8], mode: u32, kind: tar::EntryType) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    archive.append_data(&mut header, path, content).unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
