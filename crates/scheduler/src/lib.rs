//! Decides on which node each pod runs: a queue of pods, a view of the cluster, plugins at upstream's extension points.
//! Started by `minke`; talks to the API server through `client` only.
//! A pod is bound at most once by us, and never to a node that the filters refused.

mod cache;
mod cluster;
mod config;
mod cycle;
mod diagnosis;
mod equivalence_class;
mod extender;
mod framework;
mod informers;
mod node_info;
mod node_selector;
mod plugins;
mod pod_info;
mod queue;
mod reports;
mod resources;
mod scheduler;
mod scheduler_metrics;

#[cfg(test)]
#[allow(dead_code)]
#[path = "../tests/server/mod.rs"]
mod server;

pub use config::{
    Config, ExtenderConfig, LeaderElectionConfig, ManagedResource, PluginArguments, PluginChoice, PluginSelection,
    ProfileConfig,
};
pub use diagnosis::{Diagnoses, Diagnosis, RejectedNodes};
pub use scheduler::run;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid configuration: {0}")]
    Config(String),
}
