//! Equivalence classes against the full computation: random clusters, pods and changes; after every step both must agree
//! on every node and score. And what a class costs, counted in groups.

use std::{collections::BTreeMap, sync::Arc};

use env::Env;
use metrics::Metrics;
use serde_json::{Value, json};

use super::{Choice, EquivalenceClasses, node_groups::EquivalenceClass, sign};
use crate::{Config, cluster::Cluster, cycle, framework::Profile, pod_info::PendingPod, scheduler_metrics::PointTimer};

struct World {
    cluster: Cluster,
    profile: Arc<Profile>,
    env: Env,
    next: usize,
}

impl World {
    fn new(seed: u64, configuration: &str) -> Self {
        let text = format!(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
             percentageOfNodesToScore: 100\n{configuration}"
        );
        let profiles = Config::from_yaml(&text).and_then(|config| config.profiles());
        let profile = profiles.unwrap().into_values().next().unwrap();
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), seed);
        Self { cluster: Cluster::default(), profile, env, next: 0 }
    }

    fn draw(&self, below: usize) -> usize {
        (self.env.random_u64() % below as u64) as usize
    }

    fn one_of<'t>(&self, texts: &[&'t str]) -> &'t str {
        texts[self.draw(texts.len())]
    }

    fn set_node(&mut self, name: &str) {
        let mut labels = json!({"kubernetes.io/hostname": name});
        // Some nodes lack a zone, some share a host name, some a rack.
        match self.draw(5) {
            0 => {}
            zone => labels["topology.kubernetes.io/zone"] = json!(format!("zone-{zone}")),
        }
        if self.draw(4) > 0 {
            labels["rack"] = json!(format!("rack-{}", self.draw(8)));
        }
        if self.draw(40) == 0 {
            labels["kubernetes.io/hostname"] = json!("twin");
        }
        labels["disk"] = json!(self.one_of(&["ssd", "hdd"]));
        let mut taints = Vec::new();
        for effect in ["NoSchedule", "PreferNoSchedule"] {
            if self.draw(6) == 0 {
                taints.push(json!({"key": "t", "value": self.one_of(&["a", "b"]), "effect": effect}));
            }
        }
        let image = json!([{"names": ["web:1"], "sizeBytes": 500_000_000}]);
        let node = json!({"metadata": {"name": name, "labels": labels},
            "spec": {"taints": taints, "unschedulable": self.draw(12) == 0},
            "status": {"allocatable": {"cpu": self.one_of(&["2", "4", "8"]), "memory": "8Gi", "pods": "12"},
                "images": if self.draw(3) == 0 { image } else { json!([]) }}});
        self.cluster.cache.set_node(Arc::new(serde_json::from_value(node).unwrap()));
    }

    fn pod(&mut self, template: usize, node: Option<&str>) -> Arc<PendingPod> {
        self.next += 1;
        let app = format!("app-{}", template % 4);
        let term = |key: &str, app: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
        let constraint = |key: &str, when: &str, skew: i32| {
            json!({"topologyKey": key, "whenUnsatisfiable": when, "maxSkew": skew,
                "labelSelector": {"matchLabels": {"app": app}}})
        };
        let (zone, host) = ("topology.kubernetes.io/zone", "kubernetes.io/hostname");
        let required = |kind: &str, term: Value| json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
        let preferred = |kind: &str, term: Value| {
            json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 30, "podAffinityTerm": term}]}}})
        };
        let mut spec = match template {
            0 => json!({}),
            1 => json!({"topologySpreadConstraints": [constraint(zone, "DoNotSchedule", 1)]}),
            2 => json!({"topologySpreadConstraints":
                [constraint(zone, "ScheduleAnyway", 1), constraint(host, "ScheduleAnyway", 2)]}),
            3 => required("podAntiAffinity", term(host, "app-3")),
            4 => required("podAffinity", term("rack", "app-0")),
            5 => preferred("podAffinity", term(zone, "app-2")),
            6 => preferred("podAntiAffinity", term(host, "app-1")),
            7 => json!({"tolerations": [{"key": "t", "operator": "Exists"}], "nodeSelector": {"disk": "ssd"}}),
            8 => json!({"topologySpreadConstraints":
                [constraint("rack", "DoNotSchedule", 2), constraint(host, "DoNotSchedule", 1)]}),
            9 => json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 10, "preference":
                    {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["hdd"]}]}}]}}}),
            _ => required("podAffinity", term(zone, &app)),
        };
        let mut container = json!({"name": "c", "image": "web:1"});
        if template % 3 != 2 {
            container["resources"] = json!({"requests": {"cpu": "250m", "memory": "256Mi"}});
        }
        if template == 7 {
            container["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
        }
        spec["containers"] = json!([container]);
        spec["nodeName"] = json!(node);
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app,
            "controller": true}]);
        let name = format!("p{}", self.next);
        let pod = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app},
            "ownerReferences": owner}, "spec": spec});
        Arc::new(PendingPod::new(Arc::new(serde_json::from_value(pod).unwrap())))
    }

    /// Feasible nodes with their scores, by looking at all of them.
    fn full(&mut self, pod: &PendingPod) -> BTreeMap<u32, i64> {
        self.cluster.cache.prepare_order();
        let Ok(filters) = cycle::run_pre_filter(&self.cluster, &self.profile, pod) else { return BTreeMap::new() };
        let Ok(feasible) = cycle::find_nodes_that_fit(&self.cluster, &self.profile, pod, &filters, &mut 0) else {
            return BTreeMap::new();
        };
        let timer = PointTimer { metrics: &Metrics::default(), env: &self.env, profile: "" };
        let scores = cycle::prioritize_nodes(&self.cluster, &self.profile, pod, &feasible, &timer);
        feasible.into_iter().zip(scores).collect()
    }
}

