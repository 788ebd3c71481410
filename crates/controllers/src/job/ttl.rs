//! Deletes finished jobs once their `ttlSecondsAfterFinished` has passed.
//! Beside the job controller, which finishes them.
//! Asks the server once more before deleting, since the TTL may have been raised meanwhile.

use std::sync::Arc;

use async_trait::async_trait;
use client::Informer;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use metrics::Family;

use super::finished;
use crate::{
    common::{
        meta::{Object, delete_options, split},
        pods::{seconds_after, until},
    },
    runner::{Context, Controller, Outcome, Setup},
};

static DELETION_SECONDS: Family = Family::histogram(
    "ttl_after_finished_controller_job_deletion_duration_seconds",
    &[],
    &[0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2],
    "How long jobs were still there after their TTL had passed.",
);

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let jobs = setup.informer::<Job>();
    setup.on(&jobs, |change, queue| {
        if change.new.as_ref().is_some_and(|job| expires(job).is_some()) {
            queue.add(change.key.clone());
        }
    });
    Arc::new(TtlAfterFinished { context: setup.context.clone(), jobs })
}

fn expires(job: &Job) -> Option<Timestamp> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished.filter(|_| !job.deleting())?;
    let at = finished(job)?.last_transition_time.as_ref()?.0;
    Some(seconds_after(at, ttl.into()))
}

struct TtlAfterFinished {
    context: Context,
    jobs: Informer<Job>,
}

#[async_trait]
impl Controller for TtlAfterFinished {
    async fn reconcile(&self, key: &str) -> Outcome {
        let Some(at) = self.jobs.get(key).and_then(|job| expires(&job)) else { return Ok(None) };
        let left = until(self.context.env.now(), at);
        if !left.is_zero() {
            return Ok(Some(left));
        }
        let (namespace, name) = split(key);
        let api = self.context.client.namespaced::<Job>(namespace);
        let Some(fresh) = api.find(name).await? else { return Ok(None) };
        let Some(at) = expires(&fresh) else { return Ok(None) };
        let left = until(self.context.env.now(), at);
        if !left.is_zero() {
            return Ok(Some(left));
        }
        let mut options = delete_options(fresh.uid());
        options.propagation_policy = Some("Foreground".into());
        match api.delete(name, &options).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            Err(_) => Ok(None),
            Ok(_) => {
                let late = self.context.env.now().duration_since(at).as_secs_f64();
                self.context.config.metrics.observe(&DELETION_SECONDS, &[], late);
                Ok(None)
            }
        }
    }
}
