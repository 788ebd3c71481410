//! How the server's seats are divided among priority levels: by their shares, and every few seconds by what they need.
//! Called by `flow_control` when levels change and when seats are lent anew.
//! Invariant: pure (tidy: `pure_files`).

use serde_json::Value;

/// How much of the past a level's smoothed demand remembers.
const SMOOTHING: f64 = 0.977;
/// One request takes at most this part of its level.
const REQUEST_SHARE_MAX: f64 = 0.15;
const TARGET_MIN: f64 = 0.001;
const BISECTIONS: usize = 100;

/// What a PriorityLevelConfiguration says, as numbers of seats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SeatLimits {
    pub nominal: usize,
    /// What it never lends.
    pub lower: usize,
    /// What it may have with all that it borrows.
    pub upper: usize,
}

impl SeatLimits {
    /// What one request may take.
    pub fn request_max(self) -> usize {
        ((self.nominal as f64 * REQUEST_SHARE_MAX).ceil() as usize).max(1)
    }
}

/// The spec of a level, reduced to what counts here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    pub is_exempt: bool,
    pub shares: u64,
    pub lendable_percent: u64,
    pub borrowing_limit_percent: Option<u64>,
}

impl Shares {
    pub fn new(spec: &Value) -> Self {
        let is_exempt = spec["type"] == "Exempt";
        let settings = if is_exempt { &spec["exempt"] } else { &spec["limited"] };
        Self {
            is_exempt,
            shares: settings["nominalConcurrencyShares"].as_u64().unwrap_or(if is_exempt { 0 } else { 30 }),
            lendable_percent: settings["lendablePercent"].as_u64().unwrap_or(0),
            borrowing_limit_percent: settings["borrowingLimitPercent"].as_u64(),
        }
    }
}

/// The seats of each level of a server that has `total`.
pub fn limits(total: usize, levels: &[Shares]) -> Vec<SeatLimits> {
    let sum = levels.iter().map(|level| level.shares).sum::<u64>().max(1);
    let mut found: Vec<SeatLimits> = Vec::with_capacity(levels.len());
    for level in levels {
        let nominal = (total as f64 * level.shares as f64 / sum as f64).ceil() as usize;
        let lent = (nominal as f64 * level.lendable_percent as f64 / 100.0).round() as usize;
        found.push(SeatLimits { nominal, lower: nominal.saturating_sub(lent), upper: nominal });
    }
    let all: usize = found.iter().map(|level| level.nominal).sum();
    for (level, found) in levels.iter().zip(&mut found) {
        found.upper = match level.borrowing_limit_percent {
            Some(percent) => {
                let borrowed = (found.nominal as f64 * percent as f64 / 100.0).round() as usize;
                (found.nominal + borrowed).min(all)
            }
            None => all,
        };
    }
    found
}

/// What a level needed since it was last looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Demand {
    pub high_watermark: f64,
    pub average: f64,
    pub deviation: f64,
    pub smoothed: f64,
}

impl Demand {
    pub fn observe(&mut self, (average, deviation, high_watermark): (f64, f64, f64)) {
        let envelope = average + deviation;
        let smoothed = (SMOOTHING * self.smoothed + (1.0 - SMOOTHING) * envelope).max(envelope);
        *self = Self { high_watermark, average, deviation, smoothed };
    }
}

/// The seats each level has until the next look, and how much of its target each could get.
pub fn lend(levels: &[(bool, SeatLimits, Demand)]) -> (Vec<usize>, f64) {
    let total: usize = levels.iter().map(|(_, limits, _)| limits.nominal).sum();
    // What a level keeps: what it used, but not more than is its own.
    let kept = |&(is_exempt, limits, demand): &(bool, SeatLimits, Demand)| {
        let used = demand.high_watermark.ceil() as usize;
        limits.lower.max(if is_exempt { used } else { used.min(limits.nominal) })
    };
    let exempt: usize = levels.iter().filter(|level| level.0).map(kept).sum();
    let others = || levels.iter().filter(|level| !level.0);
    let lower_sum: usize = others().map(|(_, limits, _)| limits.lower).sum();
    let kept_sum: usize = others().map(kept).sum();
    let left = total.saturating_sub(exempt);
    let seats = |of: &dyn Fn(&(bool, SeatLimits, Demand)) -> usize| -> Vec<usize> {
        levels.iter().map(|level| if level.0 { kept(level) } else { of(level) }).collect()
    };
    if left <= lower_sum {
        return (seats(&|level| level.1.lower), 0.0);
    }
    if left <= kept_sum {
        let part = (left - lower_sum) as f64 / (kept_sum - lower_sum).max(1) as f64;
        return (seats(&|level| level.1.lower + ((kept(level) - level.1.lower) as f64 * part).round() as usize), 0.0);
    }
    // Every level gets the same part of what it aims at, within its bounds; the part that uses up all seats is sought.
    let allotted = |part: f64, level: &(bool, SeatLimits, Demand)| {
        let target = level.2.smoothed.max(kept(level) as f64).max(TARGET_MIN);
        (target * part).clamp(kept(level) as f64, (level.1.upper.max(kept(level))) as f64)
    };
    let sum = |part: f64| others().map(|level| allotted(part, level)).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    while sum(high) < left as f64 && high < 1e12 {
        high *= 2.0;
    }
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        match sum(middle) < left as f64 {
            true => low = middle,
            false => high = middle,
        }
    }
    (seats(&|level| allotted(high, level).round() as usize), high)
}

