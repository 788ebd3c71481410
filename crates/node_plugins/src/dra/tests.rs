//! Claims with the example driver over real sockets: preparing, sharing, faults, restarts, drivers that go.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::ApiError;
use bytes::Bytes;
use client::{Client, ListParams, ObjectList, Transport, WatchStream};
use env::Env;
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::Pod;
use metrics::Metrics;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tonic::Code;

use super::{drivers::DraDrivers, manager::DraManager, messages::SERVICES};
use crate::{HealthListener, example::dra_driver::ExampleDraDriver};

const DRIVER: &str = "driver.example.com";
const HANG_TIMEOUT: Duration = Duration::from_secs(3);

/// Objects by path; what was deleted by collection is kept.
#[derive(Clone, Default)]
struct Objects {
    found: Arc<Mutex<BTreeMap<String, Value>>>,
    wiped: Arc<Mutex<Vec<String>>>,
}

#[async_trait::async_trait]
impl Transport for Objects {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ApiError> {
        let path = request.uri().path().to_string();
        if request.method() == Method::DELETE {
            self.wiped.lock().push(request.uri().query().unwrap_or_default().into());
            return Ok(Response::new(Bytes::from("{}")));
        }
        let found = self.found.lock().get(&path).cloned();
        let found = found.ok_or_else(|| ApiError::not_found("resource.k8s.io", "resourceclaims", &path))?;
        Ok(Response::new(Bytes::from(found.to_string())))
    }

    async fn list(&self, _: &api::Resource, _: Option<&str>, _: &ListParams) -> Result<ObjectList, ApiError> {
        Err(ApiError::internal("not listed"))
    }

    async fn watch(
        &self,
        _: &api::Resource,
        _: Option<&str>,
        _: &ListParams,
        _: &str,
    ) -> Result<WatchStream, ApiError> {
        Err(ApiError::internal("not watched"))
    }
}

impl Objects {
    /// An allocated claim that these pods may use.
    fn add(&self, name: &str, uid: &str, pods: &[&str]) {
        let reserved: Vec<Value> =
            pods.iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid})).collect();
        let result = json!({"driver": DRIVER, "pool": "files", "device": name, "request": "r"});
        let status = json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved});
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "n", "uid": uid}, "spec": {}, "status": status});
        self.found.lock().insert(format!("/apis/resource.k8s.io/v1/namespaces/n/resourceclaims/{name}"), claim);
    }
}

fn pod(uid: &str, claims: &[&str]) -> Pod {
    let named: Vec<Value> = claims.iter().map(|name| json!({"name": name, "resourceClaimName": name})).collect();
    let used: Vec<Value> = claims.iter().map(|name| json!({"name": name})).collect();
    let container = json!({"name": "main", "resources": {"claims": used}});
    let spec = json!({"containers": [container], "resourceClaims": named});
    serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "n", "uid": uid}, "spec": spec})).unwrap()
}

struct Node {
    root: tempfile::TempDir,
    objects: Objects,
    manager: DraManager,
    /// The pods that were told of another health of their devices.
    told: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Node {
    fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), Objects::default())
    }

    fn start_in(root: tempfile::TempDir, objects: Objects) -> Self {
        let client = Client::new(objects.clone());
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let listener: HealthListener = {
            let told = told.clone();
            Arc::new(move |uid: &str| told.lock().push(uid.to_string()))
        };
        let (env, metrics) = (Env::real(), Metrics::default());
        let manager = DraManager::open(client, env, metrics, root.path(), "node", Some(listener));
        let manager = manager.with_call_timeout(HANG_TIMEOUT);
        let task = env::spawn(manager.drivers().clone().run());
        Self { root, objects, manager, told, task }
    }

    fn restart(self) -> Self {
        self.task.abort();
        Self::start_in(self.root, self.objects)
    }

    fn driver(&self) -> ExampleDraDriver {
        ExampleDraDriver::new(DRIVER, &["v1.DRAPlugin"], &self.root.path().join("cdi"))
    }

    async fn plug(&self, driver: &ExampleDraDriver, service: &str) -> JoinHandle<()> {
        let socket = self.root.path().join("driver.sock");
        let (serving, path) = (driver.clone(), socket.clone());
        let task = env::spawn(async move { serving.serve(&path).await.unwrap() });
        until("the driver's socket", || socket.exists()).await;
        self.manager.drivers().add(DRIVER, &socket.to_string_lossy(), &[service.into()]).unwrap();
        task
    }

    async fn prepare(&self, pod: &Pod) -> Result<Vec<String>, String> {
        self.manager.prepare(pod, true).await.map_err(|error| error.to_string())?;
        self.devices(pod)
    }

    fn devices(&self, pod: &Pod) -> Result<Vec<String>, String> {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        self.manager.cdi_devices(pod, container).map_err(|error| error.to_string())
    }
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        env::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not come");
}

