//! How drivers say that their devices are (gate `ResourceHealthStatus`): the last word on each, unless it is too old.
//! Fed by `drivers`, which follows every driver that has this service; shown in the statuses of containers.
//! Invariant: pure; time is an argument (tidy: `pure_files`).

use std::{collections::BTreeMap, time::Duration};

use super::messages::DeviceHealth;

/// How long a driver's word counts that says nothing about it.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    #[default]
    Unknown,
    Healthy,
    Unhealthy,
}

impl Health {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
        }
    }
}

struct Report {
    health: Health,
    at: Duration,
    timeout: Duration,
}

/// Pool and name.
pub type DeviceName = (String, String);

#[derive(Default)]
pub struct HealthCache(BTreeMap<String, BTreeMap<DeviceName, Report>>);

impl HealthCache {
    /// All that a driver says. Returns the devices that are not as they were.
    pub fn update(&mut self, driver: &str, devices: Vec<DeviceHealth>, now: Duration) -> Vec<DeviceName> {
        let known = self.0.entry(driver.into()).or_default();
        // What is left out counts until its time is over.
        known.retain(|_, report| now.saturating_sub(report.at) <= report.timeout);
        let mut changed = Vec::new();
        for device in devices {
            let health = match device.health {
                1 => Health::Healthy,
                2 => Health::Unhealthy,
                _ => Health::Unknown,
            };
            let timeout = u64::try_from(device.health_check_timeout_seconds).ok().filter(|seconds| *seconds > 0);
            let timeout = timeout.map_or(HEALTH_TIMEOUT, Duration::from_secs);
            let name = device.device.map(|name| (name.pool_name, name.device_name)).unwrap_or_default();
            let before = known.insert(name.clone(), Report { health, at: now, timeout });
            if before.is_none_or(|before| before.health != health) {
                changed.push(name);
            }
        }
        changed
    }

    /// Nobody speaks for the driver's devices any more. Returns those of which something was known.
    pub fn forget(&mut self, driver: &str) -> Vec<DeviceName> {
        self.0.remove(driver).unwrap_or_default().into_keys().collect()
    }

    pub fn get(&self, driver: &str, pool: &str, device: &str, now: Duration) -> Health {
        let report = self.0.get(driver).and_then(|devices| devices.get(&(pool.into(), device.into())));
        report.filter(|report| now.saturating_sub(report.at) <= report.timeout).map_or(Health::Unknown, |r| r.health)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::messages::DeviceIdentifier, *};

    #[test]
    fn a_word_counts_until_it_is_too_old() {
        let mut cache = HealthCache::default();
        let say = |name: &str, health: i32, seconds: i64| DeviceHealth {
            device: Some(DeviceIdentifier { pool_name: "p".into(), device_name: name.into() }),
            health,
            last_updated_time: 0,
            health_check_timeout_seconds: seconds,
        };
        let mut check = |at: u64, said: Vec<DeviceHealth>, changed: &[&str], health: [&str; 2]| {
            let now = Duration::from_secs(at);
            let found = cache.update("d", said, now);
            assert_eq!(found.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), changed, "at {at}");
            assert_eq!(["a", "b"].map(|name| cache.get("d", "p", name, now).as_str()), health, "at {at}");
        };
        check(0, vec![say("a", 1, 0), say("b", 2, 100)], &["a", "b"], ["Healthy", "Unhealthy"]);
        check(10, vec![say("a", 1, -1)], &[], ["Healthy", "Unhealthy"]);
        check(41, vec![], &[], ["Unknown", "Unhealthy"]);
        check(42, vec![say("a", 2, 0), say("b", 0, 0)], &["a", "b"], ["Unhealthy", "Unknown"]);
        assert_eq!(cache.forget("d").len(), 2);
        assert_eq!(cache.get("d", "p", "a", Duration::from_secs(42)), Health::Unknown);
        assert_eq!(cache.forget("d").len(), 0);
    }
}