/// The average, deviation and highest value of something over time.
#[derive(Debug, Default)]
pub struct Integrator {
    at_seconds: f64,
    start_seconds: f64,
    value: f64,
    sum: f64,
    sum_of_squares: f64,
    highest: f64,
}

impl Integrator {
    fn advance(&mut self, now_seconds: f64) {
        let passed = (now_seconds - self.at_seconds).max(0.0);
        self.sum += passed * self.value;
        self.sum_of_squares += passed * self.value * self.value;
        self.at_seconds = now_seconds;
    }

    pub fn set(&mut self, now_seconds: f64, value: f64) {
        self.advance(now_seconds);
        self.value = value;
        self.highest = self.highest.max(value);
    }

    /// What was since the last time; begins anew.
    pub fn take(&mut self, now_seconds: f64) -> (f64, f64, f64) {
        self.advance(now_seconds);
        let passed = now_seconds - self.start_seconds;
        let (average, deviation) = match passed > 0.0 {
            true => {
                let average = self.sum / passed;
                (average, (self.sum_of_squares / passed - average * average).max(0.0).sqrt())
            }
            false => (self.value, 0.0),
        };
        let found = (average, deviation, self.highest);
        let (at_seconds, value) = (now_seconds, self.value);
        *self = Self { at_seconds, start_seconds: now_seconds, value, sum: 0.0, sum_of_squares: 0.0, highest: value };
        found
    }
}

#[cfg(test)]
mod tests {
    use api::kinds::flow_control_bootstrap::objects;

    use super::*;

    #[test]
    fn shares_become_seats() {
        let levels = objects().into_iter().filter(|(_, o)| o["kind"] == "PriorityLevelConfiguration");
        let levels: Vec<_> = levels.map(|(_, o)| (o["metadata"]["name"].clone(), Shares::new(&o["spec"]))).collect();
        let shares: Vec<_> = levels.iter().map(|(_, shares)| *shares).collect();
        let found = limits(600, &shares);
        let seats = |name: &str| {
            let (_, found) = levels.iter().zip(&found).find(|((n, _), _)| n == name).unwrap();
            (found.nominal, found.lower)
        };
        assert_eq!(seats("exempt"), (0, 0));
        assert_eq!(seats("catch-all"), (13, 13));
        assert_eq!(seats("node-high"), (98, 73));
        assert_eq!(seats("workload-low"), (245, 24));
        let all: usize = found.iter().map(|f| f.nominal).sum();
        assert!(found.iter().all(|f| f.upper == all));
        let limited = Shares { is_exempt: false, shares: 10, lendable_percent: 0, borrowing_limit_percent: Some(50) };
        assert_eq!(limits(100, &[limited, limited])[0], SeatLimits { nominal: 50, lower: 50, upper: 75 });
        assert_eq!(SeatLimits::default().request_max(), 1);
        assert_eq!(SeatLimits { nominal: 245, lower: 0, upper: 0 }.request_max(), 37);
    }

    #[test]
    fn idle_levels_lend_to_busy_ones() {
        let level = |nominal, lower, upper, used: f64| {
            let demand = Demand { high_watermark: used, average: used, deviation: 0.0, smoothed: used };
            (false, SeatLimits { nominal, lower, upper }, demand)
        };
        let check = |levels: &[(bool, SeatLimits, Demand)], expected: &[usize]| {
            assert_eq!(lend(levels).0, expected, "{levels:?}");
        };
        // Nobody needs anything: what is not kept goes to whoever may have it.
        let (seats, _) = lend(&[level(50, 10, 100, 0.0), level(50, 10, 100, 0.0)]);
        assert_eq!(seats.iter().sum::<usize>(), 100);
        check(&[level(50, 10, 100, 90.0), level(50, 10, 100, 0.0)], &[90, 10]);
        check(&[level(50, 50, 100, 0.0), level(50, 10, 100, 90.0)], &[50, 50]);
        check(&[level(50, 10, 60, 90.0), level(50, 10, 100, 0.0)], &[60, 40]);
        check(&[level(50, 0, 100, 90.0), level(50, 0, 100, 90.0)], &[50, 50]);
        let exempt = (true, SeatLimits::default(), Demand { high_watermark: 70.0, ..Demand::default() });
        check(&[exempt, level(50, 10, 100, 50.0), level(50, 10, 100, 50.0)], &[70, 15, 15]);
        let busy = (true, SeatLimits::default(), Demand { high_watermark: 95.0, ..Demand::default() });
        check(&[busy, level(50, 10, 100, 50.0), level(50, 10, 100, 50.0)], &[95, 10, 10]);
    }

    #[test]
    fn demand_is_smoothed_downward_only() {
        let mut demand = Demand::default();
        demand.observe((10.0, 2.0, 20.0));
        assert_eq!(demand.smoothed, 12.0);
        demand.observe((0.0, 0.0, 0.0));
        assert!((demand.smoothed - 12.0 * SMOOTHING).abs() < 1e-9);
        let mut integrator = Integrator::default();
        integrator.set(0.0, 4.0);
        integrator.set(5.0, 0.0);
        assert_eq!(integrator.take(10.0), (2.0, 2.0, 4.0));
        assert_eq!(integrator.take(20.0), (0.0, 0.0, 0.0));
    }
}
