//! The rows. Adding a plain kind is one line here; a kind with behaviour adds its file and names its type in `behavior`.
//! Read through `kinds::builtin`.
//! In upstream's discovery order, which clients show to people (`tests/reference` compares).

use std::sync::Arc;

use super::{
    Behavior, Plain, Resource, Scope, StorageForm, Subresource,
    admissionregistration::{
        initializer_configuration::InitializerConfiguration, mutating_admission_policy::MutatingAdmissionPolicy,
        mutating_admission_policy_binding::MutatingAdmissionPolicyBinding,
        validating_admission_policy::ValidatingAdmissionPolicy,
        validating_admission_policy_binding::ValidatingAdmissionPolicyBinding,
        webhook_configuration::WebhookConfiguration,
    },
    apiextensions::custom_resource_definition::CustomResourceDefinition,
    apiregistration::api_service::ApiService,
    apps::{
        controller_revision::ControllerRevision, daemon_set::DaemonSet, deployment::Deployment,
        replica_set::ReplicaSet, stateful_set::StatefulSet,
    },
    authentication::reviews::{SelfSubjectReview, TokenReview},
    authorization::reviews::{
        LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
    },
    autoscaling::horizontal_pod_autoscaler::{HorizontalPodAutoscaler, HorizontalPodAutoscalerV1},
    batch::{cron_job::CronJob, job::Job},
    certificates::{
        certificate_signing_request::CertificateSigningRequest, cluster_trust_bundle::ClusterTrustBundle,
        pod_certificate_request::PodCertificateRequest,
    },
    coordination::lease::Lease,
    core::{
        binding::Binding, component_status::ComponentStatus, config_map::ConfigMap, endpoints::Endpoints, event::Event,
        limit_range::LimitRange, namespace::Namespace, node::Node, persistent_volume::PersistentVolume,
        persistent_volume_claim::PersistentVolumeClaim, pod::Pod, pod_template::PodTemplate,
        replication_controller::ReplicationController, resource_quota::ResourceQuota, secret::Secret, service::Service,
        service_account::ServiceAccount,
    },
    discovery::endpoint_slice::EndpointSlice,
    flowcontrol::{flow_schema::FlowSchema, priority_level_configuration::PriorityLevelConfiguration},
    internal::storage_version::StorageVersion,
    networking::{
        ingress::Ingress, ingress_class::IngressClass, ip_address::IpAddress, network_policy::NetworkPolicy,
        service_cidr::ServiceCidr,
    },
    node::runtime_class::RuntimeClass,
    policy::pod_disruption_budget::PodDisruptionBudget,
    rbac::{role::Role, role_binding::RoleBinding},
    resource::{
        device_class::DeviceClass, older_versions::Older, resource_claim::ResourceClaim,
        resource_claim_template::ResourceClaimTemplate, resource_slice::ResourceSlice,
    },
    scheduling::priority_class::PriorityClass,
    storage::{
        csi_driver::CsiDriver, csi_node::CsiNode, csi_storage_capacity::CsiStorageCapacity,
        storage_class::StorageClass, volume_attachment::VolumeAttachment,
        volume_attributes_class::VolumeAttributesClass,
    },
    storagemigration::storage_version_migration::StorageVersionMigration,
};
use crate::{
    Verb,
    Verb::{Create, Delete, Get, List, Patch, Update, Watch},
    feature_gates::{
        CLUSTER_TRUST_BUNDLE, DYNAMIC_RESOURCE_ALLOCATION, INITIALIZERS, MUTATING_ADMISSION_POLICY,
        POD_CERTIFICATE_REQUEST, STORAGE_VERSION_API, STORAGE_VERSION_MIGRATOR,
    },
};

type Verbs = &'static [Verb];
type MakeBehavior = fn() -> Arc<dyn Behavior>;

struct Row {
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    /// Words apart by spaces, as are `categories` and `subresources`.
    short_names: &'static str,
    categories: &'static str,
    scope: Scope,
    verbs: Verbs,
    subresources: &'static str,
    behavior: MakeBehavior,
    storage: StorageRow,
}

