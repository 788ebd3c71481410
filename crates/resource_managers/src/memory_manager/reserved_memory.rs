//! Memory of each NUMA node that pods do not get: `reservedMemory`, checked against what is reserved in all.
//! Read once, when the memory manager is made.
//! Invariant: pure (tidy: `pure_files`).

use std::collections::BTreeMap;

use api::quantity::{Format, Quantity};

use crate::machine_topology::NumaNode;

/// One entry of `reservedMemory`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MemoryReservation {
    pub numa_node: usize,
    pub limits: BTreeMap<String, Quantity>,
}

/// Bytes by NUMA node and kind.
pub type SystemReserved = BTreeMap<usize, BTreeMap<String, u64>>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReservedMemoryError {
    #[error("the reserved memory configuration references a NUMA node {0} that does not exist on this machine")]
    UnknownNode(usize),
    #[error(
        "the total amount {total:?} of type {resource:?} is not equal to the value {expected:?} determined by Node \
         Allocatable feature"
    )]
    Total { total: String, resource: String, expected: String },
    #[error("[memorymanager] you should specify the system reserved memory")]
    Nothing,
}

pub fn is_memory(resource: &str) -> bool {
    resource == "memory" || resource.starts_with("hugepages-")
}

/// `node_reserved` is what the system, Kubernetes and hard eviction keep from pods, by resource.
pub fn system_reserved(
    nodes: &[NumaNode],
    node_reserved: &BTreeMap<String, Quantity>,
    reservations: &[MemoryReservation],
) -> Result<SystemReserved, ReservedMemoryError> {
    let mut totals: BTreeMap<&str, Quantity> = BTreeMap::new();
    let mut by_node: SystemReserved = nodes.iter().map(|node| (node.id, BTreeMap::new())).collect();
    for reservation in reservations {
        let id = reservation.numa_node;
        let node = by_node.get_mut(&id).ok_or(ReservedMemoryError::UnknownNode(id))?;
        for (resource, amount) in &reservation.limits {
            totals.entry(resource).or_insert_with(zero).add(amount);
            node.insert(resource.clone(), u64::try_from(amount.value()).unwrap_or(0));
        }
    }
    let expected = node_reserved.iter().filter(|(resource, _)| is_memory(resource));
    let expected: BTreeMap<&str, &Quantity> = expected.map(|(resource, amount)| (resource.as_str(), amount)).collect();
    for resource in totals.keys().chain(expected.keys()) {
        let total = totals.get(resource).cloned().unwrap_or_else(zero);
        let mut wanted = zero();
        expected.get(resource).iter().for_each(|amount| wanted.add(amount));
        if total != wanted {
            return Err(ReservedMemoryError::Total {
                total: total.canonical(),
                resource: resource.to_string(),
                expected: wanted.canonical(),
            });
        }
    }
    match by_node.values().all(|node| node.get("memory").is_none_or(|bytes| *bytes == 0)) {
        true => Err(ReservedMemoryError::Nothing),
        false => Ok(by_node),
    }
}

fn zero() -> Quantity {
    Quantity::new(0, Format::DecimalSI)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_add_up_to_what_the_node_keeps() {
        let check = |reserved: &[(usize, &str, &str)], node: &[(&str, &str)], expected: Option<&str>| {
            let nodes = [0, 1].map(|id| NumaNode { id, ..NumaNode::default() });
            let quantity = |text: &str| Quantity::parse(text).unwrap();
            let node = node.iter().map(|(name, amount)| (name.to_string(), quantity(amount))).collect();
            let reservations: Vec<_> = reserved
                .iter()
                .map(|(numa_node, name, amount)| MemoryReservation {
                    numa_node: *numa_node,
                    limits: BTreeMap::from([(name.to_string(), quantity(amount))]),
                })
                .collect();
            let found = system_reserved(&nodes, &node, &reservations).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), expected, "{reserved:?} {node:?}");
        };
        check(&[(0, "memory", "1Gi"), (1, "memory", "1Gi")], &[("memory", "2Gi"), ("cpu", "1")], None);
        check(
            &[(0, "memory", "1Gi")],
            &[("memory", "2Gi")],
            Some(
                "the total amount \"1Gi\" of type \"memory\" is not equal to the value \"2Gi\" determined by Node \
                 Allocatable feature",
            ),
        );
        check(
            &[(0, "memory", "1Gi"), (0, "hugepages-2Mi", "2Mi")],
            &[("memory", "1Gi")],
            Some(
                "the total amount \"2Mi\" of type \"hugepages-2Mi\" is not equal to the value \"0\" determined by Node \
                 Allocatable feature",
            ),
        );
        let node = "the reserved memory configuration references a NUMA node 2 that does not exist on this machine";
        check(&[(2, "memory", "1Gi")], &[("memory", "1Gi")], Some(node));
        check(&[], &[], Some("[memorymanager] you should specify the system reserved memory"));
    }
}
