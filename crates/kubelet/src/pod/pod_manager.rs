//! The pods this node is told to run, from all sources, and the mirrors of static ones.
//! Written by `sync_loop`; read by everything that needs a pod by UID or name.
//! Holds desired state only; knows nothing of what runs.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::RwLock;

use crate::pod::pod_spec;

#[derive(Default)]
struct State {
    by_uid: HashMap<String, Arc<Pod>>,
    /// By "namespace/name".
    mirrors: HashMap<String, Arc<Pod>>,
}

#[derive(Default)]
pub struct PodManager {
    state: RwLock<State>,
}

impl PodManager {
    pub fn set(&self, pod: Arc<Pod>) {
        self.state.write().by_uid.insert(pod_spec::uid(&pod).to_string(), pod);
    }

    pub fn remove(&self, uid: &str) {
        self.state.write().by_uid.remove(uid);
    }

    pub fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let state = self.state.read();
        let mut found =
            state.by_uid.values().filter(|p| pod_spec::name(p) == name && pod_spec::namespace(p) == namespace);
        found.next().cloned()
    }

    /// Every pod but the mirrors.
    pub fn list(&self) -> Vec<Arc<Pod>> {
        self.state.read().by_uid.values().cloned().collect()
    }

    pub fn contains(&self, uid: &str) -> bool {
        self.state.read().by_uid.contains_key(uid)
    }

    pub fn set_mirror(&self, pod: Arc<Pod>) {
        self.state.write().mirrors.insert(pod_spec::display(&pod), pod);
    }

    pub fn remove_mirror(&self, namespace: &str, name: &str) {
        self.state.write().mirrors.remove(&format!("{namespace}/{name}"));
    }

    pub fn mirror(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.state.read().mirrors.get(&format!("{namespace}/{name}")).cloned()
    }

    pub fn mirrors(&self) -> Vec<Arc<Pod>> {
        self.state.read().mirrors.values().cloned().collect()
    }
}
