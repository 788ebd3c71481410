//! How many nodes of each zone are in trouble, and how fast pods may be sent away from them.
//! Kept and asked by `lifecycle`; the rates and thresholds are upstream's defaults.
//! When no node anywhere is ready the fault is likely ours, and nothing is evicted.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;

use super::conditions;
use crate::common::meta::Object;

/// One node in this time.
const EVICTION_INTERVAL: Duration = Duration::from_secs(10);
/// The same in a large zone of which most is down.
const SECONDARY_EVICTION_INTERVAL: Duration = Duration::from_secs(100);
/// A zone that is partly down and not larger than this loses no more.
const LARGE_CLUSTER_NODES: usize = 50;
const UNHEALTHY_ZONE_PERCENT: usize = 55;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Normal,
    Partial,
    Full,
}

/// Whether a node may be given up now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Now,
    After(Duration),
    /// Not before the zone's state changes.
    Never,
}

#[derive(Debug, Default)]
struct Zone {
    ready: usize,
    not_ready: usize,
    free_at: Duration,
}

impl Zone {
    fn state(&self) -> State {
        let all = self.ready + self.not_ready;
        if self.not_ready > 0 && self.ready == 0 {
            State::Full
        } else if self.not_ready > 2 && self.not_ready * 100 >= UNHEALTHY_ZONE_PERCENT * all {
            State::Partial
        } else {
            State::Normal
        }
    }
}

#[derive(Debug, Default)]
pub struct Zones {
    nodes: HashMap<String, (String, bool)>,
    zones: HashMap<String, Zone>,
    /// Whose counts are not what was last shown.
    changed: BTreeSet<String>,
}

/// How many nodes a zone has.
#[derive(Debug, PartialEq, Eq)]
pub struct ZoneFigures {
    pub zone: String,
    pub ready: usize,
    pub not_ready: usize,
}

/// What a change of one node means for others.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// Nodes in trouble whose zone is in another state now.
    pub wake: Vec<String>,
    /// Some node is ready again after none was: what was not heard meanwhile counts from now.
    pub recovered: bool,
}

impl Zones {
    pub fn set(&mut self, name: &str, node: Option<&Node>) -> Effect {
        let new = node.map(|node| (zone(node), conditions::ready(node) == "True"));
        if self.nodes.get(name) == new.as_ref() {
            return Effect::default();
        }
        let before = self.states();
        let disrupted = self.all_disrupted();
        if let Some((name_of_zone, ready)) = self.nodes.remove(name)
            && let Some(zone) = self.zones.get_mut(&name_of_zone)
        {
            *(if ready { &mut zone.ready } else { &mut zone.not_ready }) -= 1;
            self.changed.insert(name_of_zone);
        }
        if let Some((zone, ready)) = new {
            let counts = self.zones.entry(zone.clone()).or_default();
            *(if ready { &mut counts.ready } else { &mut counts.not_ready }) += 1;
            self.changed.insert(zone.clone());
            self.nodes.insert(name.to_string(), (zone, ready));
        }
        self.zones.retain(|_, zone| zone.ready + zone.not_ready > 0);
        let (after, recovered) = (self.states(), disrupted && !self.all_disrupted());
        if before == after {
            return Effect::default();
        }
        let all = disrupted != self.all_disrupted();
        let concerned = |zone: &String| all || before.get(zone) != after.get(zone);
        let wake = self.nodes.iter().filter(|(_, (zone, ready))| !ready && concerned(zone));
        Effect { wake: wake.map(|(name, _)| name.clone()).collect(), recovered }
    }

    /// The zones whose counts have changed since this was asked last.
    pub fn take_changed(&mut self) -> Vec<ZoneFigures> {
        let figures = |zone: String| {
            let (ready, not_ready) = self.zones.get(&zone).map_or((0, 0), |counts| (counts.ready, counts.not_ready));
            ZoneFigures { zone, ready, not_ready }
        };
        std::mem::take(&mut self.changed).into_iter().map(figures).collect()
    }

    fn states(&self) -> HashMap<String, State> {
        self.zones.iter().map(|(name, zone)| (name.clone(), zone.state())).collect()
    }

    pub fn all_disrupted(&self) -> bool {
        !self.zones.is_empty() && self.zones.values().all(|zone| zone.state() == State::Full)
    }

