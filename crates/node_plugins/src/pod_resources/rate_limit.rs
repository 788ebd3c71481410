//! A token bucket: so many calls at once, so many per second in the long run.
//! Used by `server`.
//! Invariant: pure; time is an argument (tidy: `pure_files`).

use std::time::Duration;

use parking_lot::Mutex;

pub struct RateLimit {
    per_second: f64,
    burst: f64,
    /// What is left, and when it was.
    tokens: Mutex<(f64, Duration)>,
}

impl RateLimit {
    pub fn new(per_second: u32, burst: u32) -> Self {
        let (per_second, burst) = (f64::from(per_second), f64::from(burst));
        Self { per_second, burst, tokens: Mutex::new((burst, Duration::ZERO)) }
    }

    pub fn allows(&self, now: Duration) -> bool {
        let mut tokens = self.tokens.lock();
        let (left, at) = *tokens;
        let left = (left + now.saturating_sub(at).as_secs_f64() * self.per_second).min(self.burst);
        let allowed = left >= 1.0;
        *tokens = (if allowed { left - 1.0 } else { left }, now.max(at));
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_burst_calls_wait_for_tokens() {
        let limit = RateLimit::new(100, 10);
        let check = |milliseconds: u64, calls: usize, expected: usize| {
            let now = Duration::from_millis(milliseconds);
            assert_eq!((0..calls).filter(|_| limit.allows(now)).count(), expected, "at {milliseconds} ms");
        };
        check(0, 12, 10);
        check(20, 3, 2);
        check(5000, 12, 10);
    }
}
