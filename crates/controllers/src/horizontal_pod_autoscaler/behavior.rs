//! What lies between the wish of the metrics and the new size: stabilization windows and how fast a target may change.
//! Asked by `plan`; the default rules of the API server (`api::kinds`) fill what an autoscaler leaves out.
//! Invariant: pure (tidy: `pure_files`). Times are those of a clock that never goes backward.

use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// Without a behavior a target at most doubles at once, but may always have four.
const SCALE_UP_FACTOR: i32 = 2;
const SCALE_UP_REPLICAS_MIN: i32 = 4;

#[derive(Debug, Clone, Copy)]
struct Timed {
    replicas: i32,
    at: Duration,
}

impl Timed {
    fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.at)
    }
}

/// What was wished and done of late, per autoscaler. A restart begins anew with the size it finds.
#[derive(Debug, Default)]
pub struct History {
    recommendations: Vec<Timed>,
    scale_ups: Vec<Timed>,
    scale_downs: Vec<Timed>,
}

/// A size, and what was done to it on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limited {
    pub replicas: i32,
    pub reason: &'static str,
    pub message: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub min_replicas: i32,
    pub max_replicas: i32,
    pub current: i32,
}

const HIGHEST: &str = "recent recommendations were higher than current one, applying the highest recent recommendation";
const LOWEST: &str = "recent recommendations were lower than current one, applying the lowest recent recommendation";

impl History {
    /// So that a controller that has just begun takes nothing away at once.
    pub fn begin(&mut self, current: i32, now: Duration) {
        if self.recommendations.is_empty() {
            self.recommendations.push(Timed { replicas: current, at: now });
        }
    }

    /// The highest recommendation within the window.
    pub fn stabilize(&mut self, desired: i32, window: Duration, now: Duration) -> Limited {
        self.recommendations.retain(|past| past.age(now) <= window);
        let highest = self.recommendations.iter().map(|past| past.replicas).fold(desired, i32::max);
        self.recommendations.push(Timed { replicas: desired, at: now });
        Limited { replicas: highest, reason: "ScaleDownStabilized", message: HIGHEST }
    }

    /// The same with a window for each direction.
    pub fn stabilize_with(
        &mut self,
        behavior: &HorizontalPodAutoscalerBehavior,
        default_down: Duration,
        desired: i32,
        current: i32,
        now: Duration,
    ) -> Limited {
        let window = |rules: &Option<HPAScalingRules>| {
            let seconds = rules.as_ref().and_then(|rules| rules.stabilization_window_seconds);
            seconds.map(|seconds| Duration::from_secs(seconds.max(0) as u64))
        };
        let up = window(&behavior.scale_up).unwrap_or_default();
        let down = window(&behavior.scale_down).unwrap_or(default_down);
        let within = |window: Duration| {
            let recent = self.recommendations.iter().filter(move |past| past.age(now) < window);
            recent.map(|past| past.replicas)
        };
        let lowest = within(up).fold(desired, i32::min);
        let highest = within(down).fold(desired, i32::max);
        self.recommendations.retain(|past| past.age(now) <= up.max(down));
        self.recommendations.push(Timed { replicas: desired, at: now });
        let replicas = current.max(lowest).min(highest);
        match desired >= current {
            true => Limited { replicas, reason: "ScaleUpStabilized", message: LOWEST },
            false => Limited { replicas, reason: "ScaleDownStabilized", message: HIGHEST },
        }
    }

    /// Remembers a change for as long as a policy may ask for it.
    pub fn scaled(&mut self, behavior: &HorizontalPodAutoscalerBehavior, from: i32, to: i32, now: Duration) {
        let (past, rules) = match to > from {
            true => (&mut self.scale_ups, &behavior.scale_up),
            false => (&mut self.scale_downs, &behavior.scale_down),
        };
        let longest = policies(rules).iter().map(period).max().unwrap_or_default();
        past.retain(|change| change.age(now) <= longest);
        past.push(Timed { replicas: (to - from).abs(), at: now });
    }

