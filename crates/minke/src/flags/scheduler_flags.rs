//! Flags of the scheduler, and its configuration from either kind of file.
//! Parsed by `main`; names are upstream's.
//! Starts nothing; only reads what was typed.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use clap::Args;

use super::{DataDirectory, feature_flags::FeatureFlags};

#[derive(Debug, Clone, Args)]
pub struct Scheduler {
    #[command(flatten)]
    pub data: DataDirectory,
    #[command(flatten)]
    pub features: FeatureFlags,
    /// Credentials for the API server [default: those that the configuration file names]
    #[arg(long, value_name = "FILE", required_unless_present = "config")]
    pub kubeconfig: Option<PathBuf>,
    /// KubeSchedulerConfiguration file (kubescheduler.config.k8s.io/v1)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Policy file (v1: predicates, priorities, extenders), the older form of the same
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    pub policy_config_file: Option<PathBuf>,
    /// Whether to wait for the Lease that only one of several schedulers holds [default: what the file says, else true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: Option<bool>,
    /// Where health (for everybody) and metrics (for those who may get /metrics) answer over HTTPS
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Its port; 0 is none
    #[arg(long, default_value_t = 10259)]
    pub secure_port: u16,
    /// Authorities of the certificates by which clients are known there [default: those of the API server]
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
}

impl Scheduler {
    /// What the file says, and whose credentials count.
    pub fn settings(&self) -> anyhow::Result<(scheduler::Config, PathBuf)> {
        let mut config = scheduler_config(self.config.as_deref(), self.policy_config_file.as_deref())?;
        let election = config.leader_election.get_or_insert_default();
        election.leader_elect = self.leader_elect.unwrap_or(election.leader_elect);
        match self.kubeconfig.clone().or_else(|| config.kubeconfig.clone()) {
            Some(kubeconfig) => Ok((config, kubeconfig)),
            None => anyhow::bail!("no credentials: give --kubeconfig, or clientConnection.kubeconfig in the file"),
        }
    }
}

/// From a KubeSchedulerConfiguration file or an older Policy file, if there is one.
pub fn scheduler_config(config: Option<&Path>, policy: Option<&Path>) -> anyhow::Result<scheduler::Config> {
    Ok(match (config, policy) {
        (Some(path), _) => scheduler::Config::load(path)?,
        (None, Some(path)) => scheduler::Config::load_policy(path)?,
        (None, None) => scheduler::Config::default(),
    })
}
