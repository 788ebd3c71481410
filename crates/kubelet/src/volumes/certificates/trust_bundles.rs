//! The ClusterTrustBundles of the cluster, followed from the first pod that shows some.
//! Asked by `certificates`; a change wakes the pods that show any.
//! Anchors are shown each once, in an order that is another after each start, so that nobody comes to rely on it.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use api::{ApiError, Object, Resource, WatchKind, kinds, pem, selectors::LabelSelector};
use client::{Client, ListParams};
use env::Env;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ClusterTrustBundleProjection, Pod};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{sync::watch, task::JoinHandle};

use crate::pod::{pod_spec, pod_wakes::PodWakes};

const GROUP: &str = "certificates.k8s.io";
/// The first that the server has is taken.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
const FIRST_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A server that has no such kind is seldom given it.
const NOT_SERVED_RETRY_INTERVAL: Duration = Duration::from_secs(30);
const WATCH_RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum TrustBundleError {
    #[error("ClusterTrustBundle informer has not yet synced")]
    NotSynced,
    /// Upstream's words for a server that has no such kind.
    #[error("ClusterTrustBundle projection is not supported in static kubelet mode")]
    NotServed,
    #[error("while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {0:?} not found")]
    NotFound(String),
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoneMatched,
    #[error("while parsing label selector: {0}")]
    Selector(String),
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    NeitherNameNorSigner,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Bundle {
    signer: String,
    labels: BTreeMap<String, String>,
    anchors: BTreeSet<Vec<u8>>,
}

impl Bundle {
    fn read(object: &Object) -> Self {
        let value = object.value();
        let text = |field: &str| value["spec"][field].as_str().unwrap_or_default().to_string();
        let anchors = pem::blocks(&text("trustBundle")).into_iter().map(|block| block.content).collect();
        Self { signer: text("signerName"), labels: object.meta.labels.clone(), anchors }
    }
}

/// What is known: nothing yet, that the server has no such kind, or all bundles by name.
#[derive(Debug, Clone, PartialEq)]
enum Known {
    Nothing,
    NotServed,
    Bundles(BTreeMap<String, Bundle>),
}

/// The anchors that a source asks for.
fn select(
    bundles: &BTreeMap<String, Bundle>,
    source: &ClusterTrustBundleProjection,
) -> Result<BTreeSet<Vec<u8>>, TrustBundleError> {
    let optional = source.optional.unwrap_or(false);
    match (&source.name, &source.signer_name) {
        (Some(name), _) => match bundles.get(name) {
            Some(bundle) => Ok(bundle.anchors.clone()),
            None if optional => Ok(BTreeSet::new()),
            None => Err(TrustBundleError::NotFound(name.clone())),
        },
        (None, Some(signer)) => {
            let selector =
                LabelSelector::from_meta(source.label_selector.as_ref()).map_err(TrustBundleError::Selector)?;
            let fits = |bundle: &&Bundle| bundle.signer == *signer && selector.matches(&bundle.labels);
            let mut found = bundles.values().filter(fits).peekable();
            if found.peek().is_none() && !optional {
                return Err(TrustBundleError::NoneMatched);
            }
            Ok(found.flat_map(|bundle| bundle.anchors.iter().cloned()).collect())
        }
        (None, None) => Err(TrustBundleError::NeitherNameNorSigner),
    }
}

fn shuffled(anchors: BTreeSet<Vec<u8>>, seed: u64) -> String {
    let mut anchors: Vec<_> = anchors.into_iter().collect();
    anchors.sort_by_cached_key(|anchor| Sha256::new().chain_update(seed.to_be_bytes()).chain_update(anchor).finalize());
    anchors.iter().map(|anchor| pem::encode("CERTIFICATE", anchor)).collect()
}

pub struct TrustBundleManager {
    client: Client,
    env: Env,
    wakes: PodWakes,
    seed: u64,
    known: Arc<watch::Sender<Known>>,
    users: Arc<Mutex<HashSet<String>>>,
    follower: Mutex<Option<JoinHandle<()>>>,
}

impl TrustBundleManager {
    pub fn new(client: Client, env: Env, wakes: PodWakes) -> Self {
        let (known, seed) = (Arc::new(watch::Sender::new(Known::Nothing)), env.random_u64());
        Self { client, env, wakes, seed, known, users: Arc::default(), follower: Mutex::default() }
    }

    /// As PEM. Registers the pod for changes.
    pub async fn anchors(&self, pod: &Pod, source: &ClusterTrustBundleProjection) -> Result<String, TrustBundleError> {
        self.users.lock().insert(pod_spec::uid(pod).to_string());
        self.follow();
        let mut known = self.known.subscribe();
        let answer = self.env.timeout(FIRST_ANSWER_TIMEOUT, known.wait_for(|known| *known != Known::Nothing)).await;
        match answer {
            Some(Ok(known)) => match &*known {
                Known::Bundles(bundles) => Ok(shuffled(select(bundles, source)?, self.seed)),
                Known::NotServed => Err(TrustBundleError::NotServed),
                Known::Nothing => Err(TrustBundleError::NotSynced),
            },
            _ => Err(TrustBundleError::NotSynced),
        }
    }

    fn follow(&self) {
        let mut follower = self.follower.lock();
        if follower.is_none() {
            let (client, env) = (self.client.clone(), self.env.clone());
            let (known, users, wakes) = (self.known.clone(), self.users.clone(), self.wakes.clone());
            *follower = Some(self.env.spawn(Follower { client, env, known, users, wakes }.run()));
        }
    }

    pub fn forget(&self, uid: &str) {
        let mut users = self.users.lock();
        users.remove(uid);
        if users.is_empty()
            && let Some(follower) = self.follower.lock().take()
        {
            follower.abort();
            self.known.send_replace(Known::Nothing);
        }
    }
}

impl Drop for TrustBundleManager {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.lock().take() {
            follower.abort();
        }
    }
}

