//! secret volumes: a file for each key of a Secret, or for those that are listed, in memory only.
//! Also the secret sources of `projected` volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Secret, Volume};

use crate::volumes::{
    atomic_writer::Payload,
    error::VolumeError,
    payload::{self, KeySelection, ObjectKind},
    plugin::{MountContext, Mounter, ObjectNames, Spec, VolumePlugin},
};

pub struct SecretPlugin;

impl VolumePlugin for SecretPlugin {
    fn name(&self) -> &'static str {
        "secret"
    }

    fn can_support(&self, spec: Spec) -> bool {
        spec.inline().is_some_and(|volume| volume.secret.is_some())
    }

    fn requires_remount(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn add_referenced(&self, volume: &Volume, names: &mut ObjectNames) {
        names.secrets.extend(volume.secret.as_ref().and_then(|source| source.secret_name.clone()));
    }

    fn new_mounter(&self, spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        let source = spec.inline().and_then(|volume| volume.secret.clone()).unwrap_or_default();
        let selection = KeySelection {
            name: source.secret_name.as_deref().unwrap_or_default(),
            items: source.items.as_deref(),
            optional: source.optional,
            default_mode: payload::default_mode(source.default_mode),
        };
        let files = content(context, &selection)?;
        Ok(payload::mounter(context, context.volume_dir(self, context.volume_name), files, true))
    }
}

pub fn content(context: &MountContext, selection: &KeySelection) -> Result<Payload, VolumeError> {
    let secret = context.references.secrets.get(selection.name).cloned().flatten();
    selection.files(ObjectKind::Secret, secret.as_deref().map(entries))
}

fn entries(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}
