//! Histograms over time: for how many nanoseconds a number, as a part of its limit, was in which bucket.
//! Held by `fair_queue` for each level and by `flow_control` for reads and writes; shown by `metrics`.
//! Invariant: pure (tidy: `pure_files`).

use std::time::Duration;

/// Bounds of what occupies seats: both of the last show whether all are taken.
pub const SEAT_BOUNDS: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
pub const REQUEST_BOUNDS: &[f64] = &[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
pub const READ_WRITE_BOUNDS: &[f64] = &[0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
pub const DEMAND_BOUNDS: &[f64] = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];

/// The most buckets that any of the bounds makes.
const BUCKETS_MAX: usize = 16;

#[derive(Debug, Clone, Copy)]
pub struct TimingRatioHistogram {
    bounds: &'static [f64],
    nanoseconds: [u64; BUCKETS_MAX],
    /// Of all ratios, each times the nanoseconds it lasted.
    sum: f64,
    numerator: f64,
    denominator: f64,
    bucket: usize,
    at: Duration,
}

impl TimingRatioHistogram {
    pub const fn new(bounds: &'static [f64], denominator: f64, at: Duration) -> Self {
        assert!(bounds.len() < BUCKETS_MAX);
        Self { bounds, nanoseconds: [0; BUCKETS_MAX], sum: 0.0, numerator: 0.0, denominator, bucket: 0, at }
    }

    fn ratio(&self) -> f64 {
        self.numerator / self.denominator
    }

    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_nanos() as u64;
        self.nanoseconds[self.bucket] += passed;
        self.sum += self.ratio() * passed as f64;
        self.at = self.at.max(now);
    }

    fn place(&mut self) {
        let ratio = self.ratio();
        self.bucket = self.bounds.partition_point(|bound| *bound < ratio);
    }

    pub fn set(&mut self, now: Duration, numerator: usize) {
        let numerator = numerator as f64;
        if numerator != self.numerator {
            self.advance(now);
            self.numerator = numerator;
            self.place();
        }
    }

    /// A limit of nothing counts as one.
    pub fn set_denominator(&mut self, now: Duration, denominator: usize) {
        let denominator = denominator.max(1) as f64;
        if denominator != self.denominator {
            self.advance(now);
            self.denominator = denominator;
            self.place();
        }
    }

    /// Bounds, nanoseconds in each bucket, and the sum until now.
    pub fn figures(mut self, now: Duration) -> (&'static [f64], impl Iterator<Item = u64>, f64) {
        self.advance(now);
        (self.bounds, self.nanoseconds.into_iter().take(self.bounds.len() + 1), self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_where_the_ratio_was() {
        let at = Duration::from_nanos;
        let mut histogram = TimingRatioHistogram::new(&[0.0, 0.5, 1.0], 4.0, at(100));
        histogram.set(at(110), 2);
        histogram.set(at(130), 2);
        histogram.set(at(140), 3);
        histogram.set_denominator(at(145), 1);
        histogram.set(at(150), 0);
        let (_, counts, sum) = histogram.figures(at(157));
        assert_eq!(counts.collect::<Vec<_>>(), [10 + 7, 30, 5, 5]);
        assert_eq!(sum, 0.5 * 30.0 + 0.75 * 5.0 + 3.0 * 5.0);
        // A clock that stands still or goes back adds nothing.
        histogram.set(at(1), 5);
        assert_eq!(histogram.figures(at(150)).1.sum::<u64>(), 50);
    }
}
