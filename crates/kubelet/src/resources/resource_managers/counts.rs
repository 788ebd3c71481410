//! What the managers count, under upstream's names.
//! Used by `resource_managers`, which counts without knowing of metrics.

use metrics::{Family, Metrics};
use resource_managers::{
    cpu_manager::{CpuManager, CpuManagerCounts},
    memory_manager::{MemoryManager, MemoryManagerCounts},
    topology_manager::{TopologyManager, TopologyManagerCounts},
};

const ALIGNMENT: &[&str] = &["scope", "boundary"];
/// 0.05 ms, each twice the one before.
const ADMISSION_BUCKETS: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

static CPU_PINNING_REQUESTS: Family = Family::counter(
    "kubelet_cpu_manager_pinning_requests_total",
    &[],
    "Containers that asked for processors to themselves.",
);
static CPU_PINNING_ERRORS: Family = Family::counter(
    "kubelet_cpu_manager_pinning_errors_total",
    &[],
    "Containers that asked for processors to themselves and could not have them.",
);
static SHARED_POOL: Family = Family::gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    &[],
    "Processors that containers share, without reserved ones, in thousandths.",
);
static EXCLUSIVE_CPUS: Family = Family::gauge(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    &[],
    "Processors that containers have to themselves.",
);
static CPUS_PER_NUMA: Family = Family::gauge(
    "kubelet_cpu_manager_allocation_per_numa",
    &["numa_node"],
    "Processors that containers have to themselves, by NUMA node.",
);
static MEMORY_PINNING_REQUESTS: Family = Family::counter(
    "kubelet_memory_manager_pinning_requests_total",
    &[],
    "Containers that asked for memory of certain NUMA nodes.",
);
static MEMORY_PINNING_ERRORS: Family = Family::counter(
    "kubelet_memory_manager_pinning_errors_total",
    &[],
    "Containers that asked for memory of certain NUMA nodes and could not have it.",
);
static ADMISSION_REQUESTS: Family = Family::counter(
    "kubelet_topology_manager_admission_requests_total",
    &[],
    "Pods that the topology manager was asked about.",
);
static ADMISSION_ERRORS: Family =
    Family::counter("kubelet_topology_manager_admission_errors_total", &[], "Pods that the topology manager refused.");
static ADMISSION_DURATION: Family = Family::histogram(
    "kubelet_topology_manager_admission_duration_ms",
    &[],
    ADMISSION_BUCKETS,
    "How long the topology manager took for a pod, in milliseconds.",
);
static ALIGNED: Family = Family::counter(
    "kubelet_container_aligned_compute_resources_count",
    ALIGNMENT,
    "Allocations that are aligned, by scope and boundary.",
);
static UNALIGNED: Family = Family::counter(
    "kubelet_container_aligned_compute_resources_failure_count",
    ALIGNMENT,
    "Allocations that could not be aligned, by scope and boundary.",
);

pub fn observe_admission(metrics: &Metrics, milliseconds: f64) {
    metrics.observe(&ADMISSION_DURATION, &[], milliseconds);
}

/// What the metrics have been told so far.
#[derive(Default)]
pub struct CountsShown {
    cpu: CpuManagerCounts,
    memory: MemoryManagerCounts,
    topology: TopologyManagerCounts,
}

impl CountsShown {
    pub fn show(&mut self, metrics: &Metrics, cpu: &CpuManager, memory: &MemoryManager, topology: &TopologyManager) {
        let add = |family, labels: &[&str], now: u64, before: u64| {
            metrics.add(family, labels, now.saturating_sub(before) as f64);
        };
        let (now, before) = (&topology.counts, &self.topology);
        add(&ADMISSION_REQUESTS, &[], now.admission_requests, before.admission_requests);
        add(&ADMISSION_ERRORS, &[], now.admission_errors, before.admission_errors);
        add(&ALIGNED, &["container", "numa_node"], now.aligned_containers, before.aligned_containers);
        add(&ALIGNED, &["pod", "numa_node"], now.aligned_pods, before.aligned_pods);
        add(&UNALIGNED, &["container", "numa_node"], now.unaligned_containers, before.unaligned_containers);
        add(&UNALIGNED, &["pod", "numa_node"], now.unaligned_pods, before.unaligned_pods);
        let (now, before) = (&cpu.counts, &self.cpu);
        add(&CPU_PINNING_REQUESTS, &[], now.pinning_requests, before.pinning_requests);
        add(&CPU_PINNING_ERRORS, &[], now.pinning_errors, before.pinning_errors);
        add(&ALIGNED, &["container", "physical_cpu"], now.aligned_physical_cpu, before.aligned_physical_cpu);
        add(&UNALIGNED, &["container", "physical_cpu"], now.unaligned_physical_cpu, before.unaligned_physical_cpu);
        add(&ALIGNED, &["container", "uncore_cache"], now.aligned_uncore_cache, before.aligned_uncore_cache);
        let (now, before) = (&memory.counts, &self.memory);
        add(&MEMORY_PINNING_REQUESTS, &[], now.pinning_requests, before.pinning_requests);
        add(&MEMORY_PINNING_ERRORS, &[], now.pinning_errors, before.pinning_errors);
        (self.cpu, self.memory, self.topology) = (cpu.counts.clone(), memory.counts.clone(), topology.counts.clone());
        metrics.set(&SHARED_POOL, &[], cpu.shared_pool_milli() as f64);
        metrics.set(&EXCLUSIVE_CPUS, &[], cpu.state().exclusive().len() as f64);
        let per_numa = cpu.allocations_per_numa();
        metrics.retain(&CPUS_PER_NUMA, |labels| {
            labels.first().is_some_and(|node| node.parse().is_ok_and(|node: usize| per_numa.contains_key(&node)))
        });
        for (node, count) in per_numa {
            metrics.set(&CPUS_PER_NUMA, &[&node.to_string()], count as f64);
        }
    }
}
