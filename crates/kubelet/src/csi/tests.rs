//! Volumes through a driver: what it is asked, what is left when it fails, hangs, restarts or goes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api::ApiError;
use client::Client;
use env::Env;
use http::Method;
use k8s_openapi::api::{core::v1::Pod, storage::v1::CSIDriver};
use metrics::Metrics;
use node_plugins::registration::{PluginHandler, plugin_watcher::PluginWatcher};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tonic::Code;

use super::{
    messages::{AccessType, capability},
    mounter::{CsiManager, DriverObjects, MountRequest},
    registration::CsiPluginHandler,
    test_driver::{NAME, TestDriver},
    volume::CsiVolume,
};
use crate::{
    Config,
    files::file_work::FileWork,
    test_api::ScriptedApi,
    volumes::{error::VolumeError, plugin::Spec},
};

/// How long a busy machine may take for what must happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
const HANG_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

pub(super) struct Fixture {
    pub directory: tempfile::TempDir,
    pub driver: TestDriver,
    driver_object: Value,
    pub objects: Objects,
}

/// The least of an API server: objects by path.
pub(super) fn api(objects: &Objects) -> Client {
    let objects = objects.clone();
    let answer = move |request: http::Request<bytes::Bytes>| {
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let path = request.uri().path().to_string();
        let mut objects = objects.lock();
        match *request.method() {
            Method::POST => {
                let place = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
                objects.insert(place, body.clone());
                Ok(body)
            }
            Method::PUT => {
                objects.insert(path, body.clone());
                Ok(body)
            }
            Method::PATCH => {
                let found = objects.get_mut(&path).ok_or_else(|| ApiError::not_found("", "x", &path))?;
                for part in ["labels", "annotations"] {
                    for (key, value) in body["metadata"][part].as_object().into_iter().flatten() {
                        found["metadata"][part][key] = value.clone();
                    }
                }
                Ok(found.clone())
            }
            _ => objects.get(&path).cloned().ok_or_else(|| ApiError::not_found("", "x", &path)),
        }
    };
    Client::new(ScriptedApi(answer))
}

impl Fixture {
    pub fn new(capabilities: &[i32], driver_object: Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let driver = TestDriver::new(capabilities);
        driver.0.lock().endpoint = directory.path().join("csi.sock").to_string_lossy().into_owned();
        Self { directory, driver, driver_object, objects: Objects::default() }
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap()
    }

    /// As after a start of the kubelet.
    pub fn manager(&self) -> CsiManager {
        let env = Env::real();
        let config = Config { node_name: "n".into(), root_dir: self.root(), ..Config::default() };
        let object = json!({"metadata": {"name": NAME}, "spec": self.driver_object});
        let object: Arc<CSIDriver> = Arc::new(serde_json::from_value(object).unwrap());
        let find = Box::new(move |name: &str| (name == NAME).then(|| object.clone()));
        let objects = DriverObjects { find, synced: Box::new(|| Box::pin(async {})) };
        let files = FileWork::new(env.clone());
        let manager = CsiManager::new(api(&self.objects), env, &config, objects, files, Metrics::default());
        manager.with_call_timeout(HANG_TIMEOUT)
    }

    pub fn serving(&self) -> (CsiManager, tokio::task::JoinHandle<()>) {
        let socket = self.directory.path().join("csi.sock");
        let task = self.driver.serve(&socket);
        let manager = self.manager();
        manager.register(NAME, &socket.to_string_lossy()).unwrap();
        (manager, task)
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root().join("pods").join(uid).join("volumes/kubernetes.io~csi")
    }
}

pub(super) fn pod(uid: &str) -> Pod {
    let spec = json!({"containers": [], "serviceAccountName": "account"});
    serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "d", "uid": uid}, "spec": spec})).unwrap()
}

