//! Feature gates by upstream's names: which there are, how ripe they are, and which are on.
//! Read by every component's `--feature-gates`; shown at `/metrics`.
//! A gate that can't be switched here says so: nothing is accepted that has no effect.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    GeneralAvailability,
    Deprecated,
}

impl Stage {
    /// As upstream's metric names it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::GeneralAvailability => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct FeatureGate {
    pub name: &'static str,
    pub stage: Stage,
    pub default: bool,
    /// Whether it can be set to anything else.
    pub switchable: bool,
}

const fn row(name: &'static str, stage: Stage, default: bool, switchable: bool) -> FeatureGate {
    FeatureGate { name, stage, default, switchable }
}

/// What upstream has locked, and what is built here without a switch.
const fn fixed(name: &'static str, stage: Stage) -> FeatureGate {
    row(name, stage, true, false)
}

pub const INITIALIZERS: &str = "Initializers";
pub const MUTATING_ADMISSION_POLICY: &str = "MutatingAdmissionPolicy";
pub const ALLOW_PARSING_USER_UID_FROM_CERT_AUTH: &str = "AllowParsingUserUIDFromCertAuth";
pub const API_SERVER_IDENTITY: &str = "APIServerIdentity";
pub const CLUSTER_TRUST_BUNDLE: &str = "ClusterTrustBundle";
pub const CLUSTER_TRUST_BUNDLE_PROJECTION: &str = "ClusterTrustBundleProjection";
pub const POD_CERTIFICATE_REQUEST: &str = "PodCertificateRequest";
pub const STORAGE_VERSION_API: &str = "StorageVersionAPI";
pub const STORAGE_VERSION_MIGRATOR: &str = "StorageVersionMigrator";

const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

use Stage::{Alpha, Beta, Deprecated, GeneralAvailability as Ga};

/// By name.
pub const FEATURE_GATES: &[FeatureGate] = &[
    row(ALLOW_PARSING_USER_UID_FROM_CERT_AUTH, Beta, true, true),
    fixed("AnonymousAuthConfigurableEndpoints", Ga),
    fixed("APIResponseCompression", Beta),
    fixed(API_SERVER_IDENTITY, Beta),
    fixed("AuthorizeNodeWithSelectors", Ga),
    fixed("AuthorizeWithSelectors", Ga),
    row(CLUSTER_TRUST_BUNDLE, Beta, false, true),
    row(CLUSTER_TRUST_BUNDLE_PROJECTION, Beta, false, true),
    fixed("ConsistentListFromCache", Ga),
    fixed("CustomResourceFieldSelectors", Beta),
    fixed("DeploymentReplicaSetTerminatingReplicas", Beta),
    fixed("ExecProbeTimeout", Ga),
    row(INITIALIZERS, Alpha, false, true),
    fixed("InPlacePodVerticalScaling", Ga),
    fixed("JobBackoffLimitPerIndex", Ga),
    fixed("JobManagedBy", Ga),
    fixed("JobPodReplacementPolicy", Ga),
    fixed("JobSuccessPolicy", Ga),
    row("KMSv1", Deprecated, false, false),
    fixed("LogarithmicScaleDown", Ga),
    fixed("MatchLabelKeysInPodAffinity", Ga),
    fixed("MatchLabelKeysInPodTopologySpread", Beta),
    fixed("MultiCIDRServiceAllocator", Ga),
    row(MUTATING_ADMISSION_POLICY, Beta, false, true),
    fixed("NFTablesProxyMode", Ga),
    fixed("NodeInclusionPolicyInPodTopologySpread", Ga),
    fixed("OrderedNamespaceDeletion", Ga),
    row(POD_CERTIFICATE_REQUEST, Beta, false, true),
    fixed("PodDeletionCost", Beta),
    fixed("PodLifecycleSleepAction", Ga),
    fixed("PodLifecycleSleepActionAllowZero", Ga),
    fixed("PodObservedGenerationTracking", Ga),
    fixed("PodReadyToStartContainersCondition", Beta),
    fixed("PodSchedulingReadiness", Ga),
    fixed("RelaxedDNSSearchValidation", Ga),
    fixed("RelaxedEnvironmentVariableValidation", Ga),
    fixed("RemoteRequestHeaderUID", Beta),
    fixed("SchedulerQueueingHints", Ga),
    fixed("ServiceAccountNodeAudienceRestriction", Beta),
    fixed("ServiceAccountTokenJTI", Ga),
    fixed("ServiceAccountTokenNodeBinding", Ga),
    fixed("ServiceAccountTokenNodeBindingValidation", Ga),
    fixed("ServiceAccountTokenPodNodeInfo", Ga),
    fixed("ServiceTrafficDistribution", Ga),
    row(STORAGE_VERSION_API, Alpha, false, true),
    fixed("StorageVersionHash", Beta),
    row(STORAGE_VERSION_MIGRATOR, Beta, false, true),
    fixed("StreamingCollectionEncodingToJSON", Ga),
    fixed("StructuredAuthenticationConfiguration", Ga),
    fixed("StructuredAuthorizationConfiguration", Ga),
    fixed("SupplementalGroupsPolicy", Ga),
    fixed("TokenRequestServiceAccountUIDValidation", Beta),
    fixed("VolumeAttributesClass", Ga),
];

