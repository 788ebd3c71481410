//! Keeps the number of pods of a ReplicaSet or a ReplicationController.
//! The core (`plan`) counts; this part looks, claims and carries out. Deployments stand above, pods below.
//! Never counts while own writes are still on their way through the watch.

mod plan;

use std::{marker::PhantomData, sync::Arc};

use api::{ApiError, selectors::LabelSelector as Selector};
use async_trait::async_trait;
use client::{Informer, reference};
use k8s_openapi::{
    ListableResource,
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus},
        core::v1::{
            Pod, PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
        },
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use metrics::Family;
use plan::{Counts, PodsPerNode, plan};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    common::{
        dependents,
        expectations::Expectations,
        indexes,
        meta::{Object, labels},
        ownership,
        pod_control::PodControl,
        pods,
    },
    runner::{Context, Controller, Outcome, Setup},
};

static AGE_RATIO: Family = Family::histogram(
    "replicaset_controller_sorting_deletion_age_ratio",
    &[],
    &[0.25, 0.5, 1.0, 2.0, 4.0, 8.0],
    "How old ready pods that had to go were, in times of the youngest one's age.",
);

/// What ReplicaSets and ReplicationControllers have in common.
pub trait Replicated: Object + ListableResource + Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    const COMPONENT: &'static str;
    fn replicas(&self) -> i32;
    fn min_ready_seconds(&self) -> i32;
    fn selector(&self) -> LabelSelector;
    fn template(&self) -> PodTemplateSpec;
    fn status(&self) -> ReplicaSetStatus;
    fn set_status(&mut self, status: ReplicaSetStatus);
}

pub fn make_replica_sets(setup: &mut Setup) -> Arc<dyn Controller> {
    make::<ReplicaSet>(setup)
}

pub fn make_replication_controllers(setup: &mut Setup) -> Arc<dyn Controller> {
    make::<ReplicationController>(setup)
}

fn make<K: Replicated>(setup: &mut Setup) -> Arc<dyn Controller> {
    let (sets, pods) = (setup.informer::<K>(), setup.informer::<Pod>());
    indexes::by_controller(&sets);
    indexes::by_namespace(&sets);
    indexes::by_controller(&pods);
    let expectations = Expectations::new(setup.context.env.clone());
    setup.on_keys(&sets);
    setup.on(&pods, {
        let (sets, expectations) = (sets.clone(), expectations.clone());
        move |change, queue| {
            dependents::owners::<K>(change).iter().for_each(|owner| expectations.changed(owner, change));
            dependents::wake_owners(change, queue, &sets, selects);
        }
    });
    let recorder = setup.context.recorder(K::COMPONENT);
    let context = setup.context.clone();
    let control = PodControl { client: context.client.clone(), recorder, expectations };
    Arc::new(Replicas { context, sets, pods, control, kind: PhantomData::<K> })
}

fn selects<K: Replicated>(set: &K, pod: &Pod) -> bool {
    Selector::from_meta(Some(&set.selector())).is_ok_and(|s| !s.is_empty() && s.matches(labels(pod.meta())))
}

struct Replicas<K> {
    context: Context,
    sets: Informer<K>,
    pods: Informer<Pod>,
    control: PodControl,
    kind: PhantomData<K>,
}

#[async_trait]
impl<K: Replicated> Controller for Replicas<K> {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(set) = self.sets.get(key) else {
            self.control.expectations.forget(key);
            return Ok(None);
        };
        // Asked before the cache is read: what is seen in between only makes us wait once more.
        let waiting = self.control.waiting(key).await?;
        let pods = self.claim(&set).await?;
        let now = self.context.env.now();
        let mut failure = None;
        if waiting.is_none() && !set.deleting() {
            let plan = plan(set.replicas(), &pods, || self.crowding(&set), now);
            failure = self.carry_out(key, &set, plan).await.err();
        }
        let (status, again) = plan::status(&set.status(), &counts(&*set), &pods, failure.as_ref(), now);
        if let Some(status) = status {
            let mut set = (*set).clone();
            set.set_status(status);
            match self.context.client.namespaced::<K>(set.namespace()).replace_status(set.name(), &set).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok([again, waiting].into_iter().flatten().min()),
        }
    }
}

fn counts<K: Replicated>(set: &K) -> Counts {
    Counts {
        wanted: set.replicas(),
        min_ready_seconds: set.min_ready_seconds(),
        generation: set.meta().generation.unwrap_or(0),
        reports_terminating: K::KIND == "ReplicaSet",
        template_labels: set.template().metadata.and_then(|m| m.labels).unwrap_or_default(),
    }
}

