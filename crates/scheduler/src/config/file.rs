//! Reads a KubeSchedulerConfiguration (v1) file, field by field, so that every complaint names the field it is about.
//! Makes `config::Config`; used by `minke scheduler --config` and `minke up --scheduler-config`.
//! A field that is not known, or has no effect that we could give it, is an error, never ignored.

use std::{path::Path, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{
    Config, Error, ExtenderConfig, LeaderElectionConfig, PluginArguments, PluginSelection, ProfileConfig,
    config::duration,
};

const VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";
/// What upstream writes into files that say nothing.
const PARALLELISM_DEFAULT: i64 = 16;

type Result<T> = std::result::Result<T, Error>;

fn wrong<T>(path: &str, what: impl std::fmt::Display) -> Result<T> {
    Err(Error::Config(format!("{path}: {what}")))
}

/// The fields of one object, taken out one by one; what is left at the end is unknown.
struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    fn new(path: &str, value: Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { path: path.to_string(), map }),
            Value::Null => Ok(Self { path: path.to_string(), map: Map::new() }),
            other => wrong(path, format!("expected an object, found {other}")),
        }
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) }
    }

    fn value(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>> {
        let path = self.path_of(name);
        self.value(name).map(|value| decode(&path, value)).transpose()
    }

    /// The elements of a list, each with its path.
    fn list(&mut self, name: &str) -> Result<Vec<(String, Value)>> {
        let path = self.path_of(name);
        match self.value(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                Ok(items.into_iter().enumerate().map(|(at, item)| (format!("{path}[{at}]"), item)).collect())
            }
            Some(other) => wrong(&path, format!("expected a list, found {other}")),
        }
    }

    fn seconds(&mut self, name: &str, default: Duration) -> Result<Duration> {
        Ok(self.take::<u64>(name)?.map_or(default, Duration::from_secs))
    }

    /// Nothing may be left.
    fn end(self) -> Result<()> {
        match self.map.keys().next() {
            Some(name) => Err(Error::Config(format!("strict decoding error: unknown field {:?}", self.path_of(name)))),
            None => Ok(()),
        }
    }
}

fn decode<T: DeserializeOwned>(path: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).or_else(|error| wrong(path, error))
}

impl Config {
    /// From a KubeSchedulerConfiguration v1.
    pub fn from_yaml(text: &str) -> Result<Self> {
        let value: Value = serde_saphyr::from_str(text).map_err(|e| Error::Config(e.to_string()))?;
        let mut fields = Fields::new("", value)?;
        let (version, kind) = (fields.take::<String>("apiVersion")?, fields.take::<String>("kind")?);
        let (version, kind) = (version.unwrap_or_default(), kind.unwrap_or_default());
        if version != VERSION || kind != KIND {
            return Err(Error::Config(format!(
                "no kind {kind:?} is registered for version {version:?}; use {VERSION} {KIND}"
            )));
        }
        let defaults = Self::default();
        let mut config = Self {
            profiles: Vec::new(),
            percentage_of_nodes_to_score: fields.take("percentageOfNodesToScore")?.unwrap_or(0),
            pod_initial_backoff: fields.seconds("podInitialBackoffSeconds", defaults.pod_initial_backoff)?,
            pod_max_backoff: fields.seconds("podMaxBackoffSeconds", defaults.pod_max_backoff)?,
            leader_election: None,
            extenders: Vec::new(),
            delay_cache_until_active: fields.take("delayCacheUntilActive")?.unwrap_or(false),
            kubeconfig: None,
            diagnoses: defaults.diagnoses,
            metrics: defaults.metrics,
            registry: defaults.registry,
        };
        for (path, profile) in fields.list("profiles")? {
            config.profiles.push(profile_config(&path, profile)?);
        }
        if config.profiles.is_empty() {
            config.profiles = defaults.profiles;
        }
        for (path, extender) in fields.list("extenders")? {
            config.extenders.push(decode::<ExtenderConfig>(&path, extender)?);
        }
        if let Some(value) = fields.value("leaderElection") {
            config.leader_election = Some(leader_election(value)?);
        }
        if let Some(value) = fields.value("clientConnection") {
            config.kubeconfig = client_connection(value)?;
        }
        let parallelism = fields.take::<i64>("parallelism")?;
        if parallelism.is_some_and(|n| n <= 0) {
            return wrong("parallelism", "should be an integer value greater than zero");
        }
        if parallelism.is_some_and(|n| n != PARALLELISM_DEFAULT) {
            tracing::warn!(
                "parallelism has no effect: one thread decides, and pods of one template share its verdicts"
            );
        }
        for name in ["enableProfiling", "enableContentionProfiling"] {
            if fields.take::<bool>(name)? == Some(true) {
                tracing::warn!("{name} has no effect: there are no profiles by HTTP");
            }
        }
        fields.end()?;
        config.check()?;
        Ok(config)
    }

