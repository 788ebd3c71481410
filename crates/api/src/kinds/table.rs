//! The rows. Adding a plain kind is one line here; a kind with behaviour adds its file and names it in the last column.
//! Read through `kinds::builtin`.
//! Invariant: in upstream's discovery order, which clients show to people.

use std::sync::Arc;

use super::{
    Behavior, Plain, Resource,
    Scope::{self, Cluster, Namespaced},
    Subresource, admission_registration, api_service, certificate_signing_request, config_map, controller_revision,
    cron_job, csi, custom_resource_definition, daemon_set, deployment, endpoint_slice, endpoints, event, flow_control,
    horizontal_pod_autoscaler, ingress, job, lease, namespace, network_policy, node, persistent_volume,
    persistent_volume_claim, pod, pod_disruption_budget, pod_template, quota, rbac, replica_set,
    replication_controller, resource, scheduling, secret, service, service_account, service_cidr, stateful_set,
    storage_class,
};

struct Row(&'static str, &'static str, &'static str, &'static str, &'static str, Scope, Verbs, &'static str, Make);
type Verbs = &'static [&'static str];
type Make = fn() -> Arc<dyn Behavior>;

const ALL: Verbs = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const NO_DELETE_COLLECTION: Verbs = &["create", "delete", "get", "list", "patch", "update", "watch"];
const READ: Verbs = &["get", "list"];
const CREATE: Verbs = &["create"];
const GET_PATCH_UPDATE: Verbs = &["get", "patch", "update"];
const PROXY: Verbs = &["create", "delete", "get", "patch", "update"];
const STREAM: Verbs = &["create", "get"];

fn plain() -> Arc<dyn Behavior> {
    Arc::new(Plain)
}

fn make<B: Behavior + Default + 'static>() -> Arc<dyn Behavior> {
    Arc::new(<B as Default>::default())
}

