//! Every resource that the server stores: the table's rows and the custom resources of the moment.
//! Read by the namespace controller, the garbage collector, the resource quota controller and the autoscaler.
//! One version per resource, the one that the server prefers.

use std::{collections::HashSet, sync::Arc};

use api::{Resource, Verb, kinds};
use client::{Informer, InformerFactory};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::gated_kinds::GatedKind;

#[derive(Clone)]
pub struct Resources {
    definitions: Informer<CustomResourceDefinition>,
    gated: Arc<[GatedKind]>,
}

impl Resources {
    pub fn new(informers: &InformerFactory) -> Self {
        Self { definitions: informers.informer(), gated: Arc::default() }
    }

    pub fn with_gated(self, gated: Vec<GatedKind>) -> Self {
        Self { gated: gated.into(), ..self }
    }

    /// What the server has of the kinds of feature gates.
    pub fn gated(&self) -> &[GatedKind] {
        &self.gated
    }

    pub fn definitions(&self) -> &Informer<CustomResourceDefinition> {
        &self.definitions
    }

    /// Resources that can be listed, watched and deleted, each once.
    pub fn all(&self) -> Vec<Arc<Resource>> {
        let mut seen = HashSet::new();
        builtin(&self.gated)
            .into_iter()
            .chain(self.definitions.list().iter().filter_map(|definition| custom(definition)))
            .filter(|resource| seen.insert(resource.group_resource()))
            .collect()
    }

    /// The resource of an owner reference. Any served version will do: objects are the same in all of them.
    pub fn find(&self, api_version: &str, kind: &str) -> Option<Arc<Resource>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if let Some(known) = kinds::find_kind(group, version, kind) {
            return Some(known.clone());
        }
        let definitions = self.definitions.list();
        let definition = definitions.iter().find(|d| {
            d.spec.group == group
                && d.spec.names.kind == kind
                && d.spec.versions.iter().any(|v| v.name == version && v.served)
        })?;
        custom(definition)
    }

    /// The resource of a kind in whichever version the server prefers.
    pub fn find_group_kind(&self, group: &str, kind: &str) -> Option<Arc<Resource>> {
        let known = kinds::builtin().iter().filter(|resource| resource.stored());
        let mut known = known.filter(|resource| resource.behavior.storage_version().is_none());
        if let Some(known) = known.find(|resource| resource.group == group && resource.kind == kind) {
            return Some(known.clone());
        }
        let definitions = self.definitions.list();
        let named = |definition: &&Arc<CustomResourceDefinition>| {
            definition.spec.group == group && definition.spec.names.kind == kind
        };
        definitions.iter().find(named).and_then(|definition| custom(definition))
    }
}

/// Built-in resources, without second views of the same objects (events.k8s.io shows the core group's events).
fn builtin(gated: &[GatedKind]) -> Vec<Arc<Resource>> {
    kinds::builtin()
        .iter()
        .chain(gated.iter().map(|(_, resource)| resource))
        .filter(|r| r.stored() && [Verb::List, Verb::Watch, Verb::Delete].iter().all(|verb| r.supports(verb)))
        .filter(|r| r.behavior.storage_version().is_none())
        .cloned()
        .collect()
}

/// `None` until the definition is established.
pub fn custom(definition: &CustomResourceDefinition) -> Option<Arc<Resource>> {
    kinds::custom_resource(definition, |versions| {
        let mut served = versions.iter().filter(|version| version.served);
        served.clone().find(|version| version.storage).or(served.next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_resources_need_to_be_established() {
        let mut definition: CustomResourceDefinition = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "whales.sea.example" },
            "spec": { "group": "sea.example", "scope": "Namespaced",
                "names": { "kind": "Whale", "plural": "whales" },
                "versions": [{ "name": "v1alpha1", "served": true, "storage": false },
                             { "name": "v1", "served": true, "storage": true }] },
        }))
        .unwrap();
        assert!(custom(&definition).is_none());
        definition.status = serde_json::from_value(serde_json::json!({
            "conditions": [{ "type": "Established", "status": "True" }],
        }))
        .unwrap();
        let resource = custom(&definition).unwrap();
        assert_eq!(resource.path(Some("d"), Some("x")), "/apis/sea.example/v1/namespaces/d/whales/x");
    }

    #[test]
    fn builtin_resources_appear_once() {
        let names: Vec<_> = builtin(&[]).iter().map(|r| r.group_resource()).collect();
        assert!(names.contains(&"pods".to_string()) && names.contains(&"events".to_string()));
        assert!(!names.contains(&"bindings".to_string()) && !names.contains(&"events.events.k8s.io".to_string()));
    }
}
