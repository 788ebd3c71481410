//! The names and places of one cluster on this machine. Several can live beside each other.
//! Read by everything that makes or removes something outside the data directory.
//! Everything follows from the data directory alone, so that `down` finds what `up` made.

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

    /// Whether a name could be one's id.
    pub fn is_id(name: &str) -> bool {
        let hash = name.strip_prefix("mk").filter(|hash| hash.len() == 6);
        name == "minke" || hash.is_some_and(|hash| hash.bytes().all(|b| b.is_ascii_hexdigit()))
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

    /// The load balancer addresses that this node has put on its link.
    pub fn announced_addresses(&self) -> PathBuf {
        self.run().join("announced")
    }

    /// Where the network plugin tells the enforcement of NetworkPolicies of new pods.
    pub fn policy_socket(&self) -> PathBuf {
        self.run().join("policy.sock")
    }

    /// What it was told, for an agent that starts again.
    pub fn policy_claims(&self) -> PathBuf {
        self.run().join("policy-claims")
    }

    /// Where a service proxy in a process of its own answers its node's kubelet.
    pub fn proxy_socket(&self) -> PathBuf {
        self.run().join("proxy.sock")
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

    /// The token with which nodes join.
    pub fn join_token(&self) -> PathBuf {
        self.data.join("join-token")
    }

    /// The API servers that an agent found last.
    pub fn api_servers(&self) -> PathBuf {
        self.data.join("api-servers")
    }

    /// A further process of this cluster on the same machine: an instance of its own.
    pub fn member(&self, folder: &str, name: &str) -> Self {
        Self::new(&self.data.join(folder).join(name))
    }

    /// Every such process of one kind, by name.
    pub fn members(&self, folder: &str) -> Vec<(String, Self)> {
        let entries = std::fs::read_dir(self.data.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names.into_iter().map(|name| (name.clone(), self.member(folder, &name))).collect()
    }

    /// Another node of this cluster on the same machine.
    pub fn node(&self, name: &str) -> Self {
        self.member("nodes", name)
    }

    /// Every such node, by name.
    pub fn nodes(&self) -> Vec<(String, Self)> {
        self.members("nodes")
    }

    /// The network namespace of a member that has one of its own.
    pub fn netns(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.id)
    }

    /// The host's end of that member's cable.
    pub fn cable(&self) -> String {
        format!("{}h", self.id)
    }

    /// The switch between the members of a cluster on one machine.
    pub fn node_bridge(&self) -> String {
        format!("{}br", self.id)
    }

    pub fn nodes_table(&self) -> String {
        format!("{}-nodes", self.id)
    }

    pub fn vxlan(&self) -> String {
        format!("{}vx", self.id)
    }

    pub fn bridge(&self) -> String {
        format!("{}0", self.id)
    }

    pub fn proxy_table(&self) -> String {
        format!("{}-proxy", self.id)
    }

    pub fn policy_table(&self) -> String {
        format!("{}-policy", self.id)
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
