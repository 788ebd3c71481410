//! A CSI driver for tests: a real gRPC server on a socket that keeps what it was asked, mounts nothing, and fails as told.
//! Used by `tests`.
//! Refuses what the protocol refuses: to publish what is not staged, to unstage what is published.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    path::{Path, PathBuf},
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use node_plugins::registration::messages::{InfoRequest, PluginInfo, RegistrationStatus};
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tonic::{
    Code, Request, Response, Status,
    body::Body,
    codegen::{Service, http},
    server::{Grpc, NamedService, UnaryService},
};

use super::messages::{
    Empty, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesResponse, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodeServiceCapability,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, RpcCapability, Topology,
};

#[derive(Default)]
pub struct State {
    pub capabilities: Vec<i32>,
    /// By method: what the next calls answer, first to last; `None` never answers.
    pub faults: BTreeMap<String, Vec<Option<Code>>>,
    pub calls: Vec<String>,
    pub staged: BTreeSet<(String, String)>,
    pub published: BTreeSet<(String, String)>,
    pub last_stage: NodeStageVolumeRequest,
    pub last_publish: NodePublishVolumeRequest,
    pub registration: Vec<RegistrationStatus>,
    pub endpoint: String,
    pub topology: BTreeMap<String, String>,
    pub stats: NodeGetVolumeStatsResponse,
    pub volumes_max: i64,
}

#[derive(Clone, Default)]
pub struct TestDriver(pub Arc<Mutex<State>>);

pub const NAME: &str = "test.csi.example.com";

impl TestDriver {
    pub fn new(capabilities: &[i32]) -> Self {
        let driver = Self::default();
        let mut state = driver.0.lock();
        (state.capabilities, state.volumes_max) = (capabilities.to_vec(), 7);
        drop(state);
        driver
    }

    /// Serves until the task is ended.
    pub fn serve(&self, socket: &Path) -> tokio::task::JoinHandle<()> {
        std::fs::remove_file(socket).ok();
        let listener = UnixListener::bind(socket).unwrap();
        let incoming = futures::stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let server = tonic::transport::Server::builder()
            .add_service(NodeService(self.clone()))
            .add_service(RegistrationService(self.clone()))
            .serve_with_incoming(incoming);
        env::spawn(async move { server.await.unwrap() })
    }

    /// As a process of its own, which takes all its connections with it.
    pub fn serve_apart(&self, socket: &Path) -> tokio::runtime::Runtime {
        let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (driver, socket) = (self.clone(), socket.to_path_buf());
        let (began, has_begun) = std::sync::mpsc::sync_channel(1);
        process.spawn(async move {
            let serving = driver.serve(&socket);
            began.send(()).ok();
            serving.await
        });
        has_begun.recv().unwrap();
        process
    }

    pub fn fail(&self, method: &str, answers: &[Option<Code>]) {
        self.0.lock().faults.insert(method.into(), answers.to_vec());
    }

    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().calls)
    }

    async fn begin(&self, method: &str) -> Result<(), Status> {
        let fault = {
            let mut state = self.0.lock();
            state.calls.push(method.into());
            state.faults.get_mut(method).filter(|faults| !faults.is_empty()).map(|faults| faults.remove(0))
        };
        match fault {
            None | Some(Some(Code::Ok)) => Ok(()),
            Some(Some(code)) => Err(Status::new(code, format!("{method} fails"))),
            Some(None) => std::future::pending().await,
        }
    }

    fn stage(&self, request: NodeStageVolumeRequest) -> Result<Empty, Status> {
        let mut state = self.0.lock();
        if !Path::new(&request.staging_target_path).is_dir() {
            return Err(Status::internal("no such directory"));
        }
        state.staged.insert((request.volume_id.clone(), request.staging_target_path.clone()));
        state.last_stage = request;
        Ok(Empty {})
    }

    fn unstage(&self, request: NodeUnstageVolumeRequest) -> Result<Empty, Status> {
        let mut state = self.0.lock();
        if state.published.iter().any(|(volume, _)| *volume == request.volume_id) {
            return Err(Status::failed_precondition("it is published"));
        }
        state.staged.remove(&(request.volume_id, request.staging_target_path));
        Ok(Empty {})
    }

    fn publish(&self, request: NodePublishVolumeRequest) -> Result<Empty, Status> {
        let mut state = self.0.lock();
        let staging = (request.volume_id.clone(), request.staging_target_path.clone());
        if !request.staging_target_path.is_empty() && !state.staged.contains(&staging) {
            return Err(Status::failed_precondition("it is not staged"));
        }
        std::fs::create_dir_all(PathBuf::from(&request.target_path)).map_err(|e| Status::internal(e.to_string()))?;
        state.published.insert((request.volume_id.clone(), request.target_path.clone()));
        state.last_publish = request;
        Ok(Empty {})
    }

    fn unpublish(&self, request: NodeUnpublishVolumeRequest) -> Result<Empty, Status> {
        std::fs::remove_dir(&request.target_path).ok();
        self.0.lock().published.remove(&(request.volume_id, request.target_path));
        Ok(Empty {})
    }

    fn capabilities(&self) -> NodeGetCapabilitiesResponse {
        let state = self.0.lock();
        let one = |kind: &i32| NodeServiceCapability { rpc: Some(RpcCapability { kind: *kind }) };
        NodeGetCapabilitiesResponse { capabilities: state.capabilities.iter().map(one).collect() }
    }

    fn node_info(&self) -> NodeGetInfoResponse {
        let state = self.0.lock();
        let segments = state.topology.clone();
        NodeGetInfoResponse {
            node_id: "node-id".into(),
            max_volumes_per_node: state.volumes_max,
            accessible_topology: Some(Topology { segments }),
        }
    }

    fn info(&self) -> PluginInfo {
        let endpoint = self.0.lock().endpoint.clone();
        let supported_versions = vec!["1.0.0".into()];
        PluginInfo { kind: "CSIPlugin".into(), name: NAME.into(), endpoint, supported_versions }
    }
}