    pub fn load(path: &Path) -> Result<Self> {
        let named = |error: String| Error::Config(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
        Self::from_yaml(&text).map_err(|Error::Config(text)| named(text))
    }
}

fn profile_config(path: &str, value: Value) -> Result<ProfileConfig> {
    let mut fields = Fields::new(path, value)?;
    let mut profile = ProfileConfig {
        scheduler_name: fields.take("schedulerName")?,
        percentage_of_nodes_to_score: fields.take("percentageOfNodesToScore")?,
        ..ProfileConfig::default()
    };
    let plugins = fields.path_of("plugins");
    for (point, selection) in Fields::new(&plugins, fields.value("plugins").unwrap_or_default())?.map {
        let selection = decode::<PluginSelection>(&format!("{plugins}.{point}"), selection)?;
        profile.plugins.insert(point, selection);
    }
    for (path, arguments) in fields.list("pluginConfig")? {
        profile.plugin_config.push(decode::<PluginArguments>(&path, arguments)?);
    }
    fields.end()?;
    Ok(profile)
}

fn leader_election(value: Value) -> Result<LeaderElectionConfig> {
    let election = decode::<LeaderElectionConfig>("leaderElection", value)?;
    for (name, text) in [
        ("leaseDuration", &election.lease_duration),
        ("renewDeadline", &election.renew_deadline),
        ("retryPeriod", &election.retry_period),
    ] {
        if duration(text).is_none_or(|d| d.is_zero()) {
            return wrong(&format!("leaderElection.{name}"), format!("{text:?} is not a duration above zero"));
        }
    }
    if duration(&election.lease_duration) <= duration(&election.renew_deadline) {
        return wrong("leaderElection.leaseDuration", "LeaseDuration must be greater than RenewDeadline");
    }
    if election.resource_lock != "leases" {
        return wrong("leaderElection.resourceLock", "resourceLock value must be \"leases\"");
    }
    Ok(election)
}

/// Only where to find the credentials matters; how bytes travel is ours to choose.
fn client_connection(value: Value) -> Result<Option<std::path::PathBuf>> {
    let mut fields = Fields::new("clientConnection", value)?;
    let kubeconfig = fields.take::<String>("kubeconfig")?.filter(|path| !path.is_empty());
    for name in ["acceptContentTypes", "contentType"] {
        fields.take::<String>(name)?;
    }
    fields.take::<f64>("qps")?;
    fields.take::<i64>("burst")?;
    fields.end()?;
    Ok(kubeconfig.map(Into::into))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rest: &str, wanted: &str) {
        let text = format!("apiVersion: {VERSION}\nkind: {KIND}\n{rest}");
        let error = Config::from_yaml(&text).map(drop).expect_err(rest).to_string();
        let found = error.strip_prefix("invalid configuration: ").unwrap_or(&error);
        assert!(found.starts_with(wanted), "{rest}:\n{found}\n{wanted}");
    }

