//! The network configuration that the node agent writes into its containerd's CNI directory.
//! Read back by `types::NetConf` when the runtime calls the plugin.
//! Invariant: pure (tidy: `pure_files`).

use std::path::PathBuf;

use ipnet::IpNet;
use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub struct ConfListParams {
    /// The network's name; addresses are kept in `<data_dir>/<name>`.
    pub name: String,
    pub bridge: String,
    /// This node's pod networks, one per address family.
    pub pod_cidrs: Vec<IpNet>,
    pub mtu: Option<u32>,
    pub data_dir: PathBuf,
    /// The nftables table (family inet) for masquerade and host ports.
    pub table: String,
    /// Pods and services of the whole cluster: reached without masquerade.
    pub cluster_cidrs: Vec<IpNet>,
    /// Where the enforcement of NetworkPolicies hears of new pods; `None` where nobody enforces them.
    pub policy_socket: Option<PathBuf>,
}

/// Version 1.0.0, because containerd 1.6 knows no newer one.
pub fn conflist(params: &ConfListParams) -> Value {
    let texts = |networks: &[IpNet]| networks.iter().map(|network| network.to_string()).collect::<Vec<_>>();
    let mut plugin = json!({
        "type": "minke-cni",
        "bridge": params.bridge,
        "podCIDRs": texts(&params.pod_cidrs),
        "clusterCIDRs": texts(&params.cluster_cidrs),
        "dataDir": params.data_dir,
        "table": params.table,
        "capabilities": { "portMappings": true, "bandwidth": true },
    });
    if let Some(mtu) = params.mtu {
        plugin["mtu"] = json!(mtu);
    }
    if let Some(socket) = &params.policy_socket {
        plugin["policySocket"] = json!(socket);
    }
    json!({ "cniVersion": "1.0.0", "name": params.name, "plugins": [plugin] })
}