type Answer = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

/// One method: reads the request, lets the driver fail as told, and answers.
struct Method<F> {
    driver: TestDriver,
    name: String,
    answer: F,
}

impl<Q: Send + 'static, R: Send + 'static, F> UnaryService<Q> for Method<F>
where
    F: Fn(&TestDriver, Q) -> Result<R, Status> + Clone + Send + 'static,
{
    type Response = R;
    type Future = BoxFuture<'static, Result<Response<R>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (driver, name, answer) = (self.driver.clone(), self.name.clone(), self.answer.clone());
        Box::pin(async move {
            driver.begin(&name).await?;
            answer(&driver, request.into_inner()).map(Response::new)
        })
    }
}

fn unary<Q, R>(
    driver: &TestDriver,
    request: http::Request<Body>,
    answer: impl Fn(&TestDriver, Q) -> Result<R, Status> + Clone + Send + Sync + 'static,
) -> Answer
where
    Q: prost::Message + Default + Send + 'static,
    R: prost::Message + Send + 'static,
{
    let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_string();
    let method = Method { driver: driver.clone(), name, answer };
    Box::pin(async move {
        let mut grpc = Grpc::new(tonic_prost::ProstCodec::<R, Q>::default());
        Ok(grpc.unary(method, request).await)
    })
}

#[derive(Clone)]
struct NodeService(TestDriver);

#[derive(Clone)]
struct RegistrationService(TestDriver);

impl NamedService for NodeService {
    const NAME: &'static str = "csi.v1.Node";
}

impl NamedService for RegistrationService {
    const NAME: &'static str = "pluginregistration.Registration";
}

impl Service<http::Request<Body>> for NodeService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let driver = &self.0;
        match request.uri().path().rsplit('/').next().unwrap_or_default() {
            "NodeStageVolume" => unary(driver, request, TestDriver::stage),
            "NodeUnstageVolume" => unary(driver, request, TestDriver::unstage),
            "NodePublishVolume" => unary(driver, request, TestDriver::publish),
            "NodeUnpublishVolume" => unary(driver, request, TestDriver::unpublish),
            "NodeGetInfo" => unary(driver, request, |driver, _: Empty| Ok(driver.node_info())),
            "NodeGetCapabilities" => unary(driver, request, |driver, _: Empty| Ok(driver.capabilities())),
            "NodeExpandVolume" => unary(driver, request, |_, request: NodeExpandVolumeRequest| {
                let capacity_bytes = request.capacity_range.unwrap_or_default().required_bytes;
                Ok(NodeExpandVolumeResponse { capacity_bytes })
            }),
            "NodeGetVolumeStats" => unary(driver, request, |driver, request: NodeGetVolumeStatsRequest| {
                let state = driver.0.lock();
                let is_known = state.published.contains(&(request.volume_id, request.volume_path));
                is_known.then(|| state.stats.clone()).ok_or_else(|| Status::not_found("it is not published"))
            }),
            _ => unary(driver, request, |_, _: Empty| Err::<Empty, _>(Status::unimplemented("no such method"))),
        }
    }
}

impl Service<http::Request<Body>> for RegistrationService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let driver = &self.0;
        match request.uri().path().ends_with("/GetInfo") {
            true => unary(driver, request, |driver, _: InfoRequest| Ok(driver.info())),
            false => unary(driver, request, |driver, status: RegistrationStatus| {
                driver.0.lock().registration.push(status);
                Ok(Empty {})
            }),
        }
    }
}