pub(super) fn volume(spec: Value) -> CsiVolume {
    let mut volume = json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "csi": {"driver": NAME, "volumeHandle": "h", "volumeAttributes": {"tier": "gold"}}}});
    spec.as_object().unwrap().iter().for_each(|(key, value)| volume["spec"][key] = value.clone());
    let volume = serde_json::from_value(volume).unwrap();
    CsiVolume::new(Spec::Persistent { volume: &volume, read_only: false }, &Pod::default()).unwrap()
}

pub(super) fn request(pod: &Pod, volume: CsiVolume) -> MountRequest<'_> {
    MountRequest {
        pod,
        volume,
        fs_group: None,
        only_when_root_differs: false,
        tokens: None,
        is_remount: false,
        ownership: Arc::default(),
        selinux_label: None,
    }
}

pub(super) async fn mount(manager: &CsiManager, uid: &str) -> Result<PathBuf, VolumeError> {
    manager.mount(&request(&pod(uid), volume(json!({})))).await
}

pub(super) async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let end = env::instant_now() + TEST_TIMEOUT;
    while !done() {
        assert!(env::instant_now() < end, "{what}");
        env::sleep(Duration::from_millis(10)).await;
    }
}

fn staging_exists(root: &Path) -> bool {
    let of_driver = root.join("plugins/kubernetes.io/csi").join(NAME);
    std::fs::read_dir(of_driver).is_ok_and(|mut entries| entries.next().is_some())
}

#[tokio::test]
async fn a_volume_is_staged_once_and_unstaged_after_its_last_pod_also_across_a_restart() {
    let f = Fixture::new(&[capability::STAGE_UNSTAGE_VOLUME], json!({"attachRequired": false}));
    let (manager, _driver) = f.serving();
    let path = mount(&manager, "one").await.unwrap();
    assert_eq!(path, f.pod_dir("one").join("pv/mount"));
    mount(&manager, "two").await.unwrap();
    f.driver.calls();
    drop(manager);

    let (manager, _again) = f.serving();
    assert_eq!(manager.volumes_in_use().len(), 1, "it may have been attached");
    manager.unstage_unused(NAME).await.unwrap();
    mount(&manager, "two").await.unwrap();
    assert!(manager.volumes_in_use().is_empty(), "the driver attaches nothing");
    f.driver.calls();
    manager.unmount_pod("one").await.unwrap();
    assert_eq!(f.driver.calls(), ["NodeUnpublishVolume"], "pod two still has it");
    assert!(!f.pod_dir("one").join("pv").exists() && staging_exists(&f.root()));
    manager.unmount_pod("two").await.unwrap();
    assert_eq!(f.driver.calls(), ["NodeUnpublishVolume", "NodeUnstageVolume"]);
    assert!(!staging_exists(&f.root()));
    manager.unmount_pod("two").await.unwrap();
    assert!(f.driver.calls().is_empty() && f.driver.0.lock().staged.is_empty());
}