/// How its objects lie in etcd, where that is not by the plural and as protobuf of the version served.
#[derive(Clone, Copy)]
struct StorageRow {
    /// Empty for the plural.
    prefix: &'static str,
    /// The version that is written; empty for the row's own.
    version: &'static str,
    /// Versions with the same fields, as older servers wrote them; words apart by spaces.
    same_versions: &'static str,
    json_only: bool,
}

const BY_PLURAL: StorageRow = StorageRow { prefix: "", version: "", same_versions: "", json_only: false };
/// Served as beta before, with the same fields.
const SINCE_BETA: StorageRow = StorageRow { same_versions: "v1beta1", ..BY_PLURAL };

const fn under(prefix: &'static str) -> StorageRow {
    StorageRow { prefix, ..BY_PLURAL }
}

/// Upstream keeps these in servers of their own, which write JSON below the name of their group.
const fn json_under(prefix: &'static str) -> StorageRow {
    StorageRow { prefix, json_only: true, ..BY_PLURAL }
}

const fn same_as(same_versions: &'static str) -> StorageRow {
    StorageRow { same_versions, ..BY_PLURAL }
}

/// What a row of a namespaced kind has unless it says otherwise.
const NAMESPACED: Row = Row {
    api_version: "",
    kind: "",
    plural: "",
    short_names: "",
    categories: "",
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: "",
    behavior: plain,
    storage: BY_PLURAL,
};
const CLUSTER: Row = Row { scope: Scope::Cluster, ..NAMESPACED };

struct SubresourceRow {
    /// The plural of the resource it belongs to; empty for any.
    parent: &'static str,
    name: &'static str,
    /// With `kind`: the type of its body.
    api_version: &'static str,
    kind: &'static str,
    verbs: Verbs,
}

const ALL: Verbs = &Verb::RESOURCE;
const NO_DELETE_COLLECTION: Verbs = &[Create, Delete, Get, List, Patch, Update, Watch];
const READ: Verbs = &[Get, List];
const CREATE: Verbs = &[Create];
const GET_PATCH_UPDATE: Verbs = &[Get, Patch, Update];
const PROXY: Verbs = &[Create, Delete, Get, Patch, Update];
const STREAM: Verbs = &[Create, Get];

fn plain() -> Arc<dyn Behavior> {
    Arc::new(Plain)
}

