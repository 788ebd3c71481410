//! What expressions of admission can name, with types.
//! Used by the API server, which stores none that cannot work, and by the controller that tells what policies get wrong.

use std::sync::Arc;

use serde_json::Value;

use super::{
    CelError, Expression, authorizer,
    types::{Type, builtin_schema},
};

pub fn check_source(source: &str, names: &[(&str, Type)]) -> Result<Type, CelError> {
    Expression::compile(source)?.check(names)
}

/// What every expression of admission can name.
pub fn request_names(object: Type) -> Vec<(&'static str, Type)> {
    vec![
        ("object", object.clone()),
        ("oldObject", object),
        ("request", Type::request()),
        (authorizer::NAME, Type::Named("kubernetes.authorization.Authorizer")),
        (authorizer::REQUEST_RESOURCE, Type::Named("kubernetes.authorization.ResourceCheck")),
    ]
}

/// What the expressions of a policy can name, with the types of its variables as far as they are known. `params` is the
/// type of its parameters, if it has any.
pub fn policy_names(spec: &Value, object: Type, params: Type) -> Vec<(&'static str, Type)> {
    let mut names = request_names(object);
    let schema = builtin_schema();
    let namespace = schema.find_kind("", "v1", "Namespace");
    names.push(("namespaceObject", namespace.map_or(Type::Dyn, |id| Type::Struct(schema, id))));
    if spec["paramKind"].is_object() {
        names.push(("params", params));
    }
    let mut variables: Vec<(String, Type)> = Vec::new();
    for variable in spec["variables"].as_array().into_iter().flatten() {
        // What says nothing declares nothing.
        if variable["expression"].as_str().is_none_or(|source| source.trim().is_empty()) {
            continue;
        }
        let mut inside = names.clone();
        inside.push(("variables", Type::Record("kubernetes.variables", Arc::new(variables.clone()))));
        let found = check_source(variable["expression"].as_str().unwrap_or_default(), &inside).unwrap_or(Type::Dyn);
        variables.push((variable["name"].as_str().unwrap_or_default().to_string(), found));
    }
    names.push(("variables", Type::Record("kubernetes.variables", Arc::new(variables))));
    names
}
