//! Says when a container is probed next: every period, and sooner while a container that has just started fails.
//! Used by `worker`.
//! An early attempt never takes the place of one that the period asks for.

use std::time::Duration;

/// How soon a container that has just started is probed again after a failure.
const EARLY_RETRY_DELAY_MIN: Duration = Duration::from_millis(50);

/// Early attempts come this much later the longer the first success takes: their number grows with its logarithm, and
/// the container is found ready after at most a tenth of the time that it took.
const EARLY_RETRY_AGE_FRACTION: u32 = 10;

/// An attempt that takes long (a command in a busy container) may take this part of the time at most.
const EARLY_RETRY_DUTY_FRACTION: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// On the period: counts towards the thresholds and is told in Events.
    Periodic,
    /// Between two of them: only a success counts.
    Early,
}

pub struct ProbeSchedule {
    period: Duration,
    /// Early attempts end with the first success, or when this much time has passed since the first attempt.
    early_for: Duration,
    first: Option<Duration>,
    next_periodic: Duration,
}

impl ProbeSchedule {
    /// `just_started`: the container, and not only this kubelet.
    pub fn new(period: Duration, just_started: bool) -> Self {
        let early_for = if just_started { period } else { Duration::ZERO };
        Self { period, early_for, first: None, next_periodic: Duration::ZERO }
    }

    /// The attempt that begins `now`.
    pub fn begin(&mut self, now: Duration) -> Attempt {
        self.first.get_or_insert(now);
        if now < self.next_periodic {
            return Attempt::Early;
        }
        self.next_periodic = now + self.period;
        Attempt::Periodic
    }

    /// How long to wait after an attempt that began at `began` and ended `now`.
    pub fn wait(&mut self, began: Duration, now: Duration, succeeded: bool) -> Duration {
        if succeeded {
            self.early_for = Duration::ZERO;
            self.next_periodic = began + self.period;
        }
        let until_periodic = self.next_periodic.saturating_sub(now);
        let age = now.saturating_sub(self.first.unwrap_or(now));
        if age >= self.early_for {
            return until_periodic;
        }
        let took = now.saturating_sub(began);
        let early = EARLY_RETRY_DELAY_MIN.max(age / EARLY_RETRY_AGE_FRACTION).max(took * EARLY_RETRY_DUTY_FRACTION);
        early.min(until_periodic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(10);

    fn millis(value: u64) -> Duration {
        Duration::from_millis(value)
    }

    /// When attempts of `took` are made on a container that answers from `ready` on; the last is the first success.
    fn attempts(just_started: bool, took: Duration, ready: Duration) -> Vec<(Duration, Attempt)> {
        let mut schedule = ProbeSchedule::new(PERIOD, just_started);
        let (mut now, mut made) = (Duration::ZERO, Vec::new());
        loop {
            let (began, attempt) = (now, schedule.begin(now));
            made.push((began, attempt));
            now += took;
            if began >= ready {
                assert_eq!(schedule.wait(began, now, true), PERIOD - took);
                return made;
            }
            now += schedule.wait(began, now, false);
        }
    }

    #[test]
    fn a_container_is_found_ready_soon_after_it_is() {
        for ready in [millis(1), millis(70), millis(400), millis(1_000), millis(4_000), millis(9_000)] {
            let found = attempts(true, millis(1), ready).last().unwrap().0;
            let late = found - ready;
            assert!(late <= millis(52).max(ready / 8), "ready after {ready:?}, found {late:?} later");
        }
    }

    #[test]
    fn early_attempts_are_few_and_end_after_a_period() {
        let made = attempts(true, millis(1), Duration::from_secs(45));
        let (early, periodic): (Vec<_>, Vec<_>) = made.iter().partition(|(_, attempt)| *attempt == Attempt::Early);
        assert!(early.len() < 45, "{} early attempts", early.len());
        assert!(early.iter().all(|(at, _)| *at < PERIOD));
        let times: Vec<u64> = periodic.iter().map(|(at, _)| at.as_secs()).collect();
        assert_eq!(times, [0, 10, 20, 30, 40, 50]);
    }

    #[test]
    fn slow_attempts_leave_the_container_most_of_the_time() {
        let made = attempts(true, millis(500), Duration::from_secs(9));
        assert!(made.len() <= 7, "{made:?}");
    }

    #[test]
    fn a_container_that_ran_before_is_probed_by_the_period_alone() {
        let made = attempts(false, millis(1), Duration::from_secs(15));
        assert_eq!(made.iter().map(|(at, _)| at.as_secs()).collect::<Vec<_>>(), [0, 10, 20]);
    }
}
