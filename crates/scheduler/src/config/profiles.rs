//! Makes profiles of a configuration: which plugins are on at which extension point, in which order, with which weight.
//! Reads `config::Config` and the registry; what comes out is `framework::Profile`.
//! A profile has exactly one QueueSort plugin, the same as all others, and at least one Bind plugin.

use std::{collections::BTreeMap, sync::Arc};

use api::field::{ErrorList, Path};
use serde_json::Value;

use super::{Config, PluginChoice, PluginSelection, ProfileConfig};
use crate::{
    Error,
    framework::{Enabled, ExtensionPoint, Plugin, Profile},
    plugins::registry::{Registry, Row},
};

impl Config {
    /// The profiles, ready to use, by scheduler name.
    pub fn profiles(&self) -> Result<BTreeMap<String, Arc<Profile>>, Error> {
        let mut profiles = BTreeMap::new();
        let mut queue_sort = None;
        for (at, config) in self.profiles.iter().enumerate() {
            let wrong = |error: String| Error::Config(format!("profiles[{at}].{error}"));
            let (profile, sorts_by) = self.profile(config).map_err(wrong)?;
            let name = profile.scheduler_name.clone();
            if *queue_sort.get_or_insert(sorts_by) != sorts_by {
                return Err(wrong(format!(
                    "plugins.queueSort: Invalid value: {sorts_by:?}: has to match for all profiles"
                )));
            }
            if profiles.insert(name.clone(), Arc::new(profile)).is_some() {
                return Err(wrong(format!("schedulerName: Duplicate value: {name:?}")));
            }
        }
        Ok(profiles)
    }

    /// The profile, and the name of its QueueSort plugin.
    fn profile(&self, config: &ProfileConfig) -> Result<(Profile, &'static str), String> {
        if config.percentage_of_nodes_to_score.is_some_and(|percent| percent > 100) {
            return Err("percentageOfNodesToScore: not in valid range [0-100]".into());
        }
        self.check_arguments(config)?;
        let selection = Selection::new(config, &self.registry)?;
        let instances = self.instances(config)?;
        selection.check_points(&instances)?;
        let scheduler_name = config.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".into());
        macro_rules! enabled {
            ($field:ident, $point:ident) => {
                selection.at(ExtensionPoint::$point, &instances).filter_map(|at| {
                    let (row, instance) = &instances[at];
                    Some(Enabled { row: at, name: row.name, plugin: instance.$field.clone()? })
                })
            };
        }
        let queue_sorts: Vec<_> = enabled!(queue_sort, QueueSort).collect();
        let [queue_sort] = queue_sorts.as_slice() else {
            let count = queue_sorts.len();
            return Err(format!(
                "plugins.queueSort: only one queue sort plugin required for profile with scheduler name \
                 {scheduler_name:?}, but got {count}"
            ));
        };
        let score = enabled!(score, Score).map(|score| {
            let weight = selection.weight(instances[score.row].0);
            (score, weight)
        });
        // What decides about a pod must be signed for, and may turn pods down that an event brings back.
        let deciding = |at: &usize| {
            use ExtensionPoint::{Filter, PostFilter, PreFilter, PreScore, Score};
            [PreFilter, Filter, PostFilter, PreScore, Score].iter().any(|p| selection.is_on(*p, *at, &instances))
        };
        let sign = (0..instances.len()).filter(deciding).map(|at| {
            let (row, instance) = &instances[at];
            Some(Enabled { row: at, name: row.name, plugin: instance.sign.clone()? })
        });
        let enqueue_extensions = instances.iter().enumerate().filter_map(|(at, (row, instance))| {
            Some(Enabled { row: at, name: row.name, plugin: instance.enqueue_extensions.clone()? })
        });
        let profile = Profile {
            percentage_of_nodes_to_score: config
                .percentage_of_nodes_to_score
                .unwrap_or(self.percentage_of_nodes_to_score),
            pre_enqueue: enabled!(pre_enqueue, PreEnqueue).collect(),
            queue_sort: queue_sort.plugin.clone(),
            pre_filter: enabled!(pre_filter, PreFilter).collect(),
            filter: enabled!(filter, Filter).collect(),
            post_filter: enabled!(post_filter, PostFilter).collect(),
            pre_score: enabled!(pre_score, PreScore).collect(),
            score: score.collect(),
            reserve: enabled!(reserve, Reserve).collect(),
            permit: enabled!(permit, Permit).collect(),
            pre_bind: enabled!(pre_bind, PreBind).collect(),
            bind: enabled!(bind, Bind).collect(),
            post_bind: enabled!(post_bind, PostBind).collect(),
            enqueue_extensions: enqueue_extensions.collect(),
            sign: sign.collect(),
            scheduler_name,
        };
        if profile.bind.is_empty() {
            let name = &profile.scheduler_name;
            return Err(format!(
                "plugins.bind: at least one bind plugin is needed for profile with scheduler name {name:?}"
            ));
        }
        Ok((profile, queue_sort.name))
    }

