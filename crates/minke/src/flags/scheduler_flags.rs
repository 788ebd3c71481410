//! Flags of the scheduler, and its configuration from either kind of file.
//! Parsed by `main`; names are upstream's.
//! Starts nothing; only reads what was typed.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use client::LeaderElection;

use super::{
    DataDirectory,
    component_flags::{ConnectionFlags, LeaderElectionFlags, PortFlags},
    feature_flags::FeatureFlags,
    upstream::{self, OtherFlags},
};

#[derive(Debug, Clone, Args)]
pub struct Scheduler {
    #[command(flatten)]
    pub data: DataDirectory,
    #[command(flatten)]
    pub features: FeatureFlags,
    #[command(flatten)]
    pub connection: ConnectionFlags,
    /// KubeSchedulerConfiguration file (kubescheduler.config.k8s.io/v1); the flags of its fields count without it alone
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Policy file (v1: predicates, priorities, extenders), the older form of the same
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub policy_config_file: Option<PathBuf>,
    #[command(flatten)]
    pub election: LeaderElectionFlags,
    #[command(flatten)]
    pub port: PortFlags,
    /// Port of health and metrics; 0 is none
    #[arg(long, default_value_t = 10259)]
    pub secure_port: u16,
    #[command(flatten)]
    pub others: OtherFlags<upstream::Scheduler>,
}

impl Scheduler {
    /// What the file says with the flags laid over it, and how the API server is reached.
    pub fn settings(&self) -> Result<(scheduler::Config, ConnectionFlags)> {
        self.others.check()?;
        let mut config = scheduler_config(self.config.as_deref(), self.policy_config_file.as_deref())?;
        let election = config.leader_election.get_or_insert_default();
        election.leader_elect = self.election.leader_elect.unwrap_or(election.leader_elect);
        elect(election, |found| self.election.apply(found))?;
        let mut connection = self.connection.clone();
        connection.kubeconfig = connection.kubeconfig.or_else(|| config.kubeconfig.clone());
        Ok((config, connection))
    }
}

/// Has `change` lay flags over what a configuration says of elections.
pub fn elect(
    election: &mut scheduler::LeaderElectionConfig,
    change: impl FnOnce(&mut LeaderElection) -> Result<()>,
) -> Result<()> {
    let mut found = LeaderElection::new(&election.resource_name, String::new());
    found.namespace.clone_from(&election.resource_namespace);
    for (text, field) in [
        (&election.lease_duration, &mut found.lease_duration),
        (&election.renew_deadline, &mut found.renew_deadline),
        (&election.retry_period, &mut found.retry_period),
    ] {
        *field = super::security_flags::duration(text).unwrap_or(*field);
    }
    change(&mut found)?;
    let text = |duration: std::time::Duration| format!("{}ms", duration.as_millis());
    election.lease_duration = text(found.lease_duration);
    election.renew_deadline = text(found.renew_deadline);
    election.retry_period = text(found.retry_period);
    (election.resource_name, election.resource_namespace) = (found.name, found.namespace);
    Ok(())
}

/// From a KubeSchedulerConfiguration file or an older Policy file, if there is one.
pub fn scheduler_config(config: Option<&Path>, policy: Option<&Path>) -> anyhow::Result<scheduler::Config> {
    Ok(match (config, policy) {
        (Some(path), _) => scheduler::Config::load(path)?,
        (None, Some(path)) => scheduler::Config::load_policy(path)?,
        (None, None) => scheduler::Config::default(),
    })
}
