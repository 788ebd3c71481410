//! Deletes what has lost its last owner, and lets owners go that waited for their dependents.
//! Watches every resource that can be listed, custom ones too; the core is `graph`.
//! Keys are uids; every delete insists on the uid, so a later object of the same name is safe.

mod graph;

use std::{collections::HashMap, sync::Arc};

use api::{ApiError, Resource, object::OwnerReference};
use async_trait::async_trait;
use client::{EventRecorder, ListParams, ObjectRef};
use graph::{Graph, Node, ORPHAN, Verdict};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    common::{meta::delete_options, objects, resources},
    runner::{Context, Controller, Outcome, Queue, Setup},
};

/// A key that is no uid: the custom resources have changed.
const RESOURCES: &str = "custom resources";

pub fn make(setup: &mut Setup) -> Arc<dyn Controller> {
    let collector = Arc::new(Collector {
        context: setup.context.clone(),
        queue: setup.queue.clone(),
        graph: Arc::default(),
        watched: Mutex::default(),
        recorder: setup.context.recorder("garbage-collector-controller"),
    });
    setup.on(setup.context.resources.definitions(), |change, queue| {
        let id = |d: &Option<Arc<CustomResourceDefinition>>| {
            d.as_ref().and_then(|d| resources::custom(d)).map(|r| r.path(None, None))
        };
        if id(&change.old) != id(&change.new) {
            queue.add(RESOURCES.to_string());
        }
    });
    collector.watch_resources();
    collector
}

struct Collector {
    context: Context,
    queue: Queue,
    graph: Arc<Mutex<Graph>>,
    watched: Mutex<HashMap<String, Arc<Resource>>>,
    recorder: EventRecorder,
}

#[async_trait]
impl Controller for Collector {
    async fn reconcile(&self, key: &str) -> Outcome {
        if key == RESOURCES {
            self.watch_resources();
            return Ok(None);
        }
        let (verdict, node) = {
            let graph = self.graph.lock();
            (graph.decide(key), graph.get(key).cloned())
        };
        let Some(node) = node else { return Ok(None) };
        if matches!(verdict, Verdict::Delete { .. } | Verdict::DropOwners(_)) {
            self.warn_of_namespaces(&node);
        }
        match self.carry_out(verdict, &node).await {
            // Gone already: the watch will tell.
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(None),
        }
    }
}

impl Collector {
    /// Starts watching resources that are new and forgets those that are gone.
    fn watch_resources(&self) {
        let now: HashMap<String, Arc<Resource>> = (self.context.resources.all().into_iter())
            .filter(|r| !r.behavior.has_event_ttl())
            .map(|r| (r.path(None, None), r))
            .collect();
        let mut watched = self.watched.lock();
        watched.retain(|path, resource| {
            let keep = now.contains_key(path);
            if !keep {
                self.context.informers.stop(resource);
            }
            keep
        });
        for (path, resource) in now {
            if watched.insert(path, resource.clone()).is_none() {
                self.watch(resource);
            }
        }
    }

    fn watch(&self, resource: Arc<Resource>) {
        let informer = self.context.informers.objects(resource.clone(), ListParams::default());
        let mut changes = informer.subscribe();
        let (graph, queue, shutdown) = (self.graph.clone(), self.queue.clone(), self.context.shutdown.clone());
        self.context.env.spawn(async move {
            loop {
                let change = tokio::select! {
                    biased;
                    change = changes.next() => change,
                    () = shutdown.cancelled() => return,
                };
                let Some(change) = change else { return };
                let mut look = Vec::new();
                {
                    let mut graph = graph.lock();
                    // A new object under an old name: the old one is gone.
                    let uid = change.new.as_ref().map(|o| &o.meta.uid);
                    if let Some(old) = change.old.as_ref().filter(|o| Some(&o.meta.uid) != uid) {
                        look.extend(graph.remove(&old.meta.uid));
                    }
                    if let Some(new) = &change.new {
                        look.extend(graph.put(&resource, &new.meta));
                    }
                    // Most changes concern objects without owners that nobody deletes.
                    look.retain(|uid| graph.decide(uid) != Verdict::Nothing);
                }
                look.into_iter().for_each(|uid| queue.add(uid));
            }
        });
    }

    async fn carry_out(&self, verdict: Verdict, node: &Node) -> Result<(), ApiError> {
        match verdict {
            Verdict::Nothing => Ok(()),
            Verdict::Verify { owner, namespace } => self.verify(node, &owner, &namespace).await,
            Verdict::DropOwners(owners) => self.drop_owners(node, &owners).await,
            Verdict::Delete { policy, unblock } => {
                let Some(resource) = &node.resource else { return Ok(()) };
                if unblock {
                    let owners: Vec<Value> = node.owners.iter().map(|o| reference(o, Some(false))).collect();
                    self.patch(node, json!({ "ownerReferences": owners })).await?;
                }
                let mut options = delete_options(&node.uid);
                options.propagation_policy = Some(policy.into());
                // Someone may just have given it another owner: then the version differs, and we look again.
                if let Some(preconditions) = options.preconditions.as_mut().filter(|_| !unblock) {
                    preconditions.resource_version = Some(node.resource_version.to_string());
                }
                objects::delete(&self.context.client, resource, &node.namespace, &node.name, &options).await
            }
            Verdict::Orphan(dependents) => {
                for uid in dependents {
                    let dependent = self.graph.lock().get(&uid).cloned();
                    if let Some(dependent) = dependent {
                        match self.drop_owners(&dependent, std::slice::from_ref(&node.uid)).await {
                            Err(error) if !error.is_not_found() => return Err(error),
                            _ => {}
                        }
                    }
                }
                self.remove_finalizer(node, ORPHAN).await
            }
            Verdict::RemoveFinalizer(finalizer) => self.remove_finalizer(node, finalizer).await,
            Verdict::Wake(dependents) => {
                dependents.into_iter().for_each(|uid| self.queue.add(uid));
                Ok(())
            }
        }
    }

