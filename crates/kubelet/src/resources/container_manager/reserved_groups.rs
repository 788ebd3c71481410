//! Groups of others, the system's and Kubernetes' own, that are held to what is reserved for them.
//! Part of `container_manager`; `systemReservedCgroup`, `kubeReservedCgroup` and `enforceNodeAllocatable` say which.
//! Never makes a group: one that is not there yet is an error.

use std::io;

use super::{ContainerManager, hierarchy::Hierarchy, systemd};
use crate::{
    config::{CgroupDriver, Reserved},
    runtime::container_config::resources,
};

/// What a group is held to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Enforcement {
    #[default]
    Nothing,
    /// Its share of the processors.
    Compressible,
    /// Its memory and its processes, too.
    Everything,
}

/// What is reserved for a part of the machine, and the control group that this part runs in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservedGroup {
    /// As the driver names it: a path, or a slice.
    pub name: String,
    pub reserved: Reserved,
    pub enforcement: Enforcement,
}

#[derive(Debug, thiserror::Error)]
pub enum ReservedGroupError {
    #[error("cgroup {group:?} has some missing paths: {}", .paths.join(", "))]
    Missing { group: String, paths: Vec<String> },
    #[error("cgroup {group:?} has some missing controllers: {}", .controllers.join(", "))]
    MissingControllers { group: String, controllers: Vec<String> },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Of a unified hierarchy; those that the machine does not have are not missed.
const UNIFIED_CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];
const SEPARATE_CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "cpuset", "memory", "pids"];

impl ContainerManager {
    /// Gives a group what is reserved for it, and no more.
    pub fn enforce_reserved(&self, group: &ReservedGroup) -> Result<(), ReservedGroupError> {
        let components = components(&group.name, self.driver);
        let place = self.place(&components);
        self.hierarchy.check_present(&group.name, &place)?;
        let reserved = group.reserved;
        let incompressible =
            |amount: i64| Some(amount).filter(|n| *n > 0 && group.enforcement == Enforcement::Everything);
        let shares = Some(reserved.cpu_milli).filter(|milli| *milli > 0).map(resources::cpu_shares);
        let (memory_bytes, pids) = (incompressible(reserved.memory_bytes), incompressible(reserved.pids));
        match self.driver {
            CgroupDriver::Cgroupfs => {
                shares.map_or(Ok(()), |shares| self.hierarchy.set_shares(&place, shares))?;
                memory_bytes.map_or(Ok(()), |bytes| self.hierarchy.set_memory(&place, bytes))?;
                pids.map_or(Ok(()), |most| self.hierarchy.set_pids(&place, most))?;
            }
            CgroupDriver::Systemd => {
                let unified = self.hierarchy.is_unified();
                let properties = shares.map(|shares| systemd::shares(shares, unified)).into_iter();
                let properties = properties.chain(memory_bytes.map(|bytes| systemd::memory_max(bytes, unified)));
                let properties: Vec<_> = properties.chain(pids.map(systemd::tasks_max)).collect();
                if !properties.is_empty() {
                    systemd::call(&systemd::set(&components, &properties))?;
                }
            }
        }
        if let Some(bytes) = memory_bytes.filter(|_| self.throttling_factor.is_some()) {
            self.hierarchy.set_memory_min(&place, bytes)?;
        }
        Ok(())
    }
}

/// A path by its parts, or a slice by the levels that its name has.
fn components(name: &str, driver: CgroupDriver) -> Vec<String> {
    match driver {
        CgroupDriver::Cgroupfs => name.split('/').filter(|part| !part.is_empty()).map(String::from).collect(),
        CgroupDriver::Systemd => {
            let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            let levels = last.strip_suffix(".slice").unwrap_or(last).split('-');
            levels.filter(|level| !level.is_empty()).map(|level| level.replace('_', "-")).collect()
        }
    }
}

