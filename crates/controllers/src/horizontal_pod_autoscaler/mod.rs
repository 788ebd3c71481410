//! Scales what HorizontalPodAutoscalers name by what metrics say.
//! `plan` decides, with `replica_calculator` and `behavior`; `scale_target` and `metrics_client` are its eyes and hands.
//! Looks at every autoscaler once per sync period, all at the same beat, so that they share what they ask.

mod behavior;
mod metric_proposal;
mod metrics_client;
mod monitor;
mod plan;
mod replica_calculator;
mod scale_target;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use api::selectors::LabelSelector;
use async_trait::async_trait;
use behavior::History;
use client::{EventRecorder, Informer, reference};
use k8s_openapi::api::{
    autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec},
    core::v1::Pod,
};
pub use metrics_client::MetricsClient;
use metrics_client::Selected;
use parking_lot::Mutex;
use plan::{Moment, Observation, Plan, Scale, SelectorFailure};
pub use scale_target::ScaleTargets;

use crate::{
    common::{
        indexes,
        meta::{Object, labels, split},
    },
    runner::{Context, Controller, Outcome, Setup},
};

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (autoscalers, pods) = (setup.informer::<HorizontalPodAutoscaler>(), setup.informer::<Pod>());
    indexes::by_namespace(&autoscalers);
    indexes::by_namespace(&pods);
    let definitions = setup.context.resources.definitions().clone();
    setup.wait_for(definitions.objects());
    setup.on(&autoscalers, |change, queue| {
        let spec = |autoscaler: &Option<Arc<HorizontalPodAutoscaler>>| autoscaler.as_ref().map(|a| a.spec.clone());
        // Our own writes of the status are no reason to look again.
        if spec(&change.old) != spec(&change.new) {
            queue.add(change.key.clone());
        }
    });
    let context = setup.context.clone();
    let (client, env) = (context.client.clone(), context.env.clone());
    Arc::new(HorizontalPodAutoscalers {
        recorder: context.recorder("horizontal-pod-autoscaler"),
        targets: ScaleTargets::new(client.clone(), env.clone(), context.resources.clone()),
        metrics_client: MetricsClient::new(client, env),
        context,
        autoscalers,
        pods,
        histories: Mutex::default(),
        selectors: Mutex::default(),
    })
}

/// By the autoscaler's name, within a namespace.
type Selectors = BTreeMap<String, Arc<LabelSelector>>;

struct HorizontalPodAutoscalers {
    context: Context,
    recorder: EventRecorder,
    targets: ScaleTargets,
    metrics_client: MetricsClient,
    autoscalers: Informer<HorizontalPodAutoscaler>,
    pods: Informer<Pod>,
    /// A key is with one worker at a time, so an entry is taken out while it is worked with.
    histories: Mutex<HashMap<String, History>>,
    /// Which pods autoscalers turned out to select, by namespace: two that share pods would undo each other's work.
    selectors: Mutex<HashMap<String, Selectors>>,
}

#[async_trait]
impl Controller for HorizontalPodAutoscalers {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(autoscaler) = self.autoscalers.get(key).filter(|autoscaler| autoscaler.spec.is_some()) else {
            self.forget(key);
            return Ok(None);
        };
        let mut history = self.histories.lock().remove(key).unwrap_or_default();
        self.autoscale(&autoscaler, &mut history).await;
        self.histories.lock().insert(key.to_string(), history);
        monitor::count_autoscalers(&self.context.config.metrics, self.autoscalers.objects().len());
        Ok(Some(self.until_next_beat()))
    }
}

impl HorizontalPodAutoscalers {
    fn until_next_beat(&self) -> Duration {
        let period = self.context.config.horizontal_pod_autoscaler.sync_period.max(Duration::from_millis(1));
        let into = self.context.env.monotonic().as_nanos() % period.as_nanos();
        period.saturating_sub(Duration::from_nanos(into as u64))
    }

    fn forget(&self, key: &str) {
        let (namespace, name) = split(key);
        self.histories.lock().remove(key);
        if let Some(selectors) = self.selectors.lock().get_mut(namespace) {
            selectors.remove(name);
        }
        self.selectors.lock().retain(|_, selectors| !selectors.is_empty());
        monitor::forget(&self.context.config.metrics, namespace, name);
        monitor::count_autoscalers(&self.context.config.metrics, self.autoscalers.objects().len());
    }

    fn moment(&self) -> Moment {
        Moment { now: self.context.env.now(), monotonic: self.context.env.monotonic() }
    }

