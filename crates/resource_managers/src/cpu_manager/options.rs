//! Options of the CPU manager's static policy, each behind the feature gate of its level.
//! Read by `static_policy`; checked once, before the node starts.
//! Invariant: pure; an option is honoured or refused, never ignored (tidy: `pure_files`).

use std::collections::BTreeMap;

use api::codec::parse_bool;

use crate::{machine_topology::CpuTopology, topology_manager::PolicyName};

const FULL_PCPUS_ONLY: &str = "full-pcpus-only";
const DISTRIBUTE_ACROSS_NUMA: &str = "distribute-cpus-across-numa";
const ALIGN_BY_SOCKET: &str = "align-by-socket";
const DISTRIBUTE_ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT_CPU_RESERVATION: &str = "strict-cpu-reservation";
const PREFER_UNCORE_CACHE: &str = "prefer-align-cpus-by-uncorecache";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maturity {
    Alpha,
    Beta,
    Stable,
}

type Field = fn(&mut StaticPolicyOptions) -> &mut bool;

const OPTIONS: &[(&str, Maturity, Field)] = &[
    (FULL_PCPUS_ONLY, Maturity::Stable, |options| &mut options.full_physical_cpus_only),
    (DISTRIBUTE_ACROSS_NUMA, Maturity::Beta, |options| &mut options.distribute_across_numa),
    (ALIGN_BY_SOCKET, Maturity::Alpha, |options| &mut options.align_by_socket),
    (DISTRIBUTE_ACROSS_CORES, Maturity::Alpha, |options| &mut options.distribute_across_cores),
    (STRICT_CPU_RESERVATION, Maturity::Stable, |options| &mut options.strict_cpu_reservation),
    (PREFER_UNCORE_CACHE, Maturity::Beta, |options| &mut options.prefer_uncore_cache),
];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StaticPolicyOptions {
    pub full_physical_cpus_only: bool,
    pub distribute_across_numa: bool,
    pub align_by_socket: bool,
    pub distribute_across_cores: bool,
    pub strict_cpu_reservation: bool,
    pub prefer_uncore_cache: bool,
}

/// The feature gates that options stand behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionGates {
    /// CPUManagerPolicyAlphaOptions.
    pub alpha: bool,
    /// CPUManagerPolicyBetaOptions.
    pub beta: bool,
}

impl Default for OptionGates {
    fn default() -> Self {
        Self { alpha: false, beta: true }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("unknown CPU Manager Policy option: {0:?}")]
    Unknown(String),
    #[error("CPU Manager Policy Alpha-level Options not enabled, but option {0:?} provided")]
    Alpha(String),
    #[error("CPU Manager Policy Beta-level Options not enabled, but option {0:?} provided")]
    Beta(String),
    #[error("bad value for option {name:?}: strconv.ParseBool: parsing {value:?}: invalid syntax")]
    Value { name: String, value: String },
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Conflict(&'static str, &'static str),
    // Upstream's spelling, which operators search for.
    #[error("Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option")]
    SingleNumaNode,
    #[error("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA")]
    MoreSocketsThanNodes,
}

impl StaticPolicyOptions {
    pub fn parse(given: &BTreeMap<String, String>, gates: OptionGates) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for (name, value) in given {
            let row = OPTIONS.iter().find(|(known, ..)| known == name);
            let (_, maturity, field) = row.ok_or_else(|| OptionError::Unknown(name.clone()))?;
            match maturity {
                Maturity::Alpha if !gates.alpha => return Err(OptionError::Alpha(name.clone())),
                Maturity::Beta if !gates.beta => return Err(OptionError::Beta(name.clone())),
                _ => {}
            }
            let bad = || OptionError::Value { name: name.clone(), value: value.clone() };
            *field(&mut options) = parse_bool(value).ok_or_else(bad)?;
        }
        let conflicts = [
            (
                options.full_physical_cpus_only && options.distribute_across_cores,
                FULL_PCPUS_ONLY,
                DISTRIBUTE_ACROSS_CORES,
            ),
            (
                options.distribute_across_numa && options.distribute_across_cores,
                DISTRIBUTE_ACROSS_NUMA,
                DISTRIBUTE_ACROSS_CORES,
            ),
            (
                options.prefer_uncore_cache && options.distribute_across_cores,
                PREFER_UNCORE_CACHE,
                DISTRIBUTE_ACROSS_CORES,
            ),
            (
                options.prefer_uncore_cache && options.distribute_across_numa,
                PREFER_UNCORE_CACHE,
                DISTRIBUTE_ACROSS_NUMA,
            ),
        ];
        match conflicts.into_iter().find(|(both, ..)| *both) {
            Some((_, one, other)) => Err(OptionError::Conflict(one, other)),
            None => Ok(options),
        }
    }

    /// Whether this machine and the topology manager allow them.
    pub fn check(&self, topology: &CpuTopology, policy: PolicyName) -> Result<(), OptionError> {
        if !self.align_by_socket {
            return Ok(());
        }
        if policy == PolicyName::SingleNumaNode {
            return Err(OptionError::SingleNumaNode);
        }
        match topology.sockets > topology.numa_nodes {
            true => Err(OptionError::MoreSocketsThanNodes),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_behind_gates() {
        let check = |given: &[(&str, &str)], gates: (bool, bool), expected: Result<StaticPolicyOptions, &str>| {
            let given = given.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            let found = StaticPolicyOptions::parse(&given, OptionGates { alpha: gates.0, beta: gates.1 });
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(String::from));
        };
        let none = StaticPolicyOptions::default();
        check(&[], (false, true), Ok(none));
        let full = StaticPolicyOptions { full_physical_cpus_only: true, ..none };
        check(&[(FULL_PCPUS_ONLY, "true")], (false, false), Ok(full));
        check(&[(FULL_PCPUS_ONLY, "F")], (false, false), Ok(none));
        let strict = StaticPolicyOptions { strict_cpu_reservation: true, ..none };
        check(&[(STRICT_CPU_RESERVATION, "1")], (false, false), Ok(strict));
        check(&[("fast", "true")], (true, true), Err("unknown CPU Manager Policy option: \"fast\""));
        let alpha = "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided";
        check(&[(ALIGN_BY_SOCKET, "true")], (false, true), Err(alpha));
        let beta =
            "CPU Manager Policy Beta-level Options not enabled, but option \"distribute-cpus-across-numa\" provided";
        check(&[(DISTRIBUTE_ACROSS_NUMA, "true")], (true, false), Err(beta));
        let value = "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"yes\": invalid syntax";
        check(&[(FULL_PCPUS_ONLY, "yes")], (true, true), Err(value));
        let conflict =
            "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time";
        check(&[(FULL_PCPUS_ONLY, "true"), (DISTRIBUTE_ACROSS_CORES, "true")], (true, true), Err(conflict));
        let conflict = "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa \
                        can not be used at the same time";
        check(&[(PREFER_UNCORE_CACHE, "true"), (DISTRIBUTE_ACROSS_NUMA, "true")], (true, true), Err(conflict));
    }
}
