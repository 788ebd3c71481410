//! The pause between a watch that ended and the next one.
//! Used by the verbs that wait for an object.
//! As long as client-go's: a server that ends every watch at once is not asked without end.

use std::time::Duration;

use env::{Backoff, Env};

const INITIAL: Duration = Duration::from_millis(800);
const MAX: Duration = Duration::from_secs(30);
/// A watch that lasted as long was a good one.
const LASTING: Duration = Duration::from_secs(120);

pub struct WatchPause {
    env: Env,
    backoff: Backoff,
    /// Of the watch that is open, by the clock that only goes forward.
    opened: Duration,
}

impl WatchPause {
    pub fn new(env: &Env) -> Self {
        Self { env: env.clone(), backoff: Backoff::new(INITIAL, MAX), opened: env.monotonic() }
    }

    fn next(&mut self) -> Duration {
        if self.env.monotonic().saturating_sub(self.opened) >= LASTING {
            self.backoff.reset();
        }
        self.backoff.next_delay()
    }

    /// Called when a watch has ended, before the next is opened.
    pub async fn wait(&mut self) {
        let pause = self.next();
        self.env.sleep(pause).await;
        self.opened = self.env.monotonic();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn watches_that_end_at_once_are_opened_more_and_more_seldom() {
        let mut pause = WatchPause::new(&Env::real());
        let mut pauses: Vec<u128> = (0..7).map(|_| pause.next().as_millis()).collect();
        env::sleep(LASTING).await;
        pauses.push(pause.next().as_millis());
        assert_eq!(pauses, [800, 1600, 3200, 6400, 12800, 25600, 30000, 800]);
    }
}
