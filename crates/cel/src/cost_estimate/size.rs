//! How large a text, list or map may be, and what going through it costs at most.
//! Used by the parts beside it.
//! Nothing overflows; what has no bound is `u64::MAX`.

pub const STRING_TRAVERSAL_COST_FACTOR: f64 = 0.1;
pub const REGEX_STRING_LENGTH_COST_FACTOR: f64 = 0.25;
pub const LIST_CREATE_BASE_COST: u64 = 10;
pub const MAP_CREATE_BASE_COST: u64 = 30;
pub const STRUCT_CREATE_BASE_COST: u64 = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeEstimate {
    pub min: u64,
    pub max: u64,
}

impl SizeEstimate {
    pub const UNKNOWN: Self = Self { min: 0, max: u64::MAX };

    pub fn fixed(size: u64) -> Self {
        Self { min: size, max: size }
    }

    pub fn at_most(max: u64) -> Self {
        Self { min: 0, max }
    }

    pub fn add(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    pub fn multiply(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    pub fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// The highest cost of something that costs this much for each unit, rounded up.
    pub fn cost(self, per_unit: f64) -> u64 {
        by_factor(self.max, per_unit)
    }

    /// The highest cost of going through a text of this size.
    pub fn traversal_cost(self) -> u64 {
        self.cost(STRING_TRAVERSAL_COST_FACTOR)
    }
}

pub fn by_factor(value: u64, factor: f64) -> u64 {
    (value as f64 * factor).ceil() as u64
}

/// The sizes of a list's or map's keys and values.
#[derive(Debug, Clone, Copy)]
pub struct EntrySize {
    pub is_list: bool,
    pub key: SizeEstimate,
    pub value: SizeEstimate,
}

impl EntrySize {
    pub fn union(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        let (a, b) = (a?, b?);
        Some(Self { is_list: a.is_list, key: a.key.union(b.key), value: a.value.union(b.value) })
    }
}