#[tokio::test]
async fn claims_are_prepared_once_and_unprepared_after_the_last_pod() {
    for service in &SERVICES {
        let node = Node::start();
        let driver = node.driver();
        node.plug(&driver, service.name).await;
        node.objects.add("a", "ua", &["1"]);
        node.objects.add("b", "ub", &["1", "2"]);
        let (one, two) = (pod("1", &["a", "b"]), pod("2", &["b"]));
        let devices = ["driver.example.com/file=ua", "driver.example.com/file=ub"];
        assert_eq!(node.prepare(&one).await.unwrap(), devices);
        assert_eq!(node.prepare(&two).await.unwrap(), devices[1..]);
        let told = node.manager.dynamic_resources(&two, &two.spec.as_ref().unwrap().containers[0]);
        assert_eq!((&*told[0].claim_name, &*told[0].claim_resources[0].pool_name), ("b", "files"));
        node.manager.unprepare("1").await.unwrap();
        assert!(driver.calls.lock().prepared.iter().eq(["ub"]));
        node.manager.unprepare("2").await.unwrap();
        node.manager.unprepare("2").await.unwrap();
        let expected = ["NodePrepareResources a,b", "NodeUnprepareResources a", "NodeUnprepareResources b"];
        assert_eq!(driver.calls.lock().made, expected);
    }
}

#[tokio::test]
async fn pods_wait_for_what_is_not_there() {
    let node = Node::start();
    let driver = node.driver();
    let one = pod("1", &["a"]);
    let check = async |expected: &str| {
        let refused = node.prepare(&one).await.unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    };
    check("fetch ResourceClaim a: ").await;
    node.objects.add("a", "ua", &["2"]);
    check("pod 1 (1) is not allowed to use ResourceClaim a (ua)").await;
    node.objects.add("a", "ua", &["1"]);
    check("DRA driver driver.example.com is not registered").await;
    node.manager.unprepare("1").await.unwrap();
    node.plug(&driver, "v1.DRAPlugin").await;
    driver.calls.lock().refused.insert("a".into());
    check("NodePrepareResources failed for ResourceClaim a: there is no such device").await;
    driver.calls.lock().refused.clear();
    driver.fail("NodePrepareResources", &[Some(Code::Internal), None]);
    check("NodePrepareResources: rpc error: code = Internal desc = NodePrepareResources fails").await;
    check("NodePrepareResources: rpc error: code = DeadlineExceeded").await;
    node.prepare(&one).await.unwrap();
    node.objects.add("a", "other", &["3"]);
    let again = node.prepare(&pod("3", &["a"])).await.unwrap_err();
    assert!(again.contains("old ResourceClaim with same name a and different UID ua still exists"), "{again}");
}

