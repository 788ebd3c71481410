//! image volumes: the files of an image. The container runtime mounts them, `runtime_manager` makes the image present.

use crate::volumes::{
    error::VolumeError,
    plugin::{MountContext, Mounter, Spec, VolumePlugin},
};

pub struct ImagePlugin;

impl VolumePlugin for ImagePlugin {
    fn name(&self) -> &'static str {
        "image"
    }

    fn can_support(&self, spec: Spec) -> bool {
        spec.inline().is_some_and(|volume| volume.image.is_some())
    }

    fn is_mounted_by_runtime(&self) -> bool {
        true
    }

    fn new_mounter(&self, _spec: Spec, context: &MountContext) -> Result<Mounter, VolumeError> {
        Err(VolumeError::MountedByRuntime(context.volume_name.into()))
    }
}
