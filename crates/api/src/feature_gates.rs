//! Feature gates by upstream's names: which there are, how ripe they are, and which are on.
//! Read by every component's `--feature-gates`, and by a KubeletConfiguration's; shown at `/metrics`.
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

const fn switch(name: &'static str, stage: Stage, default: bool) -> FeatureGate {
    FeatureGate { name, stage, default, switchable: true }
}

/// What upstream has locked, and what is built here without a switch.
const fn on(name: &'static str, stage: Stage) -> FeatureGate {
    FeatureGate { name, stage, default: true, switchable: false }
}

/// What is not built.
const fn off(name: &'static str, stage: Stage) -> FeatureGate {
    FeatureGate { name, stage, default: false, switchable: false }
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
pub const DYNAMIC_RESOURCE_ALLOCATION: &str = "DynamicResourceAllocation";
pub const API_RESPONSE_COMPRESSION: &str = "APIResponseCompression";
pub const AUTHORIZE_POD_WEBSOCKET_UPGRADE_CREATE_PERMISSION: &str = "AuthorizePodWebsocketUpgradeCreatePermission";
pub const JWKS_METRICS: &str = "StructuredAuthenticationConfigurationJWKSMetrics";
pub const POD_TOPOLOGY_LABELS_ADMISSION: &str = "PodTopologyLabelsAdmission";
pub const REMOTE_REQUEST_HEADER_UID: &str = "RemoteRequestHeaderUID";
pub const SERVICE_ACCOUNT_NODE_AUDIENCE_RESTRICTION: &str = "ServiceAccountNodeAudienceRestriction";
pub const SIZE_BASED_LIST_COST_ESTIMATE: &str = "SizeBasedListCostEstimate";
pub const STORAGE_VERSION_HASH: &str = "StorageVersionHash";
pub const TOKEN_REQUEST_SERVICE_ACCOUNT_UID_VALIDATION: &str = "TokenRequestServiceAccountUIDValidation";

// The kubelet's.
pub const CONTAINER_CHECKPOINT: &str = "ContainerCheckpoint";
pub const CRASH_LOOP_BACK_OFF_MAX: &str = "KubeletCrashLoopBackOffMax";
pub const CSI_VOLUME_HEALTH: &str = "CSIVolumeHealth";
pub const ENSURE_SECRET_PULLED_IMAGES: &str = "KubeletEnsureSecretPulledImages";
pub const GRACEFUL_NODE_SHUTDOWN: &str = "GracefulNodeShutdown";
pub const GRACEFUL_NODE_SHUTDOWN_BY_PRIORITY: &str = "GracefulNodeShutdownBasedOnPodPriority";
pub const NODE_LOG_QUERY: &str = "NodeLogQuery";
pub const ROTATE_SERVER_CERTIFICATE: &str = "RotateKubeletServerCertificate";
pub const RESOURCE_HEALTH_STATUS: &str = "ResourceHealthStatus";
pub const SELINUX_MOUNT: &str = "SELinuxMount";
pub const SELINUX_MOUNT_READ_WRITE_ONCE_POD: &str = "SELinuxMountReadWriteOncePod";

const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

use Stage::{Alpha, Beta, Deprecated, GeneralAvailability as Ga};

/// All of v1.35's and our own, by name.
#[rustfmt::skip]
pub const FEATURE_GATES: &[FeatureGate] = &[
    on("AggregatedDiscoveryRemoveBetaType", Deprecated),
    off("AllowDNSOnlyNodeCSR", Deprecated),
    off("AllowInsecureKubeletCertificateSigningRequests", Deprecated),
    on("AllowOverwriteTerminationGracePeriodSeconds", Deprecated),
    switch(ALLOW_PARSING_USER_UID_FROM_CERT_AUTH, Beta, true),
    off("AllowUnsafeMalformedObjectDeletion", Alpha),
    on("AnonymousAuthConfigurableEndpoints", Ga),
    on("AnyVolumeDataSource", Ga),
    switch(API_RESPONSE_COMPRESSION, Beta, true),
    switch(API_SERVER_IDENTITY, Beta, true),
    on("APIServerTracing", Ga),
    off("APIServingWithRoutine", Alpha),
    on("AuthorizeNodeWithSelectors", Ga),
    switch(AUTHORIZE_POD_WEBSOCKET_UPGRADE_CREATE_PERMISSION, Beta, true),
    on("AuthorizeWithSelectors", Ga),
    on("BtreeWatchCache", Ga),
    off("CBORServingAndStorage", Alpha),
    off("ChangeContainerStatusOnKubeletRestart", Deprecated),
    on("ClearingNominatedNodeNameAfterBinding", Beta),
    off("ClientsAllowCBOR", Alpha),
    off("ClientsPreferCBOR", Alpha),
    off("CloudControllerManagerWatchBasedRoutesReconciliation", Alpha),
    off("CloudControllerManagerWebhook", Alpha),
    switch(CLUSTER_TRUST_BUNDLE, Beta, false),
    switch(CLUSTER_TRUST_BUNDLE_PROJECTION, Beta, false),
    off("ComponentFlagz", Alpha),
    off("ComponentStatusz", Alpha),
    off("ConcurrentWatchObjectDecode", Beta),
    on("ConsistentListFromCache", Ga),
    off("ConstrainedImpersonation", Alpha),
    switch(CONTAINER_CHECKPOINT, Beta, true),
    on("ContainerRestartRules", Beta),
    off("ContainerStopSignals", Alpha),
    on("ContextualLogging", Beta),
    off("CoordinatedLeaderElection", Beta),
    switch("CPUManagerPolicyAlphaOptions", Alpha, false),
    switch("CPUManagerPolicyBetaOptions", Beta, true),
    on("CPUManagerPolicyOptions", Ga),
    off("CRDObservedGenerationTracking", Beta),
    on("CRDValidationRatcheting", Ga),
    off("CrossNamespaceVolumeDataSource", Alpha),
    on("CSIMigrationPortworx", Ga),
    on("CSIServiceAccountTokenSecrets", Beta),
    switch(CSI_VOLUME_HEALTH, Alpha, false),
    off("CustomCPUCFSQuotaPeriod", Alpha),
    on("CustomResourceFieldSelectors", Ga),
    on("DeclarativeValidation", Beta),
    off("DeclarativeValidationTakeover", Beta),
    on("DeploymentReplicaSetTerminatingReplicas", Beta),
    off("DetectCacheInconsistency", Beta),
    on("DisableAllocatorDualWrite", Ga),
    switch("DisableCPUQuotaWithExclusiveCPUs", Beta, true),
    on("DisableNodeKubeProxyVersion", Deprecated),
    on("DRAAdminAccess", Beta),
    off("DRAConsumableCapacity", Alpha),
    off("DRADeviceBindingConditions", Alpha),
    off("DRADeviceTaintRules", Alpha),
    off("DRADeviceTaints", Alpha),
    off("DRAExtendedResource", Alpha),
    off("DRAPartitionableDevices", Alpha),
    on("DRAPrioritizedList", Beta),
    on("DRAResourceClaimDeviceStatus", Beta),
    on("DRASchedulerFilterTimeout", Beta),
    on(DYNAMIC_RESOURCE_ALLOCATION, Ga),
    on("EnvFiles", Beta),
    off("EventedPLEG", Alpha),
    on("ExecProbeTimeout", Ga),
    off("ExternalServiceAccountTokenSigner", Beta),
    off("GangScheduling", Alpha),
    off("GenericWorkload", Alpha),
    off("GitRepoVolumeDriver", Deprecated),
    switch(GRACEFUL_NODE_SHUTDOWN, Beta, true),
    switch(GRACEFUL_NODE_SHUTDOWN_BY_PRIORITY, Beta, true),
    on("HonorPVReclaimPolicy", Ga),
    on("HostnameOverride", Beta),
    on("HPAConfigurableTolerance", Beta),
    off("HPAScaleToZero", Alpha),
    on("ImageMaximumGCAge", Ga),
    on("ImageVolume", Beta),
    on("InformerResourceVersion", Ga),
    switch(INITIALIZERS, Alpha, false),
    on("InOrderInformers", Beta),
    on("InOrderInformersBatchProcess", Beta),
    off("InPlacePodLevelResourcesVerticalScaling", Alpha),
    on("InPlacePodVerticalScaling", Ga),
    off("InPlacePodVerticalScalingAllocatedStatus", Deprecated),
    switch("InPlacePodVerticalScalingExclusiveCPUs", Alpha, false),
    switch("InPlacePodVerticalScalingExclusiveMemory", Alpha, false),
    off("InTreePluginPortworxUnregister", Alpha),
    on("JobBackoffLimitPerIndex", Ga),
    on("JobManagedBy", Ga),
    on("JobPodReplacementPolicy", Ga),
    on("JobSuccessPolicy", Ga),
    off("KMSv1", Deprecated),
    on("KubeletCgroupDriverFromCRI", Ga),
    switch(CRASH_LOOP_BACK_OFF_MAX, Beta, true),
    switch(ENSURE_SECRET_PULLED_IMAGES, Beta, true),
    on("KubeletFineGrainedAuthz", Beta),
    off("KubeletInUserNamespace", Alpha),
    on("KubeletPodResourcesDynamicResources", Beta),
    on("KubeletPodResourcesGet", Beta),
    on("KubeletPodResourcesListUseActivePods", Deprecated),
    on("KubeletPSI", Beta),
    off("KubeletRegistrationGetOnExistsOnly", Deprecated),
    on("KubeletSeparateDiskGC", Beta),
    on("KubeletServiceAccountTokenForCredentialProviders", Beta),
    on("KubeletTracing", Ga),
    on("ListFromCacheSnapshot", Beta),
    off("LocalStorageCapacityIsolationFSQuotaMonitoring", Beta),
    on("LogarithmicScaleDown", Ga),
    off("LoggingAlphaOptions", Alpha),
    on("LoggingBetaOptions", Beta),
    on("MatchLabelKeysInPodAffinity", Ga),
    on("MatchLabelKeysInPodTopologySpread", Beta),
    on("MatchLabelKeysInPodTopologySpreadSelectorMerge", Beta),
    on("MaxUnavailableStatefulSet", Beta),
    on("MemoryManager", Ga),
    switch("MemoryQoS", Alpha, false),
    on("MultiCIDRServiceAllocator", Ga),
    on("MutableCSINodeAllocatableCount", Beta),
    off("MutablePodResourcesForSuspendedJobs", Alpha),
    off("MutablePVNodeAffinity", Alpha),
    off("MutableSchedulingDirectivesForSuspendedJobs", Alpha),
    switch(MUTATING_ADMISSION_POLICY, Beta, false),
    on("NFTablesProxyMode", Ga),
    off("NodeDeclaredFeatures", Alpha),
    on("NodeInclusionPolicyInPodTopologySpread", Ga),
    switch(NODE_LOG_QUERY, Beta, false),
    on("NodeSwap", Ga),
    on("NominatedNodeNameForExpectation", Beta),
    on("OpenAPIEnums", Beta),
    on("OpportunisticBatching", Beta),
    on("OrderedNamespaceDeletion", Ga),
    off("PodAndContainerStatsFromCRI", Alpha),
    switch(POD_CERTIFICATE_REQUEST, Beta, false),
    on("PodDeletionCost", Beta),
    on("PodLevelResources", Beta),
    on("PodLifecycleSleepAction", Ga),
    on("PodLifecycleSleepActionAllowZero", Ga),
    off("PodLogsQuerySplitStreams", Alpha),
    on("PodObservedGenerationTracking", Ga),
    on("PodReadyToStartContainersCondition", Beta),
    on("PodSchedulingReadiness", Ga),
    switch(POD_TOPOLOGY_LABELS_ADMISSION, Beta, true),
    on("PortForwardWebsockets", Beta),
    on("PreferSameTrafficDistribution", Ga),
    on("PreventStaticPodAPIReferences", Beta),
    on("ProcMountType", Beta),
    off("QOSReserved", Alpha),
    on("RecoverVolumeExpansionFailure", Ga),
    on("RecursiveReadOnlyMounts", Ga),
    off("ReduceDefaultCrashLoopBackOffDecay", Alpha),
    on("RelaxedDNSSearchValidation", Ga),
    on("RelaxedEnvironmentVariableValidation", Ga),
    off("RelaxedServiceNameValidation", Alpha),
    on("ReloadKubeletServerCertificateFile", Beta),
    switch(REMOTE_REQUEST_HEADER_UID, Beta, true),
    on("ResilientWatchCacheInitialization", Ga),
    switch(RESOURCE_HEALTH_STATUS, Alpha, false),
    off("RestartAllContainersOnContainerExits", Alpha),
    on("RetryGenerateName", Ga),
    switch(ROTATE_SERVER_CERTIFICATE, Beta, true),
    off("RuntimeClassInImageCriApi", Alpha),
    off("SchedulerAsyncAPICalls", Beta),
    on("SchedulerAsyncPreemption", Beta),
    on("SchedulerPopFromBackoffQ", Beta),
    on("SchedulerQueueingHints", Ga),
    on("SELinuxChangePolicy", Beta),
    switch(SELINUX_MOUNT, Beta, false),
    switch(SELINUX_MOUNT_READ_WRITE_ONCE_POD, Beta, true),
    off("SeparateCacheWatchRPC", Deprecated),
    on("SeparateTaintEvictionController", Ga),
    switch(SERVICE_ACCOUNT_NODE_AUDIENCE_RESTRICTION, Beta, true),
    on("ServiceAccountTokenJTI", Ga),
    on("ServiceAccountTokenNodeBinding", Ga),
    on("ServiceAccountTokenNodeBindingValidation", Ga),
    on("ServiceAccountTokenPodNodeInfo", Ga),
    on("ServiceTrafficDistribution", Ga),
    on("SidecarContainers", Ga),
    switch(SIZE_BASED_LIST_COST_ESTIMATE, Beta, true),
    on("StatefulSetSemanticRevisionComparison", Beta),
    off("StorageCapacityScoring", Alpha),
    on("StorageNamespaceIndex", Deprecated),
    switch(STORAGE_VERSION_API, Alpha, false),
    switch(STORAGE_VERSION_HASH, Beta, true),
    switch(STORAGE_VERSION_MIGRATOR, Beta, false),
    on("StreamingCollectionEncodingToJSON", Ga),
    on("StreamingCollectionEncodingToProtobuf", Ga),
    off("StrictIPCIDRValidation", Alpha),
    on("StructuredAuthenticationConfiguration", Ga),
    off("StructuredAuthenticationConfigurationEgressSelector", Beta),
    switch(JWKS_METRICS, Beta, true),
    on("StructuredAuthorizationConfiguration", Ga),
    on("SupplementalGroupsPolicy", Ga),
    on("SystemdWatchdog", Ga),
    off("TaintTolerationComparisonOperators", Alpha),
    switch(TOKEN_REQUEST_SERVICE_ACCOUNT_UID_VALIDATION, Beta, true),
    on("TopologyAwareHints", Ga),
    off("TopologyManagerPolicyAlphaOptions", Alpha),
    on("TopologyManagerPolicyBetaOptions", Beta),
    on("TopologyManagerPolicyOptions", Ga),
    on("TranslateStreamCloseWebsocketRequests", Beta),
    off("UnauthenticatedHTTP2DOSMitigation", Beta),
    off("UnknownVersionInteroperabilityProxy", Alpha),
    off("UserNamespacesHostNetworkSupport", Alpha),
    on("UserNamespacesSupport", Beta),
    on("VolumeAttributesClass", Ga),
    off("VolumeLimitScaling", Alpha),
    off("WatchCacheInitializationPostStartHook", Beta),
    on("WatchFromStorageWithoutResourceVersion", Deprecated),
    on("WatchList", Beta),
    on("WatchListClient", Beta),
    off("WindowsCPUAndMemoryAffinity", Alpha),
    off("WindowsGracefulNodeShutdown", Beta),
    off("WindowsHostNetwork", Deprecated),
    on("WinDSR", Ga),
    on("WinOverlay", Ga),
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
        check("AllAlpha=true", "true true");
        check("AllAlpha=true,AllBeta=false,APIServerIdentity=true", "true false");
        let lonely = "StorageVersionAPI is enabled, but depends on features that are disabled: [APIServerIdentity]";
        check("AllAlpha=true,AllBeta=false", lonely);
        check("GenericWorkload=false,DRAAdminAccess=true", "false true");
        let locked = "cannot set feature gate GenericWorkload to true, feature is locked to false";
        check("GenericWorkload=true", locked);
        check("Initializers=false,AllAlpha=true", "false true");
        check("StructuredAuthorizationConfiguration=true", "false true");
        let locked = "cannot set feature gate StructuredAuthorizationConfiguration to false, feature is locked to true";
        check("StructuredAuthorizationConfiguration=false", locked);
        check("KMSv1=true", "cannot set feature gate KMSv1 to true, feature is locked to false");
        check(
            "None=true",
            "unrecognized feature gate: None (known are AllAlpha, AllBeta, AggregatedDiscoveryRemoveBetaType,",
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