    fn check_arguments(&self, config: &ProfileConfig) -> Result<(), String> {
        for (at, arguments) in config.plugin_config.iter().enumerate() {
            let row = self
                .registry
                .find(&arguments.name)
                .ok_or_else(|| format!("pluginConfig[{at}]: unknown plugin {:?}", arguments.name))?;
            row.check_names(&arguments.args).map_err(|error| format!("pluginConfig[{at}].args{error}"))?;
            let mut errors = ErrorList::new();
            if let Some(check) = row.check_arguments {
                check(&mut errors, &arguments.args, &Path::new("pluginConfig").index(at).child("args"));
            }
            if !errors.is_empty() {
                return Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
            }
        }
        Ok(())
    }

    /// Every plugin of the registry, built with the profile's arguments.
    fn instances(&self, config: &ProfileConfig) -> Result<Instances<'_>, String> {
        let build = |row: &'_ Row| {
            let place = config.plugin_config.iter().position(|a| a.name == row.name);
            let mut arguments = place.map_or(Value::Null, |at| config.plugin_config[at].args.clone());
            if row.name == "NodeResourcesFit" {
                self.leave_to_extenders(&mut arguments);
            }
            (row.new)(&arguments).map_err(|error| match place {
                Some(at) => format!("pluginConfig[{at}].args.{error}"),
                None => format!("{}: {error}", row.name),
            })
        };
        self.registry.rows().iter().map(|row| Ok((row, build(row)?))).collect()
    }

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

/// In the order of the registry.
type Instances<'a> = Vec<(&'a Row, Plugin)>;

/// Which plugins are on where. `multiPoint` speaks for every point; a point's own list has the last word.
struct Selection<'a> {
    plugins: &'a BTreeMap<String, PluginSelection>,
    /// What `multiPoint` enables, in order: the defaults, then the others.
    multi_point: Vec<&'a str>,
}

fn is_listed(choices: &[PluginChoice], name: &str) -> bool {
    choices.iter().any(|choice| choice.name == name)
}

fn is_disabled(choices: &[PluginChoice], name: &str) -> bool {
    choices.iter().any(|choice| choice.name == "*" || choice.name == name)
}

impl<'a> Selection<'a> {
    fn new(config: &'a ProfileConfig, registry: &Registry) -> Result<Self, String> {
        for (point, selection) in &config.plugins {
            if point != "multiPoint" && !ExtensionPoint::ALL.iter().any(|p| p.name() == point) {
                return Err(format!("plugins: unknown extension point {point:?}"));
            }
            let mut named = selection.enabled.iter().chain(selection.disabled.iter().filter(|c| c.name != "*"));
            if let Some(unknown) = named.find(|choice| registry.find(&choice.name).is_none()) {
                return Err(format!("plugins.{point}: {:?} does not exist", unknown.name));
            }
            for (at, choice) in selection.enabled.iter().enumerate() {
                if is_listed(&selection.enabled[..at], &choice.name) {
                    return Err(format!("plugins.{point}: plugin {:?} already registered", choice.name));
                }
            }
        }
        let everywhere = config.plugins.get("multiPoint");
        let (enabled, disabled) = everywhere.map_or((&[][..], &[][..]), |s| (&s.enabled[..], &s.disabled[..]));
        // A default that is listed again keeps its place, as upstream's does.
        let defaults = registry.defaults().filter(|name| is_listed(enabled, name) || !is_disabled(disabled, name));
        let defaults: Vec<&str> = match disabled.iter().any(|choice| choice.name == "*") {
            true => Vec::new(),
            false => defaults.collect(),
        };
        let others = enabled.iter().map(|choice| choice.name.as_str()).filter(|name| !defaults.contains(name));
        let multi_point = defaults.iter().copied().chain(others).collect();
        Ok(Self { plugins: &config.plugins, multi_point })
    }