fn behavior<B: Behavior + Default + 'static>() -> Arc<dyn Behavior> {
    Arc::new(<B as Default>::default())
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { api_version: "v1", kind: "Binding", plural: "bindings", verbs: CREATE, behavior: behavior::<Binding>, ..NAMESPACED },
    Row { api_version: "v1", kind: "ComponentStatus", plural: "componentstatuses", short_names: "cs", verbs: READ, behavior: behavior::<ComponentStatus>, ..CLUSTER },
    Row { api_version: "v1", kind: "ConfigMap", plural: "configmaps", short_names: "cm", behavior: behavior::<ConfigMap>, ..NAMESPACED },
    Row { api_version: "v1", kind: "Endpoints", plural: "endpoints", short_names: "ep", behavior: behavior::<Endpoints>, storage: under("services/endpoints"), ..NAMESPACED },
    Row { api_version: "v1", kind: "Event", plural: "events", short_names: "ev", behavior: behavior::<Event<true>>, ..NAMESPACED },
    Row { api_version: "v1", kind: "LimitRange", plural: "limitranges", short_names: "limits", behavior: behavior::<LimitRange>, ..NAMESPACED },
    Row { api_version: "v1", kind: "Namespace", plural: "namespaces", short_names: "ns", verbs: NO_DELETE_COLLECTION, subresources: "finalize status", behavior: behavior::<Namespace>, ..CLUSTER },
    Row { api_version: "v1", kind: "Node", plural: "nodes", short_names: "no", subresources: "proxy status", behavior: behavior::<Node>, storage: under("minions"), ..CLUSTER },
    Row { api_version: "v1", kind: "PersistentVolumeClaim", plural: "persistentvolumeclaims", short_names: "pvc", subresources: "status", behavior: behavior::<PersistentVolumeClaim>, ..NAMESPACED },
    Row { api_version: "v1", kind: "PersistentVolume", plural: "persistentvolumes", short_names: "pv", subresources: "status", behavior: behavior::<PersistentVolume>, ..CLUSTER },
    Row { api_version: "v1", kind: "Pod", plural: "pods", short_names: "po", categories: "all", subresources: "attach binding ephemeralcontainers eviction exec log portforward proxy resize status", behavior: behavior::<Pod>, ..NAMESPACED },
    Row { api_version: "v1", kind: "PodTemplate", plural: "podtemplates", behavior: behavior::<PodTemplate>, ..NAMESPACED },
    Row { api_version: "v1", kind: "ReplicationController", plural: "replicationcontrollers", short_names: "rc", categories: "all", subresources: "scale status", behavior: behavior::<ReplicationController>, storage: under("controllers"), ..NAMESPACED },
    Row { api_version: "v1", kind: "ResourceQuota", plural: "resourcequotas", short_names: "quota", subresources: "status", behavior: behavior::<ResourceQuota>, ..NAMESPACED },
    Row { api_version: "v1", kind: "Secret", plural: "secrets", behavior: behavior::<Secret>, ..NAMESPACED },
    Row { api_version: "v1", kind: "ServiceAccount", plural: "serviceaccounts", short_names: "sa", subresources: "token", behavior: behavior::<ServiceAccount>, ..NAMESPACED },
    Row { api_version: "v1", kind: "Service", plural: "services", short_names: "svc", categories: "all", subresources: "proxy status", behavior: behavior::<Service>, storage: under("services/specs"), ..NAMESPACED },
    Row { api_version: "apiregistration.k8s.io/v1", kind: "APIService", plural: "apiservices", categories: "api-extensions", subresources: "status", behavior: behavior::<ApiService>, storage: json_under("apiregistration.k8s.io/apiservices"), ..CLUSTER },
    Row { api_version: "apps/v1", kind: "ControllerRevision", plural: "controllerrevisions", behavior: behavior::<ControllerRevision>, ..NAMESPACED },
    Row { api_version: "apps/v1", kind: "DaemonSet", plural: "daemonsets", short_names: "ds", categories: "all", subresources: "status", behavior: behavior::<DaemonSet>, ..NAMESPACED },
    Row { api_version: "apps/v1", kind: "Deployment", plural: "deployments", short_names: "deploy", categories: "all", subresources: "scale status", behavior: behavior::<Deployment>, ..NAMESPACED },
    Row { api_version: "apps/v1", kind: "ReplicaSet", plural: "replicasets", short_names: "rs", categories: "all", subresources: "scale status", behavior: behavior::<ReplicaSet>, ..NAMESPACED },
    Row { api_version: "apps/v1", kind: "StatefulSet", plural: "statefulsets", short_names: "sts", categories: "all", subresources: "scale status", behavior: behavior::<StatefulSet>, ..NAMESPACED },
    Row { api_version: "events.k8s.io/v1", kind: "Event", plural: "events", short_names: "ev", behavior: behavior::<Event<false>>, ..NAMESPACED },
    Row { api_version: "authentication.k8s.io/v1", kind: "SelfSubjectReview", plural: "selfsubjectreviews", verbs: CREATE, behavior: behavior::<SelfSubjectReview>, ..CLUSTER },
    Row { api_version: "authentication.k8s.io/v1", kind: "TokenReview", plural: "tokenreviews", verbs: CREATE, behavior: behavior::<TokenReview>, ..CLUSTER },
    Row { api_version: "authorization.k8s.io/v1", kind: "LocalSubjectAccessReview", plural: "localsubjectaccessreviews", verbs: CREATE, behavior: behavior::<LocalSubjectAccessReview>, ..NAMESPACED },
    Row { api_version: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview", plural: "selfsubjectaccessreviews", verbs: CREATE, behavior: behavior::<SelfSubjectAccessReview>, ..CLUSTER },
    Row { api_version: "authorization.k8s.io/v1", kind: "SelfSubjectRulesReview", plural: "selfsubjectrulesreviews", verbs: CREATE, behavior: behavior::<SelfSubjectRulesReview>, ..CLUSTER },
    Row { api_version: "authorization.k8s.io/v1", kind: "SubjectAccessReview", plural: "subjectaccessreviews", verbs: CREATE, behavior: behavior::<SubjectAccessReview>, ..CLUSTER },
    Row { api_version: "autoscaling/v2", kind: "HorizontalPodAutoscaler", plural: "horizontalpodautoscalers", short_names: "hpa", categories: "all", subresources: "status", behavior: behavior::<HorizontalPodAutoscaler>, storage: same_as("v2beta2"), ..NAMESPACED },
    Row { api_version: "autoscaling/v1", kind: "HorizontalPodAutoscaler", plural: "horizontalpodautoscalers", short_names: "hpa", categories: "all", subresources: "status", behavior: behavior::<HorizontalPodAutoscalerV1>, ..NAMESPACED },
    Row { api_version: "batch/v1", kind: "CronJob", plural: "cronjobs", short_names: "cj", categories: "all", subresources: "status", behavior: behavior::<CronJob>, storage: SINCE_BETA, ..NAMESPACED },
    Row { api_version: "batch/v1", kind: "Job", plural: "jobs", categories: "all", subresources: "status", behavior: behavior::<Job>, ..NAMESPACED },
    Row { api_version: "certificates.k8s.io/v1", kind: "CertificateSigningRequest", plural: "certificatesigningrequests", short_names: "csr", subresources: "approval status", behavior: behavior::<CertificateSigningRequest>, ..CLUSTER },
    Row { api_version: "networking.k8s.io/v1", kind: "IngressClass", plural: "ingressclasses", behavior: behavior::<IngressClass>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "networking.k8s.io/v1", kind: "Ingress", plural: "ingresses", short_names: "ing", subresources: "status", behavior: behavior::<Ingress>, storage: under("ingress"), ..NAMESPACED },
    Row { api_version: "networking.k8s.io/v1", kind: "IPAddress", plural: "ipaddresses", short_names: "ip", behavior: behavior::<IpAddress>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "networking.k8s.io/v1", kind: "NetworkPolicy", plural: "networkpolicies", short_names: "netpol", behavior: behavior::<NetworkPolicy>, ..NAMESPACED },
    Row { api_version: "networking.k8s.io/v1", kind: "ServiceCIDR", plural: "servicecidrs", subresources: "status", behavior: behavior::<ServiceCidr>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "policy/v1", kind: "PodDisruptionBudget", plural: "poddisruptionbudgets", short_names: "pdb", subresources: "status", behavior: behavior::<PodDisruptionBudget>, storage: SINCE_BETA, ..NAMESPACED },
    Row { api_version: "rbac.authorization.k8s.io/v1", kind: "ClusterRoleBinding", plural: "clusterrolebindings", behavior: behavior::<RoleBinding<false>>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "rbac.authorization.k8s.io/v1", kind: "ClusterRole", plural: "clusterroles", behavior: behavior::<Role<false>>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "rbac.authorization.k8s.io/v1", kind: "RoleBinding", plural: "rolebindings", behavior: behavior::<RoleBinding<true>>, storage: SINCE_BETA, ..NAMESPACED },
    Row { api_version: "rbac.authorization.k8s.io/v1", kind: "Role", plural: "roles", behavior: behavior::<Role<true>>, storage: SINCE_BETA, ..NAMESPACED },
    Row { api_version: "storage.k8s.io/v1", kind: "CSIDriver", plural: "csidrivers", behavior: behavior::<CsiDriver>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "storage.k8s.io/v1", kind: "CSINode", plural: "csinodes", behavior: behavior::<CsiNode>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "storage.k8s.io/v1", kind: "CSIStorageCapacity", plural: "csistoragecapacities", behavior: behavior::<CsiStorageCapacity>, storage: SINCE_BETA, ..NAMESPACED },
    Row { api_version: "storage.k8s.io/v1", kind: "StorageClass", plural: "storageclasses", short_names: "sc", behavior: behavior::<StorageClass>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "storage.k8s.io/v1", kind: "VolumeAttachment", plural: "volumeattachments", subresources: "status", behavior: behavior::<VolumeAttachment>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "storage.k8s.io/v1", kind: "VolumeAttributesClass", plural: "volumeattributesclasses", short_names: "vac", behavior: behavior::<VolumeAttributesClass>, storage: StorageRow { version: "v1beta1", same_versions: "v1beta1 v1alpha1", ..BY_PLURAL }, ..CLUSTER },
    Row { api_version: "admissionregistration.k8s.io/v1", kind: "MutatingWebhookConfiguration", plural: "mutatingwebhookconfigurations", categories: "api-extensions", behavior: behavior::<WebhookConfiguration<true>>, ..CLUSTER },
    Row { api_version: "admissionregistration.k8s.io/v1", kind: "ValidatingAdmissionPolicy", plural: "validatingadmissionpolicies", categories: "api-extensions", subresources: "status", behavior: behavior::<ValidatingAdmissionPolicy>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "admissionregistration.k8s.io/v1", kind: "ValidatingAdmissionPolicyBinding", plural: "validatingadmissionpolicybindings", categories: "api-extensions", behavior: behavior::<ValidatingAdmissionPolicyBinding>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "admissionregistration.k8s.io/v1", kind: "ValidatingWebhookConfiguration", plural: "validatingwebhookconfigurations", categories: "api-extensions", behavior: behavior::<WebhookConfiguration<false>>, ..CLUSTER },
    Row { api_version: "apiextensions.k8s.io/v1", kind: "CustomResourceDefinition", plural: "customresourcedefinitions", short_names: "crd crds", categories: "api-extensions", subresources: "status", behavior: behavior::<CustomResourceDefinition>, storage: StorageRow { version: "v1beta1", ..json_under("apiextensions.k8s.io/customresourcedefinitions") }, ..CLUSTER },
    Row { api_version: "scheduling.k8s.io/v1", kind: "PriorityClass", plural: "priorityclasses", short_names: "pc", behavior: behavior::<PriorityClass>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "coordination.k8s.io/v1", kind: "Lease", plural: "leases", behavior: behavior::<Lease>, storage: SINCE_BETA, ..NAMESPACED },
    Row { api_version: "node.k8s.io/v1", kind: "RuntimeClass", plural: "runtimeclasses", behavior: behavior::<RuntimeClass>, storage: SINCE_BETA, ..CLUSTER },
    Row { api_version: "discovery.k8s.io/v1", kind: "EndpointSlice", plural: "endpointslices", behavior: behavior::<EndpointSlice>, ..NAMESPACED },
    Row { api_version: "resource.k8s.io/v1", kind: "DeviceClass", plural: "deviceclasses", behavior: behavior::<DeviceClass>, storage: same_as("v1beta2"), ..CLUSTER },
    Row { api_version: "resource.k8s.io/v1", kind: "ResourceClaim", plural: "resourceclaims", subresources: "status", behavior: behavior::<ResourceClaim>, storage: same_as("v1beta2"), ..NAMESPACED },
    Row { api_version: "resource.k8s.io/v1", kind: "ResourceClaimTemplate", plural: "resourceclaimtemplates", behavior: behavior::<ResourceClaimTemplate>, storage: same_as("v1beta2"), ..NAMESPACED },
    Row { api_version: "resource.k8s.io/v1", kind: "ResourceSlice", plural: "resourceslices", behavior: behavior::<ResourceSlice>, storage: same_as("v1beta2"), ..CLUSTER },
    Row { api_version: "flowcontrol.apiserver.k8s.io/v1", kind: "FlowSchema", plural: "flowschemas", subresources: "status", behavior: behavior::<FlowSchema>, storage: same_as("v1beta3"), ..CLUSTER },
    Row { api_version: "flowcontrol.apiserver.k8s.io/v1", kind: "PriorityLevelConfiguration", plural: "prioritylevelconfigurations", subresources: "status", behavior: behavior::<PriorityLevelConfiguration>, storage: same_as("v1beta3"), ..CLUSTER },
];

