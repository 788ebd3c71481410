//! Table tests of the deployment core, and a small world that rolls out under random readiness.
//! Beside `plan`, which it tests.
//! Every step of every rollout keeps maxSurge and maxUnavailable.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn deployment(replicas: i32, image: &str, strategy: serde_json::Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "d", "uid": "web-uid", "generation": 1 },
        "spec": {
            "replicas": replicas, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 2,
            "selector": { "matchLabels": { "app": "web" } }, "strategy": strategy,
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": image }] },
            },
        },
    }))
    .unwrap()
}

fn rolling_update(surge: serde_json::Value, unavailable: serde_json::Value) -> serde_json::Value {
    json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } })
}

/// Carries actions out as the server would; pods become available when the test says so.
struct World {
    deployment: Deployment,
    sets: Vec<ReplicaSet>,
    clock: i64,
}

impl World {
    fn new(deployment: Deployment) -> Self {
        Self { deployment, sets: Vec::new(), clock: 0 }
    }

    fn plan(&self, pods: &[Arc<Pod>]) -> Plan {
        let sets: Vec<_> = self.sets.iter().cloned().map(Arc::new).collect();
        plan(&Input { deployment: &self.deployment, sets: &sets, pods, now: at(self.clock) })
    }

    fn step(&mut self) -> Vec<Action> {
        self.clock += 1;
        let actions = self.plan(&[]).actions;
        for action in &actions {
            match action {
                Action::Create(set) => {
                    let mut set = (**set).clone();
                    set.metadata.uid = set.metadata.name.clone();
                    set.metadata.creation_timestamp = Some(Time(at(self.clock)));
                    set.status = Some(Default::default());
                    self.sets.push(set);
                }
                Action::Update(set) | Action::Scale { set, .. } => {
                    let known = self.sets.iter_mut().find(|s| s.name() == set.name()).unwrap();
                    (known.spec, known.metadata.annotations) = (set.spec.clone(), set.metadata.annotations.clone());
                }
                Action::Delete(set) => self.sets.retain(|s| s.name() != set.name()),
                Action::SetRevision(revision) => {
                    self.deployment
                        .metadata
                        .annotations
                        .get_or_insert_default()
                        .insert(REVISION.into(), revision.clone());
                }
                Action::UpdateStatus(status) => self.deployment.status = Some(status.clone()),
            }
        }
        actions
    }

    /// Every set has the pods it wants, `available` of them at most.
    fn run_pods(&mut self, available: impl Fn(&ReplicaSet) -> i32) {
        for set in &mut self.sets {
            let (size, available) = (replicas(set), available(set).min(replicas(set)));
            let status = set.status.get_or_insert_default();
            (status.replicas, status.ready_replicas) = (size, Some(available));
            status.available_replicas = Some(available.min(size));
        }
    }

    fn settle(&mut self) {
        for _ in 0..50 {
            self.step();
            self.run_pods(replicas);
        }
        assert!(self.step().is_empty(), "settled");
    }

    fn set_image(&mut self, image: &str) {
        self.deployment.metadata.generation = self.deployment.metadata.generation.map(|g| g + 1);
        let spec = self.deployment.spec.as_mut().unwrap();
        spec.template.spec.as_mut().unwrap().containers[0].image = Some(image.into());
    }

    fn set_replicas(&mut self, replicas: i32) {
        self.deployment.spec.as_mut().unwrap().replicas = Some(replicas);
    }

    fn sizes(&self) -> Vec<i32> {
        self.sets.iter().map(replicas).collect()
    }

    fn condition(&self, kind: &str) -> (String, String) {
        let conditions = self.deployment.status.as_ref().unwrap().conditions.clone().unwrap();
        let condition = conditions.into_iter().find(|c| c.type_ == kind).unwrap();
        (condition.status, condition.reason.unwrap())
    }
}

#[test]
fn first_rollout_makes_one_set_and_completes() {
    let mut world = World::new(deployment(3, "a:1", json!(null)));
    let actions = world.step();
    assert!(
        matches!(actions[0], Action::SetRevision(ref r) if r == "1") || matches!(actions[1], Action::SetRevision(_))
    );
    assert_eq!(world.sizes(), [3]);
    let set = &world.sets[0];
    let hash = set.label(HASH_LABEL).unwrap();
    assert_eq!(set.name(), format!("web-{hash}"));
    assert_eq!(set.spec.as_ref().unwrap().selector.match_labels.as_ref().unwrap()[HASH_LABEL], hash);
    assert_eq!((number(set, DESIRED_REPLICAS), number(set, MAX_REPLICAS)), (Some(3), Some(4)));
    assert_eq!(world.condition("Progressing"), ("True".into(), "NewReplicaSetCreated".into()));
    assert_eq!(world.condition("Available"), ("False".into(), "MinimumReplicasUnavailable".into()));
    world.settle();
    assert_eq!(world.condition("Progressing"), ("True".into(), "NewReplicaSetAvailable".into()));
    assert_eq!(world.condition("Available"), ("True".into(), "MinimumReplicasAvailable".into()));
}

