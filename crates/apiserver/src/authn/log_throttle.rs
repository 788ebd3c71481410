//! Says whether something is logged that anybody may cause as often as they like.
//! Asked by authenticators before they tell of credentials that came to nothing.
//! Invariant: strangers fill no disk with our log (test: `what_strangers_cause_is_told_now_and_then`).

use std::time::Duration;

use parking_lot::Mutex;

use env::Env;

const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct LogThrottle(Mutex<Throttled>);

#[derive(Default)]
struct Throttled {
    next: Duration,
    /// Since something was logged last.
    left_out: u64,
}

impl LogThrottle {
    /// How many were left out before this one; none: it is left out too.
    pub fn passes(&self, env: &Env) -> Option<u64> {
        let (now, mut state) = (env.monotonic(), self.0.lock());
        if now < state.next {
            state.left_out += 1;
            return None;
        }
        state.next = now + INTERVAL;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_strangers_cause_is_told_now_and_then() {
        let env = Env::simulated("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let throttle = LogThrottle::default();
        let told: Vec<_> = (0..1000).filter_map(|_| throttle.passes(&env)).collect();
        assert_eq!(told, [0]);
        env.sleep(INTERVAL).await;
        assert_eq!((throttle.passes(&env), throttle.passes(&env)), (Some(999), None));
    }
}
