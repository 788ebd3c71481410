//! Sets of up to 64 NUMA nodes, as topology hints carry them.
//! Used by `topology_manager` and the hint providers.
//! Invariant: pure (tidy: `pure_files`).

use std::fmt;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitMask(u64);

impl BitMask {
    /// None when a bit is beyond 63.
    pub fn new(bits: impl IntoIterator<Item = usize>) -> Option<Self> {
        bits.into_iter().try_fold(Self(0), |mask, bit| (bit < 64).then(|| Self(mask.0 | 1 << bit)))
    }

    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn is_set(self, bit: usize) -> bool {
        bit < 64 && self.0 & (1 << bit) != 0
    }

    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Fewer bits; of as many, the lower ones.
    pub fn is_narrower_than(self, other: Self) -> bool {
        (self.count(), self.0) < (other.count(), other.0)
    }

    pub fn bits(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |bit| self.is_set(*bit))
    }

    /// Every non-empty subset, smaller ones first, each size in the order of `bits`.
    pub fn subsets(bits: &[usize]) -> Vec<Self> {
        let mut masks: Vec<Self> = vec![];
        for size in 1..=bits.len() {
            for combination in combinations(bits, size) {
                masks.extend(Self::new(combination));
            }
        }
        masks
    }
}

/// All ways to choose `size` of `items`, in their order.
pub fn combinations(items: &[usize], size: usize) -> Vec<Vec<usize>> {
    fn extend(items: &[usize], size: usize, chosen: &mut Vec<usize>, found: &mut Vec<Vec<usize>>) {
        if size == 0 {
            found.push(chosen.clone());
            return;
        }
        for (index, item) in items.iter().enumerate() {
            if items.len() - index < size {
                return;
            }
            chosen.push(*item);
            extend(&items[index + 1..], size - 1, chosen, found);
            chosen.pop();
        }
    }
    let mut found = vec![];
    if size > 0 {
        extend(items, size, &mut vec![], &mut found);
    }
    found
}

impl fmt::Display for BitMask {
    /// Binary, in groups of two digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = (64 - self.0.leading_zeros() as usize).max(1).next_multiple_of(2);
        write!(f, "{:0digits$b}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_order_by_width_then_value() {
        let mask = |bits: &[usize]| BitMask::new(bits.iter().copied()).unwrap();
        assert!(mask(&[5]).is_narrower_than(mask(&[0, 1])));
        assert!(mask(&[0, 1]).is_narrower_than(mask(&[0, 2])));
        assert!(!mask(&[1]).is_narrower_than(mask(&[1])));
        assert_eq!(mask(&[0, 2]).and(mask(&[2, 3])), mask(&[2]));
        assert_eq!(mask(&[0, 3]).bits().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(BitMask::new([64]), None);
        for (bits, text) in [(&[0][..], "01"), (&[1], "10"), (&[2], "0100"), (&[0, 1, 3], "1011"), (&[], "00")] {
            assert_eq!(mask(bits).to_string(), text);
        }
    }

    #[test]
    fn subsets_come_by_size() {
        let found: Vec<Vec<usize>> = BitMask::subsets(&[0, 1, 2]).iter().map(|mask| mask.bits().collect()).collect();
        assert_eq!(found, [vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![1, 2], vec![0, 1, 2]]);
        assert_eq!(combinations(&[7, 8], 3), Vec::<Vec<usize>>::new());
    }
}
