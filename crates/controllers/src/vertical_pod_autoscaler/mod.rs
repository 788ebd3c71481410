//! VerticalPodAutoscalers: recommends what containers should request, and gives it to running pods.
//! `recommender` (over `histogram`) and `updater` decide; new pods get theirs by admission in the API server.
//! Once a minute, all autoscalers one after the other; what is known outlives a restart in checkpoints.

mod histogram;
mod recommender;
mod updater;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::{
    ApiError, Object as ApiObject, Resource,
    pod_resources::amounts_from_value,
    quantity::Quantity,
    selectors::LabelSelector,
    vertical_pod_autoscaler::{CHECKPOINT_KIND, GROUP, KIND, VERSION, definitions},
};
use async_trait::async_trait;
use client::{EventRecorder, Informer, ListParams, ObjectRef, Patch, reference};
use http::Method;
use k8s_openapi::{
    api::{autoscaling::v2::CrossVersionObjectReference, core::v1::Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use parking_lot::Mutex;
use recommender::{ContainerState, Usage};
use serde_json::{Value, json};
use updater::Action;

use crate::{
    common::{indexes, meta::Object, objects},
    horizontal_pod_autoscaler::{MetricsClient, ScaleTargets},
    runner::{Context, Controller, Outcome, Setup},
};

const INTERVAL: Duration = Duration::from_secs(60);
/// Before the definitions are established.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(10 * 60);
const ALL: &str = "all";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let pods = setup.informer::<Pod>();
    indexes::by_namespace(&pods);
    let known = setup.context.resources.definitions().clone();
    setup.wait_for(known.objects());
    setup.queue.add(ALL.to_string());
    let context = setup.context.clone();
    let (client, env) = (context.client.clone(), context.env.clone());
    Arc::new(VerticalPodAutoscalers {
        recorder: context.recorder("vpa-updater"),
        targets: ScaleTargets::new(client.clone(), env.clone(), context.resources.clone()),
        metrics: MetricsClient::new(client, env),
        context,
        pods,
        states: Mutex::default(),
    })
}

struct VerticalPodAutoscalers {
    context: Context,
    recorder: EventRecorder,
    targets: ScaleTargets,
    metrics: MetricsClient,
    pods: Informer<Pod>,
    /// By the autoscaler's uid. One worker, so an entry is taken out while it is worked with.
    states: Mutex<HashMap<String, TargetState>>,
}

/// What is known of one autoscaler's target.
#[derive(Default)]
struct TargetState {
    containers: BTreeMap<String, ContainerState>,
    /// Deaths by lack of memory that were counted: pod uid, container, restarts.
    deaths: HashSet<(String, String, i32)>,
    stored: Option<Duration>,
}

/// The pods of a target, and how many there should be.
struct Target {
    pods: Vec<Arc<Pod>>,
    selector: LabelSelector,
    replicas: i64,
}

#[async_trait]
impl Controller for VerticalPodAutoscalers {
    async fn reconcile(&self, _: &str) -> Outcome {
        self.define().await?;
        let find = |kind: &str| self.context.resources.find_group_kind(GROUP, kind);
        let (Some(resource), Some(checkpoints)) = (find(KIND), find(CHECKPOINT_KIND)) else {
            return Ok(Some(RETRY_INTERVAL));
        };
        let informer = self.context.informers.objects(resource.clone(), ListParams::default());
        if !informer.is_synced() {
            return Ok(Some(RETRY_INTERVAL));
        }
        let autoscalers = informer.list();
        self.states.lock().retain(|uid, _| autoscalers.iter().any(|autoscaler| autoscaler.meta.uid == *uid));
        for autoscaler in autoscalers {
            if let Err(error) = self.autoscale(&autoscaler, &resource, &checkpoints).await {
                tracing::info!(autoscaler = autoscaler.meta.name, %error, "couldn't autoscale vertically");
            }
        }
        Ok(Some(INTERVAL))
    }
}

impl VerticalPodAutoscalers {
    /// Makes the definitions where they are missing; those of another installation stay as they are.
    async fn define(&self) -> Result<(), ApiError> {
        for definition in definitions() {
            let name = definition["metadata"]["name"].as_str().unwrap_or_default();
            if self.context.resources.definitions().get(name).is_none() {
                let definition: CustomResourceDefinition = serde_json::from_value(definition)
                    .map_err(|error| ApiError::internal(format!("a definition of ours is wrong: {error}")))?;
                match self.context.client.api::<CustomResourceDefinition>().create(&definition).await {
                    Err(error) if !error.is_already_exists() => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    async fn autoscale(
        &self,
        autoscaler: &Arc<ApiObject>,
        resource: &Resource,
        checkpoints: &Resource,
    ) -> Result<(), ApiError> {
        let (value, uid) = (autoscaler.value(), autoscaler.meta.uid.clone());
        let namespace = autoscaler.meta.namespace.clone().unwrap_or_default();
        let target = self.target(&namespace, &value["spec"]["targetRef"]).await;
        let known = self.states.lock().remove(&uid);
        let mut state = match known {
            Some(state) => state,
            None => self.load(checkpoints, &namespace, &autoscaler.meta.name).await?,
        };
        if let Ok(target) = &target {
            self.observe(&mut state, &namespace, target).await;
        }
        let done = self.act(&value, &namespace, &autoscaler.meta.name, resource, checkpoints, target, &mut state).await;
        self.states.lock().insert(uid, state);
        done
    }

    async fn act(
        &self,
        autoscaler: &Value,
        namespace: &str,
        name: &str,
        resource: &Resource,
        checkpoints: &Resource,
        target: Result<Target, String>,
        state: &mut TargetState,
    ) -> Result<(), ApiError> {
        let updated = self.status(autoscaler, &target, state);
        if updated["status"] != autoscaler["status"] {
            let path = format!("{}/status", resource.path(Some(namespace), Some(name)));
            let body = updated.to_string().into_bytes();
            objects::call(&self.context.client, Method::PUT, path, "application/json", body).await?;
        }
        let now = self.context.env.monotonic();
        if state.stored.is_none_or(|stored| now.saturating_sub(stored) >= CHECKPOINT_INTERVAL) {
            self.store(checkpoints, namespace, name, state).await?;
            state.stored = Some(now);
        }
        if let Ok(target) = target {
            self.update(&updated, namespace, name, &target).await?;
        }
        Ok(())
    }

    async fn target(&self, namespace: &str, reference: &Value) -> Result<Target, String> {
        let text = |name: &str| reference[name].as_str().unwrap_or_default().to_string();
        let target = CrossVersionObjectReference {
            api_version: Some(text("apiVersion")),
            kind: text("kind"),
            name: text("name"),
        };
        let (selector, replicas) = match self.targets.find(namespace, &target).await {
            Ok(found) => {
                let selector = LabelSelector::parse(&found.scale.selector)?;
                (selector, Some(i64::from(found.scale.spec_replicas)))
            }
            // DaemonSets and Jobs have no scale, but say themselves which pods are theirs.
            Err((error, _)) => {
                let group = target.api_version.as_deref().unwrap_or_default();
                let group = group.split_once('/').map_or("", |(group, _)| group);
                let resource = self.context.resources.find_group_kind(group, &target.kind).ok_or(error)?;
                let object = objects::get(&self.context.client, &resource, namespace, &target.name).await;
                let object = object.map_err(|error| error.message.clone())?;
                (LabelSelector::from_value(&object["spec"]["selector"])?, None)
            }
        };
        if selector.is_empty() {
            return Err("the target selects every pod".into());
        }
        let mut pods = self.pods.by_index(indexes::NAMESPACE, namespace);
        pods.retain(|pod| selector.matches(pod.labels()));
        let replicas = replicas.unwrap_or(pods.len() as i64);
        Ok(Target { pods, selector, replicas })
    }

    /// Takes in what the target's containers use, and whether they ran out of memory.
    async fn observe(&self, state: &mut TargetState, namespace: &str, target: &Target) {
        let usages = self.metrics.container_usages(namespace, &target.selector).await.unwrap_or_default();
        for usage in usages {
            let Some(pod) = target.pods.iter().find(|pod| pod.name() == usage.pod) else { continue };
            let requested = request(pod, &usage.container, "cpu");
            let container = state.containers.entry(usage.container).or_default();
            let (cpu_cores, memory_bytes) = (usage.cpu_cores, usage.memory_bytes);
            container.add(pod.uid(), Usage { cpu_cores, memory_bytes, at: usage.at }, requested);
        }
        for pod in &target.pods {
            let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            for status in statuses.into_iter().flatten() {
                let ended = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
                let Some(ended) = ended.filter(|ended| ended.reason.as_deref() == Some("OOMKilled")) else { continue };
                let death = (pod.uid().to_string(), status.name.clone(), status.restart_count);
                let at = ended.finished_at.as_ref().map_or(self.context.env.now(), |time| time.0);
                if state.deaths.insert(death) {
                    let container = state.containers.entry(status.name.clone()).or_default();
                    container.out_of_memory(pod.uid(), request(pod, &status.name, "memory"), at);
                }
            }
        }
        let is_there = |uid: &str| target.pods.iter().any(|pod| pod.uid() == uid);
        state.deaths.retain(|(uid, _, _)| is_there(uid));
        state.containers.values_mut().for_each(|container| container.retain_pods(is_there));
    }

    /// The autoscaler with its new status.
    fn status(&self, autoscaler: &Value, target: &Result<Target, String>, state: &TargetState) -> Value {
        let mut updated = autoscaler.clone();
        let recommendations = recommender::recommendations(autoscaler, &state.containers);
        let provided = !recommendations.is_empty();
        if provided {
            updated["status"]["recommendation"] = json!({ "containerRecommendations": recommendations });
        }
        let now = self.context.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let conditions = [
            ("RecommendationProvided", provided, "", ""),
            (
                "NoPodsMatched",
                target.as_ref().is_ok_and(|target| target.pods.is_empty()),
                "NoPodsMatched",
                "No pods match this VPA object",
            ),
            ("ConfigUnsupported", target.is_err(), "", ""),
        ];
        let old = updated["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let mut found = Vec::new();
        for (kind, holds, reason, message) in conditions {
            // As upstream, a condition that never held is not there.
            let before = old.iter().find(|condition| condition["type"] == kind);
            if !holds && before.is_none() && kind != "RecommendationProvided" {
                continue;
            }
            let status = if holds { "True" } else { "False" };
            let since = before.filter(|before| before["status"] == status).map(|before| &before["lastTransitionTime"]);
            let mut condition =
                json!({ "type": kind, "status": status, "lastTransitionTime": since.unwrap_or(&json!(now)) });
            let message = match target {
                Err(error) if kind == "ConfigUnsupported" => error.as_str(),
                _ => message,
            };
            for (field, text) in [("reason", reason), ("message", message)] {
                if holds && !text.is_empty() {
                    condition[field] = text.into();
                }
            }
            found.push(condition);
        }
        updated["status"]["conditions"] = found.into();
        updated
    }

    async fn update(&self, autoscaler: &Value, namespace: &str, name: &str, target: &Target) -> Result<(), ApiError> {
        let api = self.context.client.namespaced::<Pod>(namespace);
        let about = ObjectRef {
            api_version: Some(format!("{GROUP}/{VERSION}")),
            kind: Some(KIND.into()),
            name: Some(name.into()),
            namespace: Some(namespace.into()),
            uid: autoscaler["metadata"]["uid"].as_str().map(str::to_string),
            ..ObjectRef::default()
        };
        for action in updater::plan(autoscaler, &target.pods, target.replicas, self.context.env.now()) {
            match action {
                Action::Resize { pod, patch } => {
                    let done = api.patch_subresource(&pod, Some("resize"), &Patch::Strategic(patch)).await;
                    match done {
                        Ok(resized) => {
                            let words = "Pod was resized in place by VPA Updater.";
                            self.recorder.normal(&reference(&resized), "InPlaceResizedByVPA", words);
                        }
                        Err(error) => tracing::info!(pod, %error, "couldn't resize a pod in place"),
                    }
                }
                Action::Evict { pod } => {
                    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction",
                        "metadata": { "name": pod, "namespace": namespace } });
                    match api.create_subresource::<_, Value>(&pod, "eviction", &eviction).await {
                        Ok(_) => {
                            let evicted = target.pods.iter().find(|other| other.name() == pod);
                            let words = "Pod was evicted by VPA Updater to apply resource recommendation.";
                            if let Some(evicted) = evicted {
                                self.recorder.normal(&reference(&**evicted), "EvictedByVPA", words);
                            }
                            let words = format!("VPA Updater evicted Pod {pod} to apply resource recommendation.");
                            self.recorder.normal(&about, "EvictedPod", words);
                        }
                        // A budget: there is another minute.
                        Err(error) if error.code == 429 || error.is_not_found() => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(())
    }

    async fn load(&self, checkpoints: &Resource, namespace: &str, name: &str) -> Result<TargetState, ApiError> {
        let mut state = TargetState::default();
        for checkpoint in objects::list(&self.context.client, checkpoints, namespace).await? {
            if let (true, Some(container)) =
                (checkpoint["spec"]["vpaObjectName"] == name, checkpoint["spec"]["containerName"].as_str())
            {
                state.containers.insert(container.to_string(), ContainerState::load(&checkpoint["status"]));
            }
        }
        Ok(state)
    }

    async fn store(
        &self,
        checkpoints: &Resource,
        namespace: &str,
        name: &str,
        state: &TargetState,
    ) -> Result<(), ApiError> {
        let now = self.context.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        for (container, known) in state.containers.iter().filter(|(_, known)| !known.is_empty()) {
            let mut status = known.checkpoint();
            status["lastUpdateTime"] = now.as_str().into();
            let own_name = format!("{name}-{container}");
            let checkpoint = json!({
                "apiVersion": format!("{GROUP}/{VERSION}"), "kind": CHECKPOINT_KIND,
                "metadata": { "name": own_name, "namespace": namespace },
                "spec": { "vpaObjectName": name, "containerName": container },
            });
            let client = &self.context.client;
            let path = checkpoints.path(Some(namespace), None);
            let made =
                objects::call(client, Method::POST, path, "application/json", checkpoint.to_string().into_bytes());
            match made.await {
                Err(error) if !error.is_already_exists() => return Err(error),
                _ => {}
            }
            let path = format!("{}/status", checkpoints.path(Some(namespace), Some(&own_name)));
            let body = json!({ "status": status }).to_string().into_bytes();
            objects::call(client, Method::PATCH, path, "application/merge-patch+json", body).await?;
        }
        Ok(())
    }
}

/// What a container requests, in cores or bytes.
fn request(pod: &Pod, container: &str, resource: &str) -> f64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let found = containers.into_iter().find(|found| found.name == container);
    let requests = found.and_then(|found| found.resources.as_ref()?.requests.as_ref());
    let requests = requests.map(|requests| amounts_from_value(&json!(requests))).unwrap_or_default();
    requests.get(resource).map_or(0.0, Quantity::as_f64)
}
