//! What single controllers are told, as flags with upstream's names.
//! Part of the flags of every command that runs controllers; read by `server` and by `controller-manager`.
//! Durations are written as Go writes them.

use std::time::Duration;

use clap::Args;

use super::security_flags::duration;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Controllers")]
pub struct Controllers {
    /// Define VerticalPodAutoscalers (autoscaling.k8s.io/v1) and act on them
    #[arg(long)]
    pub vertical_pod_autoscaler: bool,
    /// Define the kinds of the Gateway API where nobody has; the ingress acts on them
    #[arg(long)]
    pub gateway_api: bool,
    /// How often each HorizontalPodAutoscaler is looked at
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = positive_duration)]
    horizontal_pod_autoscaler_sync_period: Duration,
    /// No fewer replicas than were recommended within this time
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// How far the ratio of use to target may be from 1 before anything is scaled
    #[arg(long, value_name = "RATIO", default_value_t = 0.1, value_parser = ratio)]
    horizontal_pod_autoscaler_tolerance: f64,
    /// For how long after a pod's start its CPU use may be skipped
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// For how long after a pod's start a change of readiness counts as its first
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    horizontal_pod_autoscaler_initial_readiness_delay: Duration,
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|found| if found.is_zero() { Err("it must be greater than 0".into()) } else { Ok(found) })
}

fn ratio(text: &str) -> Result<f64, String> {
    let found: f64 = text.parse().map_err(|_| "write it as 0.1".to_string())?;
    if found.is_finite() && found >= 0.0 { Ok(found) } else { Err("it must be 0 or more".into()) }
}

impl Controllers {
    pub fn apply(&self, config: &mut controllers::Config) {
        if self.vertical_pod_autoscaler {
            config.controllers.push(controllers::VERTICAL_POD_AUTOSCALER.into());
        }
        config.horizontal_pod_autoscaler = controllers::HorizontalPodAutoscalerSettings {
            sync_period: self.horizontal_pod_autoscaler_sync_period,
            downscale_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
            tolerance: self.horizontal_pod_autoscaler_tolerance,
            cpu_initialization_period: self.horizontal_pod_autoscaler_cpu_initialization_period,
            initial_readiness_delay: self.horizontal_pod_autoscaler_initial_readiness_delay,
        };
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::flags::{Command, Flags};

    #[test]
    fn both_commands_take_upstreams_flags() {
        let typed = ["--horizontal-pod-autoscaler-sync-period=5s", "--horizontal-pod-autoscaler-tolerance=0.25"];
        let settings = |command: &[&str]| {
            let flags = Flags::try_parse_from(["minke"].iter().chain(command).chain(&typed)).expect("valid flags");
            match flags.command {
                Command::Server(server) => server.server.controllers,
                Command::ControllerManager(flags) => flags.settings,
                _ => panic!("{command:?}"),
            }
        };
        for command in [&["server"][..], &["controller-manager", "--kubeconfig", "/k"]] {
            let mut config = controllers::Config::default();
            settings(command).apply(&mut config);
            let found = config.horizontal_pod_autoscaler;
            assert_eq!((found.sync_period, found.tolerance), (Duration::from_secs(5), 0.25), "{command:?}");
            assert_eq!(found.downscale_stabilization, Duration::from_secs(300));
        }
        for wrong in ["--horizontal-pod-autoscaler-sync-period=0s", "--horizontal-pod-autoscaler-tolerance=-1"] {
            assert!(Flags::try_parse_from(["minke", "server", wrong]).is_err(), "{wrong}");
        }
    }
}
