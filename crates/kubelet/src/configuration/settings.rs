//! Settings that are made of several fields, with upstream's rules for what goes together.
//! Part of `configuration`, which applies them once every field was read.
//! Messages are upstream's.

use client::RequestRate;
use serde_json::Value;

use super::Configuration;
use crate::{
    config::Config,
    resources::container_manager::reserved_groups::{Enforcement, ReservedGroup},
};

const FLAG: &str = "enforceNodeAllocatable (--enforce-node-allocatable)";
const PODS: &str = "pods";
const SYSTEM: &str = "system-reserved";
const SYSTEM_COMPRESSIBLE: &str = "system-reserved-compressible";
const KUBE: &str = "kube-reserved";
const KUBE_COMPRESSIBLE: &str = "kube-reserved-compressible";
const NONE: &str = "none";

/// Which of `enforceNodeAllocatable` holds.
pub fn enforced(config: &Config) -> Vec<&'static str> {
    let of = |group: &ReservedGroup, everything, compressible| match group.enforcement {
        Enforcement::Nothing => None,
        Enforcement::Compressible => Some(compressible),
        Enforcement::Everything => Some(everything),
    };
    let pods = config.enforce_node_allocatable.then_some(PODS);
    let system = of(&config.system_reserved, SYSTEM, SYSTEM_COMPRESSIBLE);
    let kube = of(&config.kube_reserved, KUBE, KUBE_COMPRESSIBLE);
    let all: Vec<_> = [pods, system, kube].into_iter().flatten().collect();
    if all.is_empty() { vec![NONE] } else { all }
}

/// What is held to its share: pods, and the groups of others.
pub fn settle_enforcement(given: &Configuration, config: &mut Config) -> Result<(), String> {
    let named = !config.system_reserved.name.is_empty() || !config.kube_reserved.name.is_empty();
    if named && !config.managers.reserved_cpus.is_empty() {
        return Err("can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup \
             (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)"
            .into());
    }
    let Some(list) = given.get("enforceNodeAllocatable").and_then(Value::as_array) else { return Ok(()) };
    let wanted: Vec<&str> = list.iter().filter_map(Value::as_str).filter(|option| !option.is_empty()).collect();
    for (a, b) in [(SYSTEM, SYSTEM_COMPRESSIBLE), (KUBE, KUBE_COMPRESSIBLE)] {
        if wanted.contains(&a) && wanted.contains(&b) {
            return Err(format!("both {a:?} and {b:?} cannot be specified together in {FLAG}"));
        }
    }
    config.enforce_node_allocatable = false;
    for (index, option) in wanted.iter().enumerate() {
        if wanted[..index].contains(option) {
            return Err(format!("duplicated enforcements {option:?} in {FLAG}"));
        }
        let (group, field, enforcement) = match *option {
            PODS => {
                config.enforce_node_allocatable = true;
                continue;
            }
            NONE if wanted.len() == 1 => continue,
            NONE => {
                return Err(format!("{FLAG} may not contain additional enforcements when {NONE:?} is specified"));
            }
            SYSTEM => (&mut config.system_reserved, SYSTEM_FIELD, Enforcement::Everything),
            SYSTEM_COMPRESSIBLE => (&mut config.system_reserved, SYSTEM_FIELD, Enforcement::Compressible),
            KUBE => (&mut config.kube_reserved, KUBE_FIELD, Enforcement::Everything),
            KUBE_COMPRESSIBLE => (&mut config.kube_reserved, KUBE_FIELD, Enforcement::Compressible),
            other => {
                return Err(format!(
                    "option {other:?} specified for {FLAG}. Valid options are {PODS:?}, {SYSTEM:?}, \
                     {SYSTEM_COMPRESSIBLE:?}, {KUBE:?}, {KUBE_COMPRESSIBLE:?} or {NONE:?}"
                ));
            }
        };
        let Field { name, everything, compressible } = field;
        if group.name.is_empty() {
            return Err(format!("{name} must be specified when {everything:?} or {compressible:?} included in {FLAG}"));
        }
        group.enforcement = enforcement;
    }
    Ok(())
}

/// The field that names a group, and what has it enforced.
struct Field {
    name: &'static str,
    everything: &'static str,
    compressible: &'static str,
}

const SYSTEM_FIELD: Field = Field {
    name: "systemReservedCgroup (--system-reserved-cgroup)",
    everything: SYSTEM,
    compressible: SYSTEM_COMPRESSIBLE,
};
const KUBE_FIELD: Field =
    Field { name: "kubeReservedCgroup (--kube-reserved-cgroup)", everything: KUBE, compressible: KUBE_COMPRESSIBLE };

