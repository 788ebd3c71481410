//! Pods that want to be near other pods, or away from them, by topology; and pods that are wanted near or kept away.
//! Terms are read once by `pod_info`; `cache` says when no pod has any, and then nobody looks.
//! `topology_rules` is the same for equivalence classes.

mod topology_rules;

use std::{collections::HashMap, hash::Hasher};

use serde_json::Value;

use crate::{
    cluster::Cluster,
    equivalence_class::{PodSignature, Scope},
    framework::{
        ClusterEvent, EnqueueExtensions, FilterPlugin, MAX_NODE_SCORE, NodeFilter, NodeScorer, Plugin, PreFilterPlugin,
        PreFilterResult, PreScorePlugin, PreScoreResult, QueueingHint, ScorePlugin, SignPlugin, Status, node_label,
    },
    node_info::NodeInfo,
    pod_info::{AffinityTerm, PendingPod, PodInfo},
};

const AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

pub struct InterPodAffinity {
    /// What a running pod's required affinity to the new one is worth.
    hard_weight: i64,
    ignore_preferred_of_existing: bool,
}

impl Default for InterPodAffinity {
    fn default() -> Self {
        Self { hard_weight: 1, ignore_preferred_of_existing: false }
    }
}

pub fn new(arguments: &Value) -> Result<Plugin, String> {
    let hard_weight = arguments["hardPodAffinityWeight"].as_i64().unwrap_or(1);
    let ignore_preferred_of_existing = arguments["ignorePreferredTermsOfExistingPods"].as_bool().unwrap_or(false);
    let plugin = InterPodAffinity { hard_weight, ignore_preferred_of_existing };
    Ok(Plugin::of(plugin).pre_filter().filter().pre_score().score().enqueue_extensions().sign().build())
}

/// Numbers by topology key and value.
#[derive(Clone, Default)]
struct Domains(HashMap<String, HashMap<String, i64>>);

impl Domains {
    fn add(&mut self, node: &NodeInfo, key: &str, amount: i64) {
        let Some(value) = node.label(key) else { return };
        let values = match self.0.get_mut(key) {
            Some(values) => values,
            None => self.0.entry(key.to_string()).or_default(),
        };
        match values.get_mut(value) {
            Some(number) => *number += amount,
            None => drop(values.insert(value.to_string(), amount)),
        }
    }

    fn get(&self, key: &str, value: &str) -> i64 {
        self.0.get(key).and_then(|values| values.get(value)).copied().unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        self.0.values().all(|values| values.values().all(|number| *number == 0))
    }
}

fn required(pod: &PodInfo) -> &[AffinityTerm] {
    pod.affinity.as_ref().map(|a| a.required.as_slice()).unwrap_or_default()
}

fn required_anti(pod: &PodInfo) -> &[AffinityTerm] {
    pod.affinity.as_ref().map(|a| a.required_anti.as_slice()).unwrap_or_default()
}

fn matches_all(terms: &[AffinityTerm], pod: &PodInfo, cluster: &Cluster) -> bool {
    !terms.is_empty() && terms.iter().all(|term| term.matches(pod, cluster))
}

#[derive(Clone)]
struct Rules<'a> {
    cluster: &'a Cluster,
    pod: &'a PodInfo,
    /// Pods that match our affinity, pods that match our anti-affinity, pods whose anti-affinity we match.
    near: Domains,
    away: Domains,
    kept_away: Domains,
}

impl Rules<'_> {
    fn count(&mut self, other: &PodInfo, node: &NodeInfo, amount: i64) {
        for term in required_anti(other).iter().filter(|term| term.matches(self.pod, self.cluster)) {
            self.kept_away.add(node, &term.topology_key, amount);
        }
        if matches_all(required(self.pod), other, self.cluster) {
            for term in required(self.pod) {
                self.near.add(node, &term.topology_key, amount);
            }
        }
        for term in required_anti(self.pod).iter().filter(|term| term.matches(other, self.cluster)) {
            self.away.add(node, &term.topology_key, amount);
        }
    }

    fn is_near(&self, node: &NodeInfo) -> bool {
        let terms = required(self.pod);
        if !terms.iter().all(|term| node.label(&term.topology_key).is_some()) {
            return false;
        }
        let satisfied = terms.iter().all(|term| {
            node.label(&term.topology_key).is_some_and(|value| self.near.get(&term.topology_key, value) > 0)
        });
        // The first of a group that wants to be together has nobody to be near yet.
        satisfied || (self.near.is_empty() && matches_all(terms, self.pod, self.cluster))
    }

    fn is_away(&self, node: &NodeInfo) -> bool {
        required_anti(self.pod).iter().all(|term| {
            node.label(&term.topology_key).is_none_or(|value| self.away.get(&term.topology_key, value) <= 0)
        })
    }

    fn is_kept_away(&self, node: &NodeInfo) -> bool {
        self.kept_away
            .0
            .iter()
            .any(|(key, values)| node.label(key).is_some_and(|value| values.get(value).copied().unwrap_or(0) > 0))
    }
}

