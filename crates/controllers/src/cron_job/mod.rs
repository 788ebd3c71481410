//! Starts jobs by the clock.
//! `plan` is the core, `schedule` reads cron expressions; the job controller runs what is started.
//! A job's name follows from its scheduled time, so a time is never run twice.

mod plan;
mod schedule;

use std::sync::Arc;

use api::ApiError;
use async_trait::async_trait;
use client::{EventRecorder, Informer, ObjectRef, reference};
use jiff::Timestamp;
use k8s_openapi::{
    api::batch::v1::{CronJob, CronJobStatus, Job},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use metrics::Family;
use plan::{Action, job_name, plan, surplus};

use crate::{
    common::{
        indexes,
        meta::{self, Object, delete_in_background, time},
        pod_control::namespace_terminating,
    },
    job::finished,
    runner::{Context, Controller, Outcome, Setup},
};

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

static CREATION_SKEW: Family = Family::histogram(
    "cronjob_controller_job_creation_skew_duration_seconds",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0],
    "How long after its scheduled time a job was created.",
);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let (crons, jobs) = (setup.informer::<CronJob>(), setup.informer::<Job>());
    indexes::by_controller(&jobs);
    setup.on_keys(&crons);
    setup.on(&jobs, |change, queue| {
        let Some(job) = change.new.as_ref().or(change.old.as_ref()) else { return };
        if let Some(owner) = job.controller().filter(|o| o.kind == "CronJob") {
            queue.add(meta::key(job.namespace(), &owner.name));
        }
    });
    let recorder = setup.context.recorder("cronjob-controller");
    Arc::new(CronJobs { context: setup.context.clone(), crons, jobs, recorder })
}

struct CronJobs {
    context: Context,
    crons: Informer<CronJob>,
    jobs: Informer<Job>,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for CronJobs {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(cron) = self.crons.get(key) else { return Ok(None) };
        let about = reference(&*cron);
        let jobs = self.jobs.by_index(indexes::CONTROLLER, cron.uid());
        for job in surplus(&cron, &jobs) {
            self.delete(&about, &job).await?;
        }
        let mut status = cron.status.clone().unwrap_or_default();
        self.note_jobs(&cron, &mut status, &about, &jobs).await?;
        let mut running: Vec<_> = jobs.into_iter().filter(|job| finished(job).is_none() && !job.deleting()).collect();
        running.sort_by_key(|job| job.name().to_string());
        let now = self.context.env.now();
        let mut known = (*cron).clone();
        known.status = Some(status.clone());
        let plan = plan(&known, &running, now);
        for action in plan.actions {
            match action {
                Action::Event { warning: true, reason, message } => self.recorder.warning(&about, reason, message),
                Action::Event { reason, message, .. } => self.recorder.normal(&about, reason, message),
                Action::Delete(job) => {
                    self.delete(&about, &job).await?;
                    let active = status.active.get_or_insert_default();
                    active.retain(|reference| reference.uid != job.metadata.uid);
                }
                Action::Start { at } => {
                    if let Some(job) = self.start(&cron, &about, at).await? {
                        let reference = ObjectRef { resource_version: None, ..reference(&job) };
                        let active = status.active.get_or_insert_default();
                        active.retain(|known| known.uid != reference.uid);
                        active.push(reference);
                    }
                    status.last_schedule_time = Some(time(at));
                }
            }
        }
        status.active = status.active.filter(|active| !active.is_empty());
        if cron.status.clone().unwrap_or_default() != status {
            let mut cron = (*cron).clone();
            cron.status = Some(status);
            let api = self.context.client.namespaced::<CronJob>(cron.namespace());
            api.replace_status(cron.name(), &cron).await?;
        }
        Ok(plan.again)
    }
}