/// How often the API server is asked. Without either field of a pair there is no limit.
pub fn settle_rates(given: &Configuration, config: &mut Config) {
    let number = |name: &str| given.get(name).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
    let rate = |rate: &str, burst: &str| {
        let (per_second, burst) = (number(rate), number(burst));
        per_second.or(burst)?;
        let rate = RequestRate { per_second: per_second.unwrap_or(50), burst: burst.unwrap_or(100) };
        // As the fields say of zero.
        (rate.per_second > 0).then_some(rate)
    };
    config.request_rate = rate("kubeAPIQPS", "kubeAPIBurst");
    config.event_rate = rate("eventRecordQPS", "eventBurst");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Reserved;

    fn apply(fields: &str) -> Result<Config, String> {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let mut config = Config::default();
        let given = Configuration::parse(&format!("{head}{fields}")).map_err(|error| error.to_string())?;
        given.apply(&mut config).map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn groups_are_held_to_their_share_where_that_is_asked_for() {
        let both = "systemReservedCgroup: /system.slice\nkubeReservedCgroup: /kube.slice\n";
        let check = |fields: &str, expected: &[&str]| {
            let config = apply(fields).unwrap();
            assert_eq!(enforced(&config), expected, "{fields}");
        };
        check("maxPods: 3\n", &["pods"]);
        check("enforceNodeAllocatable: []\n", &["none"]);
        check("enforceNodeAllocatable: [none]\n", &["none"]);
        check(&format!("{both}enforceNodeAllocatable: [system-reserved]\n"), &["system-reserved"]);
        let mixed = "enforceNodeAllocatable: [kube-reserved-compressible, pods, system-reserved]\n";
        check(&format!("{both}{mixed}"), &["pods", "system-reserved", "kube-reserved-compressible"]);
        let config = apply("systemReserved: {cpu: '1'}\nkubeReserved: {cpu: 500m, pid: '10'}\n").unwrap();
        let amounts = |group: &ReservedGroup| (group.reserved.cpu_milli, group.reserved.pids);
        assert_eq!((amounts(&config.system_reserved), amounts(&config.kube_reserved)), ((1000, 0), (500, 10)));
        assert_eq!(config.reserved, Reserved { cpu_milli: 1500, pids: 10, ..Reserved::default() });
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let check = |fields: &str, expected: &str| {
            let found = apply(fields).map(drop).expect_err(fields);
            assert!(found.contains(expected), "{fields}: {found}");
        };
        check(
            "enforceNodeAllocatable: [pods, all]\n",
            "invalid configuration: option \"all\" specified for enforceNodeAllocatable (--enforce-node-allocatable). Valid \
             options are \"pods\", \"system-reserved\", \"system-reserved-compressible\", \"kube-reserved\", \
             \"kube-reserved-compressible\" or \"none\"",
        );
        check(
            "enforceNodeAllocatable: [system-reserved]\n",
            "systemReservedCgroup (--system-reserved-cgroup) must be specified when \"system-reserved\" or \
             \"system-reserved-compressible\" included in",
        );
        check("enforceNodeAllocatable: [kube-reserved]\n", "kubeReservedCgroup (--kube-reserved-cgroup) must be");
        check("enforceNodeAllocatable: [pods, pods]\n", "duplicated enforcements \"pods\"");
        check("enforceNodeAllocatable: [none, pods]\n", "may not contain additional enforcements when \"none\"");
        let twice = "kubeReservedCgroup: /k\nenforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\n";
        check(twice, "both \"kube-reserved\" and \"kube-reserved-compressible\" cannot be specified together");
        check(
            "reservedSystemCPUs: '0'\nkubeReservedCgroup: /k\n",
            "can't use reservedSystemCPUs (--reserved-cpus) with",
        );
        check("eventRecordQPS: -1\n", "eventRecordQPS: must be a number that is not negative");
    }

    #[test]
    fn requests_are_limited_where_that_is_asked_for() {
        let check = |fields: &str, expected: [Option<(u32, u32)>; 2]| {
            let config = apply(fields).unwrap();
            let shown = |rate: Option<RequestRate>| rate.map(|rate| (rate.per_second, rate.burst));
            assert_eq!([shown(config.request_rate), shown(config.event_rate)], expected, "{fields}");
        };
        check("maxPods: 3\n", [None, None]);
        check("kubeAPIQPS: 7\neventBurst: 3\n", [Some((7, 100)), Some((50, 3))]);
        check("kubeAPIQPS: 7\nkubeAPIBurst: 9\neventRecordQPS: 0\n", [Some((7, 9)), None]);
    }
}