#[tokio::test]
async fn a_restart_in_the_middle_is_made_good() {
    let node = Node::start();
    let driver = node.driver();
    let serving = node.plug(&driver, "v1.DRAPlugin").await;
    node.objects.add("a", "ua", &["1"]);
    node.objects.add("b", "ub", &["2"]);
    let (one, two) = (pod("1", &["a"]), pod("2", &["b"]));
    node.prepare(&one).await.unwrap();
    driver.fail("NodePrepareResources", &[Some(Code::Unavailable)]);
    node.prepare(&two).await.unwrap_err();

    let node = node.restart();
    // The first one runs: its devices are known before the driver is.
    node.manager.prepare(&one, false).await.unwrap();
    assert_eq!(node.devices(&one).unwrap(), ["driver.example.com/file=ua"]);
    assert!(!node.manager.unprepare_unknown(|uid| uid == "1").await, "the driver is not there");
    serving.abort();
    node.plug(&driver, "v1.DRAPlugin").await;
    assert!(node.manager.unprepare_unknown(|uid| uid == "1").await);
    assert_eq!(driver.calls.lock().made.last().map(String::as_str), Some("NodeUnprepareResources b"));
    // Its sandbox has gone: a driver may be asked the same twice.
    node.prepare(&one).await.unwrap();
    assert_eq!(driver.calls.lock().made.last().map(String::as_str), Some("NodePrepareResources a"));

    let file = node.root.path().join("dra_manager_state");
    std::fs::write(&file, "{").unwrap();
    let node = node.restart();
    node.plug(&driver, "v1.DRAPlugin").await;
    assert!(node.devices(&one).is_err());
    node.manager.prepare(&one, false).await.unwrap();
    assert_eq!(node.devices(&one).unwrap(), ["driver.example.com/file=ua"]);
}

#[tokio::test]
async fn slices_of_drivers_that_stay_away_go() {
    let objects = Objects::default();
    let delay = Duration::from_millis(200);
    let drivers = DraDrivers::new(Client::new(objects.clone()), Env::real(), "node", delay, None);
    env::spawn(drivers.clone().run());
    let wiped = |count: usize| objects.wiped.lock().len() >= count;
    until("what was before the start is wiped", || wiped(1)).await;
    assert!(objects.wiped.lock()[0].contains("spec.nodeName%3Dnode"), "{:?}", objects.wiped.lock());
    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("driver.sock");
    let driver = ExampleDraDriver::new(DRIVER, &["v1.DRAPlugin"], root.path());
    let path = socket.clone();
    let serving = env::spawn(async move { driver.serve(&path).await.unwrap() });
    until("the socket", || socket.exists()).await;
    drivers.add(DRIVER, &socket.to_string_lossy(), &["v1.DRAPlugin".into()]).unwrap();
    serving.abort();
    until("what the driver offered is wiped", || wiped(2)).await;
    assert!(objects.wiped.lock()[1].contains("spec.driver%3Ddriver.example.com"));
    drivers.remove(DRIVER, &socket.to_string_lossy());
    assert!(drivers.get(DRIVER).is_err());
    let none = drivers.add(DRIVER, "/x", &["v1alpha3.Node".into()]).unwrap_err();
    let expected = "invalid supported gRPC versions of DRA driver plugin driver.example.com at endpoint /x: none of \
                    services supported by the plugin ([\"v1alpha3.Node\"]) are supported by the kubelet \
                    ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])";
    assert_eq!(none, expected);
}

#[tokio::test]
async fn containers_show_the_health_of_their_devices() {
    let node = Node::start();
    let driver = node.driver();
    driver.set_health("a", 1);
    let serving = node.plug(&driver, "v1.DRAPlugin").await;
    node.objects.add("a", "ua", &["1"]);
    node.objects.add("b", "ub", &["2"]);
    let (one, two) = (pod("1", &["a"]), pod("2", &["b"]));
    node.prepare(&one).await.unwrap();
    node.prepare(&two).await.unwrap();
    let health = |pod: &Pod| {
        let statuses = node.manager.resource_health(pod, &pod.spec.as_ref().unwrap().containers[0]);
        let [status] = &statuses[..] else { panic!("{statuses:?}") };
        let [device] = &status.resources.as_ref().unwrap()[..] else { panic!("{statuses:?}") };
        format!("{} {} {}", status.name, device.resource_id, device.health.as_ref().unwrap())
    };
    let shows = |pod: &Pod, health_wanted: &str| health(pod).ends_with(health_wanted);
    until("the first health", || shows(&one, "claim:a driver.example.com/file=ua Healthy")).await;
    assert_eq!(health(&two), "claim:b driver.example.com/file=ub Unknown");
    node.told.lock().clear();
    driver.set_health("a", 2);
    until("an ill device", || shows(&one, "Unhealthy")).await;
    driver.set_health("b", 1);
    until("the other device", || shows(&two, " Healthy")).await;
    until("news for both", || *node.told.lock() == ["1", "2"]).await;
    serving.abort();
    until("nobody speaks for it", || shows(&one, "Unknown")).await;
}