// apiVersion, kind, plural, short names, categories, scope, verbs, subresources, behaviour
#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row("v1", "Binding", "bindings", "", "", Namespaced, CREATE, "", plain),
    Row("v1", "ComponentStatus", "componentstatuses", "cs", "", Cluster, READ, "", make::<controller_revision::ComponentStatus>),
    Row("v1", "ConfigMap", "configmaps", "cm", "", Namespaced, ALL, "", make::<config_map::ConfigMap>),
    Row("v1", "Endpoints", "endpoints", "ep", "", Namespaced, ALL, "", make::<endpoints::Endpoints>),
    Row("v1", "Event", "events", "ev", "", Namespaced, ALL, "", make::<event::Event<true>>),
    Row("v1", "LimitRange", "limitranges", "limits", "", Namespaced, ALL, "", make::<quota::LimitRange>),
    Row("v1", "Namespace", "namespaces", "ns", "", Cluster, NO_DELETE_COLLECTION, "finalize status", make::<namespace::Namespace>),
    Row("v1", "Node", "nodes", "no", "", Cluster, ALL, "proxy status", make::<node::Node>),
    Row("v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", "", Namespaced, ALL, "status", make::<persistent_volume_claim::PersistentVolumeClaim>),
    Row("v1", "PersistentVolume", "persistentvolumes", "pv", "", Cluster, ALL, "status", make::<persistent_volume::PersistentVolume>),
    Row("v1", "Pod", "pods", "po", "all", Namespaced, ALL, "attach binding ephemeralcontainers eviction exec log portforward proxy resize status", make::<pod::Pod>),
    Row("v1", "PodTemplate", "podtemplates", "", "", Namespaced, ALL, "", make::<pod_template::PodTemplate>),
    Row("v1", "ReplicationController", "replicationcontrollers", "rc", "all", Namespaced, ALL, "scale status", make::<replication_controller::ReplicationController>),
    Row("v1", "ResourceQuota", "resourcequotas", "quota", "", Namespaced, ALL, "status", make::<quota::ResourceQuota>),
    Row("v1", "Secret", "secrets", "", "", Namespaced, ALL, "", make::<secret::Secret>),
    Row("v1", "ServiceAccount", "serviceaccounts", "sa", "", Namespaced, ALL, "token", make::<service_account::ServiceAccount>),
    Row("v1", "Service", "services", "svc", "all", Namespaced, ALL, "proxy status", make::<service::Service>),
    Row("apiregistration.k8s.io/v1", "APIService", "apiservices", "", "api-extensions", Cluster, ALL, "status", make::<api_service::ApiService>),
    Row("apps/v1", "ControllerRevision", "controllerrevisions", "", "", Namespaced, ALL, "", make::<controller_revision::ControllerRevision>),
    Row("apps/v1", "DaemonSet", "daemonsets", "ds", "all", Namespaced, ALL, "status", make::<daemon_set::DaemonSet>),
    Row("apps/v1", "Deployment", "deployments", "deploy", "all", Namespaced, ALL, "scale status", make::<deployment::Deployment>),
    Row("apps/v1", "ReplicaSet", "replicasets", "rs", "all", Namespaced, ALL, "scale status", make::<replica_set::ReplicaSet>),
    Row("apps/v1", "StatefulSet", "statefulsets", "sts", "all", Namespaced, ALL, "scale status", make::<stateful_set::StatefulSet>),
    Row("events.k8s.io/v1", "Event", "events", "ev", "", Namespaced, ALL, "", make::<event::Event<false>>),
    Row("authentication.k8s.io/v1", "SelfSubjectReview", "selfsubjectreviews", "", "", Cluster, CREATE, "", plain),
    Row("authentication.k8s.io/v1", "TokenReview", "tokenreviews", "", "", Cluster, CREATE, "", plain),
    Row("authorization.k8s.io/v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", "", "", Namespaced, CREATE, "", plain),
    Row("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", "", "", Cluster, CREATE, "", plain),
    Row("authorization.k8s.io/v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", "", "", Cluster, CREATE, "", plain),
    Row("authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", "", "", Cluster, CREATE, "", plain),
    Row("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", "all", Namespaced, ALL, "status", make::<horizontal_pod_autoscaler::HorizontalPodAutoscaler>),
    Row("autoscaling/v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", "all", Namespaced, ALL, "status", make::<horizontal_pod_autoscaler::HorizontalPodAutoscalerV1>),
    Row("batch/v1", "CronJob", "cronjobs", "cj", "all", Namespaced, ALL, "status", make::<cron_job::CronJob>),
    Row("batch/v1", "Job", "jobs", "", "all", Namespaced, ALL, "status", make::<job::Job>),
    Row("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", "csr", "", Cluster, ALL, "approval status", make::<certificate_signing_request::CertificateSigningRequest>),
    Row("networking.k8s.io/v1", "IngressClass", "ingressclasses", "", "", Cluster, ALL, "", make::<ingress::IngressClass>),
    Row("networking.k8s.io/v1", "Ingress", "ingresses", "ing", "", Namespaced, ALL, "status", make::<ingress::Ingress>),
    Row("networking.k8s.io/v1", "IPAddress", "ipaddresses", "ip", "", Cluster, ALL, "", make::<service_cidr::IpAddress>),
    Row("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", "netpol", "", Namespaced, ALL, "", make::<network_policy::NetworkPolicy>),
    Row("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs", "", "", Cluster, ALL, "status", make::<service_cidr::ServiceCidr>),
    Row("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", "", Namespaced, ALL, "status", make::<pod_disruption_budget::PodDisruptionBudget>),
    Row("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", "", "", Cluster, ALL, "", make::<rbac::RoleBinding<false>>),
    Row("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", "", "", Cluster, ALL, "", make::<rbac::Role<false>>),
    Row("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", "", "", Namespaced, ALL, "", make::<rbac::RoleBinding<true>>),
    Row("rbac.authorization.k8s.io/v1", "Role", "roles", "", "", Namespaced, ALL, "", make::<rbac::Role<true>>),
    Row("storage.k8s.io/v1", "CSIDriver", "csidrivers", "", "", Cluster, ALL, "", make::<csi::CsiDriver>),
    Row("storage.k8s.io/v1", "CSINode", "csinodes", "", "", Cluster, ALL, "", make::<csi::CsiNode>),
    Row("storage.k8s.io/v1", "CSIStorageCapacity", "csistoragecapacities", "", "", Namespaced, ALL, "", make::<csi::CsiStorageCapacity>),
    Row("storage.k8s.io/v1", "StorageClass", "storageclasses", "sc", "", Cluster, ALL, "", make::<storage_class::StorageClass>),
    Row("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", "", "", Cluster, ALL, "status", make::<csi::VolumeAttachment>),
    Row("storage.k8s.io/v1", "VolumeAttributesClass", "volumeattributesclasses", "vac", "", Cluster, ALL, "", make::<csi::VolumeAttributesClass>),
    Row("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "", "api-extensions", Cluster, ALL, "", make::<admission_registration::WebhookConfiguration<true>>),
    Row("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "", "api-extensions", Cluster, ALL, "status", make::<admission_registration::ValidatingAdmissionPolicy>),
    Row("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", "", "api-extensions", Cluster, ALL, "", make::<admission_registration::ValidatingAdmissionPolicyBinding>),
    Row("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "", "api-extensions", Cluster, ALL, "", make::<admission_registration::WebhookConfiguration<false>>),
    Row("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", "crd crds", "api-extensions", Cluster, ALL, "status", make::<custom_resource_definition::CustomResourceDefinition>),
    Row("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", "pc", "", Cluster, ALL, "", make::<scheduling::PriorityClass>),
    Row("coordination.k8s.io/v1", "Lease", "leases", "", "", Namespaced, ALL, "", make::<lease::Lease>),
    Row("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", "", "", Cluster, ALL, "", make::<scheduling::RuntimeClass>),
    Row("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", "", "", Namespaced, ALL, "", make::<endpoint_slice::EndpointSlice>),
    Row("resource.k8s.io/v1", "DeviceClass", "deviceclasses", "", "", Cluster, ALL, "", make::<resource::DeviceClass>),
    Row("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", "", "", Namespaced, ALL, "status", make::<resource::ResourceClaim>),
    Row("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates", "", "", Namespaced, ALL, "", make::<resource::ResourceClaimTemplate>),
    Row("resource.k8s.io/v1", "ResourceSlice", "resourceslices", "", "", Cluster, ALL, "", make::<resource::ResourceSlice>),
    Row("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", "flowschemas", "", "", Cluster, ALL, "status", make::<flow_control::FlowSchema>),
    Row("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", "", "", Cluster, ALL, "status", make::<flow_control::PriorityLevelConfiguration>),
];

// resource, subresource, apiVersion and kind of its body, verbs. `status` is not listed: it is the parent's own type.
#[rustfmt::skip]
const SUBRESOURCES: &[(&str, &str, &str, &str, Verbs)] = &[
    ("", "scale", "autoscaling/v1", "Scale", GET_PATCH_UPDATE),
    ("certificatesigningrequests", "approval", "certificates.k8s.io/v1", "CertificateSigningRequest", GET_PATCH_UPDATE),
    ("namespaces", "finalize", "v1", "Namespace", &["update"]),
    ("nodes", "proxy", "v1", "NodeProxyOptions", PROXY),
    ("pods", "attach", "v1", "PodAttachOptions", STREAM),
    ("pods", "binding", "v1", "Binding", CREATE),
    ("pods", "ephemeralcontainers", "v1", "Pod", GET_PATCH_UPDATE),
    ("pods", "eviction", "policy/v1", "Eviction", CREATE),
    ("pods", "exec", "v1", "PodExecOptions", STREAM),
    ("pods", "log", "v1", "Pod", &["get"]),
    ("pods", "portforward", "v1", "PodPortForwardOptions", STREAM),
    ("pods", "proxy", "v1", "PodProxyOptions", PROXY),
    ("pods", "resize", "v1", "Pod", GET_PATCH_UPDATE),
    ("serviceaccounts", "token", "authentication.k8s.io/v1", "TokenRequest", CREATE),
    ("services", "proxy", "v1", "ServiceProxyOptions", PROXY),
];

pub fn resources() -> Vec<Arc<Resource>> {
    ROWS.iter().map(|row| Arc::new(resource(row))).collect()
}

fn resource(
    &Row(api_version, kind, plural, short, categories, scope, verbs, subresources, behavior): &Row,
) -> Resource {
    let (group, version) = split(api_version);
    let words = |text: &str| text.split_whitespace().map(str::to_string).collect();
    Resource {
        group,
        version,
        kind: kind.to_string(),
        plural: plural.to_string(),
        singular: kind.to_lowercase(),
        list_kind: format!("{kind}List"),
        short_names: words(short),
        categories: words(categories),
        scope,
        verbs: verbs.iter().map(|v| v.to_string()).collect(),
        subresources: subresources
            .split_whitespace()
            .map(|name| subresource(api_version, kind, plural, name))
            .collect(),
        behavior: behavior(),
    }
}

fn subresource(api_version: &str, kind: &str, plural: &str, name: &str) -> Subresource {
    let own = ("", "status", api_version, kind, GET_PATCH_UPDATE);
    let &(_, _, api_version, kind, verbs) = SUBRESOURCES
        .iter()
        .chain([&own])
        .find(|(of, called, ..)| *called == name && (of.is_empty() || *of == plural))
        .unwrap_or_else(|| panic!("subresource {plural}/{name} has no row"));
    let (group, version) = split(api_version);
    let verbs = verbs.iter().map(|v| v.to_string()).collect();
    Subresource { name: name.to_string(), group, version, kind: kind.to_string(), verbs }
}

fn split(api_version: &str) -> (String, String) {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    (group.to_string(), version.to_string())
}
