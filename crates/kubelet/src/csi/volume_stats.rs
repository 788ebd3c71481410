//! What drivers say of the volumes that they have mounted: how full they are, and whether something is wrong with them.
//! Asked through `volumes::volume_manager` when somebody looks, at most once in `volumeStatsAggPeriod` for each volume.
//! A driver that hangs costs a page no more than `STATS_TIMEOUT`; what it said before is told meanwhile.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use parking_lot::Mutex;

use super::{
    messages::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeCondition, capability, unit},
    mounter::CsiManager,
    volume::Device,
};
use crate::{
    files::disk::{Disk, Usage},
    volumes::error::VolumeError,
};

const STATS_TIMEOUT: Duration = Duration::from_secs(10);
const CALLS_AT_ONCE_MAX: usize = 8;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct VolumeStats {
    pub disk: Disk,
    pub used: Usage,
    /// Only where the driver is asked for it and tells.
    pub condition: Option<VolumeCondition>,
    /// It was asked for just now.
    pub is_new: bool,
}

/// By where volumes are mounted; `None` for those of which their driver says nothing.
pub type DriverStats = HashMap<PathBuf, Option<VolumeStats>>;

/// What was said of each volume, and when.
pub struct StatsCache {
    /// `None`: nobody is asked.
    period: Option<Duration>,
    asks_condition: bool,
    said: Mutex<HashMap<PathBuf, (Duration, Option<VolumeStats>)>>,
}

impl StatsCache {
    pub fn new(period: Option<Duration>, asks_condition: bool) -> Self {
        Self { period, asks_condition, said: Mutex::default() }
    }

    /// What is known of a volume, unless it is time to ask for it: then it counts as asked for.
    fn known(&self, path: &Path, period: Duration, now: Duration) -> Option<Option<VolumeStats>> {
        let mut said = self.said.lock();
        match said.get_mut(path) {
            Some((at, stats)) if now.saturating_sub(*at) < period => {
                Some(stats.clone().map(|stats| VolumeStats { is_new: false, ..stats }))
            }
            Some((at, _)) => {
                *at = now;
                None
            }
            None => {
                said.insert(path.into(), (now, None));
                None
            }
        }
    }

    fn keep_only(&self, paths: &HashSet<PathBuf>) {
        self.said.lock().retain(|path, _| paths.contains(path));
    }

    /// A driver that fails leaves what it said before.
    fn remember(&self, path: &Path, found: Result<Option<VolumeStats>, VolumeError>) -> Option<VolumeStats> {
        let mut said = self.said.lock();
        let (_, known) = said.get_mut(path)?;
        match found {
            Ok(found) => *known = found,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "failed to get stats of a volume");
                *known = known.take().map(|stats| VolumeStats { is_new: false, ..stats });
            }
        }
        known.clone()
    }
}

impl CsiManager {
    /// Of all volumes that drivers have mounted for these pods.
    pub async fn volume_stats(&self, uids: &[String]) -> DriverStats {
        let mut mounted = Vec::new();
        for uid in uids {
            match self.published(uid) {
                Ok(found) => mounted.extend(found.into_iter().map(|(data, places)| {
                    (Device { driver: data.driver_name, handle: data.volume_handle }, places.target)
                })),
                Err(error) => tracing::debug!(uid, %error, "failed to read which CSI volumes a pod has"),
            }
        }
        self.stats.keep_only(&mounted.iter().map(|(_, path)| path.clone()).collect());
        let Some(period) = self.stats.period else {
            return mounted.into_iter().map(|(_, path)| (path, None)).collect();
        };
        let now = self.env.monotonic();
        let asked = mounted.into_iter().map(|(device, path)| async move {
            let stats = match self.stats.known(&path, period, now) {
                Some(known) => known,
                None => {
                    let found = self.ask_stats(&device, &path).await;
                    self.stats.remember(&path, found)
                }
            };
            (path, stats)
        });
        futures::stream::iter(asked).buffer_unordered(CALLS_AT_ONCE_MAX).collect().await
    }