/// `status` is not listed: its body is of the parent's own type.
#[rustfmt::skip]
const SUBRESOURCES: &[SubresourceRow] = &[
    SubresourceRow { parent: "", name: "scale", api_version: "autoscaling/v1", kind: "Scale", verbs: GET_PATCH_UPDATE },
    SubresourceRow { parent: "certificatesigningrequests", name: "approval", api_version: "certificates.k8s.io/v1", kind: "CertificateSigningRequest", verbs: GET_PATCH_UPDATE },
    SubresourceRow { parent: "namespaces", name: "finalize", api_version: "v1", kind: "Namespace", verbs: &[Update] },
    SubresourceRow { parent: "nodes", name: "proxy", api_version: "v1", kind: "NodeProxyOptions", verbs: PROXY },
    SubresourceRow { parent: "pods", name: "attach", api_version: "v1", kind: "PodAttachOptions", verbs: STREAM },
    SubresourceRow { parent: "pods", name: "binding", api_version: "v1", kind: "Binding", verbs: CREATE },
    SubresourceRow { parent: "pods", name: "ephemeralcontainers", api_version: "v1", kind: "Pod", verbs: GET_PATCH_UPDATE },
    SubresourceRow { parent: "pods", name: "eviction", api_version: "policy/v1", kind: "Eviction", verbs: CREATE },
    SubresourceRow { parent: "pods", name: "exec", api_version: "v1", kind: "PodExecOptions", verbs: STREAM },
    SubresourceRow { parent: "pods", name: "log", api_version: "v1", kind: "Pod", verbs: &[Get] },
    SubresourceRow { parent: "pods", name: "portforward", api_version: "v1", kind: "PodPortForwardOptions", verbs: STREAM },
    SubresourceRow { parent: "pods", name: "proxy", api_version: "v1", kind: "PodProxyOptions", verbs: PROXY },
    SubresourceRow { parent: "pods", name: "resize", api_version: "v1", kind: "Pod", verbs: GET_PATCH_UPDATE },
    SubresourceRow { parent: "serviceaccounts", name: "token", api_version: "authentication.k8s.io/v1", kind: "TokenRequest", verbs: CREATE },
    SubresourceRow { parent: "services", name: "proxy", api_version: "v1", kind: "ServiceProxyOptions", verbs: PROXY },
];