    /// A plugin can't be enabled at a point that it does not extend.
    fn check_points(&self, instances: &Instances<'_>) -> Result<(), String> {
        for point in ExtensionPoint::ALL {
            let listed = self.plugins.get(point.name()).into_iter().flat_map(|selection| &selection.enabled);
            for choice in listed {
                let (_, instance) = &instances[position(instances, &choice.name)];
                if !instance.extends(*point) {
                    let (name, plugin) = (point.name(), &choice.name);
                    let plugin_type = point.plugin_type();
                    return Err(format!("plugins.{name}: plugin {plugin:?} does not extend {plugin_type} plugin"));
                }
            }
        }
        Ok(())
    }

    /// Positions of the plugins that are on at a point, in the order in which they run: those that the point's own list
    /// enables again, the others that `multiPoint` enables, then the rest of the point's own list.
    fn at(&self, point: ExtensionPoint, instances: &Instances<'_>) -> impl Iterator<Item = usize> {
        let own = self.plugins.get(point.name());
        let (enabled, disabled) = own.map_or((&[][..], &[][..]), |s| (&s.enabled[..], &s.disabled[..]));
        let all_off = disabled.iter().any(|choice| choice.name == "*");
        let again = |name: &str| self.multi_point.contains(&name) && !is_disabled(disabled, name);
        let multi_point = self.multi_point.iter().copied();
        let multi_point =
            multi_point.filter(|name| !all_off && !is_disabled(disabled, name) && !is_listed(enabled, name));
        let names = enabled.iter().map(|choice| choice.name.as_str());
        let first = names.clone().filter(|name| again(name));
        let last = names.filter(|name| !again(name));
        let ordered: Vec<usize> = first
            .chain(multi_point)
            .chain(last)
            .map(|name| position(instances, name))
            .filter(|at| instances[*at].1.extends(point))
            .collect();
        ordered.into_iter()
    }

    fn is_on(&self, point: ExtensionPoint, at: usize, instances: &Instances<'_>) -> bool {
        self.at(point, instances).any(|on| on == at)
    }

    fn weight(&self, row: &Row) -> i64 {
        let lists = [ExtensionPoint::Score.name(), "multiPoint"].map(|name| self.plugins.get(name));
        let given = lists.into_iter().flatten().flat_map(|s| &s.enabled).filter(|c| c.name == row.name);
        given.filter_map(|c| c.weight).find(|weight| *weight > 0).unwrap_or(row.weight)
    }
}

