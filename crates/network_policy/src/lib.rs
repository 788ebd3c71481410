//! NetworkPolicy on this node: policies, pods and namespaces become nftables maps, changed element by element.
//! Reads the API through `client`; its pure core is [`PolicyIndex`]; the agent starts it with [`run`], and the network
//! plugin tells it of a pod's addresses through [`PodClaims`] before the pod's first packet.
//! The rules outlive the process, and the cost of a packet does not depend on the number of policies or pods.

mod address_range;
mod changes;
mod claim_files;
mod elements;
mod isolation_class;
mod model;
mod peer_sets;
mod pod_claims;
mod policy_index;
mod policy_metrics;
mod render;
mod run;

pub use changes::Changes;
pub use model::{PodInfo, PolicyInfo};
pub use netfilter::NftError;
pub use pod_claims::PodClaims;
pub use policy_index::PolicyIndex;
pub use render::{full_tables, transaction};
pub use run::{NetworkPolicyConfig, remove, run};
