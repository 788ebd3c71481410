//! A histogram whose samples lose half their weight every half-life, so that what was used last counts most.
//! Kept per container by `recommender`; survives restarts in VerticalPodAutoscalerCheckpoints.
//! Invariant: pure (tidy: `pure_files`). Buckets grow by a twentieth each, so a percentile is at most that far off.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

const GROWTH: f64 = 1.05;
/// A bucket below this weight counts as empty.
const EPSILON: f64 = 0.0001;
/// Weights are stored as parts of the heaviest bucket's.
const CHECKPOINT_WEIGHT_MAX: f64 = 10_000.0;
/// Weights are made smaller before they become this many times two larger than at first.
const EXPONENT_MAX: f64 = 100.0;

#[derive(Debug, Clone, Copy)]
pub struct Scale {
    first_bucket: f64,
    buckets: usize,
    half_life: Duration,
}

impl Scale {
    fn new(first_bucket: f64, most: f64) -> Self {
        let buckets = ((most * (GROWTH - 1.0) / first_bucket + 1.0).ln() / GROWTH.ln()).ceil() as usize + 1;
        Self { first_bucket, buckets, half_life: Duration::from_secs(24 * 3600) }
    }

    /// In cores, up to a thousand.
    pub fn cpu() -> Self {
        Self::new(0.01, 1000.0)
    }

    /// In bytes, up to a terabyte.
    pub fn memory() -> Self {
        Self::new(1e7, 1e12)
    }

    fn bucket(&self, value: f64) -> usize {
        if value < self.first_bucket {
            return 0;
        }
        let bucket = ((value * (GROWTH - 1.0) / self.first_bucket + 1.0).ln() / GROWTH.ln()) as usize;
        bucket.min(self.buckets - 1)
    }

    fn start(&self, bucket: usize) -> f64 {
        self.first_bucket * (GROWTH.powi(bucket as i32) - 1.0) / (GROWTH - 1.0)
    }
}

#[derive(Debug, Clone)]
pub struct Histogram {
    scale: Scale,
    weights: BTreeMap<usize, f64>,
    reference: Option<Timestamp>,
}

impl Histogram {
    pub fn new(scale: Scale) -> Self {
        Self { scale, weights: BTreeMap::new(), reference: None }
    }

    /// How much a sample of this time weighs against one of the reference time.
    fn decay(&mut self, at: Timestamp) -> f64 {
        let half_life = self.scale.half_life.as_secs_f64();
        let reference = *self.reference.get_or_insert(at);
        let exponent = at.duration_since(reference).as_secs_f64() / half_life;
        if exponent <= EXPONENT_MAX {
            return exponent.exp2();
        }
        let shrink = (-exponent).exp2();
        self.weights.values_mut().for_each(|weight| *weight *= shrink);
        self.reference = Some(at);
        1.0
    }

    pub fn add(&mut self, value: f64, weight: f64, at: Timestamp) {
        if value.is_finite() && value >= 0.0 && weight > 0.0 {
            let weight = weight * self.decay(at);
            *self.weights.entry(self.scale.bucket(value)).or_default() += weight;
        }
    }

    pub fn subtract(&mut self, value: f64, weight: f64, at: Timestamp) {
        let weight = weight * self.decay(at);
        if let Some(had) = self.weights.get_mut(&self.scale.bucket(value)) {
            *had = (*had - weight).max(0.0);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.weights.values().all(|weight| *weight < EPSILON)
    }

    /// The end of the bucket at which this share of all weight is reached.
    pub fn percentile(&self, share: f64) -> f64 {
        if self.is_empty() {
            return 0.0;
        }
        let wanted = share * self.weights.values().sum::<f64>();
        let mut sum = 0.0;
        let filled = self.weights.iter().filter(|(_, weight)| **weight >= EPSILON);
        let mut found = 0;
        for (bucket, weight) in filled {
            found = *bucket;
            sum += weight;
            if sum >= wanted {
                break;
            }
        }
        self.scale.start(if found + 1 < self.scale.buckets { found + 1 } else { found })
    }

    pub fn checkpoint(&self) -> Value {
        let heaviest = self.weights.values().copied().fold(0.0, f64::max);
        let stored = |weight: f64| (weight / heaviest * CHECKPOINT_WEIGHT_MAX).round() as u64;
        let kept = self.weights.iter().filter(|(_, weight)| **weight >= EPSILON && stored(**weight) > 0);
        let weights: BTreeMap<String, u64> =
            kept.map(|(bucket, weight)| (bucket.to_string(), stored(*weight))).collect();
        json!({
            "referenceTimestamp": self.reference.map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            "bucketWeights": weights,
            "totalWeight": self.weights.values().sum::<f64>(),
        })
    }

    /// What a checkpoint says; one that can't be read is as none.
    pub fn load(scale: Scale, checkpoint: &Value) -> Self {
        let mut histogram = Self::new(scale);
        let total = checkpoint["totalWeight"].as_f64().unwrap_or(0.0);
        let stored = checkpoint["bucketWeights"].as_object().into_iter().flatten();
        let stored: BTreeMap<usize, f64> = stored
            .filter_map(|(bucket, weight)| Some((bucket.parse().ok()?, weight.as_f64()?)))
            .filter(|(bucket, weight)| *bucket < scale.buckets && *weight > 0.0)
            .collect();
        let sum: f64 = stored.values().sum();
        if sum > 0.0 && total > 0.0 && total.is_finite() {
            histogram.weights = stored.into_iter().map(|(bucket, weight)| (bucket, weight * total / sum)).collect();
            let reference = checkpoint["referenceTimestamp"].as_str().and_then(|text| text.parse().ok());
            histogram.reference = reference;
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(hours * 3600).unwrap()
    }

    fn near(found: f64, expected: f64) -> bool {
        found >= expected && found <= expected * 1.11
    }

    #[test]
    fn percentiles_follow_what_is_recent() {
        let mut histogram = Histogram::new(Scale::cpu());
        assert_eq!(histogram.percentile(0.9), 0.0);
        (0..9).for_each(|_| histogram.add(0.1, 1.0, at(0)));
        histogram.add(1.0, 1.0, at(0));
        assert!(near(histogram.percentile(0.5), 0.1) && near(histogram.percentile(0.95), 1.0), "{histogram:?}");
        // Two days later one new sample weighs as four old ones.
        histogram.add(2.0, 4.0, at(48));
        assert!(near(histogram.percentile(0.5), 2.0), "{histogram:?}");
        histogram.add(0.5, 1.0, at(24 * 200));
        assert!(near(histogram.percentile(0.9), 0.5), "{histogram:?}");
        histogram.add(f64::NAN, 1.0, at(24 * 200));
        histogram.add(-1.0, 1.0, at(24 * 200));
        assert!(near(histogram.percentile(0.9), 0.5), "{histogram:?}");
    }

    #[test]
    fn checkpoints_bring_it_back() {
        let mut histogram = Histogram::new(Scale::memory());
        histogram.add(5e7, 1.0, at(1));
        histogram.add(2e8, 1.0, at(30));
        let back = Histogram::load(Scale::memory(), &histogram.checkpoint());
        for share in [0.1, 0.5, 0.9] {
            assert_eq!(back.percentile(share), histogram.percentile(share));
        }
        assert!(Histogram::load(Scale::memory(), &json!({ "bucketWeights": { "9999": 1, "x": 3 } })).is_empty());
        histogram.subtract(2e8, 1.0, at(30));
        assert!(near(histogram.percentile(0.9), 5e7));
    }
}