    #[test]
    fn complaints_name_the_field() {
        check("podMaxBackofSeconds: 3", "strict decoding error: unknown field \"podMaxBackofSeconds\"");
        check("profiles: [{schedulerNam: a}]", "strict decoding error: unknown field \"profiles[0].schedulerNam\"");
        check("profiles: {}", "profiles: expected a list");
        check("percentageOfNodesToScore: many", "percentageOfNodesToScore: invalid type");
        check("percentageOfNodesToScore: 101", "percentageOfNodesToScore: not in valid range [0-100]");
        check("podInitialBackoffSeconds: 9\npodMaxBackoffSeconds: 3", "podMaxBackoffSeconds: must be greater");
        check("parallelism: 0", "parallelism: should be an integer value greater than zero");
        check(
            "clientConnection: {kubekonfig: a}",
            "strict decoding error: unknown field \"clientConnection.kubekonfig\"",
        );
        check("leaderElection: {leaseDuration: soon}", "leaderElection.leaseDuration: \"soon\" is not a duration");
        check("leaderElection: {leaseDuration: 5s}", "leaderElection.leaseDuration: LeaseDuration must be greater");
        check("leaderElection: {resourceLock: endpoints}", "leaderElection.resourceLock: ");
        check("leaderElection: {leader: true}", "leaderElection: unknown field `leader`");
        check("profiles: [{plugins: {score: {enable: []}}}]", "profiles[0].plugins.score: unknown field `enable`");
        check("profiles: [{plugins: {scores: {}}}]", "profiles[0].plugins: unknown extension point \"scores\"");
        check(
            "profiles: [{plugins: {filter: {enabled: [{name: Nope}]}}}]",
            "profiles[0].plugins.filter: \"Nope\" does not exist",
        );
        check("profiles: [{pluginConfig: [{name: Nope}]}]", "profiles[0].pluginConfig[0]: unknown plugin \"Nope\"");
        check(
            "profiles: [{schedulerName: a}, {schedulerName: a}]",
            "profiles[1].schedulerName: Duplicate value: \"a\"",
        );
        check("extenders: [{urlPrefix: 'ftp://x'}]", "extenders[0].urlPrefix: ");
        check("extenders: [{url: 'http://x'}]", "extenders[0]: unknown field `url`");
    }

    #[test]
    fn complaints_about_arguments_name_the_argument() {
        let check = |name: &str, args: &str, wanted: &str| {
            let rest =
                format!("profiles: [{{}}, {{schedulerName: b, pluginConfig: [{{name: {name}, args: {args}}}]}}]");
            check(&rest, &format!("profiles[1].pluginConfig[0].args{wanted}"));
        };
        check("InterPodAffinity", "{hardPodAffinityWeight: 200}", ".hardPodAffinityWeight: Invalid value: 200: ");
        check("InterPodAffinity", "{hardWeight: 2}", ": strict decoding error: unknown field \"hardWeight\"");
        check(
            "NodeResourcesFit",
            "{scoringStrategy: {type: Best}}",
            ".scoringStrategy.type: Unsupported value: \"Best\"",
        );
        check("NodeResourcesFit", "{scoringStrategy: {type: LeastAllocated, shape: []}}", ".scoringStrategy: unknown");
        check(
            "NodeResourcesFit",
            "{scoringStrategy: {type: LeastAllocated, resources: [{weight: 1}]}}",
            ".scoringStrategy: ",
        );
        check("NodeResourcesBalancedAllocation", "{resources: 5}", ".resources: ");
        check(
            "PodTopologySpread",
            "{defaultConstraints: [{topologyKey: a}]}",
            ".defaultingType: Invalid value: \"System\"",
        );
        check("DefaultPreemption", "{minCandidateNodesPercentage: 101}", ".minCandidateNodesPercentage: ");
        check("VolumeBinding", "{bindTimeoutSeconds: -1}", ".bindTimeoutSeconds: ");
        check("VolumeBinding", "{shape: []}", ".shape: ");
        check("NodePorts", "{a: 1}", ": strict decoding error: unknown field \"a\"");
    }

    #[test]
    fn what_a_file_says_counts() {
        let text = format!(
            "apiVersion: {VERSION}\nkind: {KIND}\npodInitialBackoffSeconds: 2\npodMaxBackoffSeconds: 20\n\
             parallelism: 8\ndelayCacheUntilActive: true\nclientConnection: {{kubeconfig: /k, qps: 50.5, burst: 100}}\n\
             leaderElection: {{leaderElect: true, resourceName: mine}}\n\
             profiles: [{{schedulerName: one}}, {{schedulerName: two, pluginConfig: [{{name: VolumeBinding, \
             args: {{apiVersion: {VERSION}, kind: VolumeBindingArgs, bindTimeoutSeconds: 30}}}}]}}]\n"
        );
        let config = Config::from_yaml(&text).unwrap();
        assert_eq!((config.pod_initial_backoff.as_secs(), config.pod_max_backoff.as_secs()), (2, 20));
        assert_eq!(config.kubeconfig.as_deref(), Some(Path::new("/k")));
        assert!(config.delay_cache_until_active);
        assert_eq!(config.leader_election.as_ref().map(|l| l.resource_name.as_str()), Some("mine"));
        assert_eq!(config.profiles().unwrap().into_keys().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(config.profiles[1].plugin_config[0].args["bindTimeoutSeconds"], 30);
        let missing = Config::load(Path::new("/nowhere/scheduler.yaml")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/scheduler.yaml: No such file"), "{missing}");
    }
}
