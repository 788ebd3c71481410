//! Feature gates of the kubelet by upstream's names: which there are, and which are on.
//! Part of `configuration`; gates of other components are those of `api::feature_gates`.
//! A gate that can't be switched here says so: nothing is accepted that has no effect.

use std::collections::BTreeMap;

use api::feature_gates::{FeatureGates, Stage};

struct Gate {
    name: &'static str,
    stage: Stage,
    default: bool,
    switchable: bool,
}

const fn switch(name: &'static str, stage: Stage, default: bool) -> Gate {
    Gate { name, stage, default, switchable: true }
}

/// What is built without a switch.
const fn on(name: &'static str, stage: Stage) -> Gate {
    Gate { name, stage, default: true, switchable: false }
}

/// What is not built.
const fn off(name: &'static str, stage: Stage) -> Gate {
    Gate { name, stage, default: false, switchable: false }
}

use Stage::{Alpha, Beta, Deprecated, GeneralAvailability as Ga};

pub const CONTAINER_CHECKPOINT: &str = "ContainerCheckpoint";
pub const CSI_VOLUME_HEALTH: &str = "CSIVolumeHealth";
pub const CRASH_LOOP_BACK_OFF_MAX: &str = "KubeletCrashLoopBackOffMax";
pub const ENSURE_SECRET_PULLED_IMAGES: &str = "KubeletEnsureSecretPulledImages";
pub const GRACEFUL_NODE_SHUTDOWN: &str = "GracefulNodeShutdown";
pub const GRACEFUL_NODE_SHUTDOWN_BY_PRIORITY: &str = "GracefulNodeShutdownBasedOnPodPriority";
pub const NODE_LOG_QUERY: &str = "NodeLogQuery";
pub const ROTATE_SERVER_CERTIFICATE: &str = "RotateKubeletServerCertificate";

#[rustfmt::skip]
const GATES: &[Gate] = &[
    switch(CONTAINER_CHECKPOINT, Beta, true),
    on("ContainerRestartRules", Beta),
    // Read by the CPU, memory and topology managers.
    switch("CPUManagerPolicyAlphaOptions", Alpha, false),
    switch("CPUManagerPolicyBetaOptions", Beta, true),
    on("CPUManagerPolicyOptions", Ga),
    on("CSIServiceAccountTokenSecrets", Beta),
    switch(CSI_VOLUME_HEALTH, Alpha, false),
    off("CustomCPUCFSQuotaPeriod", Alpha),
    switch("DisableCPUQuotaWithExclusiveCPUs", Beta, true),
    on("EnvFiles", Beta),
    switch(GRACEFUL_NODE_SHUTDOWN, Beta, true),
    switch(GRACEFUL_NODE_SHUTDOWN_BY_PRIORITY, Beta, true),
    on("ImageMaximumGCAge", Ga),
    on("ImageVolume", Beta),
    switch(CRASH_LOOP_BACK_OFF_MAX, Beta, true),
    switch(ENSURE_SECRET_PULLED_IMAGES, Beta, true),
    switch("InPlacePodVerticalScalingExclusiveCPUs", Alpha, false),
    switch("InPlacePodVerticalScalingExclusiveMemory", Alpha, false),
    off("KubeletInUserNamespace", Alpha),
    on("KubeletSeparateDiskGC", Beta),
    on("KubeletServiceAccountTokenForCredentialProviders", Beta),
    on("MemoryManager", Ga),
    switch("MemoryQoS", Alpha, false),
    on("MutableCSINodeAllocatableCount", Beta),
    off("NodeDeclaredFeatures", Alpha),
    switch(NODE_LOG_QUERY, Beta, false),
    off("PodAndContainerStatsFromCRI", Alpha),
    on("PodLevelResources", Beta),
    on("ProcMountType", Beta),
    off("QOSReserved", Alpha),
    on("RecursiveReadOnlyMounts", Ga),
    switch(ROTATE_SERVER_CERTIFICATE, Beta, true),
    off("RuntimeClassInImageCriApi", Alpha),
    on("SidecarContainers", Ga),
    off("TopologyManagerPolicyAlphaOptions", Alpha),
    on("TopologyManagerPolicyBetaOptions", Beta),
    on("TopologyManagerPolicyOptions", Ga),
    on("UserNamespacesSupport", Beta),
];

