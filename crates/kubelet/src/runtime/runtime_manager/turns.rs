//! Lets only so many calls into the runtime at once: more only makes each slower.
//! Part of `runtime_manager`.
//! Invariant: a call that hangs gives its place away; it delays no other pod for longer than `LONGEST`.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use env::Env;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// What takes longer waits for something else than a processor.
const LONGEST: Duration = Duration::from_secs(3);

pub struct Turns {
    env: Env,
    queue: Arc<Mutex<Queue>>,
}

struct Queue {
    free: usize,
    first: VecDeque<oneshot::Sender<Place>>,
    last: VecDeque<oneshot::Sender<Place>>,
}

/// Handed on to the next when it is dropped.
struct Place(Arc<Mutex<Queue>>);

impl Drop for Place {
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

impl Turns {
    pub fn new(env: Env, places: usize) -> Self {
        let queue = Queue { free: places, first: VecDeque::new(), last: VecDeque::new() };
        Self { env, queue: Arc::new(Mutex::new(queue)) }
    }

    /// Does the work when it is its turn; those who came first are first.
    pub async fn take<T>(&self, work: impl Future<Output = T>) -> T {
        self.in_place(self.place(|queue| &mut queue.first).await, work).await
    }

    /// Behind all others, also those who come later: what was begun is brought to its end before more begins.
    pub async fn take_last<T>(&self, work: impl Future<Output = T>) -> T {
        self.in_place(self.place(|queue| &mut queue.last).await, work).await
    }

    async fn place(&self, line: fn(&mut Queue) -> &mut VecDeque<oneshot::Sender<Place>>) -> Option<Place> {
        let given = {
            let mut queue = self.queue.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return Some(Place(self.queue.clone()));
            }
            let (give, given) = oneshot::channel();
            line(&mut queue).push_back(give);
            given
        };
        given.await.ok()
    }

    async fn in_place<T>(&self, place: Option<Place>, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        tokio::select! {
            done = &mut work => return done,
            () = self.env.sleep(LONGEST) => {}
        }
        drop(place);
        work.await
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn turns(places: usize) -> (Env, Turns) {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        (env.clone(), Turns::new(env, places))
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_gives_its_place_away() {
        let (env, turns) = turns(2);
        let stuck = async { tokio::join!(turns.take(pending::<()>()), turns.take(pending::<()>())) };
        let other = async {
            env.sleep(Duration::from_millis(1)).await;
            let began = env.monotonic();
            turns.take(async {}).await;
            env.monotonic() - began
        };
        let waited = tokio::select! {
            _ = stuck => unreachable!("it hangs"),
            waited = other => waited,
        };
        assert!(waited < LONGEST, "{waited:?}");
    }

    #[tokio::test]
    async fn what_was_begun_goes_before_what_begins() {
        let (_, turns) = turns(1);
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
            turns.take(held),
            turns.take_last(note("sandbox 1")),
            turns.take_last(note("sandbox 2")),
            turns.take(note("container 1")),
            turns.take(note("container 2")),
        );
        assert_eq!(order.into_inner(), ["held", "container 1", "container 2", "sandbox 1", "sandbox 2"]);
    }

    #[tokio::test]
    async fn one_that_no_longer_waits_keeps_no_place() {
        let (_, turns) = turns(1);
        let held = turns.place(|queue| &mut queue.first).await;
        for _ in 0..3 {
            let mut waiting = Box::pin(turns.take(async {}));
            assert!(futures::poll!(&mut waiting).is_pending());
        }
        let mut given = Box::pin(turns.take(pending::<()>()));
        assert!(futures::poll!(&mut given).is_pending());
        drop(held);
        // It has the place, but never looks.
        drop(given);
        turns.take(async {}).await;
        assert_eq!(turns.queue.lock().free, 1);
    }
}
