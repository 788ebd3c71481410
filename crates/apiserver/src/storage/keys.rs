//! Where objects lie in the store: the prefix of each resource and the key of each object below it.
//! Asked by `registry`, `watch_cache` and whoever reads keys back.
//! The prefix of a resource is no prefix of another's.

use api::Resource;

pub const ROOT: &str = "/registry/";

/// The prefix all objects of a resource share. Built-in groups are left out, as upstream does, so that the two
/// versions of Event and of HorizontalPodAutoscaler are one set of objects.
pub fn prefix(resource: &Resource) -> String {
    match api::kinds::is_known_group(&resource.group) {
        true => format!("{ROOT}{}/", resource.plural),
        false => custom_prefix(&resource.group, &resource.plural),
    }
}

pub fn custom_prefix(group: &str, plural: &str) -> String {
    format!("{ROOT}{group}/{plural}/")
}

/// The prefix that `key` belongs to. Plurals of built-in kinds have no dot and groups of custom resources have one.
pub fn prefix_of_key(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(ROOT)?;
    let first = rest.find('/')?;
    let length = match rest[..first].contains('.') {
        true => first + 1 + rest[first + 1..].find('/')?,
        false => first,
    };
    Some(&key[..ROOT.len() + length + 1])
}

/// Whether custom resources lie under `prefix`: only their groups have a dot.
pub fn is_custom(prefix: &str) -> bool {
    prefix.strip_prefix(ROOT).and_then(|rest| rest.split('/').next()).is_some_and(|first| first.contains('.'))
}

/// The group and plural name of what lies under `prefix`.
pub fn group_resource(prefix: &str) -> (&str, &str) {
    let path = prefix.strip_prefix(ROOT).unwrap_or(prefix).trim_end_matches('/');
    match path.split_once('/') {
        Some((group, resource)) => (group, resource),
        None => (api::kinds::group_of(path).unwrap_or_default(), path),
    }
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
            ("/registry/nodes/n1", Some("/registry/nodes/")),
            ("/registry/example.com/widgets/default/w", Some("/registry/example.com/widgets/")),
            ("/other/x/y", None),
            ("/registry/pods", None),
        ] {
            assert_eq!(prefix_of_key(key), prefix, "{key}");
        }
        for (prefix, named) in [
            ("/registry/pods/", ("", "pods")),
            ("/registry/deployments/", ("apps", "deployments")),
            ("/registry/events/", ("", "events")),
            ("/registry/storageversions/", ("internal.apiserver.k8s.io", "storageversions")),
            ("/registry/example.com/widgets/", ("example.com", "widgets")),
        ] {
            assert_eq!(group_resource(prefix), named, "{prefix}");
        }
    }
}