    async fn autoscale(&self, autoscaler: &HorizontalPodAutoscaler, history: &mut History) {
        let Some(spec) = &autoscaler.spec else { return };
        let (began, mut computed) = (self.context.env.monotonic(), Vec::new());
        let (namespace, settings) = (autoscaler.namespace(), &self.context.config.horizontal_pod_autoscaler);
        let mut plan = match self.targets.find(namespace, &spec.scale_target_ref).await {
            Err((error, failure)) => plan::without_scale(autoscaler, &error, failure, self.moment()),
            Ok(found) => {
                let pods;
                let observed = match plan::needs_metrics(spec, &found.scale) {
                    false => None,
                    true => match self.select(autoscaler, &found.scale) {
                        Err(failure) => Some(Err(failure)),
                        Ok((selector, selected)) => {
                            pods = selected;
                            let samples = self.samples(namespace, spec, &selector, &pods, &mut computed).await;
                            Some(Ok(Observation { pods: &pods, samples }))
                        }
                    },
                };
                let mut plan = plan::plan(autoscaler, &found.scale, observed, history, settings, self.moment());
                if let Some(rescale) = &plan.rescale {
                    let done = self.targets.rescale(found, rescale.to).await.map_err(|error| error.message.clone());
                    plan.rescaled(autoscaler, done, history, self.moment());
                }
                plan
            }
        };
        self.write_status(autoscaler, &mut plan).await;
        let about = reference(autoscaler);
        for event in &plan.events {
            let kind = if event.warning { client::EventType::Warning } else { client::EventType::Normal };
            self.recorder.event(&about, kind, event.reason, event.message.clone());
        }
        if let Some(failure) = &plan.failure {
            tracing::info!(error = failure.message, "couldn't autoscale as asked");
        }
        let took = self.context.env.monotonic().saturating_sub(began);
        monitor::observe(&self.context.config.metrics, namespace, autoscaler.name(), &plan, &computed, took);
    }

    /// What each metric says, in the order of the spec.
    async fn samples(
        &self,
        namespace: &str,
        spec: &HorizontalPodAutoscalerSpec,
        selector: &LabelSelector,
        pods: &[Arc<Pod>],
        computed: &mut Vec<Duration>,
    ) -> Vec<Result<metric_proposal::Sample, String>> {
        let autoscalers = self.autoscalers.objects().by_index(indexes::NAMESPACE, namespace).len();
        let selected = Selected { namespace, selector, pods, autoscalers };
        let mut samples = Vec::new();
        for metric in spec.metrics.iter().flatten() {
            let began = self.context.env.monotonic();
            samples.push(self.metrics_client.sample(metric, &selected, &self.targets).await);
            computed.push(self.context.env.monotonic().saturating_sub(began));
        }
        samples
    }

    /// The pods of the target, unless another autoscaler has some of them too.
    fn select(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        scale: &Scale,
    ) -> Result<(Arc<LabelSelector>, Vec<Arc<Pod>>), SelectorFailure> {
        let text = &scale.selector;
        if text.is_empty() {
            return Err(SelectorFailure {
                event_reason: "SelectorRequired",
                condition_reason: "InvalidSelector",
                message: "selector is required".into(),
                condition_message: "the HPA target's scale is missing a selector".into(),
            });
        }
        let failure = |reason: &'static str, message: String| SelectorFailure {
            event_reason: reason,
            condition_reason: reason,
            condition_message: message.clone(),
            message,
        };
        let selector = LabelSelector::parse(text).map(Arc::new).map_err(|error| {
            let words = "couldn't convert selector into a corresponding internal selector object";
            failure("InvalidSelector", format!("{words}: {error}"))
        })?;
        let (namespace, name) = (autoscaler.namespace(), autoscaler.name());
        // By their labels first: of the pods of a namespace few are this target's, and only those need be read.
        let all = self.pods.objects().by_index(indexes::NAMESPACE, namespace);
        let own = all.iter().filter(|pod| selector.matches(&pod.meta.labels));
        let pods: Vec<Arc<Pod>> = own.filter_map(|pod| pod.typed::<Pod>().ok()).collect();
        let mut selectors = self.selectors.lock();
        let others = selectors.entry(namespace.to_string()).or_default();
        others.insert(name.to_string(), selector.clone());
        let shares = |other: &LabelSelector| pods.iter().any(|pod| other.matches(labels(pod.meta())));
        let sharing: Vec<&String> = others.iter().filter(|(_, other)| shares(other)).map(|(name, _)| name).collect();
        if sharing.len() > 1 {
            let keys: Vec<String> = sharing.iter().map(|name| format!("{{{name} {namespace}}}")).collect();
            let message = format!("pods by selector {text} are controlled by multiple HPAs: [{}]", keys.join(" "));
            return Err(failure("AmbiguousSelector", message));
        }
        Ok((selector, pods))
    }

    async fn write_status(&self, autoscaler: &HorizontalPodAutoscaler, plan: &mut Plan) {
        if autoscaler.status.as_ref() == Some(&plan.status) {
            return;
        }
        let mut updated = autoscaler.clone();
        updated.status = Some(plan.status.clone());
        let api = self.context.client.namespaced::<HorizontalPodAutoscaler>(autoscaler.namespace());
        match api.replace_status(autoscaler.name(), &updated).await {
            Err(error) if !error.is_not_found() => plan.failed_to_update_status(autoscaler, &error.message),
            _ => {}
        }
    }
}