const TEMPLATES: usize = 11;

fn agree(seed: u64, configuration: &str) {
    let mut world = World::new(seed, configuration);
    for number in 0..30 {
        world.set_node(&format!("n{number}"));
    }
    for app in 0..3 {
        let labels = json!({"matchLabels": {"app": format!("app-{app}")}});
        let set = json!({"metadata": {"name": format!("app-{app}")}, "spec": {"selector": labels}});
        world.cluster.replica_sets.insert(format!("default/app-{app}"), Arc::new(serde_json::from_value(set).unwrap()));
    }
    let pods: Vec<Arc<PendingPod>> = (0..TEMPLATES).map(|template| world.pod(template, None)).collect();
    let mut classes: Vec<Option<EquivalenceClass>> = (0..TEMPLATES).map(|_| None).collect();
    let mut placed: Vec<String> = Vec::new();
    let mut begun = 0;
    for step in 0..300 {
        match world.draw(20) {
            0 => world.set_node(&format!("n{}", world.draw(36))),
            1 => world.cluster.cache.remove_node(&format!("n{}", world.draw(36))),
            2 | 3 if !placed.is_empty() => {
                let key = placed.swap_remove(world.draw(placed.len()));
                world.cluster.cache.remove_pod(&key);
            }
            4 => {
                // Somebody else's doing, perhaps on a node that is not there.
                let node = format!("n{}", world.draw(36));
                let pod = world.pod(world.draw(TEMPLATES), Some(&node));
                placed.push(pod.key.clone());
                world.cluster.cache.set_pod(pod.info());
            }
            _ => {
                let template = world.draw(TEMPLATES);
                let best = world.full(&pods[template]).into_iter().max_by_key(|(at, score)| (*score, *at));
                if let Some((at, _)) = best {
                    let name = world.cluster.cache.nodes()[at as usize].name.clone();
                    let pod = world.pod(template, None);
                    placed.push(pod.key.clone());
                    world.cluster.cache.assume(pod.info(), &name);
                }
            }
        }
        // Not all at every step, so that several changes are caught up with at once.
        for template in (0..TEMPLATES).filter(|template| (step + template) % 3 == 0) {
            let known = classes[template].as_mut().map(|class| class.all(&world.cluster, &world.profile));
            let found = match known {
                Some(Ok(found)) => found,
                _ => {
                    begun += 1;
                    let class = EquivalenceClass::new(&world.cluster, &world.profile, pods[template].clone());
                    let class = classes[template].insert(class.unwrap());
                    class.all(&world.cluster, &world.profile).unwrap()
                }
            };
            let wanted = world.full(&pods[template]);
            assert_eq!(found, wanted, "seed {seed}, step {step}, template {template}");
        }
    }
    assert!(begun < 300, "seed {seed}: classes were begun {begun} times and hardly shared");
}

