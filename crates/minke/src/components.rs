//! What runs in this process for as long as it does: a component that ends before it is told to ends the process, with
//! its error.
//! Used by `server` and `agent` to start components, by `up` and `commands` to wait.
//! The first failure is the one that is told.

use std::{fmt::Display, future::Future, sync::Arc, time::Duration};

use anyhow::{Error, anyhow};
use env::Env;
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[derive(Clone)]
pub struct Components {
    env: Env,
    shutdown: CancellationToken,
    failure: Arc<Mutex<Option<Error>>>,
    failed: CancellationToken,
    /// Those that have something to do when they are told to stop.
    ending: TaskTracker,
}

impl Components {
    pub fn new(env: &Env, shutdown: &CancellationToken) -> Self {
        Self {
            env: env.clone(),
            shutdown: shutdown.clone(),
            failure: Arc::default(),
            failed: CancellationToken::new(),
            ending: TaskTracker::new(),
        }
    }

    /// The same, for one that gives something back when it is told to stop (`stopped` waits for it).
    pub fn run_to_end<E: Display + Send + 'static>(
        &self,
        name: &'static str,
        component: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.run(name, self.ending.track_future(component));
    }

    /// After they were told to stop: until those that have something to do have done it, or `limit` is over.
    pub async fn stopped(&self, limit: Duration) {
        self.ending.close();
        if self.env.timeout(limit, self.ending.wait()).await.is_none() {
            tracing::warn!("a component was told to stop and takes too long");
        }
    }

    /// Runs a component. Its end is a failure unless we are stopping, whether it says why, only ends, or panics.
    pub fn run<E: Display + Send + 'static>(
        &self,
        name: &'static str,
        component: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let (components, running) = (self.clone(), self.env.spawn(component));
        self.env.spawn(async move {
            let ended = running.await;
            if components.shutdown.is_cancelled() {
                return;
            }
            components.fail(match ended {
                Ok(Ok(())) => anyhow!("{name} ended"),
                Ok(Err(error)) => anyhow!("{name} stopped: {error}"),
                Err(error) => anyhow!("{name} stopped: {error}"),
            });
        });
    }

    fn fail(&self, error: Error) {
        tracing::error!(error = format!("{error:#}"), "a component stopped");
        self.failure.lock().get_or_insert(error);
        self.failed.cancel();
    }

    /// Returns when a component has failed.
    pub async fn failure(&self) -> Error {
        self.failed.cancelled().await;
        self.failure.lock().take().unwrap_or_else(|| anyhow!("a component stopped"))
    }

    /// What `work` comes to, unless a component fails meanwhile.
    pub async fn unless_failed<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            error = self.failure() => Err(error),
            done = work => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_component_that_dies_ends_the_start_with_its_error() {
        let (env, shutdown) = (Env::real(), CancellationToken::new());
        let never = std::future::pending::<Result<(), Error>>;
        let check = async |component: futures::future::BoxFuture<'static, Result<(), String>>, expected: &str| {
            let components = Components::new(&env, &shutdown);
            components.run("the service proxy", std::future::pending::<Result<(), String>>());
            components.run("the kubelet", component);
            let error = components.unless_failed(never()).await.unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        };
        let refused = async { Err("failed to listen on 0.0.0.0:10250".to_string()) };
        check(Box::pin(refused), "the kubelet stopped: failed to listen on 0.0.0.0:10250").await;
        check(Box::pin(async { Ok(()) }), "the kubelet ended").await;
        check(Box::pin(async { panic!("on purpose") }), "the kubelet stopped: task").await;

        let components = Components::new(&env, &shutdown);
        components.run("the kubelet", {
            let until = shutdown.clone();
            async move {
                until.cancelled().await;
                Ok::<_, String>(())
            }
        });
        assert_eq!(components.unless_failed(async { Ok(7) }).await.unwrap(), 7);
        shutdown.cancel();
        let later = env::timeout(std::time::Duration::from_millis(50), components.failure()).await;
        assert!(later.is_none(), "an end that was asked for is no failure");
    }
}
