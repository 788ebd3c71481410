//! The custom resources of the Gateway API, followed as soon as they are defined and for as long as they are.
//! Read by the controller at every build; it waits on `changed`.
//! Whoever has defined them (a chart, or `--gateway-api`), the newest version that is served is read.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::{Resource, kinds};
use client::{Informer, InformerFactory, ListParams, ObjectInformer};
use env::Env;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use super::{gateway_class, model::GatewaySnapshot, types::GROUP};

pub const PLURALS: &[&str] =
    &["gatewayclasses", "gateways", "httproutes", "grpcroutes", "tlsroutes", "referencegrants", "backendtlspolicies"];

/// For the first lists at start; what comes later is taken up later.
const FIRST_LISTS_TIMEOUT: Duration = Duration::from_secs(10);

struct Followed {
    resource: Arc<Resource>,
    objects: ObjectInformer,
}

pub struct GatewayObjects {
    informers: InformerFactory,
    definitions: Informer<CustomResourceDefinition>,
    followed: BTreeMap<&'static str, Followed>,
    namespaces: Option<Informer<Namespace>>,
    config_maps: Option<Informer<ConfigMap>>,
    changed: Arc<Notify>,
    env: Env,
}

impl GatewayObjects {
    pub fn new(informers: InformerFactory, env: Env) -> Self {
        let definitions = informers.informer::<CustomResourceDefinition>();
        let objects = Self {
            definitions: definitions.clone(),
            informers,
            followed: BTreeMap::new(),
            namespaces: None,
            config_maps: None,
            changed: Arc::default(),
            env,
        };
        objects.notify_changes(definitions.objects());
        objects
    }

    pub fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Until what is defined now is listed, but no longer than `FIRST_LISTS_TIMEOUT`.
    pub async fn first_lists(&mut self) {
        let env = self.env.clone();
        let listed = env.timeout(FIRST_LISTS_TIMEOUT, async {
            self.definitions.synced().await;
            self.refresh();
            for followed in self.followed.values() {
                followed.objects.synced().await;
            }
            if let Some(namespaces) = &self.namespaces {
                namespaces.synced().await;
            }
        });
        if listed.await.is_none() {
            tracing::warn!("the objects of the Gateway API are not listed yet; going on without them");
        }
    }

    /// Begins to follow what has been defined, and ends with what is not any more.
    pub fn refresh(&mut self) {
        for plural in PLURALS {
            let definition = self.definitions.get(&format!("{plural}.{GROUP}"));
            let resource = definition.and_then(|definition| resource(&definition));
            let version = |resource: &Arc<Resource>| resource.version.clone();
            let former = self.followed.get(plural).map(|followed| followed.resource.clone());
            if former.as_ref().map(version) == resource.as_ref().map(version) {
                continue;
            }
            if let Some(former) = former {
                self.informers.stop(&former);
                self.followed.remove(plural);
            }
            if let Some(resource) = resource {
                self.follow(plural, resource);
            }
        }
        if self.config_maps.is_none() && self.has_objects("backendtlspolicies") {
            let config_maps = self.informers.informer::<ConfigMap>();
            self.notify_changes(config_maps.objects());
            self.config_maps = Some(config_maps);
        }
    }

    fn follow(&mut self, plural: &'static str, resource: Arc<Resource>) {
        if plural == "gatewayclasses" {
            let (client, version) = (self.informers.client().clone(), resource.version.clone());
            self.env.spawn(gateway_class::ensure(client, version, self.env.clone()));
        }
        let objects = self.informers.objects(resource.clone(), ListParams::default());
        self.notify_changes(&objects);
        self.followed.insert(plural, Followed { resource, objects });
        if self.namespaces.is_none() {
            let namespaces = self.informers.informer::<Namespace>();
            self.notify_changes(namespaces.objects());
            self.namespaces = Some(namespaces);
        }
    }

