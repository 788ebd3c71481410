//! downwardAPI volumes: fields and resources of the pod as files, in memory only.
//! Also the downwardAPI sources of `projected` volumes.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Volume};

use crate::{
    runtime::container_config::downward,
    volumes::{
        atomic_writer::Payload,
        error::VolumeError,
        payload,
        plugin::{MountContext, Mounter, Spec, VolumePlugin},
    },
};

pub struct DownwardApiPlugin;

impl VolumePlugin for DownwardApiPlugin {
    fn name(&self) -> &'static str {
        "downward-api"
    }

    fn can_support(&self, spec: Spec) -> bool {
        spec.inline().is_some_and(|volume| volume.downward_api.is_some())
    }

    fn requires_remount(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn is_relabelled(&self) -> bool {
        true
    }

    fn needs_pod_ip(&self, volume: &Volume) -> bool {
        shows_pod_ip(volume.downward_api.iter().flat_map(|source| source.items.iter().flatten()))
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let source = spec.inline().and_then(|volume| volume.downward_api.clone()).unwrap_or_default();
        let items = source.items.as_deref().unwrap_or_default();
        let files = content(context, items, payload::default_mode(source.default_mode))?;
        Ok(payload::mounter(context, context.volume_dir(self, context.volume_name), files, true))
    }
}

pub fn content(
    context: &MountContext,
    items: &[DownwardAPIVolumeFile],
    default_mode: u32,
) -> Result<Payload, VolumeError> {
    let mut files = Payload::new();
    for item in items {
        let text = if let Some(field) = &item.field_ref {
            downward::field(context.pod, &field.field_path, context.pod_ips, context.host_ips)?
        } else if let Some(resource) = &item.resource_field_ref {
            downward::resource(context.pod, None, resource, context.node)?
        } else {
            String::new()
        };
        files.insert(item.path.clone(), payload::file(text, item.mode, default_mode));
    }
    Ok(files)
}

pub fn shows_pod_ip<'a>(mut items: impl Iterator<Item = &'a DownwardAPIVolumeFile>) -> bool {
    items.any(|item| item.field_ref.as_ref().is_some_and(|field| field.field_path.starts_with("status.podIP")))
}
