//! The life of one pod on this node as a state machine: what happens changes the state, the state says what to do next.
//! Part of `pod_workers`, whose tasks carry out what `PodWorkerState::work` says.
//! Invariant: pure. A pod goes from Syncing to Terminating to Terminated to Finished and never back, and its grace
//! period only shrinks (`state_tests.rs`) (tidy: `pure_files`).

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::pod::{
    pod_spec,
    pod_status::{self, PodFailure},
};

/// A pod that the node itself ends, although nobody deleted it.
#[derive(Debug, Clone, PartialEq)]
pub struct Eviction {
    pub reason: String,
    pub message: String,
    /// What its DisruptionTarget condition says, if it is to have one.
    pub disruption_message: Option<String>,
    pub grace_period_seconds: i64,
}

/// What first made a pod end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminationCause {
    /// Its API object has a deletionTimestamp.
    Deleted,
    /// No source has it any more.
    Removed,
    Evicted,
    /// The node did not admit it.
    Rejected,
    DeadlineExceeded,
    /// All its containers have ended, and none is to be restarted.
    Completed,
    /// Its API object says Succeeded or Failed.
    TerminalPhase,
}

/// What the sources (the API server, manifests) say of a pod that ends.
#[derive(Debug, Clone, PartialEq)]
pub enum Presence {
    Present,
    Removed,
    /// A static pod that was removed is back under the same UID: it begins anew once this one has finished.
    Recreated(Arc<Pod>),
}

/// How far a pod is of which nothing runs any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminatedStep {
    /// Its volumes and its control group are there still.
    Holding,
    /// Only logs and ended containers are left; they stay until the pod is deleted or removed.
    Retained,
    /// The API server has no object of it any more.
    DeletedFromApi,
}

#[derive(Debug, Clone, PartialEq)]
pub enum PodWorkerState {
    /// Its containers are brought to what the specification asks for.
    Syncing { pod: Arc<Pod> },
    /// Its containers and sandboxes are being stopped.
    Terminating {
        pod: Arc<Pod>,
        cause: TerminationCause,
        grace_period_seconds: i64,
        /// What its status says of the node's decision to end it.
        failure: Option<PodFailure>,
        /// Present also where something else had made it end before.
        eviction: Option<Eviction>,
        presence: Presence,
    },
    /// Nothing of it runs.
    Terminated { pod: Arc<Pod>, presence: Presence, step: TerminatedStep },
    /// Nothing of it is left on this node; its worker is about to go.
    Finished { pod: Arc<Pod>, presence: Presence },
}

/// What happens to a pod.
#[derive(Debug, Clone, PartialEq)]
pub enum PodWorkerEvent {
    /// A source has it, new or changed.
    Updated(Arc<Pod>),
    /// No source has it any more.
    Removed,
    Evicted(Eviction),
    Rejected(PodFailure),
    DeadlineExceeded(PodFailure),
    Completed,
    /// The runtime has no running container and no ready sandbox of it, and its last status was told.
    Stopped,
    /// Its volumes and its control group are gone.
    CleanedUp,
    DeletedFromApi,
    RemovedFromRuntime,
}

/// What a worker is to do for its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    SyncPod,
    SyncTerminatingPod,
    SyncTerminatedPod,
    AwaitDeletion,
    DeleteFromApi,
    RemoveFromRuntime,
    Done,
}

impl PodWorkerState {
    /// Of a pod that no worker knows: one that is new, or that this kubelet finds after a restart.
    pub fn new(pod: Arc<Pod>) -> Self {
        Self::Syncing { pod: pod.clone() }.transition(PodWorkerEvent::Updated(pod))
    }

    pub fn pod(&self) -> &Arc<Pod> {
        match self {
            Self::Syncing { pod }
            | Self::Terminating { pod, .. }
            | Self::Terminated { pod, .. }
            | Self::Finished { pod, .. } => pod,
        }
    }

