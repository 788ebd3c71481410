//! iscsi and fc volumes, of pods and of PersistentVolumes: disks of the network, with a file system or for pods that want them
//! as they are.
//! `network_disks` brings them to the node; who may have one at once is not checked here, as nobody outside attaches them.
//! As upstream's, they can be mounted with an SELinux label.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use crate::{
    pod::pod_spec,
    volumes::{
        devices::FileSystem,
        error::VolumeError,
        file_system,
        network_disks::{Disk, DiskRequest, TYPES, fibre_channel::FibreChannelDisk, iscsi::IscsiDisk},
        plugin::{MountContext, Mounter, SecretKey, SetUp, Spec, VolumePlugin, is_block},
    },
};

pub struct NetworkDiskPlugin {
    name: &'static str,
    source: for<'a> fn(Spec<'a>, &str) -> Option<Source<'a>>,
}

pub static ISCSI: NetworkDiskPlugin = NetworkDiskPlugin { name: TYPES[0], source: iscsi };
pub static FIBRE_CHANNEL: NetworkDiskPlugin = NetworkDiskPlugin { name: TYPES[1], source: fibre_channel };

/// What a volume says of its disk.
struct Source<'a> {
    disk: Disk,
    kind: Option<&'a String>,
    read_only: Option<bool>,
    /// Namespace, that of the pod where it is absent, and name.
    secret: Option<(Option<&'a String>, &'a str)>,
}

fn iscsi<'a>(spec: Spec<'a>, name: &str) -> Option<Source<'a>> {
    match spec {
        Spec::Inline(volume) => {
            let source = volume.iscsi.as_ref()?;
            let disk = IscsiDisk::inline(name, source);
            let secret = source.secret_ref.as_ref().filter(|_| disk.chap_discovery || disk.chap_session);
            let secret = secret.map(|secret| (None, secret.name.as_str()));
            Some(Source { disk: Disk::Iscsi(disk), kind: source.fs_type.as_ref(), read_only: source.read_only, secret })
        }
        Spec::Persistent { volume, .. } => {
            let source = volume.spec.as_ref()?.iscsi.as_ref()?;
            let disk = IscsiDisk::persistent(name, source);
            let secret = source.secret_ref.as_ref().filter(|_| disk.chap_discovery || disk.chap_session);
            let secret = secret.and_then(|secret| Some((secret.namespace.as_ref(), secret.name.as_deref()?)));
            Some(Source { disk: Disk::Iscsi(disk), kind: source.fs_type.as_ref(), read_only: source.read_only, secret })
        }
    }
}

fn fibre_channel<'a>(spec: Spec<'a>, _name: &str) -> Option<Source<'a>> {
    let source = match spec {
        Spec::Inline(volume) => volume.fc.as_ref()?,
        Spec::Persistent { volume, .. } => volume.spec.as_ref()?.fc.as_ref()?,
    };
    let disk = Disk::FibreChannel(FibreChannelDisk::new(source));
    Some(Source { disk, kind: source.fs_type.as_ref(), read_only: source.read_only, secret: None })
}

impl VolumePlugin for NetworkDiskPlugin {
    fn name(&self) -> &'static str {
        self.name
    }

    fn can_support(&self, spec: Spec) -> bool {
        (self.source)(spec, "").is_some()
    }

    fn has_selinux_mount(&self) -> bool {
        true
    }

    fn is_relabelled(&self) -> bool {
        true
    }

    fn secret(&self, spec: Spec, pod: &Pod) -> Option<SecretKey> {
        let (namespace, name) = (self.source)(spec, "")?.secret?;
        Some((namespace.map_or(pod_spec::namespace(pod), String::as_str).into(), name.into()))
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let persistent = spec.persistent();
        let name = persistent.and_then(|volume| volume.metadata.name.as_deref()).unwrap_or(context.volume_name);
        let source = (self.source)(spec, name).ok_or_else(|| VolumeError::NoPluginMatched(self.name.into()))?;
        let options = persistent.and_then(|volume| volume.spec.as_ref()?.mount_options.clone());
        let read_only = match spec {
            Spec::Inline(_) => source.read_only == Some(true),
            Spec::Persistent { read_only, .. } => read_only || source.read_only == Some(true),
        };
        let request = DiskRequest {
            pod_uid: pod_spec::uid(context.pod).into(),
            volume_name: name.into(),
            file_system: FileSystem { kind: source.kind.cloned(), options: options.unwrap_or_default() },
            is_block: persistent.is_some_and(is_block),
            read_only,
            selinux_label: context.selinux_label.map(String::from),
            secret: context.secret.cloned().unwrap_or_else(BTreeMap::new),
            target: context.volume_dir(self, name),
            disk: source.disk,
        };
        let group = context.fs_group().filter(|_| !read_only && !request.is_block);
        let policy = pod_spec::spec(context.pod).security_context.as_ref();
        let lazily = policy.and_then(|c| c.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
        let (disks, progress) = (context.network_disks.clone(), context.ownership.clone());
        Ok(Box::new(move || {
            let path = disks.mount(&request)?;
            if let Some(group) = group {
                file_system::set_volume_ownership(&path, group, false, lazily, &progress)?;
            }
            Ok(SetUp::at(path))
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_secret_is_the_volumes_where_it_is_needed() {
        let pod = serde_json::from_value(json!({"metadata": {"namespace": "d"}})).unwrap();
        let check = |source: Value, expected: Option<(&str, &str)>| {
            let expected = expected.map(|(namespace, name)| (namespace.to_string(), name.to_string()));
            let mut iscsi = source;
            iscsi["targetPortal"] = "10.0.0.1".into();
            iscsi["iqn"] = "iqn.2001-04.com.example:x".into();
            iscsi["lun"] = 0.into();
            let volume = json!({"metadata": {"name": "pv"}, "spec": {"iscsi": iscsi}});
            let volume = serde_json::from_value(volume).unwrap();
            let spec = Spec::Persistent { volume: &volume, read_only: false };
            assert_eq!(ISCSI.secret(spec, &pod), expected, "{iscsi}");
            assert!(ISCSI.can_support(spec) && !FIBRE_CHANNEL.can_support(spec));
        };
        let secret = json!({"name": "s", "namespace": "other"});
        check(json!({"secretRef": secret}), None);
        check(json!({"secretRef": secret, "chapAuthSession": true}), Some(("other", "s")));
        let own = json!({"name": "s"});
        check(json!({"secretRef": own, "chapAuthDiscovery": true}), Some(("d", "s")));
    }
}
