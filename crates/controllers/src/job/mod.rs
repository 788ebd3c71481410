//! Runs jobs: pods until enough have succeeded, or too many have failed.
//! `plan` is the core; cron jobs stand above, `ttl` clears away what has finished.
//! Status first, then finalizers: a crash between the two loses no count.

mod backoff;
mod failures;
mod indexes;
mod job_metrics;
mod plan;
mod policy;
mod ttl;

use std::{collections::HashMap, sync::Arc};

use api::{ApiError, selectors::LabelSelector};
use async_trait::async_trait;
use backoff::Backoff;
use client::{Informer, Patch, reference};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod},
};
use parking_lot::Mutex;
use plan::{FINALIZER, INDEX, Input, NewPod, Plan, tracked};
use serde_json::json;

pub use plan::finished;
pub use ttl::make as make_ttl;

use crate::{
    common::{
        expectations::Expectations,
        indexes as pod_indexes,
        meta::{self, Object, labels},
        ownership,
        pod_control::PodControl,
        pods,
    },
    runner::{Context, Controller, Outcome, Queue, Setup},
};

const MANAGER: &str = "kubernetes.io/job-controller";
/// Keys of pods whose job is gone, so that they don't wait for it for ever.
const ORPHAN: &str = "orphan:";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (jobs, pods) = (setup.informer::<Job>(), setup.informer::<Pod>());
    pod_indexes::by_controller(&pods);
    pod_indexes::by_namespace(&jobs);
    let expectations = Expectations::new(setup.context.env.clone());
    setup.on_keys(&jobs);
    setup.on(&pods, {
        let (jobs, expectations) = (jobs.clone(), expectations.clone());
        let metrics = setup.context.config.metrics.clone();
        move |change, queue| {
            job_metrics::pod_changed(&metrics, change.old.as_deref(), change.new.as_deref());
            let Some(pod) = change.new.as_ref().or(change.old.as_ref()) else { return };
            let before = change.old.as_ref().and_then(|old| old.controller().filter(|o| o.kind == "Job"));
            if let Some(before) = before.filter(|o| pod.controller().is_none_or(|now| now.uid != o.uid)) {
                queue.add(meta::key(pod.namespace(), &before.name));
            }
            let Some(owner) = pod.controller().filter(|o| o.kind == "Job") else {
                if change.new.is_some() && pod.controller().is_none() {
                    if tracked(pod) {
                        queue.add(format!("{ORPHAN}{}", change.key));
                    }
                    wake_adopters(&jobs, pod, queue);
                }
                return;
            };
            let key = meta::key(pod.namespace(), &owner.name);
            expectations.created(&key, &change.key);
            if change.new.is_none() || pod.deleting() {
                expectations.deleted(&key, pod.uid());
            }
            if change.new.is_some() && tracked(pod) && jobs.get(&key).is_none_or(|job| job.uid() != owner.uid) {
                queue.add(format!("{ORPHAN}{}", change.key));
            }
            queue.add(key);
        }
    });
    setup.on(&jobs, {
        let (pods, metrics) = (pods.clone(), setup.context.config.metrics.clone());
        move |change, queue| {
            if let (None, Some(manager)) = (&change.old, change.new.as_ref().and_then(|job| other_manager(job))) {
                job_metrics::job_added(&metrics, manager);
            }
            let Some(gone) = change.old.as_ref().filter(|_| change.new.is_none()) else { return };
            for pod in pods.by_index(pod_indexes::CONTROLLER, gone.uid()).iter().filter(|p| tracked(p)) {
                queue.add(format!("{ORPHAN}{}", pod.key()));
            }
        }
    });
    let context = setup.context.clone();
    let recorder = context.recorder("job-controller");
    let control = PodControl { client: context.client.clone(), recorder, expectations };
    Arc::new(Jobs { context, jobs, pods, control, backoffs: Mutex::default() })
}

/// An orphan may belong to any job whose selector matches it.
fn wake_adopters(jobs: &Informer<Job>, pod: &Pod, queue: &Queue) {
    for job in jobs.by_index(pod_indexes::NAMESPACE, pod.namespace()) {
        if selector(&job).is_some_and(|s| s.matches(labels(pod.meta()))) {
            queue.add(job.key());
        }
    }
}

/// `None` for one that cannot be read, or that would take every pod.
fn selector(job: &Job) -> Option<LabelSelector> {
    let selector = LabelSelector::from_meta(Some(job.spec.as_ref()?.selector.as_ref()?)).ok()?;
    Some(selector).filter(|s| !s.is_empty())
}

/// Who runs the job, if it is not us.
fn other_manager(job: &Job) -> Option<&str> {
    job.spec.as_ref()?.managed_by.as_deref().filter(|manager| *manager != MANAGER)
}

struct Jobs {
    context: Context,
    jobs: Informer<Job>,
    pods: Informer<Pod>,
    control: PodControl,
    /// Of every unfinished job by its key, with its uid.
    backoffs: Mutex<HashMap<String, (String, Backoff)>>,
}