struct Follower {
    client: Client,
    env: Env,
    known: Arc<watch::Sender<Known>>,
    users: Arc<Mutex<HashSet<String>>>,
    wakes: PodWakes,
}

impl Follower {
    async fn run(self) {
        loop {
            if let Err(error) = self.follow().await {
                tracing::debug!(%error, "watching ClusterTrustBundles failed");
            }
            self.env.sleep(WATCH_RETRY_INTERVAL).await;
        }
    }

    async fn follow(&self) -> Result<(), ApiError> {
        let (transport, params) = (self.client.transport(), ListParams::default());
        let mut found = None;
        for version in VERSIONS {
            let resource: &Resource = kinds::find(GROUP, version, "clustertrustbundles")
                .ok_or_else(|| ApiError::internal("ClusterTrustBundle is no kind"))?;
            match transport.list(resource, None, &params).await {
                Err(error) if error.is_not_found() => {}
                answer => {
                    found = Some((resource, answer?));
                    break;
                }
            }
        }
        let Some((resource, list)) = found else {
            self.set(Known::NotServed);
            self.env.sleep(NOT_SERVED_RETRY_INTERVAL).await;
            return Ok(());
        };
        let named = |object: &Arc<Object>| (object.meta.name.clone(), Bundle::read(object));
        let mut bundles: BTreeMap<String, Bundle> = list.objects.iter().map(named).collect();
        self.set(Known::Bundles(bundles.clone()));
        let mut events = transport.watch(resource, None, &params, &list.resource_version).await?;
        while let Some(event) = events.next().await {
            let event = event?;
            match event.kind {
                WatchKind::Added | WatchKind::Modified => bundles.extend([named(&event.object)]),
                WatchKind::Deleted => drop(bundles.remove(&event.object.meta.name)),
                WatchKind::Bookmark => continue,
            }
            self.set(Known::Bundles(bundles.clone()));
        }
        Ok(())
    }

    fn set(&self, new: Known) {
        let before = self.known.send_replace(new);
        // Whoever asked first is waiting for the answer already.
        if before != Known::Nothing && before != *self.known.borrow() {
            self.users.lock().iter().for_each(|uid| self.wakes.wake(uid));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn sources_name_a_bundle_or_select_some() {
        let bundle = |signer: &str, label: &str, anchors: &[u8]| Bundle {
            signer: signer.into(),
            labels: BTreeMap::from([("env".to_string(), label.to_string())]),
            anchors: anchors.iter().map(|anchor| vec![*anchor]).collect(),
        };
        let bundles = BTreeMap::from([
            ("plain".to_string(), bundle("", "", b"a")),
            ("x:live".to_string(), bundle("x.io/x", "live", b"bc")),
            ("x:test".to_string(), bundle("x.io/x", "test", b"cd")),
        ]);
        let check = |source: Value, expected: Result<&[u8], &str>| {
            let source = serde_json::from_value(source).unwrap();
            let found = select(&bundles, &source).map_err(|e| e.to_string());
            let found = found.map(|anchors| anchors.into_iter().flatten().collect::<Vec<u8>>());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{source:?}");
        };
        check(json!({ "path": "p", "name": "plain" }), Ok(b"a"));
        check(json!({ "path": "p", "name": "x:live" }), Ok(b"bc"));
        let missing = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"none\" not found";
        check(json!({ "path": "p", "name": "none" }), Err(missing));
        check(json!({ "path": "p", "name": "none", "optional": true }), Ok(b""));
        check(json!({ "path": "p", "signerName": "x.io/x", "labelSelector": {} }), Ok(b"bcd"));
        let live = json!({ "matchLabels": { "env": "live" } });
        check(json!({ "path": "p", "signerName": "x.io/x", "labelSelector": live }), Ok(b"bc"));
        let none = "combination of signerName and labelSelector matched zero ClusterTrustBundles";
        // Without a selector nothing is selected, as upstream has it.
        check(json!({ "path": "p", "signerName": "x.io/x" }), Err(none));
        check(json!({ "path": "p", "signerName": "y.io/y", "labelSelector": {} }), Err(none));
        check(json!({ "path": "p", "signerName": "y.io/y", "labelSelector": {}, "optional": true }), Ok(b""));
        let neither = "ClusterTrustBundle projection requires either name or signerName to be set";
        check(json!({ "path": "p" }), Err(neither));
    }

    #[test]
    fn the_order_follows_the_seed() {
        let anchors: BTreeSet<Vec<u8>> = (0..20).map(|n| vec![n]).collect();
        let shown = |seed| shuffled(anchors.clone(), seed);
        assert_eq!(shown(1), shown(1));
        assert_ne!(shown(1), shown(2));
        let back: BTreeSet<Vec<u8>> = pem::blocks(&shown(3)).into_iter().map(|block| block.content).collect();
        assert_eq!(back, anchors);
    }
}
