//! Histograms that are counted without a lock.
//! Used by the API server for what every request counts; `Metrics` keeps the rest, under a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Labels, Samples};

/// How often values up to each bound were seen. Counting takes no lock.
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound and one for what is beyond.
    counts: Box<[AtomicU64]>,
    /// In parts of the unit, so that it can be added to as a whole number.
    sum: AtomicU64,
    parts: f64,
}

impl Histogram {
    pub fn seconds(bounds: &'static [f64]) -> Self {
        Self::new(bounds, 1e9)
    }

    pub fn bytes(bounds: &'static [f64]) -> Self {
        Self::new(bounds, 1.0)
    }

    fn new(bounds: &'static [f64], parts: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0), parts }
    }

    pub fn observe(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * self.parts) as u64, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }

    pub fn show(&self, samples: &mut Samples<'_>, labels: &Labels<'_>) {
        let counts = self.counts.iter().map(|c| c.load(Ordering::Relaxed));
        samples.histogram(labels, self.bounds, counts, self.sum.load(Ordering::Relaxed) as f64 / self.parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Text;

    #[test]
    fn buckets_add_up() {
        let histogram = Histogram::seconds(&[0.5, 1.0]);
        [0.25, 0.5, 0.75, 7.0].iter().for_each(|v| histogram.observe(*v));
        let mut text = Text::default();
        histogram.show(&mut text.family("x_seconds", "histogram", "Help."), &[("path", "a")]);
        let expected = [
            "# HELP x_seconds Help.",
            "# TYPE x_seconds histogram",
            r#"x_seconds_bucket{path="a",le="0.5"} 2"#,
            r#"x_seconds_bucket{path="a",le="1"} 3"#,
            r#"x_seconds_bucket{path="a",le="+Inf"} 4"#,
            r#"x_seconds_sum{path="a"} 8.5"#,
            r#"x_seconds_count{path="a"} 4"#,
        ];
        assert_eq!(text.finish().lines().collect::<Vec<_>>(), expected);
    }
}
