//! The file `kubelet_internal_checkpoint`: which container has which devices, in the kubelet's own format, so that either
//! side can take over a node from the other.
//! Used by `manager`.
//! Invariant: pure; a file whose checksum does not fit is refused whole (test:
//! `torn_and_foreign_files_are_refused`) (tidy: `pure_files`).

use std::{collections::BTreeMap, fmt::Write};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use prost::Message;
use serde::{Deserialize, Serialize};

use super::{
    messages::ContainerAllocateResponse,
    pod_devices::{ContainerAllocation, PodDevices},
};

pub const FILE_NAME: &str = "kubelet_internal_checkpoint";

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum CheckpointError {
    #[error("failed to read the checkpoint: {0}")]
    Malformed(String),
    #[error("checkpoint is corrupted: expected checksum {expected}, found {found}")]
    Checksum { expected: u64, found: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<Entry>>,
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container_name: String,
    #[serde(rename = "ResourceName")]
    resource_name: String,
    /// By the number of the NUMA node, -1 for devices without one.
    #[serde(rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<i64, Option<Vec<String>>>>,
    #[serde(rename = "AllocResp")]
    alloc_resp: Option<String>,
}

/// What a file says.
#[derive(Debug, Default, PartialEq)]
pub struct Checkpoint {
    pub pods: PodDevices,
    /// The healthy devices of each resource that was registered.
    pub registered: BTreeMap<String, Vec<String>>,
}

pub fn encode(checkpoint: &Checkpoint) -> Vec<u8> {
    let entries: Vec<Entry> = checkpoint
        .pods
        .iter()
        .map(|(pod_uid, container_name, resource_name, allocation)| Entry {
            pod_uid: pod_uid.into(),
            container_name: container_name.into(),
            resource_name: resource_name.into(),
            device_ids: Some(allocation.devices.iter().map(|(node, ids)| (*node, Some(ids.clone()))).collect()),
            alloc_resp: Some(BASE64.encode(allocation.response.encode_to_vec())),
        })
        .collect();
    let registered = checkpoint.registered.iter().map(|(name, ids)| (name.clone(), Some(ids.clone()))).collect();
    let pod_device_entries = (!entries.is_empty()).then_some(entries);
    let data = Data { pod_device_entries, registered_devices: Some(registered) };
    let checksum = checksum(&data);
    serde_json::to_vec(&File { data, checksum }).unwrap_or_default()
}

pub fn decode(text: &[u8]) -> Result<Checkpoint, CheckpointError> {
    let malformed = |error: &dyn std::fmt::Display| CheckpointError::Malformed(error.to_string());
    let File { data, checksum: expected } = serde_json::from_slice(text).map_err(|error| malformed(&error))?;
    let found = checksum(&data);
    if found != expected {
        return Err(CheckpointError::Checksum { expected, found });
    }
    let mut pods = PodDevices::default();
    for entry in data.pod_device_entries.into_iter().flatten() {
        let bytes = BASE64.decode(entry.alloc_resp.unwrap_or_default()).map_err(|error| malformed(&error))?;
        let response = ContainerAllocateResponse::decode(bytes.as_slice()).map_err(|error| malformed(&error))?;
        let devices = entry.device_ids.unwrap_or_default();
        let devices = devices.into_iter().map(|(node, ids)| (node, ids.unwrap_or_default())).collect();
        let allocation = ContainerAllocation { devices, response };
        pods.insert(&entry.pod_uid, &entry.container_name, &entry.resource_name, allocation);
    }
    let registered = data.registered_devices.unwrap_or_default();
    let registered = registered.into_iter().map(|(name, ids)| (name, ids.unwrap_or_default())).collect();
    Ok(Checkpoint { pods, registered })
}

/// Upstream hashes the data as its debugging printer shows it, with the names of its types.
fn checksum(data: &Data) -> u64 {
    let mut text = String::from("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)");
    match &data.pod_device_entries {
        None => text.push_str("<nil>"),
        Some(entries) => list(&mut text, entries, |text, entry| {
            let (uid, container, resource) = (&entry.pod_uid, &entry.container_name, &entry.resource_name);
            let _ = write!(
                text,
                "{{PodUID:(string){uid} ContainerName:(string){container} ResourceName:(string){resource} \
                 DeviceIDs:(checkpoint.DevicesPerNUMA)"
            );
            map(text, entry.device_ids.as_ref());
            text.push_str(" AllocResp:([]uint8)");
            match entry.alloc_resp.as_ref().map(|encoded| BASE64.decode(encoded).unwrap_or_default()) {
                None => text.push_str("<nil>"),
                Some(bytes) => list(text, &bytes, |text, byte| {
                    let _ = write!(text, "{byte}");
                }),
            }
            text.push('}');
        }),
    }
    text.push_str(" RegisteredDevices:(map[string][]string)");
    map(&mut text, data.registered_devices.as_ref());
    text.push('}');
    u64::from(fnv32a(text.as_bytes()))
}

fn list<T>(text: &mut String, items: &[T], show: impl Fn(&mut String, &T)) {
    text.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            text.push(' ');
        }
        show(text, item);
    }
    text.push(']');
}

