//! The cluster's DNS: Services, headless names and pods from the API, everything else from upstream.
//! Reads the API through `client`; its pure core is [`Zone`]; the agent starts it with [`start`].
//! An answer about the cluster waits for nothing but the zone's lock.

mod cache;
mod customization;
mod dns_metrics;
mod forward;
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod resolv_conf;
mod run;
mod server;
mod upstreams;
mod zone;

pub use forward::Forwarder;
pub use index::{PodRecords, Zone};
pub use resolv_conf::HostFiles;
pub use run::{DnsConfig, DnsError, Serving, start};
pub use server::Server;
pub use upstreams::Upstreams;
pub use zone::Answer;
