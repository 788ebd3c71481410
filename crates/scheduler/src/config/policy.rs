//! Reads the older Policy file (`--policy-config-file`): predicates, priorities and extenders become one profile.
//! Makes `config::Config` as `file` does of a KubeSchedulerConfiguration; used by `minke scheduler`, `server` and `up`.
//! A name that is not known is refused with the nearest one that is; nothing is ignored.

use std::{collections::BTreeMap, path::Path};

use api::names::distance;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Config, ExtenderConfig, PluginArguments, PluginChoice, PluginSelection, ProfileConfig};
use crate::{Error, framework::ExtensionPoint, plugins::registry::Registry};

type Result<T> = std::result::Result<T, Error>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Policy {
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    api_version: Option<String>,
    /// Absent: the defaults. Empty: only what every cluster needs.
    #[serde(default)]
    predicates: Option<Vec<Predicate>>,
    /// Absent: the defaults. Empty: none.
    #[serde(default)]
    priorities: Option<Vec<Priority>>,
    #[serde(default, alias = "extenderConfigs")]
    extenders: Vec<PolicyExtender>,
    #[serde(default)]
    hard_pod_affinity_symmetric_weight: Option<i64>,
    /// Every plugin says what it thinks of a node up to the first that refuses it; more can't be asked for.
    #[serde(default)]
    always_check_all_predicates: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Predicate {
    name: String,
    #[serde(default)]
    argument: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Priority {
    name: String,
    #[serde(default)]
    weight: i64,
    #[serde(default)]
    argument: Option<Value>,
}

/// As in a KubeSchedulerConfiguration, but for the spelling of `enableHttps` and times in nanoseconds.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PolicyExtender {
    #[serde(default, alias = "enableHTTPS")]
    enable_https: bool,
    #[serde(default)]
    http_timeout: Option<Value>,
    /// Of the protocol once; there is only one.
    #[serde(default, rename = "apiVersion")]
    _api_version: Option<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// The older names of what filters nodes, and the plugins that do.
const PREDICATES: &[(&str, &[&str])] = &[
    ("CheckNodeCondition", &["NodeUnschedulable"]),
    ("CheckNodeUnschedulable", &["NodeUnschedulable"]),
    ("CheckVolumeBinding", &["VolumeBinding"]),
    ("EvenPodsSpread", &["PodTopologySpread"]),
    ("GeneralPredicates", &["NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"]),
    ("HostName", &["NodeName"]),
    ("MatchInterPodAffinity", &["InterPodAffinity"]),
    ("MatchNodeSelector", &["NodeAffinity"]),
    ("MaxAzureDiskVolumeCount", &["NodeVolumeLimits"]),
    ("MaxCSIVolumeCountPred", &["NodeVolumeLimits"]),
    ("MaxCinderVolumeCount", &["NodeVolumeLimits"]),
    ("MaxEBSVolumeCount", &["NodeVolumeLimits"]),
    ("MaxGCEPDVolumeCount", &["NodeVolumeLimits"]),
    ("NoDiskConflict", &["VolumeRestrictions"]),
    ("NoVolumeZoneConflict", &["VolumeZone"]),
    ("PodFitsHostPorts", &["NodePorts"]),
    ("PodFitsPorts", &["NodePorts"]),
    ("PodFitsResources", &["NodeResourcesFit"]),
    ("PodToleratesNodeTaints", &["TaintToleration"]),
];

/// Always on, as upstream's mandatory predicates were.
const MANDATORY: [&str; 2] = ["NodeUnschedulable", "TaintToleration"];

/// The older names of what scores nodes, the plugin, and how it then divides resources.
const PRIORITIES: &[(&str, &str, Option<&str>)] = &[
    ("BalancedResourceAllocation", "NodeResourcesBalancedAllocation", None),
    ("EqualPriority", "", None),
    ("EvenPodsSpreadPriority", "PodTopologySpread", None),
    ("ImageLocalityPriority", "ImageLocality", None),
    ("InterPodAffinityPriority", "InterPodAffinity", None),
    ("LeastRequestedPriority", "NodeResourcesFit", Some("LeastAllocated")),
    ("MostRequestedPriority", "NodeResourcesFit", Some("MostAllocated")),
    ("NodeAffinityPriority", "NodeAffinity", None),
    ("RequestedToCapacityRatioPriority", "NodeResourcesFit", Some("RequestedToCapacityRatio")),
    // Spreading by Service and owner is what the default constraints of the newer plugin do.
    ("SelectorSpreadPriority", "PodTopologySpread", None),
    ("ServiceSpreadingPriority", "PodTopologySpread", None),
    ("TaintTolerationPriority", "TaintToleration", None),
];

/// What upstream took away with the file itself.
const REMOVED: &[(&str, &str)] = &[
    ("CheckNodeLabelPresence", "use node affinity"),
    ("CheckServiceAffinity", "use pod affinity"),
    ("NodeLabelPriority", "use node affinity"),
    ("NodePreferAvoidPodsPriority", "use taints"),
    ("ServiceAntiAffinityPriority", "use topology spread constraints"),
];

/// Points at which a filter also has something to prepare.
const FILTER_POINTS: [ExtensionPoint; 2] = [ExtensionPoint::PreFilter, ExtensionPoint::Filter];
const SCORE_POINTS: [ExtensionPoint; 2] = [ExtensionPoint::PreScore, ExtensionPoint::Score];
/// What it reserves and binds is what it found when it filtered.
const VOLUME_BINDING: &str = "VolumeBinding";

impl Config {
    /// From a Policy v1, in JSON or YAML.
    pub fn from_policy(text: &str) -> Result<Self> {
        let policy: Policy = serde_saphyr::from_str(text).map_err(|error| Error::Config(error.to_string()))?;
        let (kind, version) = (policy.kind.unwrap_or_default(), policy.api_version.unwrap_or_default());
        if kind != "Policy" || version != "v1" {
            return wrong(format!("no kind {kind:?} is registered for version {version:?}; use v1 Policy"));
        }
        if policy.always_check_all_predicates {
            return wrong(
                "alwaysCheckAllPredicates: a node is always given up at the first plugin that refuses it; \
                          /debug/scheduling says what each thinks",
            );
        }
        let mut profile = ProfileConfig::default();
        if let Some(predicates) = policy.predicates {
            let names = filters(&predicates)?;
            if !names.contains(&VOLUME_BINDING) {
                for point in [ExtensionPoint::Reserve, ExtensionPoint::PreBind] {
                    let disabled = vec![PluginChoice { name: VOLUME_BINDING.into(), weight: None }];
                    let selection = PluginSelection { disabled, ..PluginSelection::default() };
                    profile.plugins.insert(point.name().into(), selection);
                }
            }
            only(&mut profile, &FILTER_POINTS, names.into_iter().map(|name| (name, None)).collect());
        }
        if let Some(priorities) = policy.priorities {
            let (weights, arguments) = scores(&priorities)?;
            only(&mut profile, &SCORE_POINTS, weights.into_iter().map(|(name, weight)| (name, Some(weight))).collect());
            profile.plugin_config.extend(arguments);
        }
        if let Some(weight) = policy.hard_pod_affinity_symmetric_weight {
            if !(1..=100).contains(&weight) {
                return wrong("hardPodAffinitySymmetricWeight: not in valid range [1-100]");
            }
            let args = json!({ "hardPodAffinityWeight": weight });
            profile.plugin_config.push(PluginArguments { name: "InterPodAffinity".into(), args });
        }
        let extenders = policy.extenders.into_iter().enumerate().map(|(at, extender)| extender.config(at));
        let config = Self { profiles: vec![profile], extenders: extenders.collect::<Result<_>>()?, ..Self::default() };
        config.check()?;
        Ok(config)
    }

    pub fn load_policy(path: &Path) -> Result<Self> {
        let named = |error: String| Error::Config(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
        Self::from_policy(&text).map_err(|Error::Config(text)| named(text))
    }
}

fn wrong<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Config(what.into()))
}

/// Turns everything off at these points but what is listed; each plugin where it has something to do.
fn only(profile: &mut ProfileConfig, points: &[ExtensionPoint], plugins: Vec<(&'static str, Option<i64>)>) {
    let registry = Registry::default();
    for point in points {
        let built = |name: &str| registry.find(name).and_then(|row| (row.new)(&Value::Null).ok());
        let extends = |name: &str| built(name).is_some_and(|plugin| plugin.extends(*point));
        let enabled = plugins.iter().filter(|(name, _)| extends(name));
        let enabled = enabled.map(|(name, weight)| PluginChoice { name: (*name).into(), weight: *weight }).collect();
        let all = vec![PluginChoice { name: "*".into(), weight: None }];
        profile.plugins.insert(point.name().into(), PluginSelection { enabled, disabled: all });
    }
}

fn filters(predicates: &[Predicate]) -> Result<Vec<&'static str>> {
    let mut names: Vec<&'static str> = MANDATORY.to_vec();
    for (at, predicate) in predicates.iter().enumerate() {
        let path = format!("predicates[{at}]");
        if let Some(argument) = &predicate.argument {
            return wrong(format!("{path}.argument: {argument} needs a plugin that Kubernetes no longer has"));
        }
        let known = PREDICATES.iter().find(|(name, _)| *name == predicate.name);
        let Some((_, plugins)) = known else {
            return unknown(&path, "predicate", &predicate.name, PREDICATES.iter().map(|(name, _)| *name));
        };
        for plugin in *plugins {
            if !names.contains(plugin) {
                names.push(plugin);
            }
        }
    }
    Ok(names)
}

type Weights = Vec<(&'static str, i64)>;

fn scores(priorities: &[Priority]) -> Result<(Weights, Vec<PluginArguments>)> {
    let (mut weights, mut arguments) = (Weights::new(), Vec::new());
    let mut strategy = None::<(&str, &str)>;
    for (at, priority) in priorities.iter().enumerate() {
        let path = format!("priorities[{at}]");
        if priority.weight <= 0 {
            return wrong(format!(
                "{path}.weight: Priority {} should have a positive weight applied to it",
                priority.name
            ));
        }
        let ratio = priority.argument.as_ref().and_then(|argument| argument.get("requestedToCapacityRatioArguments"));
        if let (Some(argument), None) = (&priority.argument, ratio) {
            return wrong(format!("{path}.argument: {argument} needs a plugin that Kubernetes no longer has"));
        }
        let own_name = if ratio.is_some() { "RequestedToCapacityRatioPriority" } else { &priority.name };
        let known = PRIORITIES.iter().find(|(name, _, _)| *name == own_name);
        let Some((_, plugin, division)) = known else {
            return unknown(&path, "priority", &priority.name, PRIORITIES.iter().map(|(name, _, _)| *name));
        };
        if let Some(division) = division {
            if let Some((other, _)) = strategy {
                return wrong(format!("{path}: {:?} can't be combined with {other:?}", priority.name));
            }
            strategy = Some((&priority.name, division));
            arguments.push(fit_arguments(&path, division, ratio)?);
        }
        if !plugin.is_empty() {
            match weights.iter_mut().find(|(name, _)| name == plugin) {
                Some((_, weight)) => *weight += priority.weight,
                None => weights.push((plugin, priority.weight)),
            }
        }
    }
    Ok((weights, arguments))
}

/// How NodeResourcesFit scores.
fn fit_arguments(path: &str, division: &str, ratio: Option<&Value>) -> Result<PluginArguments> {
    let mut strategy = json!({ "type": division });
    if division == "RequestedToCapacityRatio" {
        let Some(ratio) = ratio else {
            return wrong(format!("{path}.argument.requestedToCapacityRatioArguments: Required value"));
        };
        let list = |name: &str| ratio.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let point = |point: &Value| json!({ "utilization": point["utilization"], "score": point["score"] });
        strategy["requestedToCapacityRatio"] = json!({ "shape": list("shape").iter().map(point).collect::<Vec<_>>() });
        let resources: Vec<Value> = list("resources")
            .iter()
            .map(|resource| json!({ "name": resource["name"], "weight": resource["weight"].as_i64().unwrap_or(1) }))
            .collect();
        if !resources.is_empty() {
            strategy["resources"] = resources.into();
        }
    }
    Ok(PluginArguments { name: "NodeResourcesFit".into(), args: json!({ "scoringStrategy": strategy }) })
}

fn unknown<'a, T>(path: &str, what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Result<T> {
    if let Some((_, instead)) = REMOVED.iter().find(|(removed, _)| *removed == name) {
        return wrong(format!("{path}.name: Kubernetes no longer has {name:?}; {instead}"));
    }
    let nearest = known.min_by_key(|known| distance(known, name)).unwrap_or_default();
    wrong(format!("{path}.name: unknown {what} {name:?}; the nearest is {nearest:?}"))
}

impl PolicyExtender {
    fn config(self, at: usize) -> Result<ExtenderConfig> {
        let path = format!("extenders[{at}]");
        let mut value = serde_json::to_value(&self.rest).unwrap_or_default();
        value["enableHTTPS"] = self.enable_https.into();
        match self.http_timeout {
            None | Some(Value::Null) => {}
            // As Go encodes a duration.
            Some(Value::Number(nanoseconds)) => {
                let Some(nanoseconds) = nanoseconds.as_u64() else {
                    return wrong(format!("{path}.httpTimeout: {nanoseconds} is not a number of nanoseconds"));
                };
                value["httpTimeout"] = format!("{}ms", nanoseconds / 1_000_000).into();
            }
            Some(text) => value["httpTimeout"] = text,
        }
        serde_json::from_value(value).map_err(|error| Error::Config(format!("{path}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(policy: Value) -> (Vec<String>, Vec<(String, i64)>, Config) {
        let mut policy = policy;
        policy["kind"] = "Policy".into();
        policy["apiVersion"] = "v1".into();
        let config = Config::from_policy(&policy.to_string()).unwrap();
        let profiles = config.profiles().unwrap();
        let profile = &profiles["default-scheduler"];
        let filters = profile.filter.iter().map(|plugin| plugin.name.to_string()).collect();
        let scores = profile.score.iter().map(|(plugin, weight)| (plugin.name.to_string(), *weight)).collect();
        (filters, scores, config)
    }

    #[test]
    fn policies_become_profiles() {
        let check = |policy: Value, filters: &[&str], scores: &[(&str, i64)]| {
            let (found_filters, found_scores, _) = profile(policy.clone());
            assert_eq!(found_filters, filters, "{policy}");
            let scores: Vec<_> = scores.iter().map(|(name, weight)| (name.to_string(), *weight)).collect();
            assert_eq!(found_scores, scores, "{policy}");
        };
        let usual = json!({
            "predicates": [{ "name": "PodFitsHostPorts" }, { "name": "PodFitsResources" }, { "name": "NoDiskConflict" },
                { "name": "MatchNodeSelector" }, { "name": "HostName" }],
            "priorities": [{ "name": "LeastRequestedPriority", "weight": 1 },
                { "name": "BalancedResourceAllocation", "weight": 2 },
                { "name": "ServiceSpreadingPriority", "weight": 3 }, { "name": "EqualPriority", "weight": 1 }],
        });
        check(
            usual,
            &[
                "NodeUnschedulable",
                "TaintToleration",
                "NodePorts",
                "NodeResourcesFit",
                "VolumeRestrictions",
                "NodeAffinity",
                "NodeName",
            ],
            &[("NodeResourcesFit", 1), ("NodeResourcesBalancedAllocation", 2), ("PodTopologySpread", 3)],
        );
        let general =
            ["NodeUnschedulable", "TaintToleration", "NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"];
        let policy = json!({ "predicates": [{ "name": "GeneralPredicates" }], "priorities": [] });
        check(policy, &general, &[]);
        let (defaults, weights, _) = profile(json!({}));
        let plain = Config::default().profiles().unwrap();
        assert_eq!(defaults.len(), plain["default-scheduler"].filter.len());
        assert_eq!(weights.len(), plain["default-scheduler"].score.len());
    }

    #[test]
    fn extenders_of_the_older_form() {
        let (_, _, config) = profile(json!({ "extenders": [{
            "urlPrefix": "http://127.0.0.1:12346/scheduler", "apiVersion": "v1beta1", "filterVerb": "filter",
            "prioritizeVerb": "prioritize", "weight": 5, "enableHttps": false, "nodeCacheCapable": true,
            "httpTimeout": 1_500_000_000u64, "ignorable": true,
            "managedResources": [{ "name": "example.com/foo", "ignoredByScheduler": true }] }] }));
        let extender = &config.extenders[0];
        assert_eq!((extender.filter_verb.as_str(), extender.weight), ("filter", 5));
        assert_eq!(extender.http_timeout.as_deref(), Some("1500ms"));
        assert!(
            extender.node_cache_capable && extender.ignorable && extender.managed_resources[0].ignored_by_scheduler
        );
    }

    #[test]
    fn what_is_not_known_is_refused_with_the_nearest() {
        let check = |policy: &str, expected: &str| {
            let error = Config::from_policy(policy).map(drop).expect_err(policy).to_string();
            assert!(error.contains(expected), "{policy}: {error}");
        };
        let policy = |rest: &str| format!("kind: Policy\napiVersion: v1\n{rest}");
        check("kind: Pod\napiVersion: v1", "use v1 Policy");
        let unknown = policy("predicates: [{name: PodFitHostPorts}]");
        check(&unknown, "unknown predicate \"PodFitHostPorts\"; the nearest is \"PodFitsHostPorts\"");
        let unknown = policy("priorities: [{name: LeastRequested, weight: 1}]");
        check(&unknown, "the nearest is \"LeastRequestedPriority\"");
        check(&policy("priorities: [{name: EqualPriority}]"), "should have a positive weight");
        let removed = policy("priorities: [{name: NodePreferAvoidPodsPriority, weight: 1}]");
        check(&removed, "no longer has \"NodePreferAvoidPodsPriority\"; use taints");
        let both = "priorities: [{name: LeastRequestedPriority, weight: 1}, {name: MostRequestedPriority, weight: 1}]";
        check(&policy(both), "can't be combined");
        check(&policy("predicatez: []"), "predicatez");
        check(&policy("hardPodAffinitySymmetricWeight: 101"), "[1-100]");
        check(&policy("extenders: [{urlPrefix: 'http://x', filterVerp: f}]"), "filterVerp");
    }
}