impl PreFilterPlugin for InterPodAffinity {
    fn pre_filter(&self, cluster: &Cluster, pod: &PendingPod) -> PreFilterResult {
        if let Some(error) = &pod.error {
            return PreFilterResult::Reject(Status::unresolvable(format!("parsing pod: {error}")));
        }
        let matters = has_required(pod) || cluster.cache.any_required_anti_affinity();
        if matters { PreFilterResult::AllNodes } else { PreFilterResult::Skip }
    }
}

impl FilterPlugin for InterPodAffinity {
    fn node_filter<'a>(&'a self, cluster: &'a Cluster, pod: &'a PendingPod) -> Box<dyn NodeFilter<'a> + 'a> {
        let (near, away, kept_away) = Default::default();
        let mut rules = Rules { cluster, pod, near, away, kept_away };
        let own = has_required(pod);
        for node in cluster.cache.nodes() {
            if own {
                for other in &node.pods {
                    rules.count(other, node, 1);
                }
            } else if node.pods_with_required_anti_affinity > 0 {
                for other in node.pods.iter().filter(|p| p.has_required_anti_affinity()) {
                    rules.count(other, node, 1);
                }
            }
        }
        Box::new(rules)
    }
}

impl PreScorePlugin for InterPodAffinity {
    fn pre_score(&self, cluster: &Cluster, pod: &PendingPod, _: &[&NodeInfo]) -> PreScoreResult {
        if self.prefers(cluster, pod) { PreScoreResult::Continue } else { PreScoreResult::Skip }
    }
}

impl ScorePlugin for InterPodAffinity {
    fn node_scorer<'a>(
        &'a self,
        cluster: &'a Cluster,
        pod: &'a PendingPod,
        _: &[&'a NodeInfo],
    ) -> Box<dyn NodeScorer + 'a> {
        let own = has_preferences(pod);
        let mut sums = Domains::default();
        for node in cluster.cache.nodes() {
            if !own && node.pods_with_affinity == 0 {
                continue;
            }
            for other in &node.pods {
                self.preferences(cluster, pod, other, |key, weight| sums.add(node, key, weight));
            }
        }
        Box::new(Nearness(sums))
    }
}

impl SignPlugin for InterPodAffinity {
    fn sign_pod(&self, _: &Cluster, pod: &PendingPod, signature: &mut PodSignature<'_>) {
        signature.namespace();
        signature.labels();
        signature.node_selector_and_affinity();
        if pod.error.is_some() {
            signature.make_unsignable();
        }
    }

    fn scope(&self, cluster: &Cluster, pod: &PendingPod) -> Scope {
        match pod.error {
            Some(_) => Scope::Alone,
            None => Scope::Domains(Box::new(topology_rules::TopologyRules::new(self, cluster, pod))),
        }
    }

    fn hash_dependencies(&self, cluster: &Cluster, pod: &PendingPod, hasher: &mut dyn Hasher) {
        // Terms may select namespaces by their labels.
        if pod.affinity.is_some() || cluster.cache.any_affinity() {
            hasher.write_u64(cluster.namespaces_version);
        }
    }
}

impl EnqueueExtensions for InterPodAffinity {
    fn queueing_hint(&self, cluster: &Cluster, pod: &PendingPod, event: &ClusterEvent) -> QueueingHint {
        QueueingHint::queue_if(match event {
            ClusterEvent::PodPlaced(other) => matches_all(required(pod), other, cluster),
            ClusterEvent::PodGone(other) => {
                required_anti(pod).iter().any(|term| term.matches(other, cluster))
                    || required_anti(other).iter().any(|term| term.matches(pod, cluster))
            }
            ClusterEvent::PodChanged { was, now } => {
                let comes = !matches_all(required(pod), was, cluster) && matches_all(required(pod), now, cluster);
                let goes = |term: &AffinityTerm| term.matches(was, cluster) && !term.matches(now, cluster);
                comes || required_anti(pod).iter().any(goes)
            }
            // Terms may select namespaces by their labels, those of running pods too.
            ClusterEvent::Namespace => true,
            ClusterEvent::Node { name, change, was } => {
                let node = cluster.cache.node(name);
                let label = |term: &AffinityTerm| node.and_then(|n| n.label(&term.topology_key));
                let has_keys = node.is_some() && required(pod).iter().all(|term| label(term).is_some());
                // What we keep away from may have left a domain with its node.
                let left = |term: &AffinityTerm| {
                    let before = was.as_ref().and_then(|was| node_label(was, &term.topology_key));
                    before.is_some() && before != label(term)
                };
                change.labels && (has_keys || required_anti(pod).iter().any(left))
            }
            ClusterEvent::NodeGone(_) => !required_anti(pod).is_empty() || cluster.cache.any_required_anti_affinity(),
            _ => false,
        })
    }
}

