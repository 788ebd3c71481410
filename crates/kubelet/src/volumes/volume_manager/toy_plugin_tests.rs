//! A volume type of a test's own: one file and one row are all it takes.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::{
    csi::mounter::{CsiManager, DriverObjects},
    test_api::UnreachableApi,
    volumes::plugin::SetUp,
};

/// Shows the address of a gitRepo volume in a file.
struct ToyPlugin;

impl VolumePlugin for ToyPlugin {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn can_support(&self, spec: Spec) -> bool {
        spec.inline().is_some_and(|volume| volume.git_repo.is_some())
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let source = spec.inline().and_then(|volume| volume.git_repo.clone()).unwrap_or_default();
        let path = context.volume_dir(self, context.volume_name);
        Ok(Box::new(move || {
            MOUNTS.fetch_add(1, Ordering::SeqCst);
            std::fs::create_dir_all(&path)?;
            std::fs::write(path.join("repository"), source.repository)?;
            Ok(SetUp::at(path))
        }))
    }
}

static MOUNTS: AtomicU32 = AtomicU32::new(0);
static WITH_TOY: VolumePlugins = VolumePlugins(&[&ToyPlugin]);

fn manager(root: &Path) -> VolumeManager {
    let env = Env::real();
    let client = Client::new(UnreachableApi);
    let recorder = EventRecorder::new(client.clone(), env.clone(), "kubelet", "n");
    let config = Config { root_dir: root.into(), ..Config::default() };
    let node = Arc::new(Mutex::default());
    let files = FileWork::new(env.clone());
    let csi = CsiManager::new(
        client.clone(),
        env.clone(),
        &config,
        DriverObjects { find: Box::new(|_| None), synced: Box::new(|| Box::pin(async {})) },
        files.clone(),
        Metrics::default(),
    );
    let csi = Arc::new(csi);
    let manager = VolumeManager::new(client, env, &config, node, recorder, Metrics::default(), files, csi);
    VolumeManager { plugins: WITH_TOY, ..manager }
}

fn pod(source: Value) -> Pod {
    let mut volume = source;
    volume["name"] = "v".into();
    serde_json::from_value(json!({"metadata": {"uid": "u"}, "spec": {"containers": [], "volumes": [volume]}})).unwrap()
}

#[tokio::test]
async fn a_volume_type_is_one_file_and_one_row() {
    let root = tempfile::tempdir().unwrap();
    let manager = manager(root.path());
    let references = References::default();
    let facts = MountFacts { references: &references, pod_ips: &[], host_ips: &[], node: NodeFacts::default() };
    let toy = pod(json!({"gitRepo": {"repository": "there"}}));
    let place: PathBuf = root.path().join("pods/u/volumes/kubernetes.io~toy/v");
    // What is mounted stays as it is.
    for _ in 0..2 {
        let mounted = manager.set_up(&toy, &facts).await.unwrap();
        assert_eq!(mounted.paths, BTreeMap::from([("v".to_string(), place.clone())]));
    }
    assert_eq!(MOUNTS.load(Ordering::SeqCst), 1);
    assert_eq!(std::fs::read_to_string(place.join("repository")).unwrap(), "there");
    assert!(WITH_TOY.is_read_only(&toy, "v"));
    manager.tear_down("u").await.unwrap();
    assert!(!place.exists() && manager.paths("u").is_empty());
    manager.set_up(&toy, &facts).await.unwrap();
    assert_eq!(MOUNTS.load(Ordering::SeqCst), 2);

    manager.tear_down("u").await.unwrap();
    let unknown = manager.set_up(&pod(json!({"emptyDir": {}})), &facts).await.err().unwrap();
    assert_eq!(unknown.event_reason(), "FailedMount");
    let message = "MountVolume.SetUp failed for volume \"v\" : no volume plugin matched name: emptyDir";
    assert_eq!(unknown.to_string(), message);
}

#[test]
fn a_persistent_volume_of_an_unknown_type_is_refused() {
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"glusterfs": {"endpoints": "e", "path": "/"}}});
    let volume = serde_json::from_value(volume).unwrap();
    let spec = Spec::Persistent { volume: &volume, read_only: false };
    assert!(PLUGINS.find(spec).is_none());
    assert_eq!(no_plugin(spec).to_string(), "PV pv has a source that this node does not support");
}