    /// Asks to give `node` up; `Now` uses up the zone's turn.
    pub fn admit(&mut self, node: &str, now: Duration) -> Admission {
        if self.all_disrupted() {
            return Admission::Never;
        }
        let Some((zone, _)) = self.nodes.get(node) else { return Admission::Never };
        let Some(zone) = self.zones.get_mut(zone) else { return Admission::Never };
        let pause = match zone.state() {
            State::Normal | State::Full => EVICTION_INTERVAL,
            State::Partial if zone.ready + zone.not_ready > LARGE_CLUSTER_NODES => SECONDARY_EVICTION_INTERVAL,
            State::Partial => return Admission::Never,
        };
        if zone.free_at > now {
            return Admission::After(zone.free_at - now);
        }
        zone.free_at = now + pause;
        Admission::Now
    }
}

/// As upstream's metrics have it: region and zone between separators that no label may have, or nothing.
pub fn zone(node: &Node) -> String {
    let label = |key: &str| node.label(key).unwrap_or_default();
    match (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone")) {
        ("", "") => String::new(),
        (region, zone) => format!("{region}:\0:{zone}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(zone: &str, ready: bool) -> Node {
        let status = if ready { "True" } else { "Unknown" };
        serde_json::from_value(json!({
            "metadata": { "labels": { "topology.kubernetes.io/zone": zone } },
            "status": { "conditions": [{ "type": "Ready", "status": status }] },
        }))
        .unwrap()
    }

    /// `(zone, ready, not ready)`.
    fn zones(of: &[(&str, usize, usize)]) -> Zones {
        let mut zones = Zones::default();
        for (zone, ready, not_ready) in of {
            for number in 0..ready + not_ready {
                // Those in trouble have the lowest numbers.
                zones.set(&format!("{zone}{number}"), Some(&node(zone, number >= *not_ready)));
            }
        }
        zones
    }

    #[test]
    fn rates_follow_the_zones_state() {
        let second = Duration::from_secs;
        let check = |of: &[(&str, usize, usize)], first: Admission, then: Admission| {
            let mut zones = zones(of);
            assert_eq!(zones.admit("a0", second(100)), first, "{of:?}");
            assert_eq!(zones.admit("a1", second(101)), then, "{of:?}");
        };
        let (now, never) = (Admission::Now, Admission::Never);
        check(&[("a", 8, 2)], now, Admission::After(second(9)));
        // Most of a small zone: wait. Most of a large one: slowly.
        check(&[("a", 4, 6)], never, never);
        check(&[("a", 20, 40)], now, Admission::After(second(99)));
        // A whole zone, as long as another lives.
        check(&[("a", 0, 3), ("b", 1, 0)], now, Admission::After(second(9)));
        check(&[("a", 0, 3)], never, never);
        check(&[("a", 0, 3), ("b", 0, 1)], never, never);
    }

    #[test]
    fn changes_of_state_wake_those_in_trouble() {
        let mut zones = zones(&[("a", 0, 2), ("b", 0, 1)]);
        let mut effect = zones.set("b1", Some(&node("b", true)));
        effect.wake.sort();
        assert_eq!(effect, Effect { wake: vec!["a0".into(), "a1".into(), "b0".into()], recovered: true });
        assert_eq!(zones.set("b1", Some(&node("b", true))), Effect::default());
        assert_eq!(zones.set("b2", Some(&node("b", true))), Effect::default());
    }

    #[test]
    fn counts_that_changed_are_told_once() {
        let mut zones = zones(&[("a", 1, 2)]);
        let mut check = |change: &dyn Fn(&mut Zones), expected: &[(&str, usize, usize)]| {
            change(&mut zones);
            let found: Vec<_> = zones.take_changed().into_iter().map(|f| (f.zone, f.ready, f.not_ready)).collect();
            let expected: Vec<_> =
                expected.iter().map(|(zone, up, down)| (format!(":\0:{zone}"), *up, *down)).collect();
            assert_eq!(found, expected);
        };
        check(&|_| {}, &[("a", 1, 2)]);
        check(&|zones| drop(zones.set("a0", Some(&node("a", false)))), &[]);
        check(&|zones| drop(zones.set("a0", Some(&node("a", true)))), &[("a", 2, 1)]);
        check(&|zones| drop(zones.set("a0", Some(&node("b", true)))), &[("a", 1, 1), ("b", 1, 0)]);
        check(&|zones| drop(zones.set("a0", None)), &[("b", 0, 0)]);
        assert_eq!(zone(&serde_json::from_value(json!({ "metadata": {} })).unwrap()), "");
    }
}
