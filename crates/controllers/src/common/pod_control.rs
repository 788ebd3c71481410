//! Creating and deleting pods for a workload, in growing batches, with expectations and Events.
//! Used by replica sets, daemon sets and jobs.
//! An expectation is noted before its request and withdrawn when the request surely failed.

use std::{future::Future, sync::Arc, time::Duration};

use api::ApiError;
use client::{Client, EventRecorder, ObjectRef, may_have_happened};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;

use crate::common::{
    expectations::Expectations,
    meta::{Object, delete_options, split},
};

#[derive(Clone)]
pub struct PodControl {
    pub client: Client,
    pub recorder: EventRecorder,
    pub expectations: Expectations,
}

/// Requests to the server at once, for one owner.
const IN_FLIGHT_MAX: usize = 64;

impl PodControl {
    /// Creates `pods` in batches of 1, 2, 4 …: a template that the server refuses costs one request, not hundreds.
    pub async fn create_all(&self, owner: &str, parent: &ObjectRef, pods: Vec<Pod>) -> Result<usize, ApiError> {
        let made = self.create_and_count(owner, parent, pods).await;
        made.result.map(|()| made.succeeded)
    }

    /// The same, telling how many were made even where some were not.
    pub async fn create_and_count(&self, owner: &str, parent: &ObjectRef, pods: Vec<Pod>) -> Made {
        slow_start(pods, |pod| self.create(owner, parent, pod)).await
    }

    pub async fn create(&self, owner: &str, parent: &ObjectRef, pod: Pod) -> Result<(), ApiError> {
        let key = pod.key();
        self.expectations.expect_created(owner, &key);
        match self.client.namespaced::<Pod>(pod.namespace()).create(&pod).await {
            Ok(created) => {
                self.recorder.normal(parent, "SuccessfulCreate", format!("Created pod: {}", created.name()));
                Ok(())
            }
            // It may be there: counting again too soon would make one too many.
            Err(error) if may_have_happened(&error) => Err(error),
            Err(error) => {
                self.expectations.created(owner, &key);
                // Nothing can be created here any more; the owner goes too, so there is nothing to tell.
                if namespace_terminating(&error) {
                    return Ok(());
                }
                // Without the drawn part of the name, so that one Event counts them all.
                let drawn_from = pod.metadata.generate_name.as_deref().unwrap_or(pod.name());
                let message = error.message.replace(pod.name(), drawn_from);
                self.recorder.warning(parent, "FailedCreate", format!("Error creating: {message}"));
                Err(error)
            }
        }
    }

    /// How long own writes are still to be waited for; `None` when the cache shows them all.
    pub async fn waiting(&self, owner: &str) -> Result<Option<Duration>, ApiError> {
        let (created, deleted) = self.expectations.overdue(owner);
        for key in created {
            if self.find(&key).await?.is_none() {
                self.expectations.created(owner, &key);
            }
        }
        for (uid, key) in deleted {
            if self.find(&key).await?.is_none_or(|pod| pod.uid() != uid || !pod.deleting()) {
                self.expectations.deleted(owner, &uid);
            }
        }
        Ok(self.expectations.waiting(owner))
    }

    async fn find(&self, key: &str) -> Result<Option<Pod>, ApiError> {
        let (namespace, name) = split(key);
        self.client.namespaced::<Pod>(namespace).find(name).await
    }

    pub async fn delete_all(&self, owner: &str, parent: &ObjectRef, pods: &[Arc<Pod>]) -> Result<(), ApiError> {
        let mut first = Ok(());
        for batch in pods.chunks(IN_FLIGHT_MAX) {
            for result in join_all(batch.iter().map(|pod| self.delete(owner, parent, pod))).await {
                first = first.and(result);
            }
        }
        first
    }

    pub async fn delete(&self, owner: &str, parent: &ObjectRef, pod: &Pod) -> Result<(), ApiError> {
        self.expectations.expect_deleted(owner, pod.uid(), &pod.key());
        let name = pod.name();
        match self.client.namespaced::<Pod>(pod.namespace()).delete(name, &delete_options(pod.uid())).await {
            Ok(()) => {
                self.recorder.normal(parent, "SuccessfulDelete", format!("Deleted pod: {name}"));
                Ok(())
            }
            Err(error) if may_have_happened(&error) => Err(error),
            Err(error) => {
                self.expectations.deleted(owner, pod.uid());
                if error.is_not_found() || error.is_conflict() {
                    return Ok(());
                }
                self.recorder.warning(parent, "FailedDelete", format!("Error deleting: {}", error.message));
                Err(error)
            }
        }
    }
}

pub fn namespace_terminating(error: &ApiError) -> bool {
    let causes = error.details.as_ref().and_then(|d| d["causes"].as_array());
    causes.into_iter().flatten().any(|cause| cause["reason"] == "NamespaceTerminating")
}

/// How many were made, how many could not be, and the last reason. Those after the first failures were not tried.
pub struct Made {
    pub succeeded: usize,
    pub failed: usize,
    pub result: Result<(), ApiError>,
}

/// Runs `work` on batches of 1, 2, 4 …; stops after the first batch with a failure.
async fn slow_start<T, F: Future<Output = Result<(), ApiError>>>(items: Vec<T>, work: impl Fn(T) -> F) -> Made {
    let (mut items, mut batch) = (items.into_iter().peekable(), 1);
    let mut made = Made { succeeded: 0, failed: 0, result: Ok(()) };
    while items.peek().is_some() && made.result.is_ok() {
        for result in join_all(items.by_ref().take(batch).map(&work)).await {
            match result {
                Ok(()) => made.succeeded += 1,
                Err(error) => (made.failed, made.result) = (made.failed + 1, Err(error)),
            }
        }
        batch = (batch * 2).min(IN_FLIGHT_MAX);
    }
    made
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn batches_double_and_stop_at_a_failure() {
        let check = async |count: usize, fails_from: usize, calls: usize| {
            let made = AtomicUsize::new(0);
            let found = slow_start((0..count).collect(), |index| {
                made.fetch_add(1, Ordering::Relaxed);
                let fails = index >= fails_from;
                async move { if fails { Err(ApiError::internal("no")) } else { Ok(()) } }
            })
            .await;
            assert_eq!(made.load(Ordering::Relaxed), calls);
            assert_eq!(found.result.is_err(), fails_from < count);
            assert_eq!((found.succeeded, found.failed), (calls.min(fails_from), calls.saturating_sub(fails_from)));
        };
        check(10, 100, 10).await;
        check(10, 0, 1).await;
        check(10, 1, 3).await;
        check(100, 5, 7).await;
        check(0, 0, 0).await;
    }
}