    fn notify_changes(&self, objects: &ObjectInformer) {
        let (objects, changed) = (objects.clone(), self.changed.clone());
        self.env.spawn(async move {
            objects.synced().await;
            changed.notify_one();
            let mut changes = objects.subscribe();
            drop(objects);
            while changes.next().await.is_some() {
                changed.notify_one();
            }
        });
    }

    fn has_objects(&self, plural: &str) -> bool {
        self.followed.get(plural).is_some_and(|followed| !followed.objects.is_empty())
    }

    /// Whether everything that is followed is known: half of it would make conditions that are not true.
    pub fn is_synced(&self) -> bool {
        self.followed.values().all(|followed| followed.objects.is_synced())
            && self.namespaces.as_ref().is_none_or(|namespaces| namespaces.objects().is_synced())
            && self.config_maps.as_ref().is_none_or(|maps| maps.objects().is_synced())
    }

    pub fn snapshot(&self) -> GatewaySnapshot {
        GatewaySnapshot {
            classes: self.list("gatewayclasses"),
            gateways: self.list("gateways"),
            http_routes: self.list("httproutes"),
            grpc_routes: self.list("grpcroutes"),
            tls_routes: self.list("tlsroutes"),
            grants: self.list("referencegrants"),
            policies: self.list("backendtlspolicies"),
        }
    }

    fn list<K: DeserializeOwned + Send + Sync + 'static>(&self, plural: &str) -> Vec<Arc<K>> {
        let Some(followed) = self.followed.get(plural) else { return Vec::new() };
        let read = |object: &Arc<api::Object>| {
            let typed = object.typed::<K>();
            typed.inspect_err(|error| tracing::warn!(%error, plural, "skipping an object that can't be read")).ok()
        };
        followed.objects.list().iter().filter_map(read).collect()
    }

    pub fn get<K: DeserializeOwned + Send + Sync + 'static>(&self, plural: &str, key: &str) -> Option<Arc<K>> {
        self.followed.get(plural)?.objects.get(key)?.typed::<K>().ok()
    }

    pub fn resource(&self, plural: &str) -> Option<&Arc<Resource>> {
        self.followed.get(plural).map(|followed| &followed.resource)
    }

    pub fn namespace(&self, name: &str) -> Option<Arc<Namespace>> {
        self.namespaces.as_ref()?.get(name)
    }

    pub fn config_map(&self, key: &str) -> Option<Arc<ConfigMap>> {
        self.config_maps.as_ref()?.get(key)
    }
}

/// `None` until the definition is established.
fn resource(definition: &CustomResourceDefinition) -> Option<Arc<Resource>> {
    kinds::custom_resource(definition, |versions| {
        let mut served = versions.iter().filter(|version| version.served);
        let version = served.clone().find(|version| version.name == "v1");
        version.or(served.clone().find(|version| version.storage)).or(served.next())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_version_that_is_served_is_read() {
        let check = |versions: serde_json::Value, established: &str, expected: Option<&str>| {
            let definition: CustomResourceDefinition = serde_json::from_value(json!({
                "metadata": { "name": "tlsroutes.gateway.networking.k8s.io" },
                "spec": { "group": GROUP, "scope": "Namespaced", "versions": versions,
                    "names": { "kind": "TLSRoute", "plural": "tlsroutes" } },
                "status": { "conditions": [{ "type": "Established", "status": established }] },
            }))
            .unwrap();
            assert_eq!(resource(&definition).map(|resource| resource.version.clone()).as_deref(), expected);
        };
        let version =
            |name: &str, served: bool, storage: bool| json!({ "name": name, "served": served, "storage": storage });
        check(json!([version("v1", true, false), version("v1alpha2", true, true)]), "True", Some("v1"));
        check(json!([version("v1alpha2", true, true), version("v1alpha3", true, false)]), "True", Some("v1alpha2"));
        check(json!([version("v1", false, true), version("v1alpha3", true, false)]), "True", Some("v1alpha3"));
        check(json!([version("v1", true, true)]), "False", None);
    }
}