    /// `None` where the driver can't tell.
    async fn ask_stats(&self, device: &Device, path: &Path) -> Result<Option<VolumeStats>, VolumeError> {
        let driver = self.driver(&device.driver)?.with_timeout(STATS_TIMEOUT.min(self.call_timeout));
        let has = driver.capabilities().await?;
        if !has.contains(&capability::GET_VOLUME_STATS) {
            return Ok(None);
        }
        let request = NodeGetVolumeStatsRequest {
            volume_id: device.handle.clone(),
            volume_path: path.to_string_lossy().into_owned(),
            staging_target_path: String::new(),
        };
        let answer = driver.volume_stats(request).await?;
        let asks_condition = self.stats.asks_condition && has.contains(&capability::VOLUME_CONDITION);
        read(answer, asks_condition).map(Some)
    }
}

fn read(answer: NodeGetVolumeStatsResponse, asks_condition: bool) -> Result<VolumeStats, VolumeError> {
    if answer.usage.is_empty() && !asks_condition {
        return Err(VolumeError::Csi("failed to get usage from response. usage is nil".into()));
    }
    let mut stats = VolumeStats { is_new: true, ..VolumeStats::default() };
    stats.condition = asks_condition.then(|| answer.volume_condition.unwrap_or_default());
    // Less than nothing is nothing.
    let amount = |number: i64| u64::try_from(number).unwrap_or(0);
    for usage in answer.usage {
        match usage.unit {
            unit::BYTES => {
                (stats.disk.bytes, stats.disk.bytes_free) = (amount(usage.total), amount(usage.available));
                stats.used.bytes = amount(usage.used);
            }
            unit::INODES => {
                (stats.disk.inodes, stats.disk.inodes_free) = (amount(usage.total), amount(usage.available));
                stats.used.inodes = amount(usage.used);
            }
            unit => tracing::debug!(unit, "unknown unit in VolumeUsage"),
        }
    }
    Ok(stats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::messages::VolumeUsage;

    #[test]
    fn what_a_driver_says_is_taken_as_far_as_it_makes_sense() {
        let usage = |unit: i32, total: i64| VolumeUsage { available: total - 1, total, used: 1, unit };
        let check = |usage: Vec<VolumeUsage>, asks_condition: bool, expected: Option<(u64, u64, Option<bool>)>| {
            let condition = Some(VolumeCondition { abnormal: true, message: "broken".into() });
            let answer = NodeGetVolumeStatsResponse { usage, volume_condition: condition };
            let found = read(answer, asks_condition).ok();
            let found = found.map(|s| (s.disk.bytes, s.disk.inodes, s.condition.map(|c| c.abnormal)));
            assert_eq!(found, expected);
        };
        check(vec![usage(unit::BYTES, 10), usage(unit::INODES, 5)], false, Some((10, 5, None)));
        check(vec![usage(unit::BYTES, -7)], false, Some((0, 0, None)));
        check(vec![usage(99, 10)], false, Some((0, 0, None)));
        check(vec![], false, None);
        check(vec![], true, Some((0, 0, Some(true))));
    }

    #[test]
    fn a_volume_is_asked_for_once_in_a_period() {
        let (path, period) = (PathBuf::from("/v"), Duration::from_secs(60));
        let cache = StatsCache::new(Some(period), false);
        let at = Duration::from_secs;
        assert_eq!(cache.known(&path, period, at(0)), None);
        assert_eq!(cache.known(&path, period, at(1)), Some(None), "another asks meanwhile");
        let new = VolumeStats { is_new: true, ..VolumeStats::default() };
        assert_eq!(cache.remember(&path, Ok(Some(new.clone()))), Some(new.clone()));
        let old = Some(VolumeStats { is_new: false, ..new });
        assert_eq!(cache.known(&path, period, at(59)), Some(old.clone()));
        assert_eq!(cache.known(&path, period, at(60)), None);
        assert_eq!(cache.remember(&path, Err(VolumeError::Csi("x".into()))), old);
        cache.keep_only(&HashSet::new());
        assert_eq!(cache.remember(&path, Ok(None)), None);
        assert!(cache.said.lock().is_empty());
    }
}
