//! Why a KubeletConfiguration is refused, by field.
//! Made by `configuration` and its tables; shown by `minke`.

use std::{io, path::PathBuf, time::Duration};

use serde_json::Value;

use crate::resources::eviction::ThresholdError;

#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("failed to load kubelet config file, path: {}, error: {source}", .path.display())]
    Load { path: PathBuf, source: Box<ConfigurationError> },
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("{0}")]
    Syntax(String),
    #[error("the file is not an object")]
    NotObject,
    #[error("{field} is {found}, not {wanted:?}")]
    OtherKind { field: &'static str, found: Value, wanted: &'static str },
    #[error("{field} is missing: it must be {wanted:?}")]
    NoKind { field: &'static str, wanted: &'static str },
    #[error("strict decoding error: {}", .0.join(", "))]
    UnknownFields(Vec<String>),
    #[error("invalid configuration: {name}: {source}")]
    Field { name: &'static str, source: FieldError },
    #[error(
        "invalid configuration: maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls \
         (--serialize-image-pulls) set to false"
    )]
    ParallelPulls,
    #[error(
        "invalid configuration: imageGCHighThresholdPercent {high_percent} must be greater than \
         imageGCLowThresholdPercent {low_percent}"
    )]
    ImageGcPercents { high_percent: u8, low_percent: u8 },
    #[error(
        "invalid configuration: shutdownGracePeriodCriticalPods {critical:?} must be <= shutdownGracePeriod {whole:?}"
    )]
    CriticalShutdownPeriod { whole: Duration, critical: Duration },
    #[error(
        "invalid configuration: Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the \
         same time"
    )]
    TwoShutdownPeriods,
    #[error("invalid configuration: {name} requires feature gate {gate}")]
    RequiresGate { name: &'static str, gate: &'static str },
    #[error("invalid configuration: enableSystemLogHandler is required for enableSystemLogQuery")]
    LogQueryWithoutHandler,
    #[error("invalid configuration: registryBurst {burst} must be positive where registryPullQPS is")]
    RegistryBurst { burst: u32 },
    /// Of several fields, in upstream's words.
    #[error("invalid configuration: {0}")]
    Managers(String),
}

#[derive(Debug, thiserror::Error)]
pub enum FieldError {
    #[error("unable to parse reservedSystemCPUs (--reserved-cpus) {list}, error: {source}")]
    ReservedCpus { list: String, source: resource_managers::cpu_set::CpuSetError },
    #[error("memorySwap.swapBehavior {0} must be one of: \"\", \"LimitedSwap\" or \"NoSwap\"")]
    SwapBehavior(Value),
    #[error("expected {what}, found {found}")]
    Expected { what: &'static str, found: Value },
    #[error("expected a map")]
    NotMap,
    #[error("{0:?} is not a quantity")]
    NotQuantity(String),
    #[error("{signal}: {text:?} is not a duration")]
    NotDuration { signal: String, text: String },
    #[error("must be {0}")]
    OutOfRange(&'static str),
    #[error("must not be negative")]
    Negative,
    #[error("unknown authorization mode {0}")]
    AuthorizationMode(Value),
    #[error("unknown cgroup driver {0}: use cgroupfs or systemd")]
    CgroupDriver(Value),
    #[error("{value} is not supported: use {choices}")]
    NotAmong { value: String, choices: &'static str },
    #[error("{value} is not supported: {reason}")]
    Unsupported { value: String, reason: &'static str },
    #[error("{0}")]
    FeatureGate(String),
    #[error("Cipher suite {0} not supported or doesn't exist")]
    CipherSuite(String),
    #[error("unknown field {0:?}")]
    UnknownField(String),
    #[error("cannot reserve {0:?} resource")]
    NotReservable(String),
    #[error(transparent)]
    Threshold(#[from] ThresholdError),
    #[error(transparent)]
    Taints(serde_json::Error),
}
