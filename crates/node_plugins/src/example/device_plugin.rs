//! A device plugin whose devices are files of the machine: each is given as a device node, a variable of the environment
//! and a mount. Keeps what it was asked, and fails as told.
//! Registers over the kubelet's socket, as most plugins do; or over the directory of all plugins.

use std::{path::Path, sync::Arc, time::Duration};

use env::Env;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Code, Status};

use super::{Faults, begin, latest};
use crate::{
    devices::messages::{
        ALLOCATE, AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
        ContainerPreferredAllocationResponse, Device, DevicePluginOptions, DeviceSpec, Empty,
        GET_DEVICE_PLUGIN_OPTIONS, GET_PREFERRED_ALLOCATION, HEALTHY, LIST_AND_WATCH, ListAndWatchResponse,
        PRE_START_CONTAINER, PreStartContainerRequest, PreferredAllocationRequest, PreferredAllocationResponse,
        REGISTER, RegisterRequest, VERSION,
    },
    grpc::{
        PluginChannel, RpcError,
        service::{GrpcService, bind},
    },
    registration::messages::{
        GET_INFO, InfoRequest, NOTIFY_REGISTRATION_STATUS, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    },
};

const REGISTER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Calls {
    pub faults: Faults,
    /// Each as `<method> <devices>`.
    pub made: Vec<String>,
    pub registration: Vec<RegistrationStatus>,
    /// The devices that are preferred, where the plugin is asked.
    pub preferred: Vec<String>,
    pub cdi_devices: Vec<String>,
}

#[derive(Clone)]
pub struct ExampleDevicePlugin {
    resource: String,
    /// The file that every device is.
    host_path: String,
    options: DevicePluginOptions,
    devices: watch::Sender<Vec<Device>>,
    pub calls: Arc<Mutex<Calls>>,
}

/// A device that is well, or not.
pub fn device(id: &str, healthy: bool) -> Device {
    let health = if healthy { HEALTHY } else { "Unhealthy" };
    Device { id: id.into(), health: health.into(), topology: None }
}

impl ExampleDevicePlugin {
    pub fn new(resource: &str, host_path: &str, options: DevicePluginOptions, devices: Vec<Device>) -> Self {
        let devices = watch::Sender::new(devices);
        Self { resource: resource.into(), host_path: host_path.into(), options, devices, calls: Arc::default() }
    }

    /// Tells the kubelet of other devices.
    pub fn set_devices(&self, devices: Vec<Device>) {
        self.devices.send_replace(devices);
    }

    pub fn fail(&self, method: &str, answers: &[Option<Code>]) {
        self.calls.lock().faults.insert(method.into(), answers.to_vec());
    }

    /// Serves on this socket until it is dropped.
    pub async fn serve(self, socket: &Path) -> std::io::Result<()> {
        let listener = bind(socket)?;
        self.service().serve(listener).await;
        Ok(())
    }

    /// Asks the kubelet whose directory of device plugins this is; the plugin's socket is in it.
    pub async fn register(&self, directory: &Path, socket_name: &str, env: &Env) -> Result<(), RpcError> {
        let kubelet = directory.join("kubelet.sock");
        let kubelet = PluginChannel::new("the kubelet", &kubelet.to_string_lossy(), env.clone())?;
        let request = RegisterRequest {
            version: VERSION.into(),
            endpoint: socket_name.into(),
            resource_name: self.resource.clone(),
            options: Some(self.options),
        };
        kubelet.call(REGISTER, request, REGISTER_TIMEOUT).await.map(|_: Empty| ())
    }

    fn service(self) -> GrpcService {
        let (options, resource) = (self.options, self.resource.clone());
        let (devices, told) = (self.devices.clone(), self.calls.clone());
        let [for_options, for_preferred, for_allocate, for_pre_start] = [(); 4].map(|()| self.clone());
        GrpcService::default()
            .unary(GET_INFO, move |_: InfoRequest| {
                let (kind, name) = ("DevicePlugin".to_string(), resource.clone());
                let supported_versions = vec![VERSION.to_string()];
                let info = PluginInfo { kind, name, endpoint: String::new(), supported_versions };
                async move { Ok(info) }
            })
            .unary(NOTIFY_REGISTRATION_STATUS, move |status: RegistrationStatus| {
                told.lock().registration.push(status);
                async { Ok(RegistrationStatusResponse {}) }
            })
            .unary(GET_DEVICE_PLUGIN_OPTIONS, move |_: Empty| {
                let plugin = for_options.clone();
                async move { plugin.begin("GetDevicePluginOptions", &[]).await.map(|()| options) }
            })
            .server_streaming(LIST_AND_WATCH, move |_: Empty| {
                latest(&devices, |devices| ListAndWatchResponse { devices: devices.clone() })
            })
            .unary(GET_PREFERRED_ALLOCATION, move |request: PreferredAllocationRequest| {
                let plugin = for_preferred.clone();
                async move { plugin.preferred(request).await }
            })
            .unary(ALLOCATE, move |request: AllocateRequest| {
                let plugin = for_allocate.clone();
                async move { plugin.allocate(request).await }
            })
            .unary(PRE_START_CONTAINER, move |request: PreStartContainerRequest| {
                let plugin = for_pre_start.clone();
                async move { plugin.begin("PreStartContainer", &request.devices_ids).await.map(|()| Empty {}) }
            })
    }

    async fn begin(&self, method: &str, devices: &[String]) -> Result<(), Status> {
        let fault = {
            let mut calls = self.calls.lock();
            calls.made.push(format!("{method} {}", devices.join(",")).trim_end().into());
            calls.faults.get_mut(method).filter(|faults| !faults.is_empty()).map(|faults| faults.remove(0))
        };
        begin(fault, method).await
    }

    async fn preferred(&self, request: PreferredAllocationRequest) -> Result<PreferredAllocationResponse, Status> {
        let available = request.container_requests.iter().flat_map(|one| one.available_device_ids.clone());
        self.begin("GetPreferredAllocation", &available.collect::<Vec<_>>()).await?;
        let one = ContainerPreferredAllocationResponse { device_ids: self.calls.lock().preferred.clone() };
        Ok(PreferredAllocationResponse { container_responses: vec![one] })
    }

    async fn allocate(&self, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        let asked: Vec<String> = request.container_requests.iter().flat_map(|one| one.devices_ids.clone()).collect();
        self.begin("Allocate", &asked).await?;
        let cdi_devices: Vec<CdiDevice> =
            self.calls.lock().cdi_devices.iter().map(|name| CdiDevice { name: name.clone() }).collect();
        let one = |ids: &[String]| {
            let device = |id: &String| DeviceSpec {
                container_path: format!("/dev/{id}"),
                host_path: self.host_path.clone(),
                permissions: "rw".into(),
            };
            ContainerAllocateResponse {
                envs: [("EXAMPLE_DEVICES".to_string(), ids.join(","))].into(),
                devices: ids.iter().map(device).collect(),
                annotations: [("example.com/devices".to_string(), ids.join(","))].into(),
                cdi_devices: cdi_devices.clone(),
                ..Default::default()
            }
        };
        let container_responses = request.container_requests.iter().map(|request| one(&request.devices_ids)).collect();
        Ok(AllocateResponse { container_responses })
    }
}