#[tokio::test]
async fn what_a_driver_refuses_leaves_nothing_and_what_is_unclear_is_taken_down_by_it() {
    let f = Fixture::new(&[capability::STAGE_UNSTAGE_VOLUME], json!({"attachRequired": false}));
    let (manager, _driver) = f.serving();
    f.driver.fail("NodeStageVolume", &[Some(Code::Internal)]);
    let error = mount(&manager, "one").await.unwrap_err().to_string();
    assert_eq!(error, "rpc error: code = Internal desc = NodeStageVolume fails");
    assert!(!staging_exists(&f.root()));
    f.driver.fail("NodePublishVolume", &[Some(Code::InvalidArgument)]);
    mount(&manager, "one").await.unwrap_err();
    assert!(!f.pod_dir("one").join("pv").exists());
    // The driver may have done it: nothing is forgotten.
    for answer in [None, Some(Code::Unavailable)] {
        f.driver.fail("NodePublishVolume", &[answer]);
        let error = mount(&manager, "one").await.unwrap_err().to_string();
        assert!(error.contains("DeadlineExceeded") || error.contains("Unavailable"), "{error}");
        assert!(f.pod_dir("one").join("pv/vol_data.json").exists());
    }
    f.driver.calls();
    f.driver.fail("NodeUnpublishVolume", &[Some(Code::Internal)]);
    manager.unmount_pod("one").await.unwrap_err();
    assert!(f.pod_dir("one").join("pv/vol_data.json").exists() && staging_exists(&f.root()));
    manager.unmount_pod("one").await.unwrap();
    assert_eq!(f.driver.calls(), ["NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]);
    manager.unregister(NAME);
    let error = mount(&manager, "one").await.unwrap_err().to_string();
    assert!(error.contains("not found in the list of registered CSI drivers"), "{error}");
}

#[tokio::test]
async fn the_driver_hears_what_its_object_asks_for() {
    let wanted = json!({"attachRequired": false, "podInfoOnMount": true, "serviceAccountTokenInSecrets": true,
        "tokenRequests": [{"audience": "vault"}]});
    let has = [capability::VOLUME_MOUNT_GROUP, capability::SINGLE_NODE_MULTI_WRITER];
    let f = Fixture::new(&has, wanted);
    let secret = json!({"metadata": {"name": "s"}, "data": {"key": "dmFsdWU="}});
    f.objects.lock().insert("/api/v1/namespaces/ns/secrets/s".into(), secret);
    let (manager, _driver) = f.serving();
    let source = json!({"driver": NAME, "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": {"tier": "gold"},
        "nodePublishSecretRef": {"name": "s", "namespace": "ns"}});
    let volume = volume(json!({"csi": source, "mountOptions": ["noatime"]}));
    assert_eq!(manager.tokens_wanted(&volume)[0].audience, "vault");
    let pod = pod("one");
    let request = MountRequest { fs_group: Some(2000), tokens: Some("{\"vault\":{}}".into()), ..request(&pod, volume) };
    manager.mount(&request).await.unwrap();
    let asked = f.driver.0.lock().last_publish.clone();
    assert_eq!(asked.volume_context["csi.storage.k8s.io/pod.uid"], "one");
    assert_eq!(asked.volume_context["csi.storage.k8s.io/serviceAccount.name"], "account");
    assert_eq!(asked.volume_context["tier"], "gold");
    assert!(!asked.volume_context.contains_key("csi.storage.k8s.io/serviceAccount.tokens"));
    assert_eq!(asked.secrets["csi.storage.k8s.io/serviceAccount.tokens"], "{\"vault\":{}}");
    assert_eq!(asked.secrets["key"], "value");
    assert_eq!(asked.staging_target_path, "");
    let able = asked.volume_capability.unwrap();
    assert_eq!(able.access_mode.unwrap().mode, 7);
    let Some(AccessType::Mount(mounted)) = able.access_type else { panic!("no file system") };
    assert_eq!((mounted.volume_mount_group.as_str(), mounted.mount_flags), ("2000", vec!["noatime".to_string()]));
}

#[tokio::test]
async fn an_attachment_is_waited_for_and_its_failure_told() {
    let f = Fixture::new(&[], json!({}));
    let (manager, _driver) = f.serving();
    let place = format!("/apis/storage.k8s.io/v1/volumeattachments/{}", volume(json!({})).device().attachment("n"));
    let attachment = |status: Value| {
        let spec = json!({"attacher": NAME, "nodeName": "n", "source": {"persistentVolumeName": "pv"}});
        json!({"metadata": {"name": "a"}, "spec": spec, "status": status})
    };
    f.objects
        .lock()
        .insert(place.clone(), attachment(json!({"attached": false, "attachError": {"message": "no way"}})));
    let error = mount(&manager, "one").await.unwrap_err().to_string();
    assert!(error.contains("no way"), "{error}");
    assert_eq!(manager.volumes_in_use(), [format!("kubernetes.io/csi/{NAME}^h")]);
    f.objects.lock().insert(place.clone(), attachment(json!({"attached": false})));
    let objects = f.objects.clone();
    let later = async {
        env::sleep(Duration::from_millis(50)).await;
        let done = json!({"attached": true, "attachmentMetadata": {"device": "sdx"}});
        objects.lock().insert(place, attachment(done));
    };
    let (mounted, ()) = tokio::join!(mount(&manager, "one"), later);
    mounted.unwrap();
    assert_eq!(f.driver.0.lock().last_publish.publish_context["device"], "sdx");
    manager.unmount_pod("one").await.unwrap();
    assert!(manager.volumes_in_use().is_empty());
}

#[tokio::test]
async fn block_volumes_are_published_beside_their_pods() {
    let f = Fixture::new(&[capability::STAGE_UNSTAGE_VOLUME], json!({"attachRequired": false}));
    let (manager, _driver) = f.serving();
    let pod = pod("one");
    let path = manager.mount(&request(&pod, volume(json!({"volumeMode": "Block"})))).await.unwrap();
    assert_eq!(path, f.root().join("plugins/kubernetes.io/csi/volumeDevices/publish/pv/one"));
    let capability = f.driver.0.lock().last_stage.volume_capability.clone().unwrap();
    assert!(matches!(capability.access_type, Some(AccessType::Block(_))));
    drop(manager);
    let (manager, _again) = f.serving();
    manager.unmount_pod("one").await.unwrap();
    let state = f.driver.0.lock();
    assert!(!path.exists() && state.published.is_empty() && state.staged.is_empty());
}

#[tokio::test]
async fn drivers_come_go_and_come_back_elsewhere() {
    let f = Fixture::new(&[], json!({"attachRequired": false}));
    f.driver.0.lock().topology = BTreeMap::from([("topology.example.com/zone".to_string(), "z".to_string())]);
    let node = json!({"metadata": {"name": "n", "uid": "u", "labels": {}, "annotations": {}}});
    f.objects.lock().insert("/api/v1/nodes/n".into(), node);
    let registry = f.root().join("plugins_registry");
    std::fs::create_dir(&registry).unwrap();
    let csi = Arc::new(f.manager());
    let handler: Arc<dyn PluginHandler> = Arc::new(CsiPluginHandler {
        client: api(&f.objects),
        env: Env::real(),
        node_name: "n".into(),
        csi: csi.clone(),
    });
    let watcher = PluginWatcher::new(Env::real(), registry.clone(), [("CSIPlugin", handler)].into());
    let running = env::spawn(Arc::new(watcher).run());
    let drivers = || {
        let objects = f.objects.lock();
        objects
            .get("/apis/storage.k8s.io/v1/csinodes/n")
            .map(|node| node["spec"]["drivers"].clone())
            .unwrap_or_default()
    };
    let socket = registry.join("driver-reg.sock");
    f.driver.fail("NodeGetInfo", &[Some(Code::Unavailable)]);
    f.driver.0.lock().endpoint = socket.to_string_lossy().into_owned();
    let serving = f.driver.serve(&socket);
    eventually("the driver is registered", || f.driver.0.lock().registration.iter().any(|r| r.plugin_registered)).await;
    assert!(!f.driver.0.lock().registration[0].plugin_registered, "the first try fails and is told");
    let entry = json!([{"name": NAME, "nodeID": "node-id", "topologyKeys": ["topology.example.com/zone"],
        "allocatable": {"count": 7}}]);
    assert_eq!(drivers(), entry);
    let node = f.objects.lock()["/api/v1/nodes/n"].clone();
    assert_eq!(node["metadata"]["labels"]["topology.example.com/zone"], "z");
    mount(&csi, "one").await.unwrap();

    serving.abort();
    std::fs::remove_file(&socket).unwrap();
    eventually("the driver is forgotten", || drivers() == json!([])).await;
    csi.unmount_pod("one").await.unwrap_err();

    let other = registry.join("other-reg.sock");
    f.driver.0.lock().endpoint = other.to_string_lossy().into_owned();
    let _again = f.driver.serve(&other);
    eventually("the driver is back", || drivers() == entry).await;
    csi.unmount_pod("one").await.unwrap();
    assert!(f.driver.0.lock().published.is_empty());
    running.abort();
}
