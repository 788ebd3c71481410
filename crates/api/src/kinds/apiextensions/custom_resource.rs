//! The resource that an established CustomResourceDefinition makes, as clients of the API server know it.
//! Used by components that follow custom resources; the API server serves its own, with schema and rules.

use std::sync::Arc;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};

use crate::kinds::{Resource, Scope};

/// In the version that `choose` takes; `None` until the definition is established.
pub fn custom_resource(
    definition: &CustomResourceDefinition,
    choose: impl FnOnce(&[CustomResourceDefinitionVersion]) -> Option<&CustomResourceDefinitionVersion>,
) -> Option<Arc<Resource>> {
    let mut conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
    if !conditions.any(|condition| condition.type_ == "Established" && condition.status == "True") {
        return None;
    }
    let (spec, names) = (&definition.spec, &definition.spec.names);
    let version = choose(&spec.versions)?;
    let mut resource =
        Resource::custom(&spec.group, &version.name, &names.kind, &names.plural, Scope::parse(&spec.scope));
    resource.singular = names.singular.clone().unwrap_or(resource.singular);
    resource.list_kind = names.list_kind.clone().unwrap_or(resource.list_kind);
    Some(Arc::new(resource))
}
