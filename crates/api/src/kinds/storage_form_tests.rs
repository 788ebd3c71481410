//! Versions that the table reads as another have the same fields with the same numbers, as far as they have them.
//! Looks at the whole schema table, the unserved versions among it.

use std::collections::HashSet;

use crate::{
    kinds::{self, Resource},
    schema::{self, Node, Schema, TypeId},
};

#[test]
fn same_versions_have_the_same_fields() {
    let all = schema::with_unserved();
    let mut compared = 0;
    for resource in kinds::builtin() {
        let own = all.find_kind(&resource.group, &resource.version, &resource.kind);
        for version in &resource.storage.same_versions {
            let other = all.find_kind(&resource.group, version, &resource.kind);
            let (Some(own), Some(other)) = (own, other) else { panic!("{resource:?} has no {version}") };
            compared += 1;
            let problems = differences(all, other, own, &mut HashSet::new());
            assert_eq!(problems, Vec::<String>::new(), "{resource:?} {version}");
            if is_written(resource, version) {
                let problems = differences(all, own, other, &mut HashSet::new());
                assert_eq!(problems, Vec::<String>::new(), "{resource:?} is written as {version}");
            }
        }
    }
    assert!(compared > 20, "{compared}");
}

fn is_written(resource: &Resource, version: &str) -> bool {
    resource.storage.api_version == format!("{}/{version}", resource.group)
}

/// Fields of `of` that `within` does not have alike.
fn differences(schema: &Schema, of: TypeId, within: TypeId, seen: &mut HashSet<(TypeId, TypeId)>) -> Vec<String> {
    if of == within || !seen.insert((of, within)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let (of, within) = (schema.get(of), schema.get(within));
    for field in &of.fields {
        let name = format!("{}.{}", of.name, field.name);
        match within.field(&field.name) {
            Some(other) if other.proto == field.proto && other.wire.inside == field.wire.inside => {
                found.extend(node_differences(schema, &name, &field.node, &other.node, seen));
            }
            _ => found.push(name),
        }
    }
    found
}

fn node_differences(
    schema: &Schema,
    name: &str,
    of: &Node,
    within: &Node,
    seen: &mut HashSet<(TypeId, TypeId)>,
) -> Vec<String> {
    match (of, within) {
        (Node::Struct(of), Node::Struct(within)) => differences(schema, *of, *within, seen),
        (Node::List(of, _), Node::List(within, _)) | (Node::Map(of, _), Node::Map(within, _)) => {
            node_differences(schema, name, of, within, seen)
        }
        (of, within) if of == within => Vec::new(),
        _ => vec![name.to_string()],
    }
}

/// Where an object lies says which resource it is of, and that resource how it is written.
#[test]
fn prefixes_are_unique() {
    let mut seen = HashSet::new();
    for resource in kinds::builtin().iter().filter(|r| r.stored() && r.behavior.storage_version().is_none()) {
        assert!(seen.insert(&resource.storage.prefix), "{resource:?}");
        assert_eq!(kinds::stored_under(&resource.storage.prefix).unwrap().kind, resource.kind);
    }
    assert!(kinds::stored_under("mutatingadmissionpolicies").is_some() && kinds::stored_under("services").is_none());
}
