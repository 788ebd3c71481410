//! The messages of the DRA plugin API, by their published field numbers: v1 and v1beta1 have the same.
//! Used by `manager` and by the driver of `example`.

use std::collections::BTreeMap;

/// One version of the API: the name that drivers register it under, and the paths of its calls.
#[derive(Debug, PartialEq)]
pub struct DraService {
    pub name: &'static str,
    pub prepare: &'static str,
    pub unprepare: &'static str,
}

/// The best first.
pub static SERVICES: [DraService; 2] = [
    DraService {
        name: "v1.DRAPlugin",
        prepare: "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        unprepare: "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
    },
    DraService {
        name: "v1beta1.DRAPlugin",
        prepare: "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        unprepare: "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
    },
];

/// A service of its own, which drivers may have beside each of these.
pub const NODE_WATCH_RESOURCES: &str = "/v1alpha1.DRAResourceHealth/NodeWatchResources";

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeWatchResourcesRequest {}

/// All that the driver knows.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeWatchResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceHealth>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    pub device: Option<DeviceIdentifier>,
    /// 0 unknown, 1 healthy, 2 unhealthy.
    #[prost(int32, tag = "2")]
    pub health: i32,
    #[prost(int64, tag = "3")]
    pub last_updated_time: i64,
    #[prost(int64, tag = "4")]
    pub health_check_timeout_seconds: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceIdentifier {
    #[prost(string, tag = "1")]
    pub pool_name: String,
    #[prost(string, tag = "2")]
    pub device_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Claim {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodePrepareResourcesRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodePrepareResourcesResponse {
    /// By the claims' UIDs.
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, NodePrepareResourceResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodePrepareResourceResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
    #[prost(string, optional, tag = "5")]
    pub share_id: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnprepareResourcesRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<Claim>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnprepareResourcesResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    pub claims: BTreeMap<String, NodeUnprepareResourceResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnprepareResourceResponse {
    #[prost(string, tag = "1")]
    pub error: String,
}
