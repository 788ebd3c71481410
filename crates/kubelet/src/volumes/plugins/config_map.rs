//! configMap volumes: a file for each key of a ConfigMap, or for those that are listed.
//! Also the configMap sources of `projected` volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Volume};

use crate::volumes::{
    atomic_writer::Payload,
    error::VolumeError,
    payload::{self, KeySelection, ObjectKind},
    plugin::{MountContext, Mounter, ObjectNames, Spec, VolumePlugin},
};

pub struct ConfigMapPlugin;

impl VolumePlugin for ConfigMapPlugin {
    fn name(&self) -> &'static str {
        "configmap"
    }

    fn can_support(&self, spec: Spec) -> bool {
        spec.inline().is_some_and(|volume| volume.config_map.is_some())
    }

    fn requires_remount(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn add_referenced(&self, volume: &Volume, names: &mut ObjectNames) {
        names.config_maps.extend(volume.config_map.as_ref().map(|source| source.name.clone()));
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let source = spec.inline().and_then(|volume| volume.config_map.clone()).unwrap_or_default();
        let selection = KeySelection {
            name: &source.name,
            items: source.items.as_deref(),
            optional: source.optional,
            default_mode: payload::default_mode(source.default_mode),
        };
        let files = content(context, &selection)?;
        Ok(payload::mounter(context, context.volume_dir(self, context.volume_name), files, false))
    }
}

pub fn content(context: &MountContext, selection: &KeySelection) -> Result<Payload, VolumeError> {
    let map = context.references.config_maps.get(selection.name).cloned().flatten();
    selection.files(ObjectKind::ConfigMap, map.as_deref().map(entries))
}

fn entries(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    text.chain(binary).collect()
}
