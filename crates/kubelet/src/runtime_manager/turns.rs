//! Lets only so many calls into the runtime at once: more only makes each slower.
//! Part of `runtime_manager`.
//! Invariant: a call that hangs gives its place away; it delays no other pod for longer than `LONGEST`.

use std::time::Duration;

use env::Env;
use tokio::sync::Semaphore;

/// What takes longer waits for something else than a processor.
const LONGEST: Duration = Duration::from_secs(3);

pub struct Turns {
    env: Env,
    places: Semaphore,
}

impl Turns {
    pub fn new(env: Env, places: usize) -> Self {
        Self { env, places: Semaphore::new(places) }
    }

    /// Does the work when it is its turn; those who came first are first.
    pub async fn take<T>(&self, work: impl Future<Output = T>) -> T {
        let place = self.places.acquire().await;
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

    #[tokio::test(start_paused = true)]
    async fn what_hangs_gives_its_place_away() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let turns = Turns::new(env.clone(), 2);
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
}