#[async_trait]
impl Controller for Jobs {
    async fn reconcile(&self, key: &str) -> Outcome {
        if let Some(pod) = key.strip_prefix(ORPHAN) {
            return self.free_orphan(pod).await.map(|()| None);
        }
        let Some(job) = self.jobs.get(key) else {
            self.control.expectations.forget(key);
            self.backoffs.lock().remove(key);
            return Ok(None);
        };
        if other_manager(&job).is_some() {
            return Ok(None);
        }
        let began = self.context.env.monotonic();
        let waiting = self.control.waiting(key).await?;
        let pods = self.claim(&job).await?;
        let now = self.context.env.now();
        let known = self.backoffs.lock().remove(key).filter(|(uid, _)| uid == job.uid()).map(|(_, backoff)| backoff);
        let behind = waiting.is_some();
        let mut plan = plan::plan(&Input { job: &job, pods: &pods, behind, backoff: known.as_ref(), now });
        let result = self.carry_out(key, &job, &mut plan).await;
        if finished(&job).is_none() {
            let took = self.context.env.monotonic().saturating_sub(began);
            job_metrics::synced(&self.context.config.metrics, &job, &plan, result.is_ok(), took);
        }
        result?;
        Ok([plan.again, waiting].into_iter().flatten().min())
    }
}

impl Jobs {
    async fn carry_out(&self, key: &str, job: &Job, plan: &mut Plan) -> Result<(), ApiError> {
        let metrics = &self.context.config.metrics;
        if finished(job).is_none() {
            let backoff = std::mem::take(&mut plan.backoff);
            self.backoffs.lock().insert(key.to_string(), (job.uid().to_string(), backoff));
        }
        if job.status.as_ref() != Some(&plan.status) && finished(job).is_none() && !job.deleting() {
            let mut changed = job.clone();
            changed.status = Some(plan.status.clone());
            let api = self.context.client.namespaced::<Job>(job.namespace());
            match api.replace_status(job.name(), &changed).await {
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => return Err(error),
                Ok(_) => job_metrics::status_written(metrics, job, plan),
            }
        }
        let about = reference(job);
        for (kind, reason, message) in std::mem::take(&mut plan.events) {
            self.control.recorder.event(&about, kind, &reason, message);
        }
        for pod in &plan.release {
            self.release(pod).await?;
        }
        self.control.delete_all(key, &about, &plan.delete).await?;
        let new = plan.create.iter().map(|new| self.pod(job, new)).collect();
        let made = self.control.create_and_count(key, &about, new).await;
        job_metrics::pods_created(metrics, job, plan, made.succeeded, made.failed);
        made.result
    }

    async fn claim(&self, job: &Job) -> Result<Vec<Arc<Pod>>, ApiError> {
        let mut pods = self.pods.by_index(pod_indexes::CONTROLLER, job.uid());
        let Some(selector) = selector(job) else { return Ok(pods) };
        pods.extend(self.pods.by_index(pod_indexes::ORPHAN, job.namespace()));
        let claims = ownership::claims(pods, job.meta(), |pod| selector.matches(labels(pod.meta())));
        let client = &self.context.client;
        let (pods, jobs) = (client.namespaced(job.namespace()), client.namespaced(job.namespace()));
        ownership::claim_with(claims, &pods, &jobs, job, Some(FINALIZER)).await
    }

    async fn free_orphan(&self, key: &str) -> Result<(), ApiError> {
        let Some(pod) = self.pods.get(key).filter(|p| tracked(p)) else { return Ok(()) };
        if let Some(owner) = pod.controller().filter(|o| o.kind == "Job") {
            // The cache of jobs may be behind that of pods.
            let job = self.context.client.namespaced::<Job>(pod.namespace()).find(&owner.name).await?;
            if job.is_some_and(|job| job.uid() == owner.uid) {
                return Ok(());
            }
        }
        self.release(&pod).await
    }

    async fn release(&self, pod: &Pod) -> Result<(), ApiError> {
        let kept: Vec<_> = pod.finalizers().iter().filter(|f| *f != FINALIZER).collect();
        let meta = json!({ "uid": pod.uid(), "resourceVersion": pod.metadata.resource_version, "finalizers": kept });
        let api = self.context.client.namespaced::<Pod>(pod.namespace());
        match api.patch(pod.name(), &Patch::Merge(json!({ "metadata": meta }))).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    fn pod(&self, job: &Job, new: &NewPod) -> Pod {
        let template = job.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
        let suffix = self.context.env.name_suffix(5);
        let prefix = match new.index {
            Some(index) => format!("{}-{index}", job.name()),
            None => job.name().to_string(),
        };
        let mut pod = pods::from_template(&template, job.namespace(), &prefix, &suffix, job.as_controller());
        pod.metadata.finalizers.get_or_insert_default().push(FINALIZER.into());
        let Some(index) = new.index else { return pod };
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(INDEX.into(), index.to_string());
        if job.spec.as_ref().is_some_and(|s| s.backoff_limit_per_index.is_some()) {
            annotations.insert(failures::COUNTED.into(), new.failures.counted.to_string());
            if new.failures.ignored > 0 {
                annotations.insert(failures::IGNORED.into(), new.failures.ignored.to_string());
            }
        }
        pod.metadata.labels.get_or_insert_default().insert(INDEX.into(), index.to_string());
        if let Some(spec) = &mut pod.spec {
            if spec.hostname.is_none() {
                spec.hostname = Some(prefix);
            }
            for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
                let env = container.env.get_or_insert_default();
                if env.iter().any(|e| e.name == "JOB_COMPLETION_INDEX") {
                    continue;
                }
                env.push(EnvVar {
                    name: "JOB_COMPLETION_INDEX".into(),
                    value: None,
                    value_from: Some(EnvVarSource {
                        field_ref: Some(ObjectFieldSelector {
                            api_version: None,
                            field_path: format!("metadata.labels['{INDEX}']"),
                        }),
                        ..EnvVarSource::default()
                    }),
                });
            }
        }
        pod
    }
}
