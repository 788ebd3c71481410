//! Tells whether the runtime is just making and starting a container of a pod, which is not cut off: what is left of a
//! container that was created and not started says that it failed.
//! `runtime_manager` holds it while it starts one; `pod_workers` waits for it before it gives up a sync.
//! Waiting for it never hinders a start.

use tokio::sync::watch;

#[derive(Debug)]
pub struct ContainerStarts(watch::Sender<usize>);

/// A start under way, until it is dropped.
pub struct ContainerStart<'a>(&'a ContainerStarts);

impl Default for ContainerStarts {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl ContainerStarts {
    pub fn begin(&self) -> ContainerStart<'_> {
        self.0.send_modify(|under_way| *under_way += 1);
        ContainerStart(self)
    }

    /// Returns once none is under way.
    pub async fn idle(&self) {
        // The sender is our own, so that it never closes before.
        let _ = self.0.subscribe().wait_for(|under_way| *under_way == 0).await;
    }
}

impl Drop for ContainerStart<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|under_way| *under_way -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn idle_waits_for_starts_that_are_under_way() {
        let starts = ContainerStarts::default();
        assert!(starts.idle().now_or_never().is_some());
        let (first, second) = (starts.begin(), starts.begin());
        let mut idle = Box::pin(starts.idle());
        assert!(futures::poll!(&mut idle).is_pending());
        drop(first);
        assert!(futures::poll!(&mut idle).is_pending());
        drop(second);
        assert!(futures::poll!(&mut idle).is_ready());
    }
}