    /// How large the target may be, or how small, at the rate of the policies.
    fn limit(&self, rules: &Option<HPAScalingRules>, current: i32, up: bool, now: Duration) -> i32 {
        let select = rules.as_ref().and_then(|rules| rules.select_policy.as_deref()).unwrap_or("Max");
        if select == "Disabled" {
            return current;
        }
        let changed = |past: &[Timed], period: Duration| -> i32 {
            past.iter().filter(|change| change.age(now) < period).map(|change| change.replicas).sum()
        };
        let limits = policies(rules).iter().map(|policy| {
            let period = period(policy);
            let before = current - changed(&self.scale_ups, period) + changed(&self.scale_downs, period);
            let share = f64::from(policy.value) / 100.0;
            match (policy.type_.as_str(), up) {
                ("Pods", true) => before.saturating_add(policy.value),
                ("Pods", false) => before.saturating_sub(policy.value),
                // Rounded up: else a small target would never grow.
                (_, true) => (f64::from(before) * (1.0 + share)).ceil() as i32,
                (_, false) => (f64::from(before) * (1.0 - share)) as i32,
            }
        });
        // The least change is the lowest limit on the way up and the highest on the way down.
        let limit = if up == (select == "Min") { limits.min() } else { limits.max() };
        limit.unwrap_or(if up { i32::MAX } else { i32::MIN })
    }

    /// A desired size within what the behavior allows now.
    pub fn limit_with(
        &self,
        behavior: &HorizontalPodAutoscalerBehavior,
        desired: i32,
        bounds: Bounds,
        now: Duration,
    ) -> Limited {
        let current = bounds.current;
        if desired > current {
            let limit = self.limit(&behavior.scale_up, current, true, now).max(current);
            let allowed = bounds.max_replicas.min(limit);
            if desired > allowed {
                return if bounds.max_replicas > limit { too_fast_up(allowed) } else { too_many(allowed) };
            }
        } else if desired < current {
            let limit = self.limit(&behavior.scale_down, current, false, now).min(current);
            let allowed = bounds.min_replicas.max(limit);
            if desired < allowed {
                return if bounds.min_replicas < limit { too_fast_down(allowed) } else { too_few(allowed) };
            }
        }
        within_range(desired)
    }
}

/// A desired size within what is allowed without a behavior.
pub fn limit(desired: i32, bounds: Bounds) -> Limited {
    let fastest = bounds.current.saturating_mul(SCALE_UP_FACTOR).max(SCALE_UP_REPLICAS_MIN);
    let allowed = bounds.max_replicas.min(fastest);
    if desired < bounds.min_replicas {
        too_few(bounds.min_replicas)
    } else if desired > allowed {
        if bounds.max_replicas > fastest { too_fast_up(allowed) } else { too_many(allowed) }
    } else {
        within_range(desired)
    }
}

fn policies(rules: &Option<HPAScalingRules>) -> &[HPAScalingPolicy] {
    rules.as_ref().and_then(|rules| rules.policies.as_deref()).unwrap_or_default()
}

fn period(policy: &HPAScalingPolicy) -> Duration {
    Duration::from_secs(policy.period_seconds.max(0) as u64)
}

fn within_range(replicas: i32) -> Limited {
    let message = "the desired count is within the acceptable range";
    Limited { replicas, reason: "DesiredWithinRange", message }
}

fn too_many(replicas: i32) -> Limited {
    let message = "the desired replica count is more than the maximum replica count";
    Limited { replicas, reason: "TooManyReplicas", message }
}

fn too_few(replicas: i32) -> Limited {
    let message = "the desired replica count is less than the minimum replica count";
    Limited { replicas, reason: "TooFewReplicas", message }
}

fn too_fast_up(replicas: i32) -> Limited {
    let message = "the desired replica count is increasing faster than the maximum scale rate";
    Limited { replicas, reason: "ScaleUpLimit", message }
}

fn too_fast_down(replicas: i32) -> Limited {
    let message = "the desired replica count is decreasing faster than the maximum scale rate";
    Limited { replicas, reason: "ScaleDownLimit", message }
}
