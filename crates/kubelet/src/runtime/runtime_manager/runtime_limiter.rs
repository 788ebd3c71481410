//! Limits how many calls are in the runtime at once: more of them only make each slower.
//! Part of `runtime_manager`.
//! A call that hangs gives its permit away; it delays no other pod for longer than `PERMIT_TIMEOUT`.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use env::Env;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A call that takes longer waits for something else than a processor.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(3);

pub struct RuntimeLimiter {
    env: Env,
    queue: Arc<Mutex<Queue>>,
}

struct Queue {
    free: usize,
    first: VecDeque<oneshot::Sender<Permit>>,
    last: VecDeque<oneshot::Sender<Permit>>,
}

/// Handed on to the next when it is dropped.
struct Permit(Arc<Mutex<Queue>>);

impl Drop for Permit {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.lock();
            let next = queue.first.pop_front().or_else(|| queue.last.pop_front());
            queue.free += usize::from(next.is_none());
            next
        };
        // One that no longer waits drops it at once, and so hands it on.
        drop(next.map(|next| next.send(Self(self.0.clone()))));
    }
}

impl RuntimeLimiter {
    pub fn new(env: Env, permits: usize) -> Self {
        let queue = Queue { free: permits, first: VecDeque::new(), last: VecDeque::new() };
        Self { env, queue: Arc::new(Mutex::new(queue)) }
    }

    /// Does the work once there is a permit for it; who came first is first.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.with_permit(self.permit(|queue| &mut queue.first).await, work).await
    }

    /// Behind all others, also those who come later: what was begun is brought to its end before more begins.
    pub async fn run_last<T>(&self, work: impl Future<Output = T>) -> T {
        self.with_permit(self.permit(|queue| &mut queue.last).await, work).await
    }

    async fn permit(&self, line: fn(&mut Queue) -> &mut VecDeque<oneshot::Sender<Permit>>) -> Option<Permit> {
        let given = {
            let mut queue = self.queue.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return Some(Permit(self.queue.clone()));
            }
            let (give, given) = oneshot::channel();
            line(&mut queue).push_back(give);
            given
        };
        given.await.ok()
    }

    async fn with_permit<T>(&self, permit: Option<Permit>, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        tokio::select! {
            done = &mut work => return done,
            () = self.env.sleep(PERMIT_TIMEOUT) => {}
        }
        drop(permit);
        work.await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn limiter(permits: usize) -> (Env, RuntimeLimiter) {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        (env.clone(), RuntimeLimiter::new(env, permits))
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_gives_its_permit_away() {
        let (env, limiter) = limiter(2);
        let stuck = async { tokio::join!(limiter.run(pending::<()>()), limiter.run(pending::<()>())) };
        let other = async {
            env.sleep(Duration::from_millis(1)).await;
            let began = env.monotonic();
            limiter.run(async {}).await;
            env.monotonic() - began
        };
        let waited = tokio::select! {
            _ = stuck => unreachable!("it hangs"),
            waited = other => waited,
        };
        assert!(waited < PERMIT_TIMEOUT, "{waited:?}");
    }

    #[tokio::test]
    async fn what_was_begun_goes_before_what_begins() {
        let (_, limiter) = limiter(1);
        let order = Mutex::new(vec![]);
        let note = |name| {
            let order = &order;
            async move { order.lock().push(name) }
        };
        let held = async {
            tokio::task::yield_now().await;
            note("held").await;
        };
        tokio::join!(
            limiter.run(held),
            limiter.run_last(note("sandbox 1")),
            limiter.run_last(note("sandbox 2")),
            limiter.run(note("container 1")),
            limiter.run(note("container 2")),
        );
        assert_eq!(order.into_inner(), ["held", "container 1", "container 2", "sandbox 1", "sandbox 2"]);
    }

    #[tokio::test]
    async fn one_that_no_longer_waits_keeps_no_permit() {
        let (_, limiter) = limiter(1);
        let held = limiter.permit(|queue| &mut queue.first).await;
        for _ in 0..3 {
            let mut waiting = Box::pin(limiter.run(async {}));
            assert!(futures::poll!(&mut waiting).is_pending());
        }
        let mut given = Box::pin(limiter.run(pending::<()>()));
        assert!(futures::poll!(&mut given).is_pending());
        drop(held);
        // It has the permit, but is never polled again.
        drop(given);
        limiter.run(async {}).await;
        assert_eq!(limiter.queue.lock().free, 1);
    }
}