/// Served only with their feature gate.
#[rustfmt::skip]
const GATED_ROWS: &[(&str, Row)] = &[
    (INITIALIZERS, Row { api_version: "admissionregistration.k8s.io/v1alpha1", kind: "InitializerConfiguration", plural: "initializerconfigurations", behavior: behavior::<InitializerConfiguration>, ..CLUSTER }),
    (MUTATING_ADMISSION_POLICY, Row { api_version: "admissionregistration.k8s.io/v1beta1", kind: "MutatingAdmissionPolicy", plural: "mutatingadmissionpolicies", categories: "api-extensions", behavior: behavior::<MutatingAdmissionPolicy<true>>, storage: same_as("v1alpha1"), ..CLUSTER }),
    (MUTATING_ADMISSION_POLICY, Row { api_version: "admissionregistration.k8s.io/v1alpha1", kind: "MutatingAdmissionPolicy", plural: "mutatingadmissionpolicies", categories: "api-extensions", behavior: behavior::<MutatingAdmissionPolicy<false>>, ..CLUSTER }),
    (MUTATING_ADMISSION_POLICY, Row { api_version: "admissionregistration.k8s.io/v1beta1", kind: "MutatingAdmissionPolicyBinding", plural: "mutatingadmissionpolicybindings", categories: "api-extensions", behavior: behavior::<MutatingAdmissionPolicyBinding<true>>, storage: same_as("v1alpha1"), ..CLUSTER }),
    (MUTATING_ADMISSION_POLICY, Row { api_version: "admissionregistration.k8s.io/v1alpha1", kind: "MutatingAdmissionPolicyBinding", plural: "mutatingadmissionpolicybindings", categories: "api-extensions", behavior: behavior::<MutatingAdmissionPolicyBinding<false>>, ..CLUSTER }),
    (CLUSTER_TRUST_BUNDLE, Row { api_version: "certificates.k8s.io/v1beta1", kind: "ClusterTrustBundle", plural: "clustertrustbundles", behavior: behavior::<ClusterTrustBundle<true>>, ..CLUSTER }),
    (CLUSTER_TRUST_BUNDLE, Row { api_version: "certificates.k8s.io/v1alpha1", kind: "ClusterTrustBundle", plural: "clustertrustbundles", behavior: behavior::<ClusterTrustBundle<false>>, ..CLUSTER }),
    (POD_CERTIFICATE_REQUEST, Row { api_version: "certificates.k8s.io/v1beta1", kind: "PodCertificateRequest", plural: "podcertificaterequests", subresources: "status", behavior: behavior::<PodCertificateRequest>, ..NAMESPACED }),
    (STORAGE_VERSION_API, Row { api_version: "internal.apiserver.k8s.io/v1alpha1", kind: "StorageVersion", plural: "storageversions", subresources: "status", behavior: behavior::<StorageVersion>, ..CLUSTER }),
    (STORAGE_VERSION_MIGRATOR, Row { api_version: "storagemigration.k8s.io/v1beta1", kind: "StorageVersionMigration", plural: "storageversionmigrations", subresources: "status", behavior: behavior::<StorageVersionMigration>, ..CLUSTER }),
    (DYNAMIC_RESOURCE_ALLOCATION, Row { api_version: "resource.k8s.io/v1beta2", kind: "DeviceClass", plural: "deviceclasses", behavior: behavior::<Older<DeviceClass, false>>, ..CLUSTER }),
    (DYNAMIC_RESOURCE_ALLOCATION, Row { api_version: "resource.k8s.io/v1beta2", kind: "ResourceClaim", plural: "resourceclaims", subresources: "status", behavior: behavior::<Older<ResourceClaim, false>>, ..NAMESPACED }),
    (DYNAMIC_RESOURCE_ALLOCATION, Row { api_version: "resource.k8s.io/v1beta2", kind: "ResourceClaimTemplate", plural: "resourceclaimtemplates", behavior: behavior::<Older<ResourceClaimTemplate, false>>, ..NAMESPACED }),
    (DYNAMIC_RESOURCE_ALLOCATION, Row { api_version: "resource.k8s.io/v1beta2", kind: "ResourceSlice", plural: "resourceslices", behavior: behavior::<Older<ResourceSlice, false>>, ..CLUSTER }),
    (DYNAMIC_RESOURCE_ALLOCATION, Row { api_version: "resource.k8s.io/v1beta1", kind: "DeviceClass", plural: "deviceclasses", behavior: behavior::<Older<DeviceClass, true>>, ..CLUSTER }),
    (DYNAMIC_RESOURCE_ALLOCATION, Row { api_version: "resource.k8s.io/v1beta1", kind: "ResourceClaim", plural: "resourceclaims", subresources: "status", behavior: behavior::<Older<ResourceClaim, true>>, ..NAMESPACED }),
    (DYNAMIC_RESOURCE_ALLOCATION, Row { api_version: "resource.k8s.io/v1beta1", kind: "ResourceClaimTemplate", plural: "resourceclaimtemplates", behavior: behavior::<Older<ResourceClaimTemplate, true>>, ..NAMESPACED }),
    (DYNAMIC_RESOURCE_ALLOCATION, Row { api_version: "resource.k8s.io/v1beta1", kind: "ResourceSlice", plural: "resourceslices", behavior: behavior::<Older<ResourceSlice, true>>, ..CLUSTER }),
];