#[test]
fn rollouts_keep_their_bounds() {
    let percent = |text: &str| json!(text);
    for (surge, unavailable) in
        [(json!(1), json!(0)), (json!(0), json!(1)), (percent("25%"), percent("25%")), (json!(0), json!(0))]
    {
        let mut world = World::new(deployment(10, "a:1", rolling_update(surge.clone(), unavailable.clone())));
        world.settle();
        world.set_image("a:2");
        let (surge, unavailable) = (max_surge(&world.deployment), max_unavailable(&world.deployment));
        for _ in 0..60 {
            world.step();
            assert!(total(&world.sets) <= 10 + surge, "{:?}", world.sizes());
            // One more pod of the new set becomes available per step.
            let ready: i32 = world.sets.get(1).map_or(0, available);
            world.run_pods(|set| if set.name() == world_new(set) { ready + 1 } else { replicas(set) });
            let up: i32 = world.sets.iter().map(available).sum();
            assert!(up >= 10 - unavailable, "{:?}", world.sizes());
        }
        world.settle();
        assert_eq!(world.sizes(), [0, 10]);
    }

    fn world_new(set: &ReplicaSet) -> &str {
        if revision(set) == 2 { set.name() } else { "" }
    }
}

#[test]
fn undo_gives_the_old_set_the_next_revision() {
    let mut world = World::new(deployment(2, "a:1", json!(null)));
    world.settle();
    world.set_image("a:2");
    world.settle();
    world.set_image("a:1");
    world.settle();
    assert_eq!(world.sizes(), [2, 0]);
    assert_eq!((revision(&world.sets[0]), revision(&world.sets[1])), (3, 2));
    assert_eq!(world.sets[0].annotation(REVISION_HISTORY), Some("1"));
    assert_eq!(world.deployment.annotation(REVISION), Some("3"));
}

#[test]
fn history_is_limited() {
    let mut world = World::new(deployment(1, "a:0", json!(null)));
    for version in 1..6 {
        world.settle();
        world.set_image(&format!("a:{version}"));
    }
    world.settle();
    assert_eq!(world.sets.iter().map(revision).collect::<Vec<_>>(), [4, 5, 6]);
}

#[test]
fn scaling_in_a_rollout_is_proportional() {
    let mut world = World::new(deployment(10, "a:1", rolling_update(json!(3), json!(2))));
    world.settle();
    world.set_image("a:2");
    world.step();
    world.run_pods(|set| if revision(set) == 1 { replicas(set) } else { 0 });
    world.step();
    world.run_pods(|set| if revision(set) == 1 { replicas(set) } else { 0 });
    world.step();
    assert_eq!(world.sizes(), [8, 5]);
    world.set_replicas(15);
    world.step();
    assert_eq!(world.sizes(), [11, 7], "18 pods in the proportion 8:5");
}

/// Found by seed 62 of the simulator.
#[test]
fn scaling_down_in_a_rollout_leaves_enough_available() {
    let mut world = World::new(deployment(5, "a:1", rolling_update(json!(2), json!(1))));
    world.settle();
    world.set_image("a:2");
    for _ in 0..3 {
        world.step();
        world.run_pods(|set| if revision(set) == 1 { replicas(set) } else { 0 });
    }
    assert_eq!(world.sizes(), [4, 3]);
    let spec = world.deployment.spec.as_mut().unwrap();
    spec.replicas = Some(4);
    spec.strategy = serde_json::from_value(rolling_update(json!(2), json!(0))).unwrap();
    world.step();
    assert_eq!(world.sizes(), [4, 2], "the old set's share would take an available pod");
}

#[test]
fn paused_deployments_scale_but_do_not_roll() {
    let mut world = World::new(deployment(2, "a:1", json!(null)));
    world.settle();
    world.deployment.spec.as_mut().unwrap().paused = Some(true);
    world.set_image("a:2");
    world.set_replicas(4);
    world.settle();
    assert_eq!(world.sizes(), [4]);
    assert_eq!(world.condition("Progressing"), ("Unknown".into(), "DeploymentPaused".into()));
    world.deployment.spec.as_mut().unwrap().paused = None;
    world.settle();
    assert_eq!(world.sizes(), [0, 4]);
}

