//! The ConfigMaps and Secrets that pods of this node name, each watched on its own for as long as a pod names it.
//! Read by `pod_workers` and `volume_manager`; a change wakes the pods concerned.
//! Never lists or watches objects that no pod of this node names.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use api::{ApiError, Object, Resource, WatchKind, kinds};
use client::{Client, ListParams};
use env::Env;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{payload::ObjectKind, plugin::ObjectNames, plugins::PLUGINS};
use crate::{
    pod::{pod_spec, pod_wakes::PodWakes},
    runtime::container_config::environment::{self, References},
};

#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    #[error("failed to sync {kind} cache: timed out waiting for {name:?}")]
    TimedOut { kind: ObjectKind, name: String },
    #[error(transparent)]
    Decode(#[from] ApiError),
}

/// The ConfigMaps and Secrets that a pod names anywhere.
pub fn referenced(pod: &Pod) -> ObjectNames {
    let mut names = ObjectNames::default();
    for (volume, plugin) in PLUGINS.of_pod(pod) {
        plugin.add_referenced(volume, &mut names);
    }
    let ephemeral = pod_spec::ephemeral_containers(pod);
    for container in pod_spec::containers(pod).iter().chain(pod_spec::init_containers(pod)).chain(&ephemeral) {
        let (config_maps, secrets) = environment::referenced(container);
        names.config_maps.extend(config_maps.into_iter().map(String::from));
        names.secrets.extend(secrets.into_iter().map(String::from));
    }
    for list in [&mut names.config_maps, &mut names.secrets] {
        list.sort();
        list.dedup();
        list.retain(|name| !name.is_empty());
    }
    names
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    kind: ObjectKind,
    namespace: String,
    name: String,
}

/// What is known of an object: nothing yet, that there is none, or its newest version.
type Known = Option<Option<Arc<Object>>>;

struct Entry {
    /// UIDs of the pods that name it.
    users: HashSet<String>,
    known: watch::Receiver<Known>,
    task: tokio::task::JoinHandle<()>,
}

pub struct ReferencedObjects {
    client: Client,
    env: Env,
    entries: Arc<Mutex<HashMap<Key, Entry>>>,
    /// Told of pods whose objects changed.
    wakes: PodWakes,
}