/// What is of no use without another: a gate and the one it needs.
const DEPENDENCIES: &[(&str, &str)] = &[
    (CLUSTER_TRUST_BUNDLE_PROJECTION, CLUSTER_TRUST_BUNDLE),
    (POD_CERTIFICATE_REQUEST, "AuthorizeNodeWithSelectors"),
    (STORAGE_VERSION_API, API_SERVER_IDENTITY),
];

/// Which of them are on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<&'static str, bool>);

impl FeatureGates {
    /// From `NAME=true|false` pairs, as a flag has them.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        Self::default().with(pairs)
    }

    /// The same, where these gates were set before: what is set again counts.
    pub fn with<'a>(&self, pairs: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut gates = self.clone();
        let (mut alpha, mut beta) = (None, None);
        for pair in pairs.into_iter().map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| format!("missing bool value for {pair}"))?;
            let (name, value) = (name.trim(), value.trim());
            let on = match value.to_ascii_lowercase().as_str() {
                "1" | "t" | "true" => true,
                "0" | "f" | "false" => false,
                _ => return Err(format!("invalid value of {name}={value}, err: it must be true or false")),
            };
            match name {
                ALL_ALPHA => alpha = Some(on),
                ALL_BETA => beta = Some(on),
                _ => gates.set(name, on)?,
            }
        }
        for gate in FEATURE_GATES.iter().filter(|gate| gate.switchable) {
            let all = match gate.stage {
                Alpha => alpha,
                Beta => beta,
                Ga | Deprecated => None,
            };
            // What is named itself counts more.
            if let Some(on) = all {
                gates.0.entry(gate.name).or_insert(on);
            }
        }
        gates.check_dependencies()?;
        Ok(gates)
    }

    /// Those that were set, as a flag has them.
    pub fn flag(&self) -> String {
        self.0.iter().map(|(name, on)| format!("{name}={on}")).collect::<Vec<_>>().join(",")
    }

    fn check_dependencies(&self) -> Result<(), String> {
        match DEPENDENCIES.iter().find(|(gate, needed)| self.enabled(gate) && !self.enabled(needed)) {
            Some((gate, needed)) => {
                Err(format!("{gate} is enabled, but depends on features that are disabled: [{needed}]"))
            }
            None => Ok(()),
        }
    }

    fn set(&mut self, name: &str, on: bool) -> Result<(), String> {
        let Some(gate) = FEATURE_GATES.iter().find(|gate| gate.name == name) else {
            let known: Vec<_> = [ALL_ALPHA, ALL_BETA].into_iter().chain(FEATURE_GATES.iter().map(|g| g.name)).collect();
            return Err(format!("unrecognized feature gate: {name} (known are {})", known.join(", ")));
        };
        if !gate.switchable && on != gate.default {
            let to = gate.default;
            return Err(format!("cannot set feature gate {name} to {on}, feature is locked to {to}"));
        }
        self.0.insert(gate.name, on);
        Ok(())
    }

    pub fn enabled(&self, name: &str) -> bool {
        let usual = || FEATURE_GATES.iter().any(|gate| gate.name == name && gate.default);
        self.0.get(name).copied().unwrap_or_else(usual)
    }

    /// Every gate and whether it is on.
    pub fn all(&self) -> impl Iterator<Item = (&'static FeatureGate, bool)> {
        FEATURE_GATES.iter().map(|gate| (gate, self.enabled(gate.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_set_and_mistakes_are_named() {
        let check = |text: &str, expected: &str| {
            let shown = match FeatureGates::parse(text.split(',')) {
                Err(e) => e,
                Ok(gates) => {
                    let shown = [INITIALIZERS, ALLOW_PARSING_USER_UID_FROM_CERT_AUTH].map(|name| gates.enabled(name));
                    format!("{} {}", shown[0], shown[1])
                }
            };
            assert!(shown.starts_with(expected), "{text}: {shown}");
        };
        check("", "false true");
        check("Initializers=true", "true true");
        check("AllAlpha=true,AllBeta=false", "true false");
        check("Initializers=false,AllAlpha=true", "false true");
        check("StructuredAuthorizationConfiguration=true", "false true");
        let locked = "cannot set feature gate StructuredAuthorizationConfiguration to false, feature is locked to true";
        check("StructuredAuthorizationConfiguration=false", locked);
        check("KMSv1=true", "cannot set feature gate KMSv1 to true, feature is locked to false");
        check(
            "None=true",
            "unrecognized feature gate: None (known are AllAlpha, AllBeta, AllowParsingUserUIDFromCertAuth,",
        );
        let set = FeatureGates::parse(["ClusterTrustBundle=true"]).unwrap();
        let both = set.with(["ClusterTrustBundleProjection=true"]).unwrap();
        assert_eq!(both.flag(), "ClusterTrustBundle=true,ClusterTrustBundleProjection=true");
        let lonely = "ClusterTrustBundleProjection is enabled, but depends on features that are disabled: \
                      [ClusterTrustBundle]";
        check("ClusterTrustBundleProjection=true", lonely);
        check("ClusterTrustBundleProjection=true,ClusterTrustBundle=true", "false true");
        check("Initializers", "missing bool value for Initializers");
        check("Initializers=maybe", "invalid value of Initializers=maybe");
    }

    #[test]
    fn the_table_is_in_order() {
        let names: Vec<_> = FEATURE_GATES.iter().map(|gate| gate.name.to_lowercase()).collect();
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(names, sorted);
    }
}
