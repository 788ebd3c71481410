//! What must be true before anything is started: each failure is one line that says what to do.
//! Called first by `up`, `server` and `agent`.
//! Looks only; starts and changes nothing but the data directory itself.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context, Result, bail};

use crate::cluster::{data_version, file_modes, ports};

const MIN_FREE_BYTES: u64 = 256 << 20;

/// Programs a node needs, with the Debian package that has each.
const NODE_TOOLS: &[(&str, &str)] =
    &[("containerd", "containerd"), ("runc", "runc"), ("ctr", "containerd"), ("nft", "nftables"), ("ip", "iproute2")];

pub fn root() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("minke must run as root to start containers: try again with sudo");
    }
    Ok(())
}

pub fn node_tools() -> Result<()> {
    let missing: Vec<_> = NODE_TOOLS.iter().filter(|(program, _)| find_program(program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    bail!("not found: {}. Install with: apt-get install {}", names.join(", "), packages.join(" "))
}

pub fn find_program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// The directory exists, is root's alone, can be written and has room.
pub fn data_directory(path: &Path) -> Result<()> {
    file_modes::close_data_directory(path)
        .with_context(|| format!("can't use the data directory {}: choose another with --data-dir", path.display()))?;
    let probe = path.join(".probe");
    std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).with_context(|| {
        format!("can't write to the data directory {}: choose another with --data-dir", path.display())
    })?;
    let stat = nix::sys::statvfs::statvfs(path)
        .with_context(|| format!("can't look at the file system of {}", path.display()))?;
    let free = stat.blocks_available() as u64 * stat.fragment_size() as u64;
    if free < MIN_FREE_BYTES {
        bail!(
            "only {} MiB are free at {}, {} are needed: free some space or choose another place with --data-dir",
            free >> 20,
            path.display(),
            MIN_FREE_BYTES >> 20
        );
    }
    data_version::check_and_record(path)
}

/// Every static pod manifest can be read and is a pod: later ones that are not hide only themselves.
pub fn manifests(path: Option<&Path>) -> Result<()> {
    match path.map(kubelet::sources::check) {
        Some(Err(error)) => bail!("can't use the manifest {error}; mend it or choose another --pod-manifest-path"),
        _ => Ok(()),
    }
}

/// Takes the port, so that nobody else can have it between now and the start.
pub fn listen(address: SocketAddr, flag: &str) -> Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(metrics::http::everywhere(address)).with_context(|| {
        let unknown = || format!("can't listen on {address}: choose another port with {flag}");
        ports::refusal(address, flag).unwrap_or_else(unknown)
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failures_say_what_to_do() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = listen(taken.local_addr().unwrap(), "--port").unwrap_err();
        assert!(format!("{error:#}").contains("choose another port with --port"), "{error:#}");
        let error = data_directory(Path::new("/proc/nope")).unwrap_err();
        assert!(format!("{error:#}").contains("--data-dir"), "{error:#}");
    }
}
