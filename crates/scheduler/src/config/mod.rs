//! What a scheduler is told at its start: profiles, plugins and their arguments, limits.
//! Read from a file by `file` or made by `minke`; turned into `framework::Profile`s by `profiles`.
//! An unknown plugin, point or argument is an error, never ignored.

mod file;
pub(crate) mod plugin_args;
mod policy;
mod profiles;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

pub use api::codec::parse_unsigned_duration as duration;

use metrics::Metrics;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Error, diagnosis::Diagnoses, plugins::registry::Registry};

#[derive(Debug, Clone)]
pub struct Config {
    pub profiles: Vec<ProfileConfig>,
    /// Of feasible nodes; zero adapts to the size of the cluster.
    pub percentage_of_nodes_to_score: u32,
    pub pod_initial_backoff: Duration,
    pub pod_max_backoff: Duration,
    /// `None` when the file says nothing; off unless several schedulers may run.
    pub leader_election: Option<LeaderElectionConfig>,
    pub extenders: Vec<ExtenderConfig>,
    /// Whether one that waits to lead leaves the cluster unread until it does.
    pub delay_cache_until_active: bool,
    /// Credentials for the API server, where the file names them.
    pub kubeconfig: Option<PathBuf>,
    /// Where the verdicts on unschedulable pods are kept; clone it to ask.
    pub diagnoses: Diagnoses,
    /// Where attempts and queues are counted; clone it to show them.
    pub metrics: Metrics,
    /// The plugins that profiles can name.
    pub(crate) registry: Registry,
}