fn has_required(pod: &PodInfo) -> bool {
    !required(pod).is_empty() || !required_anti(pod).is_empty()
}

impl<'a> NodeFilter<'a> for Rules<'a> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Status> {
        if !self.is_near(node) {
            Err(Status::unresolvable(AFFINITY))
        } else if !self.is_away(node) {
            Err(Status::unschedulable(ANTI_AFFINITY))
        } else if self.is_kept_away(node) {
            Err(Status::unschedulable(EXISTING))
        } else {
            Ok(())
        }
    }

    fn fork(&self) -> Box<dyn NodeFilter<'a> + 'a> {
        Box::new(self.clone())
    }

    fn add_pod(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.count(pod, node, 1);
    }

    fn remove_pod(&mut self, pod: &PodInfo, node: &NodeInfo) {
        self.count(pod, node, -1);
    }
}

impl InterPodAffinity {
    /// Whether any pod on a node may make a difference to the pod's score.
    fn prefers(&self, cluster: &Cluster, pod: &PodInfo) -> bool {
        has_preferences(pod) || (!self.ignore_preferred_of_existing && cluster.cache.any_affinity())
    }

    /// What `other` adds to the score of its domains: topology keys and weights.
    fn preferences(&self, cluster: &Cluster, pod: &PodInfo, other: &PodInfo, mut add: impl FnMut(&str, i64)) {
        let mut each = |terms: &[AffinityTerm], of: &PodInfo, worth: &dyn Fn(&AffinityTerm) -> i64| {
            for term in terms.iter().filter(|term| term.matches(of, cluster)) {
                add(&term.topology_key, worth(term));
            }
        };
        let (wanted, unwanted) = (|term: &AffinityTerm| term.weight, |term: &AffinityTerm| -term.weight);
        let own = pod.affinity.as_ref().filter(|_| has_preferences(pod));
        if let Some(own) = own {
            each(&own.preferred, other, &wanted);
            each(&own.preferred_anti, other, &unwanted);
        }
        if let Some(theirs) = &other.affinity {
            if self.hard_weight > 0 {
                each(&theirs.required, pod, &|_| self.hard_weight);
            }
            if !self.ignore_preferred_of_existing || own.is_some() {
                each(&theirs.preferred, pod, &wanted);
                each(&theirs.preferred_anti, pod, &unwanted);
            }
        }
    }
}

fn has_preferences(pod: &PodInfo) -> bool {
    pod.affinity.as_ref().is_some_and(|a| !a.preferred.is_empty() || !a.preferred_anti.is_empty())
}

struct Nearness(Domains);

impl NodeScorer for Nearness {
    fn score(&self, _: usize, node: &NodeInfo) -> i64 {
        let sum = self.0.0.iter().filter_map(|(key, values)| node.label(key).and_then(|value| values.get(value)));
        sum.sum()
    }

    fn normalizes(&self) -> bool {
        true
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        normalize(scores);
    }
}

