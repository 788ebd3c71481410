//! The messages of CSI v1's node service, by their published field numbers.
//! Used by `driver_client`, `registration` and the driver of the tests.
//! Only what a node needs.

use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct BlockVolume {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum AccessType {
    #[prost(message, tag = "1")]
    Block(BlockVolume),
    #[prost(message, tag = "2")]
    Mount(MountVolume),
}

/// Numbers of the protocol's access modes.
pub mod access_mode {
    pub const SINGLE_NODE_WRITER: i32 = 1;
    pub const MULTI_NODE_READER_ONLY: i32 = 3;
    pub const MULTI_NODE_MULTI_WRITER: i32 = 5;
    pub const SINGLE_NODE_SINGLE_WRITER: i32 = 6;
    pub const SINGLE_NODE_MULTI_WRITER: i32 = 7;
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeCapability {
    #[prost(oneof = "AccessType", tags = "1, 2")]
    pub access_type: Option<AccessType>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

impl VolumeCapability {
    /// One more, for a volume that is mounted.
    pub fn add_mount_flag(&mut self, flag: Option<String>) {
        if let Some(AccessType::Mount(mount)) = &mut self.access_type {
            mount.mount_flags.extend(flag);
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeStageVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnstageVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodePublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(btree_map = "string, string", tag = "7")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeUnpublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub target_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeExpandVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub secrets: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeGetVolumeStatsRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeGetVolumeStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
    #[prost(message, optional, tag = "2")]
    pub volume_condition: Option<VolumeCondition>,
}

/// Numbers of the protocol's units.
pub mod unit {
    pub const BYTES: i32 = 1;
    pub const INODES: i32 = 2;
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeUsage {
    #[prost(int64, tag = "1")]
    pub available: i64,
    #[prost(int64, tag = "2")]
    pub total: i64,
    #[prost(int64, tag = "3")]
    pub used: i64,
    #[prost(int32, tag = "4")]
    pub unit: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct VolumeCondition {
    #[prost(bool, tag = "1")]
    pub abnormal: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Numbers of the protocol's node capabilities.
pub mod capability {
    pub const STAGE_UNSTAGE_VOLUME: i32 = 1;
    pub const GET_VOLUME_STATS: i32 = 2;
    pub const EXPAND_VOLUME: i32 = 3;
    pub const VOLUME_CONDITION: i32 = 4;
    pub const SINGLE_NODE_MULTI_WRITER: i32 = 5;
    pub const VOLUME_MOUNT_GROUP: i32 = 6;
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeGetCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<NodeServiceCapability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeServiceCapability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<RpcCapability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RpcCapability {
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeGetInfoResponse {
    #[prost(string, tag = "1")]
    pub node_id: String,
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: BTreeMap<String, String>,
}
