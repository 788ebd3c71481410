//! Who may refer to what in another namespace.
//! Asked by the rest of `gateway` for certificates and backends.
//! Pure (tidy: `pure_files`). Invariant: without a grant of the namespace that is referred to, no reference crosses (test:
//! `a_reference_crosses_namespaces_only_with_a_grant`).

use std::{collections::HashMap, sync::Arc};

use super::types::{GROUP, ReferenceGrant, namespace};

/// What is referred to.
#[derive(Debug, Clone, Copy)]
pub struct Referent<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
}

#[derive(Default)]
pub struct ReferenceGrants {
    by_namespace: HashMap<String, Vec<Arc<ReferenceGrant>>>,
}

impl ReferenceGrants {
    pub fn new(grants: &[Arc<ReferenceGrant>]) -> Self {
        let mut by_namespace: HashMap<String, Vec<Arc<ReferenceGrant>>> = HashMap::new();
        for grant in grants {
            by_namespace.entry(namespace(&grant.metadata).to_string()).or_default().push(grant.clone());
        }
        Self { by_namespace }
    }

    /// Whether objects of this kind of the Gateway API, in namespace `from`, may refer to it.
    pub fn allow(&self, kind: &str, from: &str, to: Referent<'_>) -> bool {
        if from == to.namespace {
            return true;
        }
        let grants = self.by_namespace.get(to.namespace).map_or(&[][..], Vec::as_slice);
        grants.iter().any(|grant| {
            let spec = &grant.spec;
            spec.from.iter().any(|of| of.group == GROUP && of.kind == kind && of.namespace == from)
                && spec.to.iter().any(|of| {
                    of.group == to.group && of.kind == to.kind && of.name.as_deref().is_none_or(|name| name == to.name)
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reference_crosses_namespaces_only_with_a_grant() {
        let grant = |to: serde_json::Value| -> Arc<ReferenceGrant> {
            let from = json!([{ "group": GROUP, "kind": "HTTPRoute", "namespace": "routes" }]);
            let value =
                json!({ "metadata": { "namespace": "web", "name": "g" }, "spec": { "from": from, "to": [to] } });
            Arc::new(serde_json::from_value(value).unwrap())
        };
        let service = |namespace, name| Referent { group: "", kind: "Service", namespace, name };
        let any = ReferenceGrants::new(&[grant(json!({ "group": "", "kind": "Service" }))]);
        let one = ReferenceGrants::new(&[grant(json!({ "group": "", "kind": "Service", "name": "a" }))]);
        let none = ReferenceGrants::default();
        for (grants, kind, from, to, expected) in [
            (&none, "HTTPRoute", "web", service("web", "a"), true),
            (&none, "HTTPRoute", "routes", service("web", "a"), false),
            (&any, "HTTPRoute", "routes", service("web", "a"), true),
            (&any, "HTTPRoute", "routes", service("other", "a"), false),
            (&any, "HTTPRoute", "other", service("web", "a"), false),
            (&any, "GRPCRoute", "routes", service("web", "a"), false),
            (&any, "HTTPRoute", "routes", Referent { kind: "Secret", ..service("web", "a") }, false),
            (&one, "HTTPRoute", "routes", service("web", "a"), true),
            (&one, "HTTPRoute", "routes", service("web", "b"), false),
        ] {
            assert_eq!(grants.allow(kind, from, to), expected, "{kind} of {from} to {to:?}");
        }
    }
}
