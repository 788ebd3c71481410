//! Tells whoever waits for it that a container has ended.
//! Told by `pleg`; followed logs wait on it.
//! Carries ids only; who is woken looks again for itself.

use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError};

/// More ends than this at once make a slow listener look without knowing whose end it was.
const EXITS_BUFFERED_MAX: usize = 256;

#[derive(Clone)]
pub struct ContainerExits(broadcast::Sender<Arc<str>>);

impl Default for ContainerExits {
    fn default() -> Self {
        Self(broadcast::channel(EXITS_BUFFERED_MAX).0)
    }
}

impl ContainerExits {
    pub fn announce(&self, id: &str) {
        // Nobody may be listening.
        let _ = self.0.send(id.into());
    }

    pub fn watch(&self, id: &str) -> ContainerExit {
        ContainerExit { id: id.into(), ends: self.0.subscribe() }
    }
}

/// The end of one container.
pub struct ContainerExit {
    id: Arc<str>,
    ends: broadcast::Receiver<Arc<str>>,
}

impl ContainerExit {
    /// Returns when the container may have ended.
    pub async fn wait(&mut self) {
        loop {
            match self.ends.recv().await {
                Ok(id) if id == self.id => return,
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => return,
                // The node is stopping: nothing will be told any more.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_the_own_end_wakes() {
        let exits = ContainerExits::default();
        let mut exit = exits.watch("a");
        exits.announce("b");
        assert!(exit.wait().now_or_never().is_none());
        exits.announce("a");
        assert!(exit.wait().now_or_never().is_some());
        (0..2 * EXITS_BUFFERED_MAX).for_each(|_| exits.announce("b"));
        assert!(exit.wait().now_or_never().is_some(), "too many to know");
    }
}
