//! Where objects lie in the store: the prefix of each resource and the key of each object below it, as upstream's.
//! Asked by `registry`, `watch_cache` and whoever reads keys back; the table of kinds says what a prefix is.
//! The prefix of a resource is no prefix of another's.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use api::{Resource, kinds};

pub const ROOT: &str = "/registry/";
/// There while `minke store migrate` has not copied everything: such a store is not one to serve.
pub const UNFINISHED_MIGRATION: &str = "/minke/unfinished-migration";

/// The prefix all objects of a resource share. Resources that are one set of objects, as the two of Event, share it.
pub fn prefix(resource: &Resource) -> String {
    format!("{ROOT}{}/", resource.storage.prefix)
}

/// That of a built-in resource by its plural name.
pub fn builtin_prefix(plural: &str) -> String {
    static BY_PLURAL: LazyLock<HashMap<&'static str, String>> =
        LazyLock::new(|| kinds::builtin().iter().map(|r| (r.plural.as_str(), prefix(r))).collect());
    BY_PLURAL.get(plural).cloned().unwrap_or_else(|| format!("{ROOT}{plural}/"))
}

/// The key of a built-in object; `local` is what `local_key` says.
pub fn builtin_key(plural: &str, local: &str) -> String {
    builtin_prefix(plural) + local
}

pub fn custom_prefix(group: &str, plural: &str) -> String {
    format!("{ROOT}{group}/{plural}/")
}

/// The prefix that `key` belongs to: the name of a resource, or its group and name. Groups that have prefixes of their
/// own have a dot, plurals of built-in kinds have none.
pub fn prefix_of_key(key: &str) -> Option<&str> {
    static IN_TWO_PARTS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let prefixes = kinds::builtin().iter().map(|r| &r.storage.prefix);
        prefixes.filter(|p| p.contains('/') && !p.contains('.')).map(|p| format!("{p}/")).collect()
    });
    let rest = key.strip_prefix(ROOT)?;
    let first = rest.find('/')?;
    if rest[..first].contains('.') {
        let length = first + 1 + rest[first + 1..].find('/')?;
        return Some(&key[..ROOT.len() + length + 1]);
    }
    // A namespace may be called as the second part: then this is the key of an older version, which has no third.
    let whole = |p: &&String| rest.strip_prefix(p.as_str()).is_some_and(|local| local.contains('/'));
    let length = IN_TWO_PARTS.iter().find(whole).map_or(first + 1, |p| p.len());
    Some(&key[..ROOT.len() + length])
}

/// The built-in resource whose objects lie under `prefix`, of its storage version.
pub fn stored_under(prefix: &str) -> Option<&'static Arc<Resource>> {
    kinds::stored_under(prefix.strip_prefix(ROOT)?.trim_end_matches('/'))
}

/// Whether custom resources lie under `prefix`: their groups have a dot.
pub fn is_custom(prefix: &str) -> bool {
    let group = prefix.strip_prefix(ROOT).and_then(|rest| rest.split('/').next());
    group.is_some_and(|group| group.contains('.')) && stored_under(prefix).is_none()
}

/// Whether what lies under `prefix` is somebody's objects: not bookkeeping, and of no kind that is unknown here.
pub fn holds_objects(prefix: &str) -> bool {
    stored_under(prefix).is_some() || is_custom(prefix)
}

/// The group and plural name of what lies under `prefix`.
pub fn group_resource(prefix: &str) -> (&str, &str) {
    if let Some(resource) = stored_under(prefix) {
        return (&resource.group, &resource.plural);
    }
    let path = prefix.strip_prefix(ROOT).unwrap_or(prefix).trim_end_matches('/');
    // By its plural: as older versions wrote the keys of some kinds.
    let older = || kinds::builtin().iter().find(|r| r.plural == path).map_or("", |r| r.group.as_str());
    path.split_once('/').unwrap_or_else(|| (older(), path))
}

/// The key below a prefix: `namespace/name`, or `name`.
pub fn local_key(resource: &Resource, namespace: &str, name: &str) -> String {
    if resource.namespaced() { format!("{namespace}/{name}") } else { name.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_their_resource() {
        for (key, prefix) in [
            ("/registry/pods/default/web", Some("/registry/pods/")),
            ("/registry/minions/n1", Some("/registry/minions/")),
            ("/registry/services/specs/default/web", Some("/registry/services/specs/")),
            ("/registry/services/endpoints/default/web", Some("/registry/services/endpoints/")),
            ("/registry/services/default/web", Some("/registry/services/")),
            ("/registry/services/specs/web", Some("/registry/services/")),
            ("/registry/example.com/widgets/default/w", Some("/registry/example.com/widgets/")),
            ("/registry/ranges/servicenodeports", Some("/registry/ranges/")),
            ("/other/x/y", None),
            ("/registry/pods", None),
        ] {
            assert_eq!(prefix_of_key(key), prefix, "{key}");
        }
        for (prefix, named, objects) in [
            ("/registry/pods/", ("", "pods"), true),
            ("/registry/deployments/", ("apps", "deployments"), true),
            ("/registry/events/", ("", "events"), true),
            ("/registry/services/specs/", ("", "services"), true),
            ("/registry/minions/", ("", "nodes"), true),
            ("/registry/apiregistration.k8s.io/apiservices/", ("apiregistration.k8s.io", "apiservices"), true),
            ("/registry/example.com/widgets/", ("example.com", "widgets"), true),
            ("/registry/masterleases/", ("", "masterleases"), false),
            ("/registry/clustertrustbundles/", ("", "clustertrustbundles"), false),
            ("/registry/services/", ("", "services"), false),
        ] {
            assert_eq!((group_resource(prefix), holds_objects(prefix)), (named, objects), "{prefix}");
        }
        assert!(
            is_custom("/registry/example.com/widgets/") && !is_custom("/registry/apiregistration.k8s.io/apiservices/")
        );
    }

    /// Where upstream's API server keeps them in etcd, for the kinds whose prefix is not their plural.
    #[test]
    fn prefixes_are_upstreams() {
        for (plural, prefix) in [
            ("services", "/registry/services/specs/"),
            ("endpoints", "/registry/services/endpoints/"),
            ("nodes", "/registry/minions/"),
            ("replicationcontrollers", "/registry/controllers/"),
            ("ingresses", "/registry/ingress/"),
            ("apiservices", "/registry/apiregistration.k8s.io/apiservices/"),
            ("customresourcedefinitions", "/registry/apiextensions.k8s.io/customresourcedefinitions/"),
            ("leases", "/registry/leases/"),
            ("horizontalpodautoscalers", "/registry/horizontalpodautoscalers/"),
        ] {
            assert_eq!(builtin_prefix(plural), prefix);
        }
    }
}
