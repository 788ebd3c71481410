//! The async runtime's clock and tasks, for code that is not given an `Env`: helpers below one component, and tests.
//! Used by every other crate; `Env` uses it too, and adds what a simulated world needs.
//! Invariant: nothing else in the workspace calls tokio's clock or spawns a bare task (clippy: `disallowed_methods`).

#![allow(clippy::disallowed_methods)]

use std::{future::Future, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{Instant, Sleep},
};

pub fn sleep(duration: Duration) -> Sleep {
    tokio::time::sleep(duration)
}

/// `None` when `future` did not finish within `limit`.
pub fn timeout<F: Future>(limit: Duration, future: F) -> impl Future<Output = Option<F::Output>> {
    let limited = tokio::time::timeout(limit, future);
    async move { limited.await.ok() }
}

/// For durations and deadlines; follows the runtime's clock where a test has paused it.
pub fn instant_now() -> Instant {
    Instant::now()
}

/// A task that ends with the process, not with a part of a simulated world: `Env::spawn` is for those.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(future)
}

/// `work` on a thread that may block: files, other processes, long computations.
pub fn spawn_blocking<F, T>(work: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    tokio::task::spawn_blocking(work)
}
