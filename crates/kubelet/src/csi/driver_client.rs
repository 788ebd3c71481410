//! Calls of one driver's node service, each with a deadline.
//! Used by `mounter` and `registration`; `messages` are what goes over the socket.
//! Connects when it has to, so that a driver that restarts needs no action here.

use std::{collections::BTreeSet, time::Duration};

use env::Env;
use metrics::Metrics;
use node_plugins::grpc::{PluginChannel, RpcError, code_name};
use tonic::Code;

use super::messages::{
    Empty, NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesResponse, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use crate::node::node_metrics::CSI_OPERATION_DURATION;

/// As upstream's.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(120);

pub type CsiError = RpcError;

#[derive(Clone)]
pub struct DriverClient {
    name: String,
    channel: PluginChannel,
    env: Env,
    metrics: Metrics,
    timeout: Duration,
}

impl DriverClient {
    /// `endpoint` is the path of a socket. No connection is made until the first call.
    pub fn new(name: &str, endpoint: &str, env: Env, metrics: Metrics) -> Result<Self, CsiError> {
        let channel = PluginChannel::new(&format!("driver {name}"), endpoint, env.clone())?;
        Ok(Self { name: name.into(), channel, env, metrics, timeout: CALL_TIMEOUT })
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
        let result = self.channel.call(path, request, self.timeout).await;
        let code = result.as_ref().err().map_or(Code::Ok, |error| error.code);
        let took = (self.env.monotonic() - began).as_secs_f64();
        let labels = [self.name.as_str(), path, &code_name(&code), "false"];
        self.metrics.observe(&CSI_OPERATION_DURATION, &labels, took);
        result
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

    pub async fn volume_stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, CsiError> {
        self.call("/csi.v1.Node/NodeGetVolumeStats", request).await
    }
}
