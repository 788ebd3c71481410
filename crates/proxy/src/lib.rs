//! The Service proxy: Services and EndpointSlices become nftables maps, changed element by element. Beside it,
//! `pod_routes`: the way to the pods of other nodes.
//! Reads the API through `client`; its pure core is [`rules`]; the agent starts it with [`run`].
//! The rules outlive the process, and the cost of a packet does not depend on the number of Services.

mod applied_state;
mod applied_state_socket;
mod configuration;
mod conntrack;
mod iptables;
mod layer2;
mod layer2_heartbeat;
mod model;
mod nftables;
mod pod_routes;
mod proxy_health;
mod proxy_metrics;
mod rules;
mod ruleset;
mod run;
mod service_health;

pub use applied_state::AppliedState;
pub use applied_state_socket::{Answer, ask_applied_state, serve_applied_state};
pub use configuration::{ConfigurationError, KubeProxyConfiguration, ProxyMode, ProxySettings};
pub use conntrack::ConntrackLimits;
pub use iptables::remove as remove_iptables;
pub use layer2::{Layer2Config, run_layer2, withdraw_recorded};
pub use model::{EndpointInfo, NodeConfig, PodUid, PortInfo, Protocol, ServiceInfo, SliceInfo, State};
pub use netfilter::{NftError, NftEvent, NftMonitor};
pub use nftables::render::{delete_tables, full_tables, transaction};
pub use pod_routes::{
    ClusterRanges, NodeNetwork, Plan, PodRoutesConfig, PodRoutesError, PodRoutesMode, accepted_networks,
    apply_pod_routes, plan, pod_cidrs, run_pod_routes,
};
pub use rules::{Family, Frontend, Key, ServiceRules, Target, Value, rules, service_rules};
pub use ruleset::{Changes, Ruleset};
pub use run::{ProxyConfig, remove, run};
