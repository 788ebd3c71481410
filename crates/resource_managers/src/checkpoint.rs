//! What the checkpoints of the CPU and memory managers share: upstream's checksum and the reasons to refuse a file.
//! Used by `cpu_manager::checkpoint` and `memory_manager::checkpoint`.
//! Invariant: pure (tidy: `pure_files`).

use std::{collections::BTreeMap, fmt::Display};

/// FNV-1a over upstream's dump of the checkpoint with a checksum of zero.
pub fn checksum(dump: &str) -> u32 {
    dump.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A map as that dump shows it.
pub fn go_map<K: Display, V>(map: &BTreeMap<K, V>, dump: impl Fn(&V) -> String) -> String {
    let entries: Vec<String> = map.iter().map(|(key, value)| format!("{key}:{}", dump(value))).collect();
    format!("map[{}]", entries.join(" "))
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Torn, or not ours.
    #[error("{0}")]
    Json(String),
    #[error("checkpoint is corrupted")]
    Corrupt,
    #[error("configured policy {configured:?} differs from state checkpoint policy {found:?}")]
    CpuPolicy { configured: &'static str, found: String },
    #[error("[memorymanager] configured policy {configured:?} differs from state checkpoint policy {found:?}")]
    MemoryPolicy { configured: &'static str, found: String },
    #[error("could not parse default cpu set {list:?}: {source}")]
    DefaultCpuSet { list: String, source: crate::cpu_set::CpuSetError },
    #[error("could not parse cpuset {list:?} for container {container:?} in pod {pod:?}: {source}")]
    CpuSet { list: String, container: String, pod: String, source: crate::cpu_set::CpuSetError },
    /// An entry of the first format, whose container is not running any more.
    #[error(
        "error migrating v1 checkpoint state to v2 checkpoint state: containerID '{0}' not found in initial containers list"
    )]
    UnknownContainer(String),
}

/// serde's words for a file that ends early are not those that operators search for.
pub fn json_error(error: &serde_json::Error) -> CheckpointError {
    CheckpointError::Json(match error.is_eof() {
        true => "unexpected end of JSON input".into(),
        false => error.to_string(),
    })
}