#[test]
fn recreate_waits_for_old_pods() {
    let mut world = World::new(deployment(2, "a:1", json!({ "type": "Recreate" })));
    world.settle();
    world.set_image("a:2");
    world.step();
    assert_eq!(world.sizes(), [0]);
    let mut pod = crate::common::pods::testing::pod("old", None);
    pod.metadata.owner_references = Some(vec![world.sets[0].as_controller()]);
    let creates = |plan: Plan| plan.actions.iter().any(|a| matches!(a, Action::Create(_)));
    assert!(!creates(world.plan(&[Arc::new(pod.clone())])));
    pod.status.as_mut().unwrap().phase = Some("Succeeded".into());
    assert!(creates(world.plan(&[Arc::new(pod)])));
    world.settle();
    assert_eq!(world.sizes(), [0, 2]);
}

#[test]
fn a_stuck_rollout_exceeds_its_deadline() {
    let mut world = World::new(deployment(2, "a:1", json!(null)));
    world.step();
    world.run_pods(|_| 0);
    world.step();
    assert_eq!(world.condition("Progressing"), ("True".into(), "ReplicaSetUpdated".into()));
    let plan = world.plan(&[]);
    assert!(plan.actions.is_empty() && plan.again > Some(Duration::from_secs(590)), "{plan:?}");
    world.clock += 601;
    world.step();
    assert_eq!(world.condition("Progressing"), ("False".into(), "ProgressDeadlineExceeded".into()));
    assert_eq!(world.plan(&[]).again, None);
    world.run_pods(replicas);
    world.step();
    assert_eq!(world.condition("Progressing"), ("True".into(), "NewReplicaSetAvailable".into()));
}

/// Two sets of `sizes`, reported as available by their statuses, made for `desired` replicas; the last is the newest.
fn two_sets(deployment: &Deployment, sizes: [(i32, i32); 2], desired: i32) -> Vec<Arc<ReplicaSet>> {
    let images = ["c:0", "c:1"];
    let set = |(number, (size, available)): (usize, (i32, i32))| {
        let mut template = deployment.spec.clone().unwrap().template;
        template.spec.as_mut().unwrap().containers[0].image = Some(images[number].into());
        let set = json!({
            "metadata": { "name": images[number], "namespace": "d", "uid": images[number],
                "creationTimestamp": Time(at(number as i64)),
                "annotations": { DESIRED_REPLICAS: desired.to_string(), MAX_REPLICAS: desired.to_string(),
                    REVISION: (number + 1).to_string() } },
            "spec": { "replicas": size, "selector": {}, "template": template },
            "status": { "replicas": available, "availableReplicas": available },
        });
        Arc::new(serde_json::from_value::<ReplicaSet>(set).unwrap())
    };
    sizes.into_iter().enumerate().map(set).collect()
}

fn scales(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Vec<(String, i32)> {
    let plan = plan(&Input { deployment, sets, pods: &[], now: at(10) });
    let scale = |action: Action| match action {
        Action::Scale { set, to, .. } => Some((set.name().to_string(), to)),
        _ => None,
    };
    plan.actions.into_iter().filter_map(scale).collect()
}

/// Found by the simulator: a set that was just made smaller reported a pod too many, and one too many went.
#[test]
fn pods_that_are_about_to_go_are_not_counted_on() {
    let deployment = deployment(4, "c:1", rolling_update(json!(2), json!(1)));
    let sets = two_sets(&deployment, [(4, 5), (2, 0)], 4);
    assert_eq!(scales(&deployment, &sets), [("c:0".to_string(), 3)]);
}

/// Found by the simulator: a rollout turned into a recreation and was scaled at once, and nothing moved any more.
#[test]
fn recreation_brings_several_sets_down_although_it_was_scaled() {
    let deployment = deployment(4, "c:2", json!({ "type": "Recreate" }));
    let sets = two_sets(&deployment, [(1, 1), (1, 1)], 2);
    assert_eq!(scales(&deployment, &sets), [("c:0".to_string(), 0), ("c:1".to_string(), 0)]);
}

#[test]
fn pods_that_are_asked_for_and_not_there_are_unavailable() {
    let mut world = World::new(deployment(3, "a", rolling_update(json!(1), json!(0))));
    let counts = |world: &World| {
        let status = world.deployment.status.clone().unwrap();
        (status.replicas, status.unavailable_replicas)
    };
    world.step();
    world.step();
    assert_eq!(counts(&world), (None, Some(3)));
    world.settle();
    assert_eq!(counts(&world), (Some(3), None));
}

#[test]
fn revisions_are_remembered_up_to_a_limit() {
    let (deployment, mut set) = (deployment(1, "a", json!(null)), ReplicaSet::default());
    for revision in 1..3000 {
        set_annotations(&mut set, &deployment, revision, true);
    }
    let history: Vec<i64> = set.annotation(REVISION_HISTORY).unwrap().split(',').map(|n| n.parse().unwrap()).collect();
    assert_eq!(history, (2599..=2998).collect::<Vec<_>>(), "four digits and a comma each, 2000 characters");
}
