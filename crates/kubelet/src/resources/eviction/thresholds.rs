//! When a resource of the node is short: thresholds by signal, and what follows from those that are met.
//! Part of `eviction`.
//! Invariant: pure (tidy: `pure_files`).

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use api::quantity;

/// In the order in which shortages are dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    Memory,
    /// What is left of the memory that all pods together may have.
    AllocatableMemory,
    NodeFs,
    NodeFsInodes,
    ImageFs,
    ImageFsInodes,
    ContainerFs,
    ContainerFsInodes,
    Pid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Memory,
    Disk,
    Pid,
}

impl Signal {
    const NAMES: [(&'static str, Self); 9] = [
        ("memory.available", Self::Memory),
        ("allocatableMemory.available", Self::AllocatableMemory),
        ("nodefs.available", Self::NodeFs),
        ("nodefs.inodesFree", Self::NodeFsInodes),
        ("imagefs.available", Self::ImageFs),
        ("imagefs.inodesFree", Self::ImageFsInodes),
        ("containerfs.available", Self::ContainerFs),
        ("containerfs.inodesFree", Self::ContainerFsInodes),
        ("pid.available", Self::Pid),
    ];

    pub fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, signal)| *signal)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, signal)| *signal == self).map_or("", |(name, _)| name)
    }

    pub fn pressure(self) -> Pressure {
        match self {
            Self::Memory | Self::AllocatableMemory => Pressure::Memory,
            Self::Pid => Pressure::Pid,
            Self::NodeFs
            | Self::NodeFsInodes
            | Self::ImageFs
            | Self::ImageFsInodes
            | Self::ContainerFs
            | Self::ContainerFsInodes => Pressure::Disk,
        }
    }

    /// The resource as the messages name it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory | Self::AllocatableMemory => "memory",
            Self::NodeFs | Self::ImageFs | Self::ContainerFs => "ephemeral-storage",
            Self::NodeFsInodes | Self::ImageFsInodes | Self::ContainerFsInodes => "inodes",
            Self::Pid => "pids",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    Absolute(i64),
    Percent(f64),
}

