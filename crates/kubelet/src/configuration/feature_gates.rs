//! Feature gates as a KubeletConfiguration names them, laid over those of the command line.
//! Part of `configuration`; the table is `api::feature_gates`, which every component shares.

pub use api::feature_gates::{
    CONTAINER_CHECKPOINT, CRASH_LOOP_BACK_OFF_MAX, CSI_VOLUME_HEALTH, ENSURE_SECRET_PULLED_IMAGES,
    GRACEFUL_NODE_SHUTDOWN, GRACEFUL_NODE_SHUTDOWN_BY_PRIORITY, NODE_LOG_QUERY, ROTATE_SERVER_CERTIFICATE,
    SELINUX_MOUNT, SELINUX_MOUNT_READ_WRITE_ONCE_POD,
};
use api::feature_gates::{FeatureGates, Stage};

/// Which of them are on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletFeatureGates(FeatureGates);

impl KubeletFeatureGates {
    /// As a command's flag has them.
    pub fn of(gates: FeatureGates) -> Self {
        Self(gates)
    }

    pub fn new<'a>(wanted: impl IntoIterator<Item = (&'a str, bool)>) -> Result<Self, String> {
        Self::default().with(wanted)
    }

    /// The same, where these gates were set before: what is set again counts.
    pub fn with<'a>(&self, wanted: impl IntoIterator<Item = (&'a str, bool)>) -> Result<Self, String> {
        let pairs: Vec<String> = wanted.into_iter().map(|(name, on)| format!("{name}={on}")).collect();
        self.0.with(pairs.iter().map(String::as_str)).map(Self)
    }

    pub fn enabled(&self, name: &str) -> bool {
        self.0.enabled(name)
    }

    /// Every gate with its stage and whether it is on.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, Stage, bool)> {
        self.0.all().map(|(gate, on)| (gate.name, gate.stage, on))
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
            match (found, expected) {
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{wanted:?}: {found}"),
                (found, expected) => assert_eq!(found, expected.map_err(String::from), "{wanted:?}"),
            }
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
