//! Calls of one driver's node service, each with a deadline.
//! Used by `mounter` and `plugin_watcher`; `messages` are what goes over the socket.
//! Connects when it has to, so that a driver that restarts needs no action here.

use std::{collections::BTreeSet, time::Duration};

use env::Env;
use metrics::Metrics;
use tonic::{
    Code,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};

use super::messages::{
    Empty, InfoRequest, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesResponse,
    NodeGetInfoResponse, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, PluginInfo, RegistrationStatus,
};
use crate::node::node_metrics::CSI_OPERATION_DURATION;

/// As upstream's.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub struct CsiError {
    pub code: Code,
    pub message: String,
}

impl CsiError {
    /// Whether the driver is done with the call: it said no. Otherwise it may still do what was asked.
    pub fn is_final(&self) -> bool {
        !matches!(
            self.code,
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        )
    }
}

#[derive(Clone)]
pub struct DriverClient {
    name: String,
    channel: Channel,
    env: Env,
    metrics: Metrics,
    timeout: Duration,
}

impl DriverClient {
    /// `endpoint` is the path of a socket. No connection is made until the first call.
    pub fn new(name: &str, endpoint: &str, env: Env, metrics: Metrics) -> Result<Self, CsiError> {
        let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
        let endpoint = Endpoint::from_shared(format!("unix://{path}"))
            .map_err(|error| CsiError { code: Code::InvalidArgument, message: error.to_string() })?;
        Ok(Self { name: name.into(), channel: endpoint.connect_lazy(), env, metrics, timeout: CALL_TIMEOUT })
    }

    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    async fn call<Q, R>(&self, path: &'static str, request: Q) -> Result<R, CsiError>
    where
        Q: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let began = self.env.monotonic();
        let result = match self.env.timeout(self.timeout, self.send(path, request)).await {
            Some(result) => result,
            None => {
                let message = format!("driver {} did not answer within {} s", self.name, self.timeout.as_secs());
                Err(CsiError { code: Code::DeadlineExceeded, message })
            }
        };
        let code = result.as_ref().err().map_or(Code::Ok, |error| error.code);
        let took = (self.env.monotonic() - began).as_secs_f64();
        let labels = [self.name.as_str(), path, &format!("{code:?}"), "false"];
        self.metrics.observe(&CSI_OPERATION_DURATION, &labels, took);
        result
    }

    async fn send<Q, R>(&self, path: &'static str, request: Q) -> Result<R, CsiError>
    where
        Q: prost::Message + Send + Sync + 'static,
        R: prost::Message + Default + Send + Sync + 'static,
    {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| {
            let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            CsiError { code: Code::Unavailable, message: why }
        })?;
        let codec: tonic_prost::ProstCodec<Q, R> = tonic_prost::ProstCodec::default();
        let answer = grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
        let failed = |status: tonic::Status| CsiError { code: status.code(), message: status.message().into() };
        answer.map(tonic::Response::into_inner).map_err(failed)
    }

    pub async fn plugin_info(&self) -> Result<PluginInfo, CsiError> {
        self.call("/pluginregistration.Registration/GetInfo", InfoRequest {}).await
    }

    pub async fn notify_registration(&self, status: RegistrationStatus) -> Result<(), CsiError> {
        let told: Result<Empty, _> =
            self.call("/pluginregistration.Registration/NotifyRegistrationStatus", status).await;
        told.map(drop)
    }

    pub async fn node_info(&self) -> Result<NodeGetInfoResponse, CsiError> {
        self.call("/csi.v1.Node/NodeGetInfo", Empty {}).await
    }

    /// Numbers of `messages::capability`.
    pub async fn capabilities(&self) -> Result<BTreeSet<i32>, CsiError> {
        let found: NodeGetCapabilitiesResponse = self.call("/csi.v1.Node/NodeGetCapabilities", Empty {}).await?;
        Ok(found.capabilities.into_iter().filter_map(|capability| capability.rpc).map(|rpc| rpc.kind).collect())
    }

    pub async fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), CsiError> {
        self.call::<_, Empty>("/csi.v1.Node/NodeStageVolume", request).await.map(drop)
    }

    pub async fn unstage(&self, request: NodeUnstageVolumeRequest) -> Result<(), CsiError> {
        self.call::<_, Empty>("/csi.v1.Node/NodeUnstageVolume", request).await.map(drop)
    }

    pub async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), CsiError> {
        self.call::<_, Empty>("/csi.v1.Node/NodePublishVolume", request).await.map(drop)
    }

    pub async fn unpublish(&self, request: NodeUnpublishVolumeRequest) -> Result<(), CsiError> {
        self.call::<_, Empty>("/csi.v1.Node/NodeUnpublishVolume", request).await.map(drop)
    }

    pub async fn expand(&self, request: NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, CsiError> {
        self.call("/csi.v1.Node/NodeExpandVolume", request).await
    }
}
