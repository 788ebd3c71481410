//! Decides on which node each pod runs: a queue of pods, a view of the cluster, a table of plugins, bindings by POST.
//! Started by `minke`; talks to the API server through `client` only.
//! Invariant: a pod is bound at most once by us, and never to a node that the filters refused.

mod binding;
mod cache;
mod claim_waits;
mod class;
mod cluster;
mod config;
mod config_file;
mod cycle;
mod diagnosis;
mod eviction;
mod extender;
mod framework;
mod node_info;
mod node_selector;
mod plugins;
mod pod_info;
mod preemption;
mod queue;
mod reports;
mod resources;
mod scheduler;
mod scheduler_metrics;
mod volumes;
mod watches;

pub use config::{
    Config, ExtenderConfig, LeaderElectionConfig, ManagedResource, PluginArguments, PluginChoice, PluginSelection,
    ProfileConfig,
};
pub use diagnosis::{Diagnoses, Diagnosis, Group};
pub use scheduler::run;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid configuration: {0}")]
    Config(String),
}
