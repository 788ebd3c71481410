//! The volume types, one file and one row each.
//! A type that is not here is refused by `volume_manager`; claims are resolved to PersistentVolumes before
//! (`volume_manager::desired_state_of_world_populator`).

mod config_map;
mod downward_api;
mod empty_dir;
mod host_path;
mod image;
pub mod local;
mod nfs;
mod projected;
mod secret;

use super::plugin::VolumePlugins;

pub static PLUGINS: VolumePlugins = VolumePlugins(&[
    &config_map::ConfigMapPlugin,
    &downward_api::DownwardApiPlugin,
    &empty_dir::EmptyDirPlugin,
    &host_path::HostPathPlugin,
    &image::ImagePlugin,
    &local::LocalPlugin,
    &nfs::NfsPlugin,
    &projected::ProjectedPlugin,
    &secret::SecretPlugin,
]);
