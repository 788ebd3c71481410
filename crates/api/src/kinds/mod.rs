//! THE TABLE of kinds: routes, discovery, OpenAPI, RBAC names, watch caches, quota, GC and printing iterate it.
//! A kind with behaviour is one file in the folder of its API group; custom resources make the same `Resource` at run time.
//! Nothing else in the workspace lists the kinds.

mod admissionregistration;
mod apiextensions;
mod apiregistration;
mod apps;
mod authentication;
mod authorization;
mod autoscaling;
mod batch;
mod behavior;
mod certificates;
mod common;
mod convert;
mod coordination;
mod core;
mod discovery;
#[cfg(test)]
mod field_name_tests;
mod flowcontrol;
mod internal;
mod networking;
mod node;
mod policy;
mod rbac;
mod resource;
mod scheduling;
mod storage;
#[cfg(test)]
mod storage_form_tests;
mod storagemigration;
mod table;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

pub use self::apiextensions::{
    custom_resource::custom_resource,
    custom_resource_definition::{self, ApprovalState, FINALIZER as CUSTOM_RESOURCE_CLEANUP_FINALIZER},
    internal_form, stored_definition,
};
pub use self::common::{columns::selector_text, metadata};
pub use self::core::persistent_volume::access_modes;
pub use self::core::pod::{gated_status::drop_disabled_status, update as pod_update};
pub use self::core::pod_spec::projections::drop_disabled as drop_disabled_fields;
pub use self::core::pod_spec::resources::is_extended as is_extended_resource;
pub use self::flowcontrol::bootstrap as flow_control_bootstrap;
pub use self::internal::storage_version::set_common_encoding_version;
pub use behavior::{Allocates, Behavior, Column, Handler, MetadataValidation, Plain, Propagation};
pub use convert::{as_stored, convert, normalize};

use crate::Verb;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    Cluster,
    Namespaced,
}

impl Scope {
    /// As definitions of custom resources say it.
    pub fn parse(scope: &str) -> Self {
        if scope == "Namespaced" { Self::Namespaced } else { Self::Cluster }
    }
}

/// One served resource: a row of the table, or a version of a CustomResourceDefinition.
#[derive(Clone)]
pub struct Resource {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub list_kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub scope: Scope,
    pub verbs: Vec<Verb>,
    pub subresources: Vec<Subresource>,
    pub behavior: Arc<dyn Behavior>,
    pub storage: StorageForm,
}

/// How objects of a resource lie in the store, as upstream's API server keeps them in etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageForm {
    /// Below the root of the store: `pods`, `services/specs`, `example.com/widgets`.
    pub prefix: String,
    /// The version they are written in, where the resource is of its storage version.
    pub api_version: String,
    /// Versions with the same fields, which are read as this one.
    pub same_versions: Vec<String>,
    /// Never protobuf.
    pub json_only: bool,
}

impl StorageForm {
    /// That of a custom resource.
    pub fn custom(group: &str, plural: &str) -> Self {
        Self { prefix: format!("{group}/{plural}"), json_only: true, ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    pub name: String,
    /// The type of its body, which may be of another group (`scale` is `autoscaling/v1 Scale`).
    pub group: String,
    pub version: String,
    pub kind: String,
    pub verbs: Vec<Verb>,
}

impl Resource {
    /// One of a CustomResourceDefinition or of another server, as a client has to know it.
    pub fn custom(group: &str, version: &str, kind: &str, plural: &str, scope: Scope) -> Self {
        Self {
            group: group.to_string(),
            version: version.to_string(),
            kind: kind.to_string(),
            plural: plural.to_string(),
            singular: kind.to_lowercase(),
            list_kind: format!("{kind}List"),
            short_names: Vec::new(),
            categories: Vec::new(),
            scope,
            verbs: Verb::RESOURCE.to_vec(),
            subresources: Vec::new(),
            behavior: Arc::new(Plain),
            storage: StorageForm::custom(group, plural),
        }
    }

    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Upstream's `GroupResource.String()`: `pods`, `deployments.apps`.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    pub fn supports(&self, verb: &Verb) -> bool {
        self.verbs.contains(verb)
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether objects of it are kept in the store (reviews and bindings are not).
    pub fn stored(&self) -> bool {
        self.behavior.handler() == Handler::Storage
    }

    /// `/apis/apps/v1/namespaces/default/deployments/web`; `namespace` is ignored for cluster-scoped kinds.
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        let mut path = match (self.scope, namespace) {
            (Scope::Namespaced, Some(namespace)) if !namespace.is_empty() => {
                format!("{root}/namespaces/{namespace}/{}", self.plural)
            }
            _ => format!("{root}/{}", self.plural),
        };
        if let Some(name) = name {
            path.push('/');
            path.push_str(name);
        }
        path
    }
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} {}", self.group, self.version, self.plural)
    }
}

