//! configMap and secret volumes: a file for each key of the object, or for those that are listed. Secrets are in memory only.
//! Also the sources of that kind of `projected` volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{KeyToPath, Volume};

use crate::volumes::{
    atomic_writer::Payload,
    error::VolumeError,
    payload::{self, KeySelection, ObjectKind},
    plugin::{MountContext, Mounter, ObjectNames, Spec, VolumePlugin},
};

pub struct KeyedObjectPlugin(ObjectKind);

pub static CONFIG_MAP: KeyedObjectPlugin = KeyedObjectPlugin(ObjectKind::ConfigMap);
pub static SECRET: KeyedObjectPlugin = KeyedObjectPlugin(ObjectKind::Secret);

impl KeyedObjectPlugin {
    fn selection<'a>(&self, volume: &'a Volume) -> Option<KeySelection<'a>> {
        let selection = |name: Option<&'a String>, items: &'a Option<Vec<KeyToPath>>, optional, mode| KeySelection {
            name: name.map(String::as_str).unwrap_or_default(),
            items: items.as_deref(),
            optional,
            default_mode: payload::default_mode(mode),
        };
        match self.0 {
            ObjectKind::ConfigMap => {
                let source = volume.config_map.as_ref()?;
                Some(selection(Some(&source.name), &source.items, source.optional, source.default_mode))
            }
            ObjectKind::Secret => {
                let source = volume.secret.as_ref()?;
                Some(selection(source.secret_name.as_ref(), &source.items, source.optional, source.default_mode))
            }
        }
    }
}

impl VolumePlugin for KeyedObjectPlugin {
    fn name(&self) -> &'static str {
        match self.0 {
            ObjectKind::ConfigMap => "configmap",
            ObjectKind::Secret => "secret",
        }
    }

    fn can_support(&self, spec: Spec) -> bool {
        spec.inline().is_some_and(|volume| self.selection(volume).is_some())
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

    fn add_referenced(&self, volume: &Volume, names: &mut ObjectNames) {
        let name = self.selection(volume).map(|selection| selection.name.to_string());
        match self.0 {
            ObjectKind::ConfigMap => names.config_maps.extend(name),
            ObjectKind::Secret => names.secrets.extend(name.filter(|name| !name.is_empty())),
        }
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let selection = spec.inline().and_then(|volume| self.selection(volume));
        let selection = selection.ok_or_else(|| VolumeError::NoPluginMatched(self.name().into()))?;
        let files = content(context, self.0, &selection)?;
        let in_memory = self.0 == ObjectKind::Secret;
        Ok(payload::mounter(context, context.volume_dir(self, context.volume_name), files, in_memory))
    }
}

/// The files that a volume shows of an object.
pub fn content(context: &MountContext, kind: ObjectKind, selection: &KeySelection) -> Result<Payload, VolumeError> {
    let entries: Option<BTreeMap<String, Vec<u8>>> = match kind {
        ObjectKind::ConfigMap => {
            let map = context.references.config_maps.get(selection.name).cloned().flatten();
            map.map(|map| {
                let text = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
                let binary = map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
                text.chain(binary).collect()
            })
        }
        ObjectKind::Secret => {
            let secret = context.references.secrets.get(selection.name).cloned().flatten();
            secret.map(|secret| secret.data.iter().flatten().map(|(key, v)| (key.clone(), v.0.clone())).collect())
        }
    };
    selection.files(kind, entries)
}
