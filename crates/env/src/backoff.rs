//! Exponential back-off: the delay doubles with each failure, up to a limit.
//! Used wherever something is tried again; the one place that doubles delays (tidy: `one_home`).

use std::time::Duration;

/// A limit that no number of failures gets past: `1 << 20` times a millisecond is over a quarter of an hour.
const DOUBLINGS_MAX: u32 = 20;

/// How long to wait before the next attempt.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, failures: 0 }
    }

    /// After one more failure: the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.delay_after(self.failures)
    }

    /// What `next_delay` will say.
    pub fn coming_delay(&self) -> Duration {
        self.delay_after(self.failures.saturating_add(1))
    }

    /// After a success: the next failure waits for the initial delay again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay after so many failures in a row, for whoever counts them elsewhere. None after none.
    pub fn delay_after(&self, failures: u32) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        self.initial.saturating_mul(1 << doublings.min(DOUBLINGS_MAX)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_begin_anew() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(1), seconds(5));
        let delays: Vec<Duration> = (0..5).map(|_| backoff.next_delay()).collect();
        assert_eq!(delays, [1, 2, 4, 5, 5].map(seconds));
        backoff.reset();
        assert_eq!(
            (backoff.coming_delay(), backoff.next_delay(), backoff.next_delay()),
            (seconds(1), seconds(1), seconds(2))
        );
        assert_eq!(backoff.delay_after(0), Duration::ZERO);
        assert_eq!(backoff.delay_after(u32::MAX), seconds(5));
    }
}