/// The built-in resources, in upstream's discovery order.
pub fn builtin() -> &'static [Arc<Resource>] {
    static BUILTIN: LazyLock<Vec<Arc<Resource>>> = LazyLock::new(table::resources);
    &BUILTIN
}

/// Resources that are there only with a feature gate, each with its gate.
pub fn gated() -> &'static [(&'static str, Arc<Resource>)] {
    static GATED: LazyLock<Vec<(&'static str, Arc<Resource>)>> = LazyLock::new(table::gated);
    &GATED
}

/// The resource, be it behind a feature gate, whose objects lie under `prefix` in the store: of its storage version.
pub fn stored_under(prefix: &str) -> Option<&'static Arc<Resource>> {
    static BY_PREFIX: LazyLock<HashMap<String, Arc<Resource>>> = LazyLock::new(|| {
        let stored = |r: &&Arc<Resource>| r.stored() && r.behavior.storage_version().is_none();
        known().filter(stored).map(|r| (r.storage.prefix.clone(), r.clone())).collect()
    });
    BY_PREFIX.get(prefix)
}

/// The built-in resources and those of feature gates.
fn known() -> impl Iterator<Item = &'static Arc<Resource>> {
    builtin().iter().chain(gated().iter().map(|(_, resource)| resource))
}

/// Whether it is another form of a resource that is there without any gate.
pub fn is_older_form(resource: &Resource) -> bool {
    let stored = resource.behavior.storage_version();
    stored.is_some_and(|(group, version)| {
        builtin().iter().any(|r| r.group == group && r.version == version && r.plural == resource.plural)
    })
}

/// Whether a group is built in, be it behind feature gates.
pub fn is_known_group(group: &str) -> bool {
    group.is_empty() || known().any(|r| r.group == group)
}

/// Whether a group has this version, be it behind feature gates.
pub fn is_known_version(group: &str, version: &str) -> bool {
    known().any(|r| r.group == group && r.version == version)
}

/// A resource by its plural name.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Arc<Resource>> {
    known().find(|r| r.group == group && r.version == version && r.plural == plural)
}

/// A resource by its kind.
pub fn find_kind(group: &str, version: &str, kind: &str) -> Option<&'static Arc<Resource>> {
    known().find(|r| r.group == group && r.version == version && r.kind == kind)
}