    /// Whether its manifest came back, so that it begins once more when nothing of it is left.
    pub fn is_recreated(&self) -> bool {
        match self {
            Self::Syncing { .. } => false,
            Self::Terminating { presence, .. }
            | Self::Terminated { presence, .. }
            | Self::Finished { presence, .. } => {
                matches!(presence, Presence::Recreated(_))
            }
        }
    }

    /// How far it is, whether a source has it, and whether it is a manifest's, in the words of the metrics.
    pub fn labels(&self) -> [&'static str; 3] {
        let (lifecycle, presence) = match self {
            Self::Syncing { .. } => ("sync", &Presence::Present),
            Self::Terminating { presence, .. } => ("terminating", presence),
            Self::Terminated { presence, .. } | Self::Finished { presence, .. } => ("terminated", presence),
        };
        let config = if *presence == Presence::Removed { "orphan" } else { "desired" };
        [lifecycle, config, if pod_spec::is_static(self.pod()) { "true" } else { "" }]
    }

    pub fn work(&self) -> Work {
        match self {
            Self::Syncing { .. } => Work::SyncPod,
            Self::Terminating { .. } => Work::SyncTerminatingPod,
            Self::Terminated { step: TerminatedStep::Holding, .. } => Work::SyncTerminatedPod,
            Self::Terminated { step: TerminatedStep::DeletedFromApi, .. } => Work::RemoveFromRuntime,
            Self::Terminated { pod, presence: Presence::Present, .. } if !is_deleted(pod) => Work::AwaitDeletion,
            // The object of a static pod is its mirror, which others delete.
            Self::Terminated { pod, presence: Presence::Present, .. } if !pod_spec::is_static(pod) => {
                Work::DeleteFromApi
            }
            Self::Terminated { .. } => Work::RemoveFromRuntime,
            Self::Finished { .. } => Work::Done,
        }
    }

    /// Whether a sync that is under way is cut off. One that found the pod's end itself comes to its own.
    pub fn cancels_sync(&self) -> bool {
        match self {
            Self::Syncing { .. } => false,
            Self::Terminating { pod, eviction, presence, .. } => {
                is_deleted(pod) || eviction.is_some() || *presence != Presence::Present
            }
            Self::Terminated { .. } | Self::Finished { .. } => true,
        }
    }

    /// Whether nothing of the pod runs and it holds no volumes: another may take its place.
    pub fn is_released(&self) -> bool {
        match self {
            Self::Terminated { step, .. } => *step != TerminatedStep::Holding,
            Self::Finished { .. } => true,
            Self::Syncing { .. } | Self::Terminating { .. } => false,
        }
    }

    /// Whether the pod is to end at once. The API lets go of a pod only for a grace period of zero, which may have come
    /// while nobody watched.
    pub fn is_forced(&self) -> bool {
        match self {
            Self::Terminating { pod, presence, .. } => is_forced(pod, presence),
            Self::Syncing { .. } | Self::Terminated { .. } | Self::Finished { .. } => false,
        }
    }

    pub fn transition(self, event: PodWorkerEvent) -> Self {
        match self {
            Self::Syncing { pod } => syncing(pod, event),
            Self::Terminating { pod, cause, grace_period_seconds, failure, eviction, presence } => match event {
                PodWorkerEvent::Stopped => Self::Terminated { pod, presence, step: TerminatedStep::Holding },
                PodWorkerEvent::Evicted(new) if eviction.is_none() => {
                    let grace_period_seconds = grace_period_seconds.min(new.grace_period_seconds);
                    Self::Terminating { pod, cause, grace_period_seconds, failure, eviction: Some(new), presence }
                }
                // Told by a sync that was under way when the pod was deleted.
                PodWorkerEvent::Rejected(new) | PodWorkerEvent::DeadlineExceeded(new) => {
                    let failure = failure.or(Some(new));
                    Self::Terminating { pod, cause, grace_period_seconds, failure, eviction, presence }
                }
                event => {
                    let (pod, presence) = observe(pod, presence, event);
                    let asked = match is_forced(&pod, &presence) {
                        true => 0,
                        false if is_deleted(&pod) => pod_spec::grace_period_seconds(&pod),
                        false => grace_period_seconds,
                    };
                    let grace_period_seconds = grace_period_seconds.min(asked);
                    Self::Terminating { pod, cause, grace_period_seconds, failure, eviction, presence }
                }
            },
            Self::Terminated { pod, presence, step } => match event {
                PodWorkerEvent::CleanedUp => Self::Terminated { pod, presence, step: TerminatedStep::Retained },
                PodWorkerEvent::DeletedFromApi => {
                    Self::Terminated { pod, presence, step: TerminatedStep::DeletedFromApi }
                }
                PodWorkerEvent::RemovedFromRuntime => Self::Finished { pod, presence },
                event => {
                    let (pod, presence) = observe(pod, presence, event);
                    Self::Terminated { pod, presence, step }
                }
            },
            Self::Finished { pod, presence } => {
                let (pod, presence) = observe(pod, presence, event);
                Self::Finished { pod, presence }
            }
        }
    }
}

