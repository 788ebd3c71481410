//! Custom resources: from CustomResourceDefinitions to served resources.
//! Feeds `served`; the objects themselves take the same path as built-in ones.
//! A definition is served only once it is established.

mod behavior;
mod check;
mod controller;
mod declared;
mod default_values;
mod definition;
mod field_path;
mod formats;
mod rules;
#[cfg(test)]
mod rules_tests;
mod structural;
#[cfg(test)]
mod tests;
mod typed;

use api::openapi::ExtraSchemas;

use crate::discovery::served::{Served, Set};

pub use controller::Definitions;
pub use declared::validate as validate_rules;

pub use api::kinds::CUSTOM_RESOURCE_CLEANUP_FINALIZER as FINALIZER;

/// The schemas of the custom resources, for the OpenAPI documents.
pub fn extra_schemas(set: &Set) -> ExtraSchemas {
    let custom = set.resources.iter().filter_map(|r| Some((r, r.custom.as_ref()?)));
    custom.map(|(r, c)| ((r.group.clone(), r.version.clone(), r.kind.clone()), c.openapi.clone())).collect()
}

/// Whether `served` is the resource of the definitions themselves.
pub fn is_definition(served: &Served) -> bool {
    served.group == "apiextensions.k8s.io" && served.plural == "customresourcedefinitions"
}
