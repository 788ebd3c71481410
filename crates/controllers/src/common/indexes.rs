//! The indexes that controllers put on shared informers, so that no event walks over every object.
//! Used with `client::Informer::add_index`.
//! An index depends on the object alone.

use api::Object;
use client::Informer;
use k8s_openapi::api::core::v1::Pod;
use serde::de::DeserializeOwned;

/// By the uid of the controlling owner.
pub const CONTROLLER: &str = "controller";
/// Objects without a controller, by namespace: candidates for adoption.
pub const ORPHAN: &str = "orphan";
pub const NAMESPACE: &str = "namespace";
pub const NODE: &str = "node";

fn controller(object: &Object) -> Vec<String> {
    object.meta.controller().map(|owner| owner.uid.clone()).into_iter().collect()
}

fn orphan(object: &Object) -> Vec<String> {
    match object.meta.controller() {
        Some(_) => Vec::new(),
        None => object.meta.namespace.clone().into_iter().collect(),
    }
}

fn namespace(object: &Object) -> Vec<String> {
    object.meta.namespace.clone().into_iter().collect()
}

fn node(object: &Object) -> Vec<String> {
    let pod = object.typed::<Pod>().ok();
    pod.and_then(|pod| pod.spec.as_ref()?.node_name.clone()).filter(|name| !name.is_empty()).into_iter().collect()
}

pub fn by_controller<K: DeserializeOwned + Send + Sync + 'static>(informer: &Informer<K>) {
    informer.add_index(CONTROLLER, controller);
    informer.add_index(ORPHAN, orphan);
}

pub fn by_namespace<K: DeserializeOwned + Send + Sync + 'static>(informer: &Informer<K>) {
    informer.add_index(NAMESPACE, namespace);
}

pub fn by_node(informer: &Informer<Pod>) {
    informer.add_index(NODE, node);
}