/// Of a plugin whose name has been checked.
fn position(instances: &Instances<'_>, name: &str) -> usize {
    instances.iter().position(|(row, _)| row.name == name).unwrap_or_default()
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
                let scores = profile.score.iter().map(|(s, weight)| format!("{}={weight}", s.name));
                scores.filter(|s| s.starts_with("TaintT") || s.starts_with("NodeAff")).collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(found, wanted, "{rest}");
    }

    /// Names of the plugins at a point of the first profile, or the error.
    fn check_point(rest: &str, point: &str, wanted: &str) {
        let found = match Config::from_yaml(&yaml(rest)).and_then(|c| c.profiles()) {
            Ok(profiles) => {
                let profile = profiles.values().next().unwrap();
                macro_rules! names {
                    ($field:ident) => {
                        profile.$field.iter().map(|enabled| enabled.name).collect::<Vec<_>>().join(" ")
                    };
                }
                match point {
                    "preEnqueue" => names!(pre_enqueue),
                    "preFilter" => names!(pre_filter),
                    "filter" => names!(filter),
                    "postFilter" => names!(post_filter),
                    "preScore" => names!(pre_score),
                    "reserve" => names!(reserve),
                    "permit" => names!(permit),
                    "preBind" => names!(pre_bind),
                    "bind" => names!(bind),
                    "postBind" => names!(post_bind),
                    other => panic!("{other}"),
                }
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(found, wanted, "{rest}");
    }

    #[test]
    fn every_extension_point_has_its_plugins() {
        for (point, wanted) in [
            ("preEnqueue", "SchedulingGates DynamicResources"),
            (
                "preFilter",
                "NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone \
                 PodTopologySpread InterPodAffinity DynamicResources",
            ),
            (
                "filter",
                "NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions \
                 NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity DynamicResources",
            ),
            ("postFilter", "DynamicResources DefaultPreemption"),
            (
                "preScore",
                "TaintToleration NodeAffinity NodeResourcesFit PodTopologySpread InterPodAffinity \
                 DynamicResources NodeResourcesBalancedAllocation",
            ),
            ("reserve", "VolumeBinding DynamicResources"),
            ("permit", ""),
            ("preBind", "VolumeBinding DynamicResources"),
            ("bind", "DefaultBinder"),
            ("postBind", ""),
        ] {
            check_point("", point, wanted);
            let off = format!("profiles: [{{plugins: {{{point}: {{disabled: [{{name: '*'}}]}}}}}}]");
            let without = match point {
                "bind" => {
                    "invalid configuration: profiles[0].plugins.bind: at least one bind plugin is needed for profile with \
                     scheduler name \"default-scheduler\""
                }
                _ => "",
            };
            check_point(&off, point, without);
        }
    }

    #[test]
    fn points_are_chosen_and_ordered_one_by_one() {
        let only = "profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, \
            {name: DefaultBinder}, {name: NodePorts}, {name: NodeName}]}}}]";
        check_point(only, "filter", "NodePorts NodeName");
        check_point(only, "preFilter", "NodePorts");
        check_point(only, "postFilter", "");
        let first = "profiles: [{plugins: {filter: {enabled: [{name: InterPodAffinity}, {name: NodePorts}], \
            disabled: [{name: NodeName}, {name: VolumeZone}]}}}]";
        check_point(
            first,
            "filter",
            "InterPodAffinity NodePorts NodeUnschedulable TaintToleration NodeAffinity NodeResourcesFit \
             VolumeRestrictions NodeVolumeLimits VolumeBinding PodTopologySpread DynamicResources",
        );
        let without = "profiles: [{plugins: {postFilter: {disabled: [{name: DefaultPreemption}]}, \
            preEnqueue: {disabled: [{name: SchedulingGates}]}}}]";
        check_point(without, "postFilter", "DynamicResources");
        check_point(without, "preEnqueue", "DynamicResources");
        for (plugins, wanted) in [
            ("score: {enabled: [{name: NodeName}]}", "score: plugin \"NodeName\" does not extend ScorePlugin plugin"),
            ("bind: {enabled: [{name: NodePorts}]}", "bind: plugin \"NodePorts\" does not extend BindPlugin plugin"),
            (
                "filter: {enabled: [{name: NodeName}, {name: NodeName}]}",
                "filter: plugin \"NodeName\" already registered",
            ),
            (
                "queueSort: {disabled: [{name: PrioritySort}]}",
                "queueSort: only one queue sort plugin required for profile with scheduler name \"default-scheduler\", \
                 but got 0",
            ),
        ] {
            let wanted = format!("invalid configuration: profiles[0].plugins.{wanted}");
            check_point(&format!("profiles: [{{plugins: {{{plugins}}}}}]"), "filter", &wanted);
        }
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