fn map<K: std::fmt::Display>(text: &mut String, entries: Option<&BTreeMap<K, Option<Vec<String>>>>) {
    let Some(entries) = entries else { return text.push_str("<nil>") };
    text.push_str("map");
    let entries: Vec<_> = entries.iter().collect();
    list(text, &entries, |text, (key, ids)| {
        let _ = write!(text, "{key}:");
        match ids {
            None => text.push_str("<nil>"),
            Some(ids) => list(text, ids, |text, id| text.push_str(id)),
        }
    });
}

fn fnv32a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::messages::DeviceSpec;

    fn sample() -> Checkpoint {
        let mut pods = PodDevices::default();
        let device =
            DeviceSpec { container_path: "/dev/x".into(), host_path: "/dev/null".into(), ..Default::default() };
        let response = ContainerAllocateResponse { devices: vec![device], ..Default::default() };
        let devices = BTreeMap::from([(-1, vec!["a".to_string()]), (0, vec!["b".into(), "c".into()])]);
        pods.insert("uid-1", "main", "example.com/x", ContainerAllocation { devices, response });
        let none = ContainerAllocation { devices: BTreeMap::new(), response: Default::default() };
        pods.insert("uid-2", "main", "example.com/y", none);
        let registered = BTreeMap::from([("example.com/x".into(), vec!["a".into(), "b".into(), "c".into()])]);
        Checkpoint { pods, registered }
    }

    #[test]
    fn what_was_written_is_read() {
        for checkpoint in [Checkpoint::default(), sample()] {
            assert_eq!(decode(&encode(&checkpoint)), Ok(checkpoint));
        }
    }

    #[test]
    fn the_checksum_is_upstreams() {
        let check = |text: &str, expected: u32| assert_eq!(fnv32a(text.as_bytes()), expected);
        // A value of upstream's own tests, for the printer's form of another checkpoint.
        check(
            "(*state.CPUManagerCheckpoint){PolicyName:(string)none DefaultCPUSet:(string)4-6 \
             Entries:(map[string]map[string]string)map[] Checksum:(checksum.Checksum)0}",
            354_655_845,
        );
        let text = String::from_utf8(encode(&Checkpoint::default())).unwrap();
        let shown = "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)<nil> \
                     RegisteredDevices:(map[string][]string)map[]}";
        let expected = fnv32a(shown.as_bytes());
        assert_eq!(
            text,
            format!(r#"{{"Data":{{"PodDeviceEntries":null,"RegisteredDevices":{{}}}},"Checksum":{expected}}}"#)
        );
    }

    #[test]
    fn torn_and_foreign_files_are_refused() {
        let whole = encode(&sample());
        for end in [0, 1, whole.len() / 2, whole.len() - 1] {
            assert!(matches!(decode(&whole[..end]), Err(CheckpointError::Malformed(_))), "{end} bytes");
        }
        let changed = String::from_utf8(whole).unwrap().replace("uid-1", "uid-9");
        assert!(matches!(decode(changed.as_bytes()), Err(CheckpointError::Checksum { .. })));
        assert!(matches!(decode(br#"{"Entries":[],"Checksum":1}"#), Err(CheckpointError::Malformed(_))));
    }
}
