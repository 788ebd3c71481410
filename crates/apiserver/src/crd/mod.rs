//! Custom resources: from CustomResourceDefinitions to served resources.
//! Feeds `served`; the objects themselves take the same path as built-in ones.
//! Invariant: a definition is served only once it is established.

use api::openapi::ExtraSchemas;

use crate::served::Set;

/// The schemas of the custom resources, for the OpenAPI documents.
pub fn extra_schemas(_set: &Set) -> ExtraSchemas {
    ExtraSchemas::default()
}
