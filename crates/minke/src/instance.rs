//! The names and places of one cluster on this machine. Several can live beside each other.
//! Read by everything that makes or removes something outside the data directory.
//! Invariant: everything follows from the data directory alone, so that `down` finds what `up` made.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub const DEFAULT_DATA_DIRECTORY: &str = "/var/lib/minke";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// At most 10 characters: prefix of interfaces, nft tables, cgroups and run directories.
    pub id: String,
    pub data: PathBuf,
}

impl Instance {
    pub fn new(data: &Path) -> Self {
        let data = std::path::absolute(data).unwrap_or_else(|_| data.to_path_buf());
        let id = if data == Path::new(DEFAULT_DATA_DIRECTORY) {
            "minke".to_string()
        } else {
            let hash = Sha256::digest(data.as_os_str().as_encoded_bytes());
            format!("mk{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2])
        };
        Self { id, data }
    }

    /// Sockets and mounts: gone after a reboot.
    pub fn run(&self) -> PathBuf {
        Path::new("/run").join(&self.id)
    }

    pub fn pid_file(&self) -> PathBuf {
        self.data.join("minke.pid")
    }

    pub fn log_file(&self) -> PathBuf {
        self.data.join("minke.log")
    }

    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.data.join("admin.kubeconfig")
    }

    pub fn pki(&self) -> PathBuf {
        self.data.join("pki")
    }

    pub fn store(&self) -> PathBuf {
        self.data.join("store")
    }

    pub fn kubelet(&self) -> PathBuf {
        self.data.join("kubelet")
    }

    pub fn containerd_root(&self) -> PathBuf {
        self.data.join("containerd")
    }

    pub fn containerd_state(&self) -> PathBuf {
        self.run().join("containerd")
    }

    pub fn containerd_socket(&self) -> PathBuf {
        self.containerd_state().join("containerd.sock")
    }

    pub fn cni_conf(&self) -> PathBuf {
        self.data.join("cni/net.d")
    }

    pub fn cni_bin(&self) -> PathBuf {
        self.data.join("cni/bin")
    }

    pub fn cni_data(&self) -> PathBuf {
        self.data.join("cni/networks")
    }

    pub fn bridge(&self) -> String {
        format!("{}0", self.id)
    }

    pub fn proxy_table(&self) -> String {
        format!("{}-proxy", self.id)
    }

    pub fn cni_table(&self) -> String {
        format!("{}-cni", self.id)
    }

    /// The cgroup under which all pods of this node live.
    pub fn cgroup(&self) -> String {
        format!("/{}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_plain_names_and_others_never_clash() {
        let usual = Instance::new(Path::new(DEFAULT_DATA_DIRECTORY));
        assert_eq!((usual.id.as_str(), usual.bridge().as_str()), ("minke", "minke0"));
        let (a, b) = (Instance::new(Path::new("/tmp/a")), Instance::new(Path::new("/tmp/b")));
        assert_ne!(a.id, b.id);
        assert!(a.bridge().len() <= 15, "an interface name has at most 15 characters");
    }
}