impl Amount {
    pub fn resolve(self, capacity: i64) -> i64 {
        match self {
            Self::Absolute(value) => value,
            Self::Percent(percent) => (capacity as f64 * percent / 100.0) as i64,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().filter(|p| (0.0..=100.0).contains(p)).map(Self::Percent),
            None => quantity::value(&Quantity(text.into())).map(Self::Absolute),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub least: Amount,
    /// How long the shortage may last before a pod is ended; zero for a hard threshold.
    pub grace: Duration,
    /// How much beyond `least` must be there again before the shortage is over.
    pub reclaim: Option<Amount>,
}

impl Threshold {
    fn is_met(&self, seen: Observation, was_met: bool) -> bool {
        let more = self.reclaim.filter(|_| was_met).map_or(0, |amount| amount.resolve(seen.capacity));
        seen.available < self.least.resolve(seen.capacity) + more
    }
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ThresholdError {
    #[error("unsupported eviction signal {0}")]
    UnknownSignal(String),
    #[error("invalid eviction threshold {signal}: {amount}")]
    InvalidAmount { signal: String, amount: String },
    #[error("invalid minimum reclaim {signal}: {amount}")]
    InvalidReclaim { signal: String, amount: String },
    #[error("grace period must be specified for the soft eviction threshold {0}")]
    NoGracePeriod(String),
}

/// Lays minimum reclaims over thresholds.
pub fn with_reclaim(thresholds: &mut [Threshold], reclaim: &BTreeMap<String, String>) -> Result<(), ThresholdError> {
    for (name, text) in reclaim {
        let signal = Signal::parse(name).ok_or_else(|| ThresholdError::UnknownSignal(name.clone()))?;
        let amount = Amount::parse(text)
            .ok_or_else(|| ThresholdError::InvalidReclaim { signal: name.clone(), amount: text.clone() })?;
        thresholds.iter_mut().filter(|t| t.signal == signal).for_each(|t| t.reclaim = Some(amount));
    }
    Ok(())
}

/// All pods together are held to their share, which must not run out sooner than the machine.
pub fn with_allocatable(thresholds: &mut Vec<Threshold>) {
    let hard = thresholds.iter().filter(|t| t.signal == Signal::Memory && t.grace.is_zero());
    let shares: Vec<Threshold> = hard.map(|t| Threshold { signal: Signal::AllocatableMemory, ..*t }).collect();
    thresholds.extend(shares);
    thresholds.sort_by_key(|threshold| (threshold.signal, threshold.grace));
}

/// Reads thresholds as a configuration file writes them. A percentage of zero turns one off.
pub fn parse(
    hard: &BTreeMap<String, String>,
    soft: &BTreeMap<String, String>,
    grace: &BTreeMap<String, Duration>,
) -> Result<Vec<Threshold>, ThresholdError> {
    let mut thresholds = Vec::new();
    for (list, is_soft) in [(hard, false), (soft, true)] {
        for (name, text) in list {
            let signal = Signal::parse(name).ok_or_else(|| ThresholdError::UnknownSignal(name.clone()))?;
            let least = Amount::parse(text)
                .ok_or_else(|| ThresholdError::InvalidAmount { signal: name.clone(), amount: text.clone() })?;
            let grace = match is_soft {
                false => Duration::ZERO,
                true => *grace.get(name).ok_or_else(|| ThresholdError::NoGracePeriod(name.clone()))?,
            };
            if !matches!(least, Amount::Percent(0.0) | Amount::Absolute(0)) {
                thresholds.push(Threshold { signal, least, grace, reclaim: None });
            }
        }
    }
    thresholds.sort_by_key(|threshold| (threshold.signal, threshold.grace));
    Ok(thresholds)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
}

pub type Observations = BTreeMap<Signal, Observation>;

/// What is remembered between two looks.
#[derive(Default)]
pub struct ThresholdHistory {
    /// Since when each threshold is met, by its position.
    met_since: BTreeMap<usize, Duration>,
    last_observed: BTreeMap<Pressure, Duration>,
}

#[derive(Debug, PartialEq)]
pub struct Decision {
    pub pressures: Vec<Pressure>,
    /// The shortage to do something about now.
    pub act_on: Option<Threshold>,
}

impl ThresholdHistory {
    /// `transition` is how long a pressure is still told of after it was last observed.
    pub fn decide(
        &mut self,
        thresholds: &[Threshold],
        seen: &Observations,
        now: Duration,
        transition: Duration,
    ) -> Decision {
        let mut act_on = None;
        for (index, threshold) in thresholds.iter().enumerate() {
            let was_met = self.met_since.contains_key(&index);
            let met = seen.get(&threshold.signal).is_some_and(|o| threshold.is_met(*o, was_met));
            if !met {
                self.met_since.remove(&index);
                continue;
            }
            self.last_observed.insert(threshold.signal.pressure(), now);
            let since = *self.met_since.entry(index).or_insert(now);
            if now - since >= threshold.grace {
                act_on = act_on.or(Some(*threshold));
            }
        }
        self.last_observed.retain(|_, at| now - *at <= transition);
        Decision { pressures: self.last_observed.keys().copied().collect(), act_on }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn thresholds_are_read_as_written() {
        let check = |hard: &[(&str, &str)], expected: Result<&[Amount], ()>| {
            let parsed = parse(&strings(hard), &BTreeMap::new(), &BTreeMap::new());
            let amounts = parsed.map(|list| list.iter().map(|t| t.least).collect::<Vec<_>>()).map_err(drop);
            assert_eq!(amounts, expected.map(<[Amount]>::to_vec), "{hard:?}");
        };
        check(&[("memory.available", "100Mi")], Ok(&[Amount::Absolute(100 << 20)]));
        check(&[("nodefs.available", "10%")], Ok(&[Amount::Percent(10.0)]));
        check(&[("nodefs.available", "0%")], Ok(&[]));
        check(&[("nodefs.available", "101%")], Err(()));
        check(&[("disk", "1")], Err(()));
        assert!(parse(&BTreeMap::new(), &strings(&[("memory.available", "1Gi")]), &BTreeMap::new()).is_err());
    }

    #[test]
    fn pressure_outlasts_its_cause_and_soft_thresholds_wait() {
        let seconds = Duration::from_secs;
        let grace = BTreeMap::from([("nodefs.available".to_string(), seconds(30))]);
        let thresholds =
            parse(&strings(&[("memory.available", "10%")]), &strings(&[("nodefs.available", "50")]), &grace).unwrap();
        let mut memory = ThresholdHistory::default();
        let mut check = |at, free_memory, free_disk, pressures: &[Pressure], act_on: Option<Signal>| {
            let seen = BTreeMap::from([
                (Signal::Memory, Observation { available: free_memory, capacity: 100 }),
                (Signal::NodeFs, Observation { available: free_disk, capacity: 100 }),
            ]);
            let decision = memory.decide(&thresholds, &seen, seconds(at), seconds(300));
            let found = (decision.pressures, decision.act_on.map(|t| t.signal));
            assert_eq!(found, (pressures.to_vec(), act_on), "at {at}");
        };
        check(1000, 50, 90, &[], None);
        check(1010, 50, 40, &[Pressure::Disk], None);
        check(1030, 5, 40, &[Pressure::Memory, Pressure::Disk], Some(Signal::Memory));
        check(1041, 50, 40, &[Pressure::Memory, Pressure::Disk], Some(Signal::NodeFs));
        check(1335, 50, 90, &[Pressure::Disk], None);
        check(1400, 50, 90, &[], None);
    }

    #[test]
    fn more_than_needed_is_freed_where_asked_for() {
        let mut thresholds =
            parse(&strings(&[("memory.available", "10")]), &BTreeMap::new(), &BTreeMap::new()).unwrap();
        with_reclaim(&mut thresholds, &strings(&[("memory.available", "5")])).unwrap();
        let mut memory = ThresholdHistory::default();
        for (at, available, acts) in [(0, 12, false), (1, 9, true), (2, 12, true), (3, 15, false), (4, 12, false)] {
            let seen = BTreeMap::from([(Signal::Memory, Observation { available, capacity: 100 })]);
            let decision = memory.decide(&thresholds, &seen, Duration::from_secs(at), Duration::ZERO);
            assert_eq!(decision.act_on.is_some(), acts, "at {at}");
        }
        assert!(with_reclaim(&mut thresholds, &strings(&[("disk", "5")])).is_err());
        with_allocatable(&mut thresholds);
        let signals: Vec<_> = thresholds.iter().map(|t| (t.signal, t.least, t.reclaim)).collect();
        let (least, reclaim) = (Amount::Absolute(10), Some(Amount::Absolute(5)));
        assert_eq!(signals, [(Signal::Memory, least, reclaim), (Signal::AllocatableMemory, least, reclaim)]);
    }
}