fn syncing(pod: Arc<Pod>, event: PodWorkerEvent) -> PodWorkerState {
    let terminating = |pod: Arc<Pod>, cause, failure, presence| PodWorkerState::Terminating {
        grace_period_seconds: if is_forced(&pod, &presence) { 0 } else { pod_spec::grace_period_seconds(&pod) },
        pod,
        cause,
        failure,
        eviction: None,
        presence,
    };
    match event {
        PodWorkerEvent::Updated(pod) if is_deleted(&pod) => {
            terminating(pod, TerminationCause::Deleted, None, Presence::Present)
        }
        PodWorkerEvent::Updated(pod) if is_over(&pod) => {
            terminating(pod, TerminationCause::TerminalPhase, None, Presence::Present)
        }
        PodWorkerEvent::Updated(pod) => PodWorkerState::Syncing { pod },
        PodWorkerEvent::Removed => terminating(pod, TerminationCause::Removed, None, Presence::Removed),
        PodWorkerEvent::Evicted(eviction) => PodWorkerState::Terminating {
            pod,
            cause: TerminationCause::Evicted,
            grace_period_seconds: eviction.grace_period_seconds,
            failure: Some(PodFailure {
                reason: eviction.reason.clone(),
                message: eviction.message.clone(),
                rejected: false,
            }),
            eviction: Some(eviction),
            presence: Presence::Present,
        },
        PodWorkerEvent::Rejected(failure) => {
            terminating(pod, TerminationCause::Rejected, Some(failure), Presence::Present)
        }
        PodWorkerEvent::DeadlineExceeded(failure) => {
            terminating(pod, TerminationCause::DeadlineExceeded, Some(failure), Presence::Present)
        }
        PodWorkerEvent::Completed => terminating(pod, TerminationCause::Completed, None, Presence::Present),
        PodWorkerEvent::Stopped
        | PodWorkerEvent::CleanedUp
        | PodWorkerEvent::DeletedFromApi
        | PodWorkerEvent::RemovedFromRuntime => PodWorkerState::Syncing { pod },
    }
}

/// What the sources say while the pod ends. One that is back ends as it was defined before.
fn observe(pod: Arc<Pod>, presence: Presence, event: PodWorkerEvent) -> (Arc<Pod>, Presence) {
    match (event, presence) {
        (PodWorkerEvent::Removed, _) => (pod, Presence::Removed),
        (PodWorkerEvent::Updated(new), Presence::Present) => (new, Presence::Present),
        (PodWorkerEvent::Updated(new), _) if pod_spec::is_static(&new) => (pod, Presence::Recreated(new)),
        (PodWorkerEvent::Updated(new), presence) => (new, presence),
        (_, presence) => (pod, presence),
    }
}

fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// A static pod is run whatever its mirror says.
fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase.is_some_and(pod_status::is_terminal) && !pod_spec::is_static(pod)
}

fn is_forced(pod: &Pod, presence: &Presence) -> bool {
    let zero = is_deleted(pod) && pod.metadata.deletion_grace_period_seconds.is_some_and(|seconds| seconds <= 0);
    zero || (*presence != Presence::Present && !pod_spec::is_static(pod))
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
