//! Which processors and which memory a container has to itself: CPU manager, memory manager and topology manager.
//! Start at `topology_manager`, which asks every hint provider and then has them allocate; `kubelet` owns the files and
//! tells the runtime.
//! Invariant: every file is pure; topology and checkpoints come and go as text (tidy: `pure_files`).

pub mod bit_mask;
pub mod checkpoint;
pub mod cpu_manager;
pub mod cpu_set;
pub mod machine_topology;
pub mod memory_manager;
pub mod topology_manager;

pub use bit_mask::BitMask;
pub use cpu_set::CpuSet;
pub use machine_topology::MachineTopology;
pub use topology_manager::{AdmissionError, HintProvider, ProviderHints, TopologyHint};