#[derive(Debug, Clone, Default)]
pub struct ProfileConfig {
    pub scheduler_name: Option<String>,
    pub percentage_of_nodes_to_score: Option<u32>,
    /// By extension point (`multiPoint`, `filter`, `score`, …).
    pub plugins: BTreeMap<String, PluginSelection>,
    pub plugin_config: Vec<PluginArguments>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginSelection {
    pub enabled: Vec<PluginChoice>,
    pub disabled: Vec<PluginChoice>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginChoice {
    /// `*` in `disabled` is all of them.
    pub name: String,
    #[serde(default)]
    pub weight: Option<i64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginArguments {
    pub name: String,
    #[serde(default)]
    pub args: Value,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LeaderElectionConfig {
    pub leader_elect: bool,
    pub lease_duration: String,
    pub renew_deadline: String,
    pub retry_period: String,
    pub resource_lock: String,
    pub resource_name: String,
    pub resource_namespace: String,
    /// Who this process is among the candidates; a new one each time unless it is given.
    #[serde(skip)]
    pub identity: Option<String>,
}

impl Default for LeaderElectionConfig {
    fn default() -> Self {
        Self {
            leader_elect: true,
            lease_duration: "15s".into(),
            renew_deadline: "10s".into(),
            retry_period: "2s".into(),
            resource_lock: "leases".into(),
            resource_name: "kube-scheduler".into(),
            resource_namespace: "kube-system".into(),
            identity: None,
        }
    }
}

/// Another process that has a say, asked over HTTP.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExtenderConfig {
    pub url_prefix: String,
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub weight: i64,
    pub bind_verb: String,
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    pub tls_config: Option<ExtenderTlsConfig>,
    #[serde(rename = "httpTimeout")]
    pub http_timeout: Option<String>,
    pub node_cache_capable: bool,
    pub managed_resources: Vec<ManagedResource>,
    /// Its failures are not the pod's.
    pub ignorable: bool,
}

impl ExtenderConfig {
    pub fn is_https(&self) -> bool {
        self.enable_https || self.url_prefix.starts_with("https://")
    }

    /// `enableHTTPS` wins over what the prefix says.
    pub fn url(&self, verb: &str) -> String {
        let prefix = self.url_prefix.trim_end_matches('/');
        match prefix.strip_prefix("http://").filter(|_| self.enable_https) {
            Some(rest) => format!("https://{rest}/{verb}"),
            None => format!("{prefix}/{verb}"),
        }
    }
}

/// How an extender is known and knows us. Data is PEM in base64.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ExtenderTlsConfig {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    pub cert_data: String,
    pub key_data: String,
    pub ca_data: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ManagedResource {
    pub name: String,
    pub ignored_by_scheduler: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profiles: vec![ProfileConfig::default()],
            percentage_of_nodes_to_score: 0,
            pod_initial_backoff: Duration::from_secs(1),
            pod_max_backoff: Duration::from_secs(10),
            leader_election: None,
            extenders: Vec::new(),
            delay_cache_until_active: false,
            kubeconfig: None,
            diagnoses: Diagnoses::default(),
            metrics: Metrics::default(),
            registry: Registry::default(),
        }
    }
}

impl Config {
    /// What it is set to, as upstream's `/configz` shows it.
    pub fn configz(&self) -> Value {
        let choices = |choices: &[PluginChoice]| -> Vec<Value> {
            choices.iter().map(|choice| json!({ "name": choice.name, "weight": choice.weight })).collect()
        };
        let profile = |profile: &ProfileConfig| {
            let plugins: BTreeMap<&String, Value> = profile
                .plugins
                .iter()
                .map(|(point, s)| (point, json!({ "enabled": choices(&s.enabled), "disabled": choices(&s.disabled) })))
                .collect();
            let arguments = profile.plugin_config.iter().map(|own| json!({ "name": own.name, "args": own.args }));
            json!({
                "schedulerName": profile.scheduler_name.as_deref().unwrap_or("default-scheduler"),
                "percentageOfNodesToScore": profile.percentage_of_nodes_to_score,
                "plugins": plugins, "pluginConfig": arguments.collect::<Vec<_>>(),
            })
        };
        let extender = |extender: &ExtenderConfig| {
            json!({
                "urlPrefix": extender.url_prefix, "filterVerb": extender.filter_verb,
                "preemptVerb": extender.preempt_verb, "prioritizeVerb": extender.prioritize_verb,
                "bindVerb": extender.bind_verb, "weight": extender.weight, "enableHTTPS": extender.enable_https,
                "httpTimeout": extender.http_timeout, "nodeCacheCapable": extender.node_cache_capable,
                "ignorable": extender.ignorable,
            })
        };
        json!({ "kubescheduler.config.k8s.io": {
            "percentageOfNodesToScore": self.percentage_of_nodes_to_score,
            "podInitialBackoffSeconds": self.pod_initial_backoff.as_secs(),
            "podMaxBackoffSeconds": self.pod_max_backoff.as_secs(),
            "leaderElection": { "leaderElect": self.leader_election.as_ref().is_some_and(|own| own.leader_elect) },
            "profiles": self.profiles.iter().map(profile).collect::<Vec<_>>(),
            "extenders": self.extenders.iter().map(extender).collect::<Vec<_>>(),
        } })
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Config(text));
        if self.percentage_of_nodes_to_score > 100 {
            return wrong("percentageOfNodesToScore: not in valid range [0-100]".into());
        }
        if self.pod_initial_backoff.is_zero() || self.pod_max_backoff < self.pod_initial_backoff {
            return wrong("podMaxBackoffSeconds: must be greater than or equal to PodInitialBackoffSeconds, which must be greater than 0".into());
        }
        let binders = self.extenders.iter().filter(|e| !e.bind_verb.is_empty()).count();
        if binders > 1 {
            return wrong("extenders: only one extender can implement bind".into());
        }
        for (at, extender) in self.extenders.iter().enumerate() {
            if !extender.url_prefix.starts_with("http://") && !extender.url_prefix.starts_with("https://") {
                return wrong(format!("extenders[{at}].urlPrefix: must start with http:// or https://"));
            }
            if let Err(error) = crate::extender::check_tls(extender) {
                return wrong(format!("extenders[{at}].{error}"));
            }
            if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
                return wrong(format!("extenders[{at}].weight: must have a positive weight applied to it"));
            }
        }
        self.profiles().map(drop)
    }
}