impl CronJobs {
    /// Brings the list of active jobs in line with the jobs there are. Either cache may be behind the other, so the
    /// server is asked before anything surprising is said.
    async fn note_jobs(
        &self,
        cron: &CronJob,
        status: &mut CronJobStatus,
        about: &ObjectRef,
        jobs: &[Arc<Job>],
    ) -> Result<(), ApiError> {
        let api = self.context.client.namespaced::<CronJob>(cron.namespace());
        let mut newest: Option<CronJob> = None;
        let mut active = status.active.take().unwrap_or_default();
        for job in jobs {
            let listed = active.iter().any(|reference| reference.uid == job.metadata.uid);
            match (finished(job), listed) {
                (Some(condition), true) => {
                    active.retain(|reference| reference.uid != job.metadata.uid);
                    let message = format!("Saw completed job: {}, condition: {}", job.name(), condition.type_);
                    self.recorder.normal(about, "SawCompletedJob", message);
                }
                (None, false) if !job.deleting() => {
                    if newest.is_none() {
                        newest = api.find(cron.name()).await?;
                    }
                    let known = newest.as_ref().and_then(|c| c.status.as_ref()?.active.as_ref());
                    if !known.is_some_and(|known| known.iter().any(|r| r.uid == job.metadata.uid)) {
                        let message = format!("Saw a job that the controller did not create or forgot: {}", job.name());
                        self.recorder.warning(about, "UnexpectedJob", message);
                    }
                    active.push(ObjectRef { resource_version: None, ..reference(&**job) })
                }
                _ => {}
            }
            let ended = job.status.as_ref().and_then(|s| s.completion_time.clone());
            if finished(job).is_some_and(|c| c.type_ == "Complete") && ended > status.last_successful_time {
                status.last_successful_time = ended;
            }
        }
        for listed in std::mem::take(&mut active) {
            let name = listed.name.as_deref().unwrap_or_default();
            let mut here = jobs.iter().any(|job| job.metadata.uid == listed.uid);
            if !here {
                let found = self.context.client.namespaced::<Job>(cron.namespace()).find(name).await?;
                here = found.is_some_and(|job| job.metadata.uid == listed.uid);
            }
            match here {
                true => active.push(listed),
                false => self.recorder.normal(about, "MissingJob", format!("Active job went missing: {name}")),
            }
        }
        status.active = Some(active).filter(|active| !active.is_empty());
        Ok(())
    }

    /// `None` when the job of that time exists already and is not ours to list, or can't exist any more.
    async fn start(&self, cron: &CronJob, about: &ObjectRef, at: Timestamp) -> Result<Option<Job>, ApiError> {
        let api = self.context.client.namespaced::<Job>(cron.namespace());
        let job = job(cron, at);
        match api.create(&job).await {
            Ok(created) => {
                self.recorder.normal(about, "SuccessfulCreate", format!("Created job {}", created.name()));
                let skew = created.created().unwrap_or(at).duration_since(at).as_secs_f64();
                self.context.config.metrics.observe(&CREATION_SKEW, &[], skew);
                Ok(Some(created))
            }
            Err(error) if namespace_terminating(&error) => Ok(None),
            Err(error) if error.is_already_exists() => {
                let known = api.get(job.name()).await?;
                Ok(Some(known).filter(|known| known.controlled_by(cron.uid()) && finished(known).is_none()))
            }
            Err(error) => {
                let message = format!("Error creating job: {}", error.message);
                self.recorder.warning(about, "FailedCreate", message);
                Err(error)
            }
        }
    }

    async fn delete(&self, about: &ObjectRef, job: &Job) -> Result<(), ApiError> {
        let api = self.context.client.namespaced::<Job>(job.namespace());
        match api.delete(job.name(), &delete_in_background(job.uid())).await {
            Ok(()) => {
                self.recorder.normal(about, "SuccessfulDelete", format!("Deleted job {}", job.name()));
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => {
                self.recorder.warning(about, "FailedDelete", format!("Deleted job: {}", error.message));
                Err(error)
            }
        }
    }
}

fn job(cron: &CronJob, at: Timestamp) -> Job {
    let template = cron.spec.as_ref().map(|s| s.job_template.clone()).unwrap_or_default();
    let meta = template.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    let zone = plan::zone(cron).unwrap_or(jiff::tz::TimeZone::UTC);
    let scheduled = match cron.spec.as_ref().and_then(|s| s.time_zone.as_ref()) {
        Some(_) => at.to_zoned(zone).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        None => at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    };
    annotations.insert(SCHEDULED_AT.into(), scheduled);
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(cron, at)),
            namespace: cron.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![cron.as_controller()]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