#[test]
fn classes_agree_with_the_full_computation() {
    for seed in 0..6 {
        agree(seed, "");
    }
    let hard_defaults = "profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List, \
        defaultConstraints: [{topologyKey: rack, maxSkew: 3, whenUnsatisfiable: DoNotSchedule}]}}]}]";
    for seed in 100..102 {
        agree(seed, hard_defaults);
    }
    let packing = "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, \
        resources: [{name: cpu, weight: 3}]}}}, {name: InterPodAffinity, args: {hardPodAffinityWeight: 40}}]}]";
    for seed in 200..202 {
        agree(seed, packing);
    }
}

/// Nodes all alike but for zone and host name, pods spread by both: how many groups a class looks at per pod.
fn groups(nodes: usize, pods: usize, template: usize) -> usize {
    let mut world = World::new(1, "");
    for number in 0..nodes {
        let labels = json!({"kubernetes.io/hostname": format!("n{number}"), "rack": format!("rack-{}", number % 5),
            "topology.kubernetes.io/zone": format!("zone-{}", number % 3)});
        let node = json!({"metadata": {"name": format!("n{number}"), "labels": labels},
            "status": {"allocatable": {"cpu": "32", "memory": "64Gi", "pods": "110"}}});
        world.cluster.cache.set_node(Arc::new(serde_json::from_value(node).unwrap()));
    }
    let first = world.pod(template, None);
    let mut class = EquivalenceClass::new(&world.cluster, &world.profile, first).unwrap();
    let mut most = 0;
    for _ in 0..pods {
        let at = class.best(&world.cluster, &world.profile, &world.env).unwrap().unwrap();
        let name = world.cluster.cache.nodes()[at as usize].name.clone();
        let pod = world.pod(template, None);
        world.cluster.cache.assume(pod.info(), &name);
        most = most.max(class.groups());
    }
    most
}

#[test]
fn what_is_looked_at_does_not_grow_with_the_nodes() {
    for template in [0, 1, 2, 3, 6, 8] {
        assert_eq!(groups(60, 40, template), groups(600, 40, template), "template {template}");
    }
}

#[test]
fn the_second_of_a_kind_finds_its_class() {
    let mut world = World::new(3, "");
    world.set_node("a");
    let mut classes = EquivalenceClasses::default();
    let mut choose = |world: &World, pod: &Arc<PendingPod>| {
        matches!(classes.choose(&world.cluster, &world.profile, pod, &world.env), Choice::Unknown)
    };
    let (one, two, other) = (world.pod(0, None), world.pod(0, None), world.pod(2, None));
    assert_eq!(sign(&world.cluster, &world.profile, &one), sign(&world.cluster, &world.profile, &two));
    assert!(choose(&world, &one), "the first is looked at by itself");
    assert!(choose(&world, &other));
    // Cordoned nodes and the like may still refuse the pod; then nothing is known either.
    let feasible = !world.full(&two).is_empty();
    assert_eq!(choose(&world, &two), !feasible);
}

#[test]
fn labels_of_each_pod_are_left_out_unless_somebody_selects_by_them() {
    let mut world = World::new(4, "");
    let indexed = |index: &str, selects: bool| {
        let mut spec = json!({"containers": [{"name": "c"}]});
        if selects {
            spec["topologySpreadConstraints"] = json!([{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"apps.kubernetes.io/pod-index": index}}}]);
        }
        let labels = json!({"app": "db", "apps.kubernetes.io/pod-index": index});
        crate::plugins::testing::named_pod("default", &format!("db-{index}"), labels, spec)
    };
    let same = |world: &World, selects: bool| {
        sign(&world.cluster, &world.profile, &indexed("0", selects))
            == sign(&world.cluster, &world.profile, &indexed("1", selects))
    };
    assert!(same(&world, false));
    assert!(!same(&world, true));
    let service = json!({"metadata": {"name": "db-1"}, "spec": {"selector": {"apps.kubernetes.io/pod-index": "1"}}});
    world.cluster.services.insert("default/db-1".into(), Arc::new(serde_json::from_value(service).unwrap()));
    assert!(!same(&world, false), "a Service selects one of them");
}
