//! The objects of the Gateway API, as far as they are acted upon.
//! Read by the rest of `gateway` from informers on custom resources, whichever version is installed.
//! Every field may be absent: a user's own definitions may set other defaults than ours.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use serde::{Deserialize, Serialize};

pub const GROUP: &str = "gateway.networking.k8s.io";

macro_rules! objects {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
            #[serde(rename_all = "camelCase", default)]
            pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
        )*
    };
}

objects! {
    GatewayClass { metadata: ObjectMeta, spec: GatewayClassSpec, status: GatewayClassStatus }
    GatewayClassSpec { controller_name: String, parameters_ref: Option<ObjectReference> }
    GatewayClassStatus { conditions: Vec<Condition>, supported_features: Vec<serde_json::Value> }

    Gateway { metadata: ObjectMeta, spec: GatewaySpec, status: GatewayStatus }
    GatewaySpec {
        gateway_class_name: String,
        listeners: Vec<Listener>,
        addresses: Vec<Address>,
        infrastructure: Option<Infrastructure>,
        tls: Option<serde_json::Value>,
    }
    Infrastructure { parameters_ref: Option<ObjectReference> }
    Address {
        #[serde(rename = "type")]
        kind: Option<String>,
        value: Option<String>,
    }
    Listener {
        name: String,
        hostname: Option<String>,
        port: u16,
        protocol: String,
        tls: Option<ListenerTls>,
        allowed_routes: AllowedRoutes,
    }
    ListenerTls { mode: Option<String>, certificate_refs: Vec<ObjectReference> }
    AllowedRoutes { namespaces: RouteNamespaces, kinds: Vec<RouteGroupKind> }
    RouteNamespaces { from: Option<String>, selector: Option<LabelSelector> }
    GatewayStatus { conditions: Vec<Condition>, addresses: Vec<Address>, listeners: Vec<ListenerStatus> }
    ListenerStatus {
        name: String,
        supported_kinds: Vec<RouteGroupKind>,
        attached_routes: i32,
        conditions: Vec<Condition>,
    }

    /// Of any kind; what is absent has the default of the field that it stands in.
    ObjectReference {
        group: Option<String>,
        kind: Option<String>,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
    }
    ParentReference {
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        section_name: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
    }
    RouteStatus { parents: Vec<RouteParentStatus> }
    RouteParentStatus { parent_ref: ParentReference, controller_name: String, conditions: Vec<Condition> }

    HttpRoute { metadata: ObjectMeta, spec: HttpRouteSpec, status: RouteStatus }
    HttpRouteSpec { parent_refs: Vec<ParentReference>, hostnames: Vec<String>, rules: Option<Vec<HttpRouteRule>> }
    HttpRouteRule {
        matches: Vec<HttpRouteMatch>,
        filters: Vec<RouteFilter>,
        backend_refs: Vec<BackendRef>,
        timeouts: Timeouts,
    }
    HttpRouteMatch {
        path: Option<PathValue>,
        headers: Vec<NamedValue>,
        query_params: Vec<NamedValue>,
        method: Option<String>,
    }
    PathValue {
        #[serde(rename = "type")]
        kind: Option<String>,
        value: Option<String>,
    }
    /// A header or query parameter to match, with how it is matched.
    NamedValue {
        #[serde(rename = "type")]
        kind: Option<String>,
        name: String,
        value: String,
    }
    Timeouts { request: Option<String>, backend_request: Option<String> }
    BackendRef {
        group: Option<String>,
        kind: Option<String>,
        name: String,
        namespace: Option<String>,
        port: Option<i32>,
        weight: Option<u32>,
        filters: Vec<RouteFilter>,
    }
    RouteFilter {
        #[serde(rename = "type")]
        kind: String,
        request_header_modifier: Option<HeaderModifier>,
        response_header_modifier: Option<HeaderModifier>,
        request_mirror: Option<RequestMirror>,
        request_redirect: Option<RequestRedirect>,
        url_rewrite: Option<UrlRewrite>,
        cors: Option<CorsFilter>,
    }
    HeaderModifier { set: Vec<NamedValue>, add: Vec<NamedValue>, remove: Vec<String> }
    RequestMirror { backend_ref: BackendRef, percent: Option<u32>, fraction: Option<Fraction> }
    Fraction { numerator: u32, denominator: Option<u32> }
    RequestRedirect {
        scheme: Option<String>,
        hostname: Option<String>,
        path: Option<PathModifier>,
        port: Option<u16>,
        status_code: Option<u16>,
    }
    UrlRewrite { hostname: Option<String>, path: Option<PathModifier> }
    PathModifier {
        #[serde(rename = "type")]
        kind: String,
        replace_full_path: Option<String>,
        replace_prefix_match: Option<String>,
    }
    CorsFilter {
        allow_origins: Vec<String>,
        allow_methods: Vec<String>,
        allow_headers: Vec<String>,
        expose_headers: Vec<String>,
        allow_credentials: Option<bool>,
        max_age: Option<u32>,
    }

    GrpcRoute { metadata: ObjectMeta, spec: GrpcRouteSpec, status: RouteStatus }
    GrpcRouteSpec { parent_refs: Vec<ParentReference>, hostnames: Vec<String>, rules: Vec<GrpcRouteRule> }
    GrpcRouteRule { matches: Vec<GrpcRouteMatch>, filters: Vec<RouteFilter>, backend_refs: Vec<BackendRef> }
    GrpcRouteMatch { method: Option<GrpcMethod>, headers: Vec<NamedValue> }
    GrpcMethod {
        #[serde(rename = "type")]
        kind: Option<String>,
        service: Option<String>,
        method: Option<String>,
    }

    TlsRoute { metadata: ObjectMeta, spec: TlsRouteSpec, status: RouteStatus }
    TlsRouteSpec { parent_refs: Vec<ParentReference>, hostnames: Vec<String>, rules: Vec<TlsRouteRule> }
    TlsRouteRule { backend_refs: Vec<BackendRef> }

    ReferenceGrant { metadata: ObjectMeta, spec: ReferenceGrantSpec }
    ReferenceGrantSpec { from: Vec<GrantFrom>, to: Vec<GrantTo> }
    GrantFrom { group: String, kind: String, namespace: String }
    GrantTo { group: String, kind: String, name: Option<String> }

    BackendTlsPolicy { metadata: ObjectMeta, spec: BackendTlsPolicySpec, status: PolicyStatus }
    BackendTlsPolicySpec { target_refs: Vec<PolicyTarget>, validation: BackendTlsValidation }
    PolicyTarget { group: String, kind: String, name: String, section_name: Option<String> }
    BackendTlsValidation {
        #[serde(rename = "caCertificateRefs")]
        ca_certificate_refs: Vec<ObjectReference>,
        #[serde(rename = "wellKnownCACertificates")]
        well_known_ca_certificates: Option<String>,
        hostname: String,
        subject_alt_names: Vec<SubjectAltNameValue>,
    }
    SubjectAltNameValue {
        #[serde(rename = "type")]
        kind: String,
        hostname: Option<String>,
        uri: Option<String>,
    }
    PolicyStatus { ancestors: Vec<PolicyAncestorStatus> }
    PolicyAncestorStatus { ancestor_ref: ParentReference, controller_name: String, conditions: Vec<Condition> }
}

/// A kind of route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteGroupKind {
    pub group: Option<String>,
    pub kind: String,
}

impl RouteGroupKind {
    pub fn new(kind: &str) -> Self {
        Self { group: Some(GROUP.into()), kind: kind.into() }
    }

    pub fn is(&self, kind: &str) -> bool {
        self.group.as_deref().unwrap_or(GROUP) == GROUP && self.kind == kind
    }
}

/// `namespace/name`, or the name alone.
pub fn key(metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or_default();
    match metadata.namespace.as_deref() {
        Some(namespace) if !namespace.is_empty() => format!("{namespace}/{name}"),
        _ => name.to_string(),
    }
}

pub fn namespace(metadata: &ObjectMeta) -> &str {
    metadata.namespace.as_deref().unwrap_or_default()
}

/// Older objects come first, then by name.
pub fn age(metadata: &ObjectMeta) -> (Option<jiff::Timestamp>, String) {
    (metadata.creation_timestamp.as_ref().map(|time| time.0), key(metadata))
}
