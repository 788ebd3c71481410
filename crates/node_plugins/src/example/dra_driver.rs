//! A DRA driver that gives every claim one device of its own: a CDI device that sets a variable and mounts a file.
//! Registers over the directory of all plugins. Keeps what it was asked, and fails as told. The ResourceSlices that offer
//! its devices are made by whoever uses it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tonic::{Code, Status};

use super::{Faults, begin, latest};
use crate::{
    dra::messages::{
        Claim, Device, DeviceHealth, DeviceIdentifier, NODE_WATCH_RESOURCES, NodePrepareResourceResponse,
        NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourceResponse,
        NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse, NodeWatchResourcesRequest,
        NodeWatchResourcesResponse, SERVICES,
    },
    grpc::service::{GrpcService, bind},
    registration::messages::{
        GET_INFO, InfoRequest, NOTIFY_REGISTRATION_STATUS, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    },
};

#[derive(Default)]
pub struct Calls {
    pub faults: Faults,
    /// Each as `<method> <claims>`.
    pub made: Vec<String>,
    pub registration: Vec<RegistrationStatus>,
    /// The UIDs of claims that are prepared.
    pub prepared: BTreeSet<String>,
    /// Claims whose answer is an error of their own, by name.
    pub refused: BTreeSet<String>,
}

#[derive(Clone)]
pub struct ExampleDraDriver {
    name: String,
    /// Versions of the API that it says it has.
    services: Vec<String>,
    /// Where the runtime looks for CDI devices.
    cdi_dir: PathBuf,
    pub calls: Arc<Mutex<Calls>>,
    /// What it says of the health of its devices, by their names.
    health: watch::Sender<BTreeMap<String, i32>>,
}

impl ExampleDraDriver {
    pub fn new(name: &str, services: &[&str], cdi_dir: &Path) -> Self {
        let services = services.iter().map(|service| service.to_string()).collect();
        let health = watch::Sender::default();
        Self { name: name.into(), services, cdi_dir: cdi_dir.into(), calls: Arc::default(), health }
    }

    /// Tells the kubelet how a device is: 0 unknown, 1 healthy, 2 unhealthy.
    pub fn set_health(&self, device: &str, health: i32) {
        self.health.send_modify(|known| {
            known.insert(device.into(), health);
        });
    }

    pub fn fail(&self, method: &str, answers: &[Option<Code>]) {
        self.calls.lock().faults.insert(method.into(), answers.to_vec());
    }

    /// Serves on this socket, which is in the directory of all plugins, until it is dropped.
    pub async fn serve(self, socket: &Path) -> io::Result<()> {
        let listener = bind(socket)?;
        self.service().serve(listener).await;
        Ok(())
    }

    fn service(self) -> GrpcService {
        let info = PluginInfo {
            kind: "DRAPlugin".into(),
            name: self.name.clone(),
            endpoint: String::new(),
            supported_versions: self.services.clone(),
        };
        let told = self.calls.clone();
        let mut service = GrpcService::default()
            .unary(GET_INFO, move |_: InfoRequest| futures::future::ready(Ok(info.clone())))
            .unary(NOTIFY_REGISTRATION_STATUS, move |status: RegistrationStatus| {
                told.lock().registration.push(status);
                async { Ok(RegistrationStatusResponse {}) }
            });
        let health = self.health.clone();
        service = service.server_streaming(NODE_WATCH_RESOURCES, move |_: NodeWatchResourcesRequest| {
            latest(&health, |known| {
                let of = |(name, health): (&String, &i32)| DeviceHealth {
                    device: Some(DeviceIdentifier { pool_name: "files".into(), device_name: name.clone() }),
                    health: *health,
                    ..Default::default()
                };
                NodeWatchResourcesResponse { devices: known.iter().map(of).collect() }
            })
        });
        for version in &SERVICES {
            let [prepare, unprepare] = [(); 2].map(|()| self.clone());
            service = service
                .unary(version.prepare, move |request: NodePrepareResourcesRequest| {
                    let driver = prepare.clone();
                    async move { driver.prepare(request).await }
                })
                .unary(version.unprepare, move |request: NodeUnprepareResourcesRequest| {
                    let driver = unprepare.clone();
                    async move { driver.unprepare(request).await }
                });
        }
        service
    }

    async fn begin(&self, method: &str, claims: &[Claim]) -> Result<(), Status> {
        let fault = {
            let mut calls = self.calls.lock();
            let names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
            calls.made.push(format!("{method} {}", names.join(",")));
            calls.faults.get_mut(method).filter(|faults| !faults.is_empty()).map(|faults| faults.remove(0))
        };
        begin(fault, method).await
    }

    async fn prepare(&self, request: NodePrepareResourcesRequest) -> Result<NodePrepareResourcesResponse, Status> {
        self.begin("NodePrepareResources", &request.claims).await?;
        let one = |claim: Claim| {
            let uid = claim.uid.clone();
            (
                uid,
                self.prepare_claim(&claim)
                    .unwrap_or_else(|error| NodePrepareResourceResponse { error, devices: vec![] }),
            )
        };
        Ok(NodePrepareResourcesResponse { claims: request.claims.into_iter().map(one).collect() })
    }

    fn prepare_claim(&self, claim: &Claim) -> Result<NodePrepareResourceResponse, String> {
        if self.calls.lock().refused.contains(&claim.name) {
            return Err("there is no such device".into());
        }
        let kind = format!("{}/file", self.name);
        let spec = json!({"cdiVersion": "0.6.0", "kind": kind, "devices": [{"name": claim.uid, "containerEdits": {
            "env": [format!("EXAMPLE_CLAIM={}", claim.name)],
            "deviceNodes": [{"path": "/dev/example", "hostPath": "/dev/null"}]}}]});
        std::fs::create_dir_all(&self.cdi_dir)
            .and_then(|()| std::fs::write(self.cdi_file(&claim.uid), spec.to_string()))
            .map_err(|error| error.to_string())?;
        self.calls.lock().prepared.insert(claim.uid.clone());
        let device = Device {
            pool_name: "files".into(),
            device_name: claim.name.clone(),
            cdi_device_ids: vec![format!("{kind}={}", claim.uid)],
            ..Default::default()
        };
        Ok(NodePrepareResourceResponse { devices: vec![device], error: String::new() })
    }

    async fn unprepare(
        &self,
        request: NodeUnprepareResourcesRequest,
    ) -> Result<NodeUnprepareResourcesResponse, Status> {
        self.begin("NodeUnprepareResources", &request.claims).await?;
        let one = |claim: Claim| {
            // One that was never prepared is as good as unprepared.
            let error = match std::fs::remove_file(self.cdi_file(&claim.uid)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => error.to_string(),
                _ => String::new(),
            };
            self.calls.lock().prepared.remove(&claim.uid);
            (claim.uid, NodeUnprepareResourceResponse { error })
        };
        Ok(NodeUnprepareResourcesResponse { claims: request.claims.into_iter().map(one).collect() })
    }

    fn cdi_file(&self, uid: &str) -> PathBuf {
        self.cdi_dir.join(format!("{}-{uid}.json", self.name))
    }
}