impl<K: Replicated> Replicas<K> {
    async fn claim(&self, set: &K) -> Result<Vec<Arc<Pod>>, ApiError> {
        let Ok(selector) = Selector::from_meta(Some(&set.selector())) else { return Ok(Vec::new()) };
        let mut pods = self.pods.by_index(indexes::CONTROLLER, set.uid());
        pods.extend(self.pods.by_index(indexes::ORPHAN, set.namespace()).into_iter().filter(|p| !pods::finished(p)));
        let claims = ownership::claims(pods, set.meta(), |pod| selector.matches(labels(pod.meta())));
        let client = &self.context.client;
        ownership::claim(claims, &client.namespaced(set.namespace()), &client.namespaced(set.namespace()), set).await
    }

    /// How many pods of this set and of its siblings under the same owner run on each node.
    fn crowding(&self, set: &K) -> PodsPerNode {
        let siblings = match set.controller() {
            Some(owner) => self.sets.by_index(indexes::CONTROLLER, &owner.uid).iter().map(|s| s.uid().into()).collect(),
            None => vec![set.uid().to_string()],
        };
        let mut crowding = PodsPerNode::new();
        for pod in siblings.iter().flat_map(|uid| self.pods.by_index(indexes::CONTROLLER, uid)) {
            if pods::active(&pod) {
                *crowding.entry(pods::node_name(&pod).to_string()).or_default() += 1;
            }
        }
        crowding
    }

    async fn carry_out(&self, key: &str, set: &K, plan: plan::Plan) -> Result<(), ApiError> {
        let parent = reference(set);
        if plan.create > 0 {
            let template = set.template();
            let pods = (0..plan.create).map(|_| {
                let suffix = self.context.env.name_suffix(5);
                pods::from_template(&template, set.namespace(), set.name(), &suffix, set.as_controller())
            });
            self.control.create_all(key, &parent, pods.collect()).await?;
        }
        for ratio in plan.age_ratios {
            self.context.config.metrics.observe(&AGE_RATIO, &[], ratio);
        }
        self.control.delete_all(key, &parent, &plan.delete).await
    }
}

impl Replicated for ReplicaSet {
    const COMPONENT: &'static str = "replicaset-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
    }

    fn selector(&self) -> LabelSelector {
        self.spec.as_ref().map(|s| s.selector.clone()).unwrap_or_default()
    }

    fn template(&self) -> PodTemplateSpec {
        self.spec.as_ref().and_then(|s| s.template.clone()).unwrap_or_default()
    }

    fn status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }

    fn set_status(&mut self, status: ReplicaSetStatus) {
        self.status = Some(status);
    }
}

impl Replicated for ReplicationController {
    const COMPONENT: &'static str = "replication-controller";

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0)
    }

    fn selector(&self) -> LabelSelector {
        let labels = self.spec.as_ref().and_then(|s| s.selector.clone());
        LabelSelector { match_labels: labels, match_expressions: None }
    }

    fn template(&self) -> PodTemplateSpec {
        self.spec.as_ref().and_then(|s| s.template.clone()).unwrap_or_default()
    }

    fn status(&self) -> ReplicaSetStatus {
        let status = self.status.clone().unwrap_or_default();
        let condition = |c: ReplicationControllerCondition| ReplicaSetCondition {
            last_transition_time: c.last_transition_time,
            message: c.message,
            reason: c.reason,
            status: c.status,
            type_: c.type_,
        };
        ReplicaSetStatus {
            available_replicas: status.available_replicas,
            conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
            fully_labeled_replicas: status.fully_labeled_replicas,
            observed_generation: status.observed_generation,
            ready_replicas: status.ready_replicas,
            replicas: status.replicas,
            terminating_replicas: None,
        }
    }

    fn set_status(&mut self, status: ReplicaSetStatus) {
        let condition = |c: ReplicaSetCondition| ReplicationControllerCondition {
            last_transition_time: c.last_transition_time,
            message: c.message,
            reason: c.reason,
            status: c.status,
            type_: c.type_,
        };
        self.status = Some(ReplicationControllerStatus {
            available_replicas: status.available_replicas,
            conditions: status.conditions.map(|all| all.into_iter().map(condition).collect()),
            fully_labeled_replicas: status.fully_labeled_replicas,
            observed_generation: status.observed_generation,
            ready_replicas: status.ready_replicas,
            replicas: status.replicas,
        });
    }
}
