//! The file `dra_manager_state`: claims that are prepared or about to be, in the kubelet's own format.
//! Used by `manager`.
//! Invariant: pure; a file whose checksum or version does not fit is refused whole (test:
//! `torn_and_foreign_files_are_refused`) (tidy: `pure_files`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    claim_info::{ClaimInfo, ClaimInfoCache},
    messages::Device,
};

pub const FILE_NAME: &str = "dra_manager_state";
const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum CheckpointError {
    #[error("failed to read the checkpoint: {0}")]
    Malformed(String),
    #[error("checkpoint is corrupted: expected checksum {expected}, found {found}")]
    Checksum { expected: u32, found: u32 },
    #[error("unsupported checkpoint {0}")]
    Version(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    /// JSON in JSON.
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct Data {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Option<Vec<State>>,
}

#[derive(Serialize, Deserialize)]
struct State {
    #[serde(rename = "ClaimUID")]
    uid: String,
    #[serde(rename = "ClaimName")]
    name: String,
    #[serde(rename = "Namespace")]
    namespace: String,
    #[serde(rename = "PodUIDs")]
    pod_uids: Option<BTreeMap<String, Value>>,
    #[serde(rename = "DriverState")]
    drivers: Option<BTreeMap<String, DriverState>>,
}

#[derive(Serialize, Deserialize)]
struct DriverState {
    #[serde(rename = "Devices")]
    devices: Option<Vec<DeviceState>>,
}

#[derive(Serialize, Deserialize)]
struct DeviceState {
    #[serde(rename = "PoolName")]
    pool: String,
    #[serde(rename = "DeviceName")]
    device: String,
    #[serde(rename = "ShareID", default)]
    share_id: Option<String>,
    #[serde(rename = "RequestNames", default)]
    requests: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs", default)]
    cdi_devices: Option<Vec<String>>,
}

pub fn encode(cache: &ClaimInfoCache) -> Vec<u8> {
    let some = |list: &Vec<String>| Some(list.clone()).filter(|list| !list.is_empty());
    let device = |device: &Device| DeviceState {
        pool: device.pool_name.clone(),
        device: device.device_name.clone(),
        share_id: device.share_id.clone(),
        requests: some(&device.request_names),
        cdi_devices: some(&device.cdi_device_ids),
    };
    let driver = |devices: &Vec<Device>| DriverState {
        devices: Some(devices.iter().map(device).collect()).filter(|list: &Vec<_>| !list.is_empty()),
    };
    let state = |info: &ClaimInfo| State {
        uid: info.uid.clone(),
        name: info.name.clone(),
        namespace: info.namespace.clone(),
        pod_uids: Some(info.pod_uids.iter().map(|uid| (uid.clone(), json!({}))).collect()),
        drivers: Some(info.drivers.iter().map(|(name, devices)| (name.clone(), driver(devices))).collect()),
    };
    let claims = Some(cache.0.values().map(state).collect()).filter(|list: &Vec<_>| !list.is_empty());
    let data = Data { kind: KIND.into(), api_version: API_VERSION.into(), claims };
    let data = serde_json::to_string(&data).unwrap_or_default();
    let checksum = crc32fast::hash(data.as_bytes());
    serde_json::to_vec(&File { data, checksum }).unwrap_or_default()
}

pub fn decode(text: &[u8]) -> Result<ClaimInfoCache, CheckpointError> {
    let malformed = |error: serde_json::Error| CheckpointError::Malformed(error.to_string());
    let File { data, checksum: expected } = serde_json::from_slice(text).map_err(malformed)?;
    let found = crc32fast::hash(data.as_bytes());
    if found != expected {
        return Err(CheckpointError::Checksum { expected, found });
    }
    let Data { kind, api_version, claims } = serde_json::from_str(&data).map_err(malformed)?;
    if (&*kind, &*api_version) != (KIND, API_VERSION) {
        return Err(CheckpointError::Version(format!("{api_version} {kind}")));
    }
    let device = |state: DeviceState| Device {
        request_names: state.requests.unwrap_or_default(),
        pool_name: state.pool,
        device_name: state.device,
        cdi_device_ids: state.cdi_devices.unwrap_or_default(),
        share_id: state.share_id,
    };
    let driver = |(name, state): (String, DriverState)| {
        (name, state.devices.into_iter().flatten().map(device).collect::<Vec<_>>())
    };
    let info = |state: State| ClaimInfo {
        uid: state.uid,
        name: state.name,
        namespace: state.namespace,
        pod_uids: state.pod_uids.unwrap_or_default().into_keys().collect(),
        drivers: state.drivers.into_iter().flatten().map(driver).collect(),
        is_prepared: false,
    };
    let claims = claims.into_iter().flatten().map(info).map(|info| (info.key(), info));
    Ok(ClaimInfoCache(claims.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ClaimInfoCache {
        let mut info = ClaimInfo::new(
            "067798be-454e-4be4-9047-1aa06aea63f7",
            "example",
            "default",
            ["test-driver.cdi.k8s.io"].into_iter(),
        );
        info.pod_uids.insert("139cdb46-f989-4f17-9561-ca10cfb509a6".into());
        let device = Device {
            request_names: vec!["test request".into()],
            pool_name: "worker-1".into(),
            device_name: "dev-1".into(),
            cdi_device_ids: vec!["example.com/example=cdi-example".into()],
            share_id: None,
        };
        info.drivers.insert("test-driver.cdi.k8s.io".into(), vec![device]);
        ClaimInfoCache([(info.key(), info)].into())
    }

    #[test]
    fn what_was_written_is_read() {
        for cache in [ClaimInfoCache::default(), sample()] {
            assert_eq!(decode(&encode(&cache)), Ok(cache));
        }
    }

    #[test]
    fn the_checksum_is_upstreams() {
        // The value of upstream's own test for the same claim.
        let text = String::from_utf8(encode(&sample())).unwrap();
        assert!(text.ends_with("\"Checksum\":2570581864}"), "{text}");
    }

    #[test]
    fn torn_and_foreign_files_are_refused() {
        let whole = String::from_utf8(encode(&sample())).unwrap();
        assert!(matches!(decode(&whole.as_bytes()[..whole.len() / 2]), Err(CheckpointError::Malformed(_))));
        let changed = whole.replace("dev-1", "dev-2");
        assert!(matches!(decode(changed.as_bytes()), Err(CheckpointError::Checksum { .. })));
        let data = r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v0"}"#.to_string();
        let checksum = crc32fast::hash(data.as_bytes());
        let foreign = serde_json::to_vec(&File { data, checksum }).unwrap();
        assert!(matches!(decode(&foreign), Err(CheckpointError::Version(_))));
    }
}
