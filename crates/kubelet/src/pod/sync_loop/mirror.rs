//! Mirror pods: the API server's image of each static pod, so that others can see it.
//! Part of `sync_loop`.
//! A mirror never influences what runs; a wrong or deleted one is replaced. It shows its pod to the end: the mirror of what
//! has its name next comes after it.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::Pod,
    apimachinery::pkg::apis::meta::v1::{DeleteOptions, OwnerReference, Preconditions},
};

use crate::pod::{
    pod_spec::{self, CONFIG_HASH, CONFIG_MIRROR, is_mirror_of},
    pod_workers::{PodWorkers, Shared},
};

const RETRY_BACKOFF: env::Backoff = env::Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// Until no static pod of this name runs any more whose manifest is gone.
async fn predecessors_ended(workers: &PodWorkers, pod: &Pod) {
    for end in workers.ending_static_pods(pod_spec::namespace(pod), pod_spec::name(pod)) {
        end.cancelled().await;
    }
}

/// Makes the mirror of a static pod in the background.
pub fn ensure(workers: &Arc<PodWorkers>, pod: &Arc<Pod>) {
    let (workers, pod) = (workers.clone(), pod.clone());
    workers.shared.env.clone().spawn(async move {
        predecessors_ended(&workers, &pod).await;
        let (shared, mut backoff) = (&workers.shared, RETRY_BACKOFF);
        // Only as long as the pod is wanted.
        while shared.pods.contains(pod_spec::uid(&pod)) {
            match create(&workers, &pod).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(pod = pod_spec::display(&pod), %error, "failed to make a mirror pod");
                    shared.env.sleep(backoff.next_delay()).await;
                }
            }
        }
    });
}

async fn create(workers: &Arc<PodWorkers>, pod: &Pod) -> Result<(), api::ApiError> {
    let shared = &workers.shared;
    let api = shared.client.namespaced::<Pod>(pod_spec::namespace(pod));
    let mut mirror = pod.clone();
    mirror.metadata.uid = None;
    let hash = pod_spec::annotation(pod, CONFIG_HASH).unwrap_or_default().to_string();
    mirror.metadata.annotations.get_or_insert_default().insert(CONFIG_MIRROR.into(), hash);
    let node = shared.node.lock().metadata.clone();
    mirror.metadata.owner_references = node.uid.map(|uid| {
        vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: node.name.unwrap_or_default(),
            uid,
            controller: Some(true),
            ..Default::default()
        }]
    });
    // A node may look only at pods that are there and its own, so it asks for one after it could not be made.
    let made = match api.create(&mirror).await {
        Err(error) if error.is_already_exists() => {
            let existing = api.get(pod_spec::name(pod)).await?;
            let stale = !is_mirror_of(&existing, pod) || existing.metadata.deletion_timestamp.is_some();
            // What only has the name of a mirror is somebody's own.
            if stale && pod_spec::is_mirror(&existing) {
                delete(shared, &existing).await?;
            }
            if stale {
                return Err(error);
            }
            existing
        }
        other => other?,
    };
    changed(workers, Arc::new(made));
    Ok(())
}

async fn delete(shared: &Shared, mirror: &Pod) -> Result<(), api::ApiError> {
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: mirror.metadata.uid.clone(), resource_version: None }),
        ..Default::default()
    };
    let api = shared.client.namespaced::<Pod>(pod_spec::namespace(mirror));
    match api.delete(pod_spec::name(mirror), &options).await {
        // Another has its name by now.
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

/// The API server has this mirror now.
pub fn changed(workers: &Arc<PodWorkers>, mirror: Arc<Pod>) {
    let shared = &workers.shared;
    let (namespace, name) = (pod_spec::namespace(&mirror), pod_spec::name(&mirror));
    let owner = shared.pods.by_name(namespace, name).filter(|pod| pod_spec::is_static(pod));
    let fresh = shared.pods.mirror(namespace, name).is_none_or(|old| old.metadata.uid != mirror.metadata.uid);
    shared.pods.set_mirror(mirror.clone());
    match owner {
        Some(pod) if !is_mirror_of(&mirror, &pod) || mirror.metadata.deletion_timestamp.is_some() => {
            discard(workers, mirror);
        }
        Some(pod) if fresh => {
            // What was computed before there was a mirror is shown now.
            if let Some(mut status) = shared.statuses.get(pod_spec::uid(&pod)) {
                shared.statuses.forget(pod_spec::uid(&pod));
                status.observed_generation = mirror.metadata.generation;
                shared.statuses.set(&pod, status);
            }
        }
        Some(_) => {}
        None => orphaned_mirror(workers, mirror),
    }
}

/// A mirror without a manifest: at the start the manifests may simply not be read yet.
fn orphaned_mirror(workers: &Arc<PodWorkers>, mirror: Arc<Pod>) {
    let workers = workers.clone();
    workers.shared.env.clone().spawn(async move {
        workers.shared.env.sleep(std::time::Duration::from_secs(2)).await;
        let owner = workers.shared.pods.by_name(pod_spec::namespace(&mirror), pod_spec::name(&mirror));
        if owner.is_none_or(|pod| !pod_spec::is_static(&pod)) {
            discard(&workers, mirror);
        }
    });
}

fn discard(workers: &Arc<PodWorkers>, mirror: Arc<Pod>) {
    let workers = workers.clone();
    workers.shared.env.clone().spawn(async move {
        predecessors_ended(&workers, &mirror).await;
        let owner = workers.shared.pods.by_name(pod_spec::namespace(&mirror), pod_spec::name(&mirror));
        let is_wanted = owner.is_some_and(|pod| pod_spec::is_static(&pod) && is_mirror_of(&mirror, &pod));
        // Its manifest has come back.
        if is_wanted && mirror.metadata.deletion_timestamp.is_none() {
            return;
        }
        if let Err(error) = delete(&workers.shared, &mirror).await {
            tracing::warn!(pod = pod_spec::display(&mirror), %error, "failed to delete a mirror pod");
        }
    });
}

/// Someone removed the mirror: it comes back as long as its pod is there.
pub fn removed(workers: &Arc<PodWorkers>, mirror: &Arc<Pod>) {
    let shared = &workers.shared;
    let (namespace, name) = (pod_spec::namespace(mirror), pod_spec::name(mirror));
    shared.pods.remove_mirror(namespace, name);
    if let Some(pod) = shared.pods.by_name(namespace, name).filter(|pod| pod_spec::is_static(pod)) {
        ensure(workers, &pod);
    }
}

/// The manifest of a static pod is gone: so goes the mirror, once the pod has ended.
pub fn orphaned(workers: &Arc<PodWorkers>, pod: &Arc<Pod>) {
    if let Some(mirror) = workers.shared.pods.mirror(pod_spec::namespace(pod), pod_spec::name(pod)) {
        discard(workers, mirror);
    }
}
