//! What KubeletConfiguration says of the CPU, memory and topology managers.
//! Set by `configuration`; read once, when the managers are made.
//! Invariant: pure; what contradicts itself is refused in upstream's words (tidy: `pure_files`).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api::quantity::Quantity;
use resource_managers::{
    CpuSet,
    cpu_manager::OptionGates,
    memory_manager::{MemoryReservation, is_memory},
    topology_manager::PolicyName,
};
use serde_json::{Value, json};

use crate::configuration::error::FieldError;

#[derive(Debug, Clone, PartialEq)]
pub struct ManagerSettings {
    pub cpu_policy: String,
    pub cpu_options: BTreeMap<String, String>,
    pub cpu_option_gates: OptionGates,
    pub cpu_reconcile_interval: Duration,
    pub reserved_cpus: CpuSet,
    pub memory_policy: String,
    pub reserved_memory: Vec<MemoryReservation>,
    pub topology_policy: String,
    pub topology_scope: String,
    pub topology_options: BTreeMap<String, String>,
    /// InPlacePodVerticalScalingExclusiveCPUs.
    pub resizes_exclusive_cpus: bool,
    /// InPlacePodVerticalScalingExclusiveMemory.
    pub resizes_exclusive_memory: bool,
    /// DisableCPUQuotaWithExclusiveCPUs: a container with processors of its own is held to no quota.
    pub lifts_quota: bool,
}

impl Default for ManagerSettings {
    fn default() -> Self {
        Self {
            cpu_policy: "none".into(),
            cpu_options: BTreeMap::new(),
            cpu_option_gates: OptionGates::default(),
            cpu_reconcile_interval: Duration::from_secs(10),
            reserved_cpus: CpuSet::default(),
            memory_policy: "None".into(),
            reserved_memory: vec![],
            topology_policy: "none".into(),
            topology_scope: "container".into(),
            topology_options: BTreeMap::new(),
            resizes_exclusive_cpus: false,
            resizes_exclusive_memory: false,
            lifts_quota: true,
        }
    }
}

impl ManagerSettings {
    /// Takes the gates that bear on the managers.
    pub fn set_gates(&mut self, enabled: impl Fn(&str) -> bool) {
        self.cpu_option_gates = OptionGates {
            alpha: enabled("CPUManagerPolicyAlphaOptions"),
            beta: enabled("CPUManagerPolicyBetaOptions"),
        };
        self.resizes_exclusive_cpus = enabled("InPlacePodVerticalScalingExclusiveCPUs");
        self.resizes_exclusive_memory = enabled("InPlacePodVerticalScalingExclusiveMemory");
        self.lifts_quota = enabled("DisableCPUQuotaWithExclusiveCPUs");
    }

    /// Whether no manager has a policy.
    pub fn is_off(&self) -> bool {
        self.cpu_policy == "none" && self.memory_policy == "None" && self.topology_policy == "none"
    }