/// Which of them are on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletFeatureGates {
    own: BTreeMap<&'static str, bool>,
    shared: FeatureGates,
}

impl KubeletFeatureGates {
    /// With gates of all components as a command's flag has them.
    pub fn of(shared: FeatureGates) -> Self {
        Self { own: BTreeMap::new(), shared }
    }

    pub fn new<'a>(wanted: impl IntoIterator<Item = (&'a str, bool)>) -> Result<Self, String> {
        Self::default().with(wanted)
    }

    /// The same, where these gates were set before: what is set again counts.
    pub fn with<'a>(&self, wanted: impl IntoIterator<Item = (&'a str, bool)>) -> Result<Self, String> {
        let mut own = self.own.clone();
        let mut shared = Vec::new();
        let (mut alpha, mut beta) = (None, None);
        for (name, on) in wanted {
            match (name, GATES.iter().find(|gate| gate.name == name)) {
                ("AllAlpha", _) => {
                    alpha = Some(on);
                    shared.push(format!("{name}={on}"));
                }
                ("AllBeta", _) => {
                    beta = Some(on);
                    shared.push(format!("{name}={on}"));
                }
                (_, Some(gate)) if gate.switchable || on == gate.default => drop(own.insert(gate.name, on)),
                (_, Some(gate)) => {
                    let to = gate.default;
                    return Err(format!("cannot set feature gate {name} to {on}, feature is locked to {to}"));
                }
                (_, None) => shared.push(format!("{name}={on}")),
            }
        }
        for gate in GATES.iter().filter(|gate| gate.switchable) {
            let all = match gate.stage {
                Alpha => alpha,
                Beta => beta,
                Ga | Deprecated => None,
            };
            // What is named itself counts more.
            if let Some(on) = all {
                own.entry(gate.name).or_insert(on);
            }
        }
        let shared = self.shared.with(shared.iter().map(String::as_str)).map_err(|error| {
            // Its list of those that are known lacks ours.
            error.split_once(" (known are").map_or(error.clone(), |(error, _)| error.to_string())
        })?;
        Ok(Self { own, shared })
    }

    pub fn enabled(&self, name: &str) -> bool {
        let usual = || GATES.iter().find(|gate| gate.name == name).map(|gate| gate.default);
        self.own.get(name).copied().or_else(usual).unwrap_or_else(|| self.shared.enabled(name))
    }

    /// Every gate, those of other components too, with its stage and whether it is on.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> + '_ {
        let own = GATES.iter().map(|gate| (gate.name, gate.stage, self.enabled(gate.name)));
        own.chain(self.shared.all().map(|(gate, on)| (gate.name, gate.stage, on)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_set_and_mistakes_are_named() {
        let check = |wanted: &[(&str, bool)], expected: Result<[bool; 2], &str>| {
            let found = KubeletFeatureGates::new(wanted.iter().copied());
            let found = found.map(|gates| [GRACEFUL_NODE_SHUTDOWN, NODE_LOG_QUERY].map(|name| gates.enabled(name)));
            assert_eq!(found, expected.map_err(String::from), "{wanted:?}");
        };
        check(&[], Ok([true, false]));
        check(&[("GracefulNodeShutdown", false), ("NodeLogQuery", true)], Ok([false, true]));
        check(&[("AllBeta", true)], Ok([true, true]));
        check(&[("AllBeta", false), ("GracefulNodeShutdown", true)], Ok([true, false]));
        check(&[("SupplementalGroupsPolicy", true)], Ok([true, false]));
        check(&[("PodCertificateRequest", true)], Ok([true, false]));
        let lonely = "ClusterTrustBundleProjection is enabled, but depends on features that are disabled: \
                      [ClusterTrustBundle]";
        check(&[("ClusterTrustBundleProjection", true)], Err(lonely));
        check(&[("Nonsense", true)], Err("unrecognized feature gate: Nonsense"));
        let locked = "cannot set feature gate SidecarContainers to false, feature is locked to true";
        check(&[("SidecarContainers", false)], Err(locked));
        let locked = "cannot set feature gate KubeletInUserNamespace to true, feature is locked to false";
        check(&[("KubeletInUserNamespace", true)], Err(locked));
    }
}
