//! Where a route leads: backends by weight.
//! Part of a route (`routes`), asked by `proxy` once per request.
//! Pure (tidy: `pure_files`): requests are shared out by a sequence that is even over any stretch, without chance or lock.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::{backends::Backend, filters::Filters};

/// One backend and its share.
#[derive(Debug)]
pub struct Destination {
    pub weight: u32,
    /// None where what is named does not exist or may not be used.
    pub backend: Option<Arc<Backend>>,
    /// Of requests that go here only.
    pub filters: Option<Arc<Filters>>,
}

#[derive(Debug, Default)]
pub struct Destinations {
    list: Vec<Destination>,
    weight_total: u64,
    share: Share,
}

impl Destinations {
    pub fn new(list: Vec<Destination>) -> Self {
        let weight_total = list.iter().map(|destination| u64::from(destination.weight)).sum();
        Self { list, weight_total, share: Share::default() }
    }

    pub fn one(backend: Option<Arc<Backend>>) -> Self {
        Self::new(vec![Destination { weight: 1, backend, filters: None }])
    }

    /// None where no request may go anywhere.
    pub fn pick(&self) -> Option<&Destination> {
        if self.list.len() == 1 {
            return self.list.first().filter(|only| only.weight > 0);
        }
        let mut at = self.share.next(self.weight_total);
        self.list.iter().find(|destination| match at.checked_sub(u64::from(destination.weight)) {
            Some(rest) => {
                at = rest;
                false
            }
            None => true,
        })
    }

    pub fn list(&self) -> &[Destination] {
        &self.list
    }
}

/// Numbers that are spread evenly: each next one falls into the largest gap that the former have left.
#[derive(Debug, Default)]
pub struct Share(AtomicU64);

/// 2^64 divided by the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Share {
    /// Below `limit`; 0 when that is 0.
    pub fn next(&self, limit: u64) -> u64 {
        let point = self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(STEP);
        ((u128::from(point) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_shared_out_by_weight() {
        let check = |weights: &[u32], expected: &[usize]| {
            let list = weights.iter().map(|weight| Destination { weight: *weight, backend: None, filters: None });
            let destinations = Destinations::new(list.collect());
            let mut counts = vec![0_usize; weights.len()];
            for _ in 0..1000 {
                let Some(picked) = destinations.pick() else { continue };
                let at = destinations.list.iter().position(|destination| std::ptr::eq(destination, picked));
                counts[at.unwrap()] += 1;
            }
            let close = counts.iter().zip(expected).all(|(count, expected)| count.abs_diff(*expected) <= 5);
            assert!(close && counts.len() == expected.len(), "{weights:?}: {counts:?}");
        };
        check(&[1], &[1000]);
        check(&[0], &[0]);
        check(&[], &[]);
        check(&[0, 0], &[0, 0]);
        check(&[70, 30, 0], &[700, 300, 0]);
        check(&[1, 1, 2], &[250, 250, 500]);
        check(&[1_000_000, 1], &[1000, 0]);
    }
}
