//! The volume types, one row each, and one file but for those that differ only in their source.
//! A type that is not here is refused by `volume_manager`; claims are resolved to PersistentVolumes before
//! (`volume_manager::desired_state_of_world_populator`).

mod downward_api;
mod empty_dir;
mod host_path;
mod image;
mod keyed_object;
pub mod local;
mod network_disk;
mod nfs;
mod projected;

use super::plugin::VolumePlugins;

pub static PLUGINS: VolumePlugins = VolumePlugins(&[
    &keyed_object::CONFIG_MAP,
    &downward_api::DownwardApiPlugin,
    &empty_dir::EmptyDirPlugin,
    &host_path::HostPathPlugin,
    &image::ImagePlugin,
    &local::LocalPlugin,
    &network_disk::ISCSI,
    &network_disk::FIBRE_CHANNEL,
    &nfs::NfsPlugin,
    &projected::ProjectedPlugin,
    &keyed_object::SECRET,
]);