    /// An owner that lives in another namespace is none.
    fn warn_of_namespaces(&self, node: &Node) {
        let graph = self.graph.lock();
        for owner in &node.owners {
            let elsewhere = graph.get(&owner.uid).filter(|found| found.resource.is_some()).is_some_and(|found| {
                !found.namespace.is_empty() && !node.namespace.is_empty() && found.namespace != node.namespace
            });
            if elsewhere {
                let message = invalid_namespace(owner, &node.namespace);
                self.recorder.warning(&about(node), "OwnerRefInvalidNamespace", message);
            }
        }
    }

    /// Asks the server about an owner that no watch has shown.
    async fn verify(&self, node: &Node, owner: &OwnerReference, namespace: &str) -> Result<(), ApiError> {
        let Some(resource) = self.context.resources.find(&owner.api_version, &owner.kind) else {
            let kind = format!("{} {}", owner.api_version, owner.kind);
            return Err(ApiError::internal(format!("no resource is known for the owner {kind} of {}", node.name)));
        };
        if resource.namespaced() && namespace.is_empty() {
            // A cluster-wide object can't have an owner in a namespace; nobody can say that it is gone.
            return Ok(());
        }
        let exists = match objects::get(&self.context.client, &resource, namespace, &owner.name).await {
            Ok(found) => found["metadata"]["uid"] == owner.uid.as_str(),
            Err(error) if error.is_not_found() => false,
            Err(error) => return Err(error),
        };
        if exists {
            // The watch is behind; it will bring the owner and us back here.
            return Err(ApiError::conflict(&resource.group, &resource.plural, &owner.name, "not in the cache yet"));
        }
        let look = self.graph.lock().not_found(&owner.uid);
        look.into_iter().for_each(|uid| self.queue.add(uid));
        self.queue.add(node.uid.clone());
        Ok(())
    }

    async fn drop_owners(&self, node: &Node, owners: &[String]) -> Result<(), ApiError> {
        let kept: Vec<Value> = node
            .owners
            .iter()
            .filter(|o| !owners.contains(&o.uid))
            .map(|o| reference(o, o.block_owner_deletion))
            .collect();
        self.patch(node, json!({ "ownerReferences": kept })).await
    }

    async fn remove_finalizer(&self, node: &Node, finalizer: &str) -> Result<(), ApiError> {
        let kept: Vec<_> = node.finalizers.iter().filter(|f| *f != finalizer).collect();
        self.patch(node, json!({ "finalizers": kept })).await
    }

    /// Changes metadata of the version that was judged, no other.
    async fn patch(&self, node: &Node, mut meta: Value) -> Result<(), ApiError> {
        let Some(resource) = &node.resource else { return Ok(()) };
        meta["uid"] = node.uid.clone().into();
        meta["resourceVersion"] = node.resource_version.to_string().into();
        let patch = json!({ "metadata": meta });
        objects::merge(&self.context.client, resource, &node.namespace, &node.name, &patch).await
    }
}

fn about(node: &Node) -> ObjectRef {
    ObjectRef {
        api_version: node.resource.as_ref().map(|r| r.api_version()),
        kind: node.resource.as_ref().map(|r| r.kind.clone()),
        name: Some(node.name.clone()),
        namespace: Some(node.namespace.clone()),
        uid: Some(node.uid.clone()),
        ..ObjectRef::default()
    }
}

fn invalid_namespace(owner: &OwnerReference, namespace: &str) -> String {
    let OwnerReference { api_version, kind, name, uid, .. } = owner;
    let identity = format!("[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]");
    format!("ownerRef {identity} does not exist in namespace {namespace:?}")
}

fn reference(owner: &OwnerReference, block: Option<bool>) -> Value {
    let mut reference = json!({
        "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
    });
    if let Some(controller) = owner.controller {
        reference["controller"] = controller.into();
    }
    if let Some(block) = block {
        reference["blockOwnerDeletion"] = block.into();
    }
    reference
}

#[cfg(test)]
mod tests {
    use api::{Meta, kinds};

    use super::*;

    #[test]
    fn events_say_whose_owner_is_missing_in_upstreams_words() {
        let mut graph = Graph::default();
        let meta = Meta { name: "rs".into(), namespace: Some("d".into()), uid: "u".into(), ..Meta::default() };
        graph.put(kinds::find("apps", "v1", "replicasets").unwrap(), &meta);
        let about = about(graph.get("u").unwrap());
        assert_eq!((about.api_version.as_deref(), about.kind.as_deref()), (Some("apps/v1"), Some("ReplicaSet")));
        let owner = OwnerReference {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: "web".into(),
            uid: "o".into(),
            controller: None,
            block_owner_deletion: None,
        };
        assert_eq!(
            invalid_namespace(&owner, "d"),
            "ownerRef [apps/v1/Deployment, namespace: d, name: web, uid: o] does not exist in namespace \"d\""
        );
    }
}