impl Hierarchy {
    /// Whether a group that somebody else has to make is there, under all controllers.
    fn check_present(&self, group: &str, place: &[String]) -> Result<(), ReservedGroupError> {
        let group = group.to_string();
        match self {
            Self::Unified { root } => {
                let read = |path: &std::path::Path| std::fs::read_to_string(path.join("cgroup.controllers"));
                let path = place.iter().fold(root.clone(), |path, part| path.join(part));
                let Ok(own) = read(&path) else {
                    return Err(ReservedGroupError::Missing { group, paths: vec![path.display().to_string()] });
                };
                let all = read(root).unwrap_or_default();
                let has = |list: &str, name: &str| list.split_whitespace().any(|known| known == name);
                let missing = UNIFIED_CONTROLLERS.into_iter().filter(|name| has(&all, name) && !has(&own, name));
                let controllers: Vec<String> = missing.map(String::from).collect();
                match controllers.is_empty() {
                    true => Ok(()),
                    false => Err(ReservedGroupError::MissingControllers { group, controllers }),
                }
            }
            Self::Separate { .. } => {
                let places = SEPARATE_CONTROLLERS.into_iter().filter_map(|name| self.group_dir(name, place));
                let mut paths: Vec<String> =
                    places.filter(|path| !path.exists()).map(|path| path.display().to_string()).collect();
                paths.dedup();
                if paths.is_empty() { Ok(()) } else { Err(ReservedGroupError::Missing { group, paths }) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_as_their_driver_names_them() {
        let check = |name: &str, driver, expected: &[&str]| assert_eq!(components(name, driver), expected, "{name}");
        check("/system.slice", CgroupDriver::Cgroupfs, &["system.slice"]);
        check("/a/b", CgroupDriver::Cgroupfs, &["a", "b"]);
        check("/system.slice", CgroupDriver::Systemd, &["system"]);
        check("/kube.slice/kube-own_parts.slice", CgroupDriver::Systemd, &["kube", "own-parts"]);
    }

    #[test]
    fn a_group_gets_what_is_reserved_for_it() {
        let reserved = Reserved { cpu_milli: 500, memory_bytes: 1 << 20, ephemeral_bytes: 7, pids: 30 };
        let unified = [("cpu.weight", "20"), ("memory.max", "1048576"), ("pids.max", "30")];
        let separate = [("cpu.shares", "512"), ("memory.limit_in_bytes", "1048576"), ("pids.max", "30")];
        let check = |unify: bool, enforcement, reserved, expected: &[(&str, &str)]| {
            let dir = tempfile::tempdir().unwrap();
            let hierarchy = match unify {
                true => Hierarchy::unified(dir.path()),
                false => Hierarchy::separate(dir.path(), &["cpu", "memory", "pids"]),
            };
            let manager = ContainerManager::with_hierarchy(hierarchy, "", CgroupDriver::Cgroupfs);
            let group = ReservedGroup { name: "/system.slice".into(), reserved, enforcement };
            let refused = manager.enforce_reserved(&group).unwrap_err().to_string();
            assert!(refused.starts_with("cgroup \"/system.slice\" has some missing paths: /"), "{refused}");
            let places = manager.hierarchy.directories(&["system.slice".to_string()]);
            for place in &places {
                std::fs::create_dir_all(place).unwrap();
            }
            if unify {
                std::fs::write(dir.path().join("cgroup.controllers"), "cpu io memory pids").unwrap();
                std::fs::write(places[0].join("cgroup.controllers"), "io memory pids").unwrap();
                let refused = manager.enforce_reserved(&group).unwrap_err().to_string();
                assert_eq!(refused, "cgroup \"/system.slice\" has some missing controllers: cpu");
                std::fs::write(places[0].join("cgroup.controllers"), "cpu memory pids").unwrap();
            }
            manager.enforce_reserved(&group).unwrap();
            for (file, _) in unified.iter().chain(&separate) {
                let found = places.iter().find_map(|place| std::fs::read_to_string(place.join(file)).ok());
                let wanted = expected.iter().find(|(name, _)| name == file).map(|(_, text)| text.to_string());
                assert_eq!(found, wanted, "{file} {enforcement:?}");
            }
        };
        check(true, Enforcement::Everything, reserved, &unified);
        check(false, Enforcement::Everything, reserved, &separate);
        check(true, Enforcement::Compressible, reserved, &unified[..1]);
        check(false, Enforcement::Compressible, reserved, &separate[..1]);
        check(true, Enforcement::Everything, Reserved { cpu_milli: 0, pids: 0, ..reserved }, &unified[1..2]);
    }
}
