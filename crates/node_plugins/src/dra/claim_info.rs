//! Which claims are prepared on this node, with which devices, and for which pods.
//! Kept by `manager`, written to disk by `checkpoint`.
//! Invariant: pure; a claim stays here until the last pod that uses it has ended and its drivers have let go of it (test:
//! `a_claim_is_let_go_with_its_last_pod`) (tidy: `pure_files`).

use std::collections::{BTreeMap, BTreeSet};

use super::messages::{Claim, Device};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClaimInfo {
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub pod_uids: BTreeSet<String>,
    /// Every driver that has a part in the allocation, with the devices it has prepared.
    pub drivers: BTreeMap<String, Vec<Device>>,
    /// Since this start of the kubelet.
    pub is_prepared: bool,
}

impl ClaimInfo {
    pub fn new<'a>(uid: &str, name: &str, namespace: &str, drivers: impl Iterator<Item = &'a str>) -> Self {
        Self {
            uid: uid.into(),
            name: name.into(),
            namespace: namespace.into(),
            drivers: drivers.map(|driver| (driver.to_string(), Vec::new())).collect(),
            ..Self::default()
        }
    }

    pub fn key(&self) -> String {
        key(&self.namespace, &self.name)
    }

    pub fn message(&self) -> Claim {
        Claim { namespace: self.namespace.clone(), uid: self.uid.clone(), name: self.name.clone() }
    }

    /// The devices of one request, or of all, each with its driver.
    pub fn devices(&self, request: Option<&str>) -> impl Iterator<Item = (&str, &Device)> {
        let is_wanted = move |device: &Device| {
            let names = &device.request_names;
            request.is_none_or(|request| names.is_empty() || names.iter().any(|name| name == request))
        };
        let all = self.drivers.iter().flat_map(|(driver, devices)| devices.iter().map(move |d| (driver.as_str(), d)));
        all.filter(move |(_, device)| is_wanted(device))
    }

    /// The CDI devices of one request, or of all.
    pub fn cdi_devices(&self, request: Option<&str>) -> impl Iterator<Item = &str> {
        self.devices(request).flat_map(|(_, device)| device.cdi_device_ids.iter().map(String::as_str))
    }
}

pub fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

#[derive(Debug, thiserror::Error, PartialEq)]
#[error(
    "old ResourceClaim with same name {name} and different UID {old_uid} still exists (previous pod force-deleted?!)"
)]
pub struct OldClaim {
    name: String,
    old_uid: String,
}

/// By the claims' keys.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClaimInfoCache(pub BTreeMap<String, ClaimInfo>);

impl ClaimInfoCache {
    pub fn get(&self, namespace: &str, name: &str) -> Option<&ClaimInfo> {
        self.0.get(&key(namespace, name))
    }

    /// Notes that the pod uses the claims. Nothing is noted when one of them is another claim of the same name.
    pub fn add_pod(&mut self, pod_uid: &str, claims: &[ClaimInfo]) -> Result<(), OldClaim> {
        for claim in claims {
            if let Some(old) = self.0.get(&claim.key()).filter(|old| old.uid != claim.uid) {
                return Err(OldClaim { name: claim.name.clone(), old_uid: old.uid.clone() });
            }
        }
        for claim in claims {
            let info = self.0.entry(claim.key()).or_insert_with(|| claim.clone());
            info.pod_uids.insert(pod_uid.into());
        }
        Ok(())
    }

    /// Claims that a pod uses.
    pub fn of_pod<'a>(&'a self, pod_uid: &'a str) -> impl Iterator<Item = &'a ClaimInfo> {
        self.0.values().filter(move |info| info.pod_uids.contains(pod_uid))
    }

    /// Takes the pod from claims that others use as well; returns those that have to be unprepared.
    pub fn release_shared(&mut self, pod_uid: &str) -> Vec<ClaimInfo> {
        let mut last = Vec::new();
        for info in self.0.values_mut().filter(|info| info.pod_uids.contains(pod_uid)) {
            match info.pod_uids.len() {
                1 => last.push(info.clone()),
                _ => {
                    info.pod_uids.remove(pod_uid);
                }
            }
        }
        last
    }

    /// Pods that have one of these devices of a driver, each by pool and name.
    pub fn users_of(&self, driver: &str, devices: &[(String, String)]) -> BTreeSet<String> {
        let has = |info: &&ClaimInfo| {
            let prepared = info.drivers.get(driver).into_iter().flatten();
            prepared.into_iter().any(|d| devices.iter().any(|(p, n)| *p == d.pool_name && *n == d.device_name))
        };
        self.0.values().filter(has).flat_map(|info| info.pod_uids.iter().cloned()).collect()
    }

    pub fn pod_uids(&self) -> BTreeSet<String> {
        self.0.values().flat_map(|info| info.pod_uids.iter().cloned()).collect()
    }

    /// How many claims each driver has here.
    pub fn claims_in_use(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::from([("<any>".to_string(), self.0.len())]);
        for driver in self.0.values().flat_map(|info| info.drivers.keys()) {
            *counts.entry(driver.clone()).or_default() += 1;
        }
        counts
    }
}

/// Claims by driver: each driver is asked once for all of them.
pub fn batches<'a>(claims: impl Iterator<Item = &'a ClaimInfo>) -> BTreeMap<String, Vec<Claim>> {
    let mut batches = BTreeMap::<String, Vec<Claim>>::new();
    for claim in claims {
        for driver in claim.drivers.keys() {
            batches.entry(driver.clone()).or_default().push(claim.message());
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, uid: &str) -> ClaimInfo {
        ClaimInfo::new(uid, name, "n", ["d"].into_iter())
    }

    #[test]
    fn a_claim_is_let_go_with_its_last_pod() {
        let mut cache = ClaimInfoCache::default();
        cache.add_pod("1", &[claim("a", "ua"), claim("b", "ub")]).unwrap();
        cache.add_pod("2", &[claim("b", "ub")]).unwrap();
        let names = |claims: Vec<ClaimInfo>| claims.into_iter().map(|c| c.name).collect::<Vec<_>>();
        assert_eq!(names(cache.release_shared("1")), ["a"]);
        assert_eq!(names(cache.release_shared("1")), ["a"], "again, until the driver has done it");
        assert_eq!(names(cache.release_shared("2")), ["b"]);
        let old = cache.add_pod("3", &[claim("c", "uc"), claim("a", "other")]).unwrap_err().to_string();
        let expected = "old ResourceClaim with same name a and different UID ua still exists (previous pod \
                        force-deleted?!)";
        assert_eq!(old, expected);
        assert_eq!(cache.get("n", "c"), None);
    }

    #[test]
    fn a_container_gets_the_devices_of_its_request() {
        let device = |requests: &[&str], id: &str| Device {
            request_names: requests.iter().map(|name| name.to_string()).collect(),
            cdi_device_ids: vec![id.into()],
            ..Default::default()
        };
        let mut info = claim("a", "ua");
        info.drivers.insert("d".into(), vec![device(&["x"], "1"), device(&["y"], "2"), device(&[], "3")]);
        let check = |request: Option<&str>, expected: &[&str]| {
            assert_eq!(info.cdi_devices(request).collect::<Vec<_>>(), expected, "{request:?}");
        };
        check(None, &["1", "2", "3"]);
        check(Some("x"), &["1", "3"]);
        check(Some("z"), &["3"]);
    }
}