/// The rows of feature gates, each with its gate.
pub fn gated() -> Vec<(&'static str, Arc<Resource>)> {
    GATED_ROWS.iter().map(|(gate, row)| (*gate, Arc::new(resource(row)))).collect()
}

pub fn resources() -> Vec<Arc<Resource>> {
    ROWS.iter().map(|row| Arc::new(resource(row))).collect()
}

fn resource(row: &Row) -> Resource {
    let (group, version) = split(row.api_version);
    let words = |text: &str| text.split_whitespace().map(str::to_string).collect();
    Resource {
        group,
        version,
        kind: row.kind.to_string(),
        plural: row.plural.to_string(),
        singular: row.kind.to_lowercase(),
        list_kind: format!("{}List", row.kind),
        short_names: words(row.short_names),
        categories: words(row.categories),
        scope: row.scope,
        verbs: row.verbs.to_vec(),
        subresources: row.subresources.split_whitespace().map(|name| subresource(row, name)).collect(),
        behavior: (row.behavior)(),
        storage: storage_form(row),
    }
}

fn storage_form(row: &Row) -> StorageForm {
    let prefix = if row.storage.prefix.is_empty() { row.plural } else { row.storage.prefix };
    let version = match (row.storage.version, split(row.api_version)) {
        ("", _) => row.api_version.to_string(),
        (version, (group, _)) => format!("{group}/{version}"),
    };
    StorageForm {
        prefix: prefix.to_string(),
        api_version: version,
        same_versions: row.storage.same_versions.split_whitespace().map(str::to_string).collect(),
        json_only: row.storage.json_only,
    }
}