    /// What cannot be, whatever the machine.
    pub fn check(&self) -> Result<(), String> {
        if PolicyName::parse(&self.topology_policy).is_none() {
            return Err(format!(
                "topologyManagerPolicy (--topology-manager-policy) {:?} must be one of: [\"none\" \"best-effort\" \
                 \"restricted\" \"single-numa-node\"]",
                self.topology_policy
            ));
        }
        if !matches!(self.topology_scope.as_str(), "container" | "pod") {
            return Err(format!(
                "topologyManagerScope (--topology-manager-scope) {:?} must be one of: \"container\", or \"pod\"",
                self.topology_scope
            ));
        }
        let mut seen = BTreeSet::new();
        for reservation in &self.reserved_memory {
            let node = reservation.numa_node;
            for (resource, amount) in &reservation.limits {
                if !is_memory(resource) {
                    return Err(format!(
                        "the limit type {resource:?} for NUMA node {node} is not supported, only [memory \
                         hugepages-<HugePageSize>] is accepted"
                    ));
                }
                if amount.is_zero() {
                    return Err(format!(
                        "reserved memory may not be zero for NUMA node {node} and resource {resource:?}"
                    ));
                }
                if !seen.insert((node, resource)) {
                    return Err(format!(
                        "the reserved memory has a duplicate value for NUMA node {node} and resource {resource:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// `reservedMemory` of the configuration: `[{numaNode: 0, limits: {memory: 1Gi}}]`.
pub fn parse_reserved_memory(value: &Value) -> Result<Vec<MemoryReservation>, FieldError> {
    let expected = || FieldError::Expected { what: "a list of numaNode and limits", found: value.clone() };
    let entry = |entry: &Value| {
        let fields = entry.as_object().ok_or_else(expected)?;
        if let Some(other) = fields.keys().find(|key| !matches!(key.as_str(), "numaNode" | "limits")) {
            return Err(FieldError::UnknownField(other.clone()));
        }
        let numa_node = fields.get("numaNode").map_or(Some(0), Value::as_u64).ok_or_else(expected)? as usize;
        let limits = fields.get("limits").and_then(Value::as_object).into_iter().flatten();
        let limit = |(name, amount): (&String, &Value)| {
            let quantity = Quantity::from_value(amount);
            Ok((name.clone(), quantity.ok_or_else(|| FieldError::NotQuantity(amount.to_string()))?))
        };
        Ok(MemoryReservation { numa_node, limits: limits.map(limit).collect::<Result<_, FieldError>>()? })
    };
    value.as_array().ok_or_else(expected)?.iter().map(entry).collect()
}

pub fn show_reserved_memory(reservations: &[MemoryReservation]) -> Value {
    let show = |reservation: &MemoryReservation| {
        let limits: BTreeMap<&str, String> =
            reservation.limits.iter().map(|(name, amount)| (name.as_str(), amount.canonical())).collect();
        json!({"numaNode": reservation.numa_node, "limits": limits})
    };
    reservations.iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let check = |change: &dyn Fn(&mut ManagerSettings), expected: Option<&str>| {
            let mut settings = ManagerSettings::default();
            change(&mut settings);
            assert_eq!(settings.check().err().as_deref(), expected);
        };
        let reserve = |entries: Value| parse_reserved_memory(&entries).unwrap();
        check(&|_| {}, None);
        check(
            &|s| s.topology_policy = "magic".into(),
            Some(
                "topologyManagerPolicy (--topology-manager-policy) \"magic\" must be one of: [\"none\" \"best-effort\" \
                 \"restricted\" \"single-numa-node\"]",
            ),
        );
        check(
            &|s| s.topology_scope = "node".into(),
            Some("topologyManagerScope (--topology-manager-scope) \"node\" must be one of: \"container\", or \"pod\""),
        );
        check(
            &|s| s.reserved_memory = reserve(json!([{"numaNode": 1, "limits": {"cpu": "1"}}])),
            Some(
                "the limit type \"cpu\" for NUMA node 1 is not supported, only [memory hugepages-<HugePageSize>] is \
                 accepted",
            ),
        );
        check(
            &|s| s.reserved_memory = reserve(json!([{"limits": {"memory": "0"}}])),
            Some("reserved memory may not be zero for NUMA node 0 and resource \"memory\""),
        );
        let twice = json!([{"numaNode": 0, "limits": {"memory": "1Gi"}}, {"numaNode": 0, "limits": {"memory": "1Gi"}}]);
        check(
            &|s| s.reserved_memory = reserve(twice.clone()),
            Some("the reserved memory has a duplicate value for NUMA node 0 and resource \"memory\""),
        );
        assert!(parse_reserved_memory(&json!([{"numaNode": "a"}])).is_err());
        assert!(parse_reserved_memory(&json!([{"node": 1}])).is_err());
        let shown = json!([{"numaNode": 1, "limits": {"memory": "1Gi"}}]);
        assert_eq!(show_reserved_memory(&reserve(shown.clone())), shown);
    }
}