/// How long a pod waits for the first answer about its objects.
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const WATCH_RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl ReferencedObjects {
    pub fn new(client: Client, env: Env, wakes: PodWakes) -> Self {
        Self { client, env, entries: Arc::default(), wakes }
    }

    /// Everything the pod names, as it is now. Registers the pod for changes.
    pub async fn get(&self, pod: &Pod) -> Result<References, ReferenceError> {
        let names = referenced(pod);
        let mut references = References::default();
        // All are asked for before any is waited for.
        let register = |kind, names: Vec<String>| -> Vec<_> {
            names.into_iter().map(|name| (self.register(pod, kind, &name), name)).collect()
        };
        let config_maps = register(ObjectKind::ConfigMap, names.config_maps);
        let secrets = register(ObjectKind::Secret, names.secrets);
        for (known, name) in config_maps {
            let object = self.wait(known, ObjectKind::ConfigMap, &name).await?;
            references.config_maps.insert(name, object.map(|o| o.typed::<ConfigMap>()).transpose()?);
        }
        for (known, name) in secrets {
            let object = self.wait(known, ObjectKind::Secret, &name).await?;
            references.secrets.insert(name, object.map(|o| o.typed::<Secret>()).transpose()?);
        }
        Ok(references)
    }

    /// One Secret of the pod's namespace, for pulling images.
    pub async fn secret(&self, pod: &Pod, name: &str) -> Result<Option<Arc<Secret>>, ReferenceError> {
        let known = self.register(pod, ObjectKind::Secret, name);
        let object = self.wait(known, ObjectKind::Secret, name).await?;
        Ok(object.map(|o| o.typed::<Secret>()).transpose()?)
    }

    async fn wait(
        &self,
        mut known: watch::Receiver<Known>,
        kind: ObjectKind,
        name: &str,
    ) -> Result<Option<Arc<Object>>, ReferenceError> {
        let answer = self.env.timeout(FIRST_ANSWER_TIMEOUT, known.wait_for(Option::is_some)).await;
        match answer {
            Some(Ok(value)) => Ok(value.clone().flatten()),
            _ => Err(ReferenceError::TimedOut { kind, name: name.into() }),
        }
    }

    fn register(&self, pod: &Pod, kind: ObjectKind, name: &str) -> watch::Receiver<Known> {
        let key = Key { kind, namespace: pod_spec::namespace(pod).into(), name: name.into() };
        let mut entries = self.entries.lock();
        let entry = entries.entry(key.clone()).or_insert_with(|| {
            let (sender, known) = watch::channel(None);
            let follower = Follower {
                client: self.client.clone(),
                env: self.env.clone(),
                key,
                sender,
                entries: self.entries.clone(),
                wakes: self.wakes.clone(),
            };
            Entry { users: HashSet::new(), known, task: self.env.spawn(follower.run()) }
        });
        entry.users.insert(pod_spec::uid(pod).to_string());
        entry.known.clone()
    }

    pub fn stop_all(&self) {
        for (_, entry) in self.entries.lock().drain() {
            entry.task.abort();
        }
    }

    /// The pod is gone: what only it named is no longer watched.
    pub fn forget(&self, uid: &str) {
        self.entries.lock().retain(|_, entry| {
            entry.users.remove(uid);
            if entry.users.is_empty() {
                entry.task.abort();
            }
            !entry.users.is_empty()
        });
    }
}

/// Follows one object.
struct Follower {
    client: Client,
    env: Env,
    key: Key,
    sender: watch::Sender<Known>,
    entries: Arc<Mutex<HashMap<Key, Entry>>>,
    wakes: PodWakes,
}

impl Follower {
    async fn run(self) {
        loop {
            if let Err(error) = self.follow().await {
                tracing::debug!(name = self.key.name, %error, "watching a referenced object failed");
            }
            self.env.sleep(WATCH_RETRY_INTERVAL).await;
        }
    }

    fn resource(&self) -> &'static Resource {
        match self.key.kind {
            ObjectKind::ConfigMap => kinds::resource_of::<ConfigMap>(),
            ObjectKind::Secret => kinds::resource_of::<Secret>(),
        }
    }

    async fn follow(&self) -> Result<(), ApiError> {
        let params = ListParams::fields(format!("metadata.name={}", self.key.name));
        let (resource, namespace) = (self.resource(), Some(self.key.namespace.as_str()));
        let transport = self.client.transport();
        let list = transport.list(resource, namespace, &params).await?;
        self.set(list.objects.into_iter().next());
        let mut events = transport.watch(resource, namespace, &params, &list.resource_version).await?;
        while let Some(event) = events.next().await {
            let event = event?;
            match event.kind {
                WatchKind::Added | WatchKind::Modified => self.set(Some(event.object)),
                WatchKind::Deleted => self.set(None),
                WatchKind::Bookmark => {}
            }
        }
        Ok(())
    }

    fn set(&self, object: Option<Arc<Object>>) {
        let version = |o: &Option<Arc<Object>>| o.as_ref().map(|o| o.json().clone());
        let before = self.sender.borrow().clone();
        if before.as_ref().is_some_and(|old| version(old) == version(&object)) {
            return;
        }
        let first = before.is_none();
        let _ = self.sender.send(Some(object));
        if first {
            // Whoever asked is waiting for the answer already.
            return;
        }
        let entries = self.entries.lock();
        for uid in entries.get(&self.key).iter().flat_map(|entry| &entry.users) {
            self.wakes.wake(uid);
        }
    }
}
