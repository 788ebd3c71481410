//! Which owners a change of a dependent wakes: of a Pod its ReplicaSet, of a ReplicaSet its Deployment.
//! Used by the controllers of workloads; who belongs to whom is decided in `ownership`.

use client::{Change, Informer};
use k8s_openapi::Resource;
use serde::de::DeserializeOwned;

use super::{
    indexes,
    meta::{self, Object},
};
use crate::runner::Queue;

/// The key of the object's controller, where that is of kind `O`.
pub fn owner_key<O: Resource>(object: &impl Object) -> Option<String> {
    let owner = object.controller().filter(|owner| owner.kind == O::KIND)?;
    Some(meta::key(object.namespace(), &owner.name))
}

/// The controllers of kind `O` that the object had before the change and has after it.
pub fn owners<O: Resource>(change: &Change<impl Object>) -> Vec<String> {
    let mut owners: Vec<String> =
        change.old.iter().chain(&change.new).filter_map(|object| owner_key::<O>(&**object)).collect();
    owners.dedup();
    owners
}

/// Adds the keys of those; and where the object is an orphan, of all owners in its namespace that select it.
pub fn wake_owners<O, K>(change: &Change<K>, queue: &Queue, informer: &Informer<O>, selects: impl Fn(&O, &K) -> bool)
where
    O: Object + DeserializeOwned + Send + Sync + 'static,
    K: Object,
{
    owners::<O>(change).into_iter().for_each(|owner| queue.add(owner));
    let Some(orphan) = change.new.as_deref().filter(|new| new.controller().is_none() && !new.deleting()) else {
        return;
    };
    for owner in informer.by_index(indexes::NAMESPACE, orphan.namespace()) {
        if selects(&owner, orphan) {
            queue.add(owner.key());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
    use serde_json::json;

    use super::*;

    #[test]
    fn who_had_it_and_who_has_it() {
        let pod = |owner: Option<(&str, &str)>| {
            let owners: Vec<_> = owner
                .map(|(kind, name)| json!({ "apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true }))
                .into_iter()
                .collect();
            let pod = json!({ "metadata": { "name": "p", "namespace": "d", "ownerReferences": owners } });
            Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
        };
        let check = |old: Option<Arc<Pod>>, new: Option<Arc<Pod>>, expected: &[&str]| {
            assert_eq!(owners::<DaemonSet>(&Change { key: "d/p".into(), old, new }), expected);
        };
        let (mine, other) = (pod(Some(("DaemonSet", "mine"))), pod(Some(("DaemonSet", "other"))));
        check(None, Some(mine.clone()), &["d/mine"]);
        check(Some(mine.clone()), Some(mine.clone()), &["d/mine"]);
        check(Some(mine.clone()), Some(other), &["d/mine", "d/other"]);
        check(Some(mine.clone()), Some(pod(None)), &["d/mine"]);
        check(Some(mine), None, &["d/mine"]);
        check(None, Some(pod(Some(("ReplicaSet", "mine")))), &[]);
    }
}