/// The built-in resource of a `k8s-openapi` type.
pub fn resource_of<K: k8s_openapi::Resource>() -> &'static Arc<Resource> {
    find_kind(K::GROUP, K::VERSION, K::KIND).unwrap_or_else(|| panic!("{} {} is not served", K::API_VERSION, K::KIND))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::field::ErrorList;

    #[test]
    fn paths_and_names() {
        let pods = find("", "v1", "pods").unwrap();
        assert_eq!(pods.path(Some("default"), Some("web")), "/api/v1/namespaces/default/pods/web");
        assert_eq!(pods.path(None, None), "/api/v1/pods");
        let deployments = resource_of::<k8s_openapi::api::apps::v1::Deployment>();
        assert_eq!(deployments.group_resource(), "deployments.apps");
        assert_eq!(deployments.subresource("scale").unwrap().kind, "Scale");
        assert_eq!(deployments.path(Some("d"), None), "/apis/apps/v1/namespaces/d/deployments");
    }

    #[test]
    fn rows_are_unique() {
        let mut seen = std::collections::HashSet::new();
        for r in known() {
            assert!(seen.insert((r.group.clone(), r.version.clone(), r.plural.clone())), "{r:?} twice");
        }
    }

    /// Whatever shape arrives, no kind panics, and tables stay rectangular.
    #[test]
    fn odd_shapes_are_survived() {
        let now: jiff::Timestamp = "2024-01-01T00:00:00Z".parse().unwrap();
        let odd = |value: Value| {
            let fields = [
                "metadata",
                "spec",
                "status",
                "data",
                "rules",
                "webhooks",
                "subjects",
                "template",
                "roleRef",
                "limits",
                "endpoints",
                "ports",
                "subsets",
                "versions",
                "overhead",
                "scheduling",
            ];
            Value::Object(fields.iter().map(|field| (field.to_string(), value.clone())).collect())
        };
        let shapes = [
            json!({}),
            odd(Value::Null),
            odd(json!(5)),
            odd(json!("x")),
            odd(json!([])),
            odd(json!([1, "x", null, {}])),
            odd(json!({})),
            odd(json!({
                "containers": 1, "volumes": [{}, 1], "ports": [{ "port": "x" }], "template": { "spec": [] },
                "metrics": [1], "behavior": { "scaleUp": 1 }, "conditions": [1], "names": 3, "versions": [{ "schema": 1 }],
                "selector": 7, "labels": [], "annotations": 1, "ownerReferences": [1], "loadBalancer": [],
            })),
        ];
        for resource in known() {
            for old in &shapes {
                for shape in &shapes {
                    let (behavior, mut object) = (&resource.behavior, shape.clone());
                    behavior.default(&mut object);
                    behavior.prepare_create(&mut object);
                    let mut errors = ErrorList::new();
                    behavior.validate_create(&object, &mut errors);
                    metadata::validate_create(resource, &object, &mut errors);
                    behavior.prepare_update(&mut object, old);
                    behavior.validate_update(&object, old, &mut errors);
                    metadata::validate_update(&object, old, &mut errors);
                    behavior.prepare_status_update(&mut object, old);
                    behavior.validate_status_update(&object, old, &mut errors);
                    for subresource in ["ephemeralcontainers", "resize", "approval", "finalize"] {
                        let mut object = object.clone();
                        behavior.prepare_subresource_update(subresource, &mut object, old);
                        behavior.validate_subresource_update(subresource, &object, old, &mut errors);
                    }
                    behavior.warnings(&object, None);
                    behavior.grace_period_seconds(&object, None);
                    assert_eq!(behavior.cells(&object, now).len(), behavior.columns().len(), "{resource:?}");
                    let selectable = behavior.selectable_field_names();
                    let mut names: Vec<String> =
                        behavior.selectable_fields(&object).into_iter().map(|(n, _)| n).collect();
                    if resource.plural == "events" {
                        // One stored event answers to the names of both forms; each form selects by its own.
                        names.retain(|name| selectable.contains(name));
                    }
                    assert_eq!(names, selectable, "{resource:?}");
                }
            }
        }
    }

    /// Defaulting what is already defaulted changes nothing.
    #[test]
    fn defaults_are_idempotent() {
        for resource in known() {
            let mut once =
                json!({ "metadata": { "name": "a" }, "spec": { "template": { "spec": { "containers": [{}] } } } });
            resource.behavior.default(&mut once);
            let mut twice = once.clone();
            resource.behavior.default(&mut twice);
            assert_eq!(once, twice, "{resource:?}");
        }
    }
}
