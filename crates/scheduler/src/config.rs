//! What a scheduler is told at its start: profiles, plugins and their arguments, limits.
//! Read from a file by `config_file` or made by `minke`; turned into `framework::Profile`s here.
//! Invariant: an unknown plugin, point or argument is an error, never ignored.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use api::field::Path;
use metrics::Metrics;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    Error,
    diagnosis::Diagnoses,
    framework::{Enabled, Profile},
    plugins::{
        arguments,
        table::{self, Point, Row, TABLE},
    },
    preemption,
};

/// How long the claims of a decided pod may take, unless the file says otherwise.
const DEFAULT_BIND_TIMEOUT: Duration = Duration::from_secs(600);

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
    /// Credentials for the API server, where the file names them.
    pub kubeconfig: Option<PathBuf>,
    /// Where the verdicts on unschedulable pods are kept; clone it to ask.
    pub diagnoses: Diagnoses,
    /// Where attempts and queues are counted; clone it to show them.
    pub metrics: Metrics,
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
    #[serde(rename = "httpTimeout")]
    pub http_timeout: Option<String>,
    pub node_cache_capable: bool,
    pub managed_resources: Vec<ManagedResource>,
    /// Its failures are not the pod's.
    pub ignorable: bool,
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
            kubeconfig: None,
            diagnoses: Diagnoses::default(),
            metrics: Metrics::default(),
        }
    }
}

impl Config {
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
            if !extender.url_prefix.starts_with("http://") || extender.enable_https {
                return wrong(format!("extenders[{at}].urlPrefix: must start with http://; HTTPS is not supported"));
            }
            if !extender.preempt_verb.is_empty() {
                return wrong(format!("extenders[{at}].preemptVerb: not supported"));
            }
            if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
                return wrong(format!("extenders[{at}].weight: must have a positive weight applied to it"));
            }
        }
        self.profiles().map(drop)
    }

    /// The profiles, ready to use, by scheduler name.
    pub fn profiles(&self) -> Result<BTreeMap<String, Profile>, Error> {
        let mut profiles = BTreeMap::new();
        for (at, config) in self.profiles.iter().enumerate() {
            let profile = self.profile(config).map_err(|error| Error::Config(format!("profiles[{at}].{error}")))?;
            let name = profile.scheduler_name.clone();
            if profiles.insert(name.clone(), profile).is_some() {
                return Err(Error::Config(format!("profiles[{at}].schedulerName: Duplicate value: {name:?}")));
            }
        }
        Ok(profiles)
    }

    fn profile(&self, config: &ProfileConfig) -> Result<Profile, String> {
        if config.percentage_of_nodes_to_score.is_some_and(|percent| percent > 100) {
            return Err("percentageOfNodesToScore: not in valid range [0-100]".into());
        }
        for (at, arguments) in config.plugin_config.iter().enumerate() {
            let (_, row) = table::find(&arguments.name)
                .ok_or_else(|| format!("pluginConfig[{at}]: unknown plugin {:?}", arguments.name))?;
            row.check_names(&arguments.args).map_err(|error| format!("pluginConfig[{at}].args{error}"))?;
            let path = Path::new("pluginConfig").index(at).child("args");
            let errors = arguments::check(&arguments.name, &arguments.args, &path);
            if !errors.is_empty() {
                return Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
            }
        }
        let selection = Selection::new(config)?;
        let place = |name: &str| config.plugin_config.iter().position(|a| a.name == name);
        let arguments = |name: &str| place(name).map_or(Value::Null, |at| config.plugin_config[at].args.clone());
        let about = |name: &str, error: String| match place(name) {
            Some(at) => format!("pluginConfig[{at}].args.{error}"),
            None => format!("{name}: {error}"),
        };
        let (mut filters, mut scores) = (Vec::new(), Vec::new());
        for (row_at, row) in TABLE.iter().enumerate() {
            let Some(build) = row.build else { continue };
            let mut arguments = arguments(row.name);
            if row.name == "NodeResourcesFit" {
                self.leave_to_extenders(&mut arguments);
            }
            let plugin = build(&arguments).map_err(|error| about(row.name, error))?;
            let enabled = |weight| Enabled { row: row_at, name: row.name, plugin: plugin.clone(), weight };
            if selection.is_on(row, Point::Filter) || selection.is_on(row, Point::PreFilter) {
                filters.push(enabled(0));
            }
            if selection.is_on(row, Point::Score) {
                scores.push(enabled(selection.weight(row)));
            }
        }
        let on = |name: &str, point| table::find(name).is_some_and(|(_, row)| selection.is_on(row, point));
        let preemption = match on("DefaultPreemption", Point::PostFilter) {
            true => {
                let name = "DefaultPreemption";
                Some(preemption::Arguments::from_value(&arguments(name)).map_err(|error| about(name, error))?)
            }
            false => None,
        };
        let waits = &arguments("VolumeBinding")["bindTimeoutSeconds"];
        let bind_timeout = match (waits, waits.as_u64()) {
            (Value::Null, _) => DEFAULT_BIND_TIMEOUT,
            (_, Some(seconds)) => Duration::from_secs(seconds),
            (given, None) => {
                let error = format!("bindTimeoutSeconds: {given} is not zero or a positive whole number");
                return Err(about("VolumeBinding", error));
            }
        };
        Ok(Profile {
            scheduler_name: config.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".into()),
            filters,
            scores,
            gates: on("SchedulingGates", Point::PreEnqueue),
            preemption,
            bind_timeout,
            percentage_of_nodes_to_score: config
                .percentage_of_nodes_to_score
                .unwrap_or(self.percentage_of_nodes_to_score),
        })
    }
}

