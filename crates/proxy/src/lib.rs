//! The Service proxy: Services and EndpointSlices become nftables maps, changed element by element. Beside it, the
//! mesh: routes or VXLAN to the pods of other nodes.
//! Reads the API through `client`; its pure core is [`rules`]; the agent starts it with [`run`].
//! Invariant: the rules outlive the process, and the cost of a packet does not depend on the number of Services.

mod affinity;
mod confirmed;
mod confirmed_socket;
mod conntrack;
mod conntrack_netlink;
mod element_netlink;
mod health;
mod liveness;
mod mesh;
mod mesh_run;
mod model;
mod monitor;
mod netlink;
mod nft;
mod node_claims;
mod proxy_metrics;
mod render;
mod rules;
mod ruleset;
mod run;

pub use confirmed::Confirmed;
pub use confirmed_socket::{Answer, ask_confirmed, serve_confirmed};
pub use mesh::{MeshConfig, MeshMode, Plan, plan};
pub use mesh_run::{MeshError, apply_mesh, run_mesh};
pub use model::{EndpointInfo, NodeConfig, PodUid, PortInfo, Protocol, ServiceInfo, SliceInfo, State};
pub use monitor::{Monitor, Sighting};
pub use nft::NftError;
pub use node_claims::{ClusterRanges, NodeClaim, believed, pod_cidrs};
pub use render::{full, nothing, transaction};
pub use rules::{Family, Frontend, Key, ServiceRules, Target, Value, rules, service_rules};
pub use ruleset::{Changes, Ruleset};
pub use run::{ProxyConfig, remove, run};
