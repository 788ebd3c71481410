//! Tries a part of the node's network again until it works, and says on the Node what is wrong meanwhile.
//! Used by `pod_network` and `dns_service`.
//! A failure ends nothing but the attempt; never two attempts within `RETRY_DELAY_MIN`.

use std::time::Duration;

use anyhow::Result;
use client::{Client, EventRecorder, ObjectRef};
use env::{Backoff, Env};
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// Between a failure and the next attempt; doubled each time.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(500);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
const RETRY_BACKOFF: Backoff = Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX);

#[derive(Clone)]
pub struct RetryWithEvents {
    recorder: EventRecorder,
    about: ObjectRef,
    env: Env,
    shutdown: CancellationToken,
}

impl RetryWithEvents {
    pub fn new(client: Client, node_name: &str, env: &Env, shutdown: &CancellationToken) -> Self {
        let about = ObjectRef {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(node_name.into()),
            // Where `kubectl describe node` looks for them.
            uid: Some(node_name.into()),
            ..ObjectRef::default()
        };
        Self {
            recorder: EventRecorder::new(client, env.clone(), "minke-agent", node_name),
            about,
            env: env.clone(),
            shutdown: shutdown.clone(),
        }
    }

    /// Returns once an attempt went well, or the process stops. `reason` and `advice` are the Event's.
    pub async fn until_done<'a>(
        &self,
        reason: &str,
        advice: &str,
        mut attempt: impl FnMut() -> BoxFuture<'a, Result<()>>,
    ) {
        let mut backoff = RETRY_BACKOFF;
        loop {
            let began = self.env.monotonic();
            let Some(Err(error)) = self.shutdown.run_until_cancelled(attempt()).await else { return };
            if self.env.monotonic() - began > RETRY_DELAY_MAX {
                backoff.reset();
            }
            let pause = backoff.next_delay();
            tracing::error!(error = format!("{error:#}"), ?pause, "{reason}: will try again");
            self.recorder.warning(&self.about, reason, format!("{error:#}: {advice}"));
            if self.shutdown.run_until_cancelled(self.env.sleep(pause)).await.is_none() {
                return;
            }
        }
    }
}