impl Config {
    /// Resources that only an extender counts are not ours to refuse for.
    fn leave_to_extenders(&self, arguments: &mut Value) {
        let managed = self.extenders.iter().flat_map(|e| &e.managed_resources).filter(|r| r.ignored_by_scheduler);
        for resource in managed {
            if arguments.is_null() {
                *arguments = serde_json::json!({});
            }
            match &mut arguments["ignoredResources"] {
                Value::Array(names) => names.push(resource.name.clone().into()),
                other => *other = serde_json::json!([resource.name]),
            }
        }
    }
}

/// A duration as Go writes it: `15s`, `1m30s`, `500ms`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let unit = rest[number..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| number + at);
        let seconds = match &rest[number..unit] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            "us" | "µs" => 0.000_001,
            _ => return None,
        };
        total += rest[..number].parse::<f64>().ok()? * seconds;
        rest = &rest[unit..];
    }
    Duration::try_from_secs_f64(total).ok()
}

/// Which plugins are on where. `multiPoint` speaks for every point; a point's own list has the last word.
struct Selection<'a> {
    plugins: &'a BTreeMap<String, PluginSelection>,
}

impl<'a> Selection<'a> {
    fn new(config: &'a ProfileConfig) -> Result<Self, String> {
        for (point, selection) in &config.plugins {
            let known = point == "multiPoint"
                || point == "permit"
                || point == "postBind"
                || Point::NAMES.iter().any(|(name, _)| name == point);
            if !known {
                return Err(format!("plugins: unknown extension point {point:?}"));
            }
            let mut named = selection.enabled.iter().chain(selection.disabled.iter().filter(|c| c.name != "*"));
            if let Some(unknown) = named.find(|choice| table::find(&choice.name).is_none()) {
                return Err(format!("plugins.{point}: {:?} does not exist", unknown.name));
            }
        }
        Ok(Self { plugins: &config.plugins })
    }

    fn at(&self, point: Point) -> Option<&PluginSelection> {
        let (name, _) = Point::NAMES.iter().find(|(_, p)| *p == point)?;
        self.plugins.get(*name)
    }

    fn is_on(&self, row: &Row, point: Point) -> bool {
        if !row.points.contains(&point) {
            return false;
        }
        let listed = |choices: &[PluginChoice]| choices.iter().any(|c| c.name == row.name);
        let off = |choices: &[PluginChoice]| choices.iter().any(|c| c.name == "*" || c.name == row.name);
        for selection in [self.at(point), self.plugins.get("multiPoint")].into_iter().flatten() {
            if listed(&selection.enabled) {
                return true;
            }
            if off(&selection.disabled) {
                return false;
            }
        }
        true
    }

    fn weight(&self, row: &Row) -> i64 {
        let lists = [self.at(Point::Score), self.plugins.get("multiPoint")];
        let given = lists.into_iter().flatten().flat_map(|s| &s.enabled).filter(|c| c.name == row.name);
        given.filter_map(|c| c.weight).find(|weight| *weight > 0).unwrap_or(row.weight.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(rest: &str) -> String {
        format!("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n{rest}")
    }

    /// `name=weight` of each scorer of the first profile.
    fn check(rest: &str, wanted: &str) {
        let found = match Config::from_yaml(&yaml(rest)).and_then(|c| c.profiles()) {
            Ok(profiles) => {
                let profile = profiles.values().next().unwrap();
                let scores = profile.scores.iter().map(|s| format!("{}={}", s.name, s.weight));
                scores.filter(|s| s.starts_with("TaintT") || s.starts_with("NodeAff")).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(found, wanted, "{rest}");
    }

    #[test]
    fn profiles_choose_plugins_and_weights() {
        check("", "TaintToleration=3 NodeAffinity=2");
        check("profiles: [{plugins: {score: {disabled: [{name: TaintToleration}]}}}]", "NodeAffinity=2");
        check(
            "profiles: [{plugins: {score: {disabled: [{name: '*'}], enabled: [{name: NodeAffinity, weight: 7}]}}}]",
            "NodeAffinity=7",
        );
        check("profiles: [{plugins: {multiPoint: {disabled: [{name: NodeAffinity}]}}}]", "TaintToleration=3");
        check(
            "percentageOfNodesToScore: 101",
            "invalid configuration: percentageOfNodesToScore: not in valid range [0-100]",
        );
        check(
            "profiles: [{plugins: {filter: {enabled: [{name: Nope}]}}}]",
            "invalid configuration: profiles[0].plugins.filter: \"Nope\" does not exist",
        );
        check(
            "profiles: [{schedulerName: a}, {schedulerName: a}]",
            "invalid configuration: profiles[1].schedulerName: Duplicate value: \"a\"",
        );
    }
}