fn subresource(parent: &Row, name: &'static str) -> Subresource {
    let status = SubresourceRow {
        parent: "",
        name: "status",
        api_version: parent.api_version,
        kind: parent.kind,
        verbs: GET_PATCH_UPDATE,
    };
    let row = SUBRESOURCES
        .iter()
        .chain([&status])
        .find(|row| row.name == name && (row.parent.is_empty() || row.parent == parent.plural))
        .unwrap_or_else(|| panic!("subresource {}/{name} has no row", parent.plural));
    let (group, version) = split(row.api_version);
    Subresource { name: name.to_string(), group, version, kind: row.kind.to_string(), verbs: row.verbs.to_vec() }
}

fn split(api_version: &str) -> (String, String) {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    (group.to_string(), version.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::common::access::default_to;

    /// A new kind is its own file (here: this type) and one row; everything else follows.
    #[test]
    fn a_toy_kind() {
        #[derive(Default)]
        struct Whale;
        impl Behavior for Whale {
            fn default(&self, object: &mut Value) {
                default_to(object, "songs", 1);
            }

            fn has_status(&self) -> bool {
                true
            }
        }
        let row = Row {
            api_version: "sea.example/v1",
            kind: "Whale",
            plural: "whales",
            subresources: "scale status",
            behavior: behavior::<Whale>,
            ..NAMESPACED
        };
        let whales = resource(&row);
        assert_eq!(whales.path(Some("d"), Some("w")), "/apis/sea.example/v1/namespaces/d/whales/w");
        assert_eq!(whales.verbs, Verb::RESOURCE);
        assert_eq!((whales.singular.as_str(), whales.list_kind.as_str()), ("whale", "WhaleList"));
        assert_eq!(whales.subresource("status").unwrap().kind, "Whale");
        assert_eq!(whales.subresource("scale").unwrap().kind, "Scale");
        let mut object = json!({ "metadata": { "name": "w" }, "status": { "depth": 9 } });
        whales.behavior.default(&mut object);
        whales.behavior.prepare_create(&mut object);
        assert_eq!(object, json!({ "metadata": { "name": "w" }, "songs": 1 }));
        assert!(whales.stored());
    }
}