/// The lowest becomes 0 and the highest 100.
fn normalize(scores: &mut [i64]) {
    let (Some(lowest), Some(highest)) = (scores.iter().copied().min(), scores.iter().copied().max()) else {
        return;
    };
    for score in scores {
        *score = match highest - lowest {
            0 => 0,
            range => (MAX_NODE_SCORE as f64 * ((*score - lowest) as f64 / range as f64)) as i64,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::plugins::testing::{built, check_among, check_scores_among, cluster, labelled, named_pod, verdicts};

    fn term(key: &str, app: &str) -> Value {
        json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
    }

    fn wants(kind: &str, term: Value) -> PendingPod {
        let affinity = json!({kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        named_pod("default", "p", json!({"app": "p"}), json!({"affinity": affinity}))
    }

    fn app(name: &str) -> PendingPod {
        named_pod("default", name, json!({"app": name}), json!({}))
    }

    /// Nodes a and b in zone 1, c in zone 2; the verdict on each.
    fn check(pod: PendingPod, pods: Vec<(&str, PendingPod)>, wanted: [Option<&str>; 3]) {
        let nodes = [("a", "1"), ("b", "1"), ("c", "2")].map(|(name, zone)| labelled(name, &[("zone", zone)]));
        let verdicts = check_among(&built(new), &pod, &nodes, pods);
        let found: Vec<_> = verdicts.iter().map(|v| v.as_ref().err().map(|f| f.message())).collect();
        assert_eq!(found, wanted.map(|w| w.map(str::to_string)));
    }

    #[test]
    fn affinity_wants_a_matching_pod_in_the_domain() {
        let no = Some(AFFINITY);
        check(wants("podAffinity", term("zone", "db")), vec![("a", app("db"))], [None, None, no]);
        check(wants("podAffinity", term("zone", "db")), vec![("a", app("web"))], [no, no, no]);
        check(wants("podAffinity", term("zone", "p")), vec![], [None, None, None]);
        check(wants("podAffinity", term("rack", "p")), vec![], [no, no, no]);
    }

    #[test]
    fn namespaces_are_its_own_unless_named() {
        let elsewhere = || named_pod("other", "db", json!({"app": "db"}), json!({}));
        let no = Some(AFFINITY);
        check(wants("podAffinity", term("zone", "db")), vec![("a", elsewhere())], [no, no, no]);
        let mut named = term("zone", "db");
        named["namespaces"] = json!(["other"]);
        check(wants("podAffinity", named), vec![("a", elsewhere())], [None, None, no]);
        let mut all = term("zone", "db");
        all["namespaceSelector"] = json!({});
        check(wants("podAffinity", all), vec![("a", elsewhere())], [None, None, no]);
    }

    #[test]
    fn anti_affinity_holds_in_both_directions() {
        let no = Some(ANTI_AFFINITY);
        check(wants("podAntiAffinity", term("zone", "db")), vec![("a", app("db"))], [no, no, None]);
        let loner = named_pod(
            "default",
            "loner",
            json!({}),
            json!({"affinity": {"podAntiAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": [term("kubernetes.io/hostname", "p")]}}}),
        );
        check(app("p"), vec![("b", loner)], [None, Some(EXISTING), None]);
    }

    #[test]
    fn label_keys_narrow_the_selector() {
        let mut keyed = term("zone", "p");
        keyed["matchLabelKeys"] = json!(["version"]);
        let affinity = json!({"affinity": {"podAntiAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": [keyed]}}});
        let pod = named_pod("default", "p", json!({"app": "p", "version": "2"}), affinity);
        let other = |version: &str| named_pod("default", "o", json!({"app": "p", "version": version}), json!({}));
        check(pod, vec![("a", other("1")), ("c", other("2"))], [None, None, Some(ANTI_AFFINITY)]);
        let mut keyed = term("zone", "p");
        keyed["mismatchLabelKeys"] = json!(["version"]);
        let affinity = json!({"affinity": {"podAntiAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": [keyed]}}});
        let pod = named_pod("default", "p", json!({"app": "p", "version": "2"}), affinity);
        check(pod, vec![("a", other("1")), ("c", other("2"))], [Some(ANTI_AFFINITY), Some(ANTI_AFFINITY), None]);
    }

    #[test]
    fn namespaces_are_selected_by_their_labels() {
        let check = |selector: Value, wanted: [bool; 2]| {
            let mut selected = term("zone", "db");
            selected["namespaceSelector"] = selector;
            let pods = ["shop", "lab"].map(|namespace| named_pod(namespace, "db", json!({"app": "db"}), json!({})));
            let nodes = [labelled("a", &[("zone", "1")]), labelled("b", &[("zone", "2")])];
            let mut cluster = cluster(&nodes, ["a", "b"].into_iter().zip(pods).collect());
            for (name, team) in [("shop", "sea"), ("lab", "air")] {
                let namespace = json!({"metadata": {"name": name, "labels": {"team": team}}});
                cluster.namespaces.insert(name.into(), Arc::new(serde_json::from_value(namespace).unwrap()));
            }
            let verdicts = verdicts(&built(new), &wants("podAffinity", selected), &cluster);
            assert_eq!(verdicts.iter().map(Result::is_ok).collect::<Vec<_>>(), wanted);
        };
        check(json!({"matchLabels": {"team": "sea"}}), [true, false]);
        check(json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["sea"]}]}), [false, true]);
        check(json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]}), [true, true]);
        check(json!({"matchLabels": {"team": "land"}}), [false, false]);
    }

    #[test]
    fn preferences_add_up() {
        let weighted = json!([{"weight": 10, "podAffinityTerm": term("zone", "db")}]);
        let pod = named_pod(
            "default",
            "p",
            json!({}),
            json!({"affinity": {"podAffinity":
            {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}}),
        );
        let nodes = [labelled("a", &[("zone", "1")]), labelled("b", &[("zone", "2")])];
        check_scores_among(&built(new), &pod, &nodes, vec![("a", app("db"))], &[100, 0]);
    }
}
