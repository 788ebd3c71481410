//! Volumes: `plugins` has one file per volume type and `plugin` what a type has to tell; `volume_manager` mounts what
//! pods name; `referenced_objects` holds the ConfigMaps and Secrets that pods name, `tokens` their ServiceAccount tokens,
//! `certificates` the trust anchors and certificates that projected volumes show.
//! `local_storage` keeps the directories of the built-in provisioner, `network_disks` brings disks of iSCSI and Fibre Channel,
//! `selinux` says with which labels volumes are mounted.
//! Used by `pod::pod_workers`; `runtime::container_config` asks which mounts are read-only.
//! `atomic_writer`, `payload`, `devices` and `file_system` are for plugins alone.

mod atomic_writer;
pub(crate) mod certificates;
mod devices;
pub(crate) mod error;
pub(crate) mod file_system;
pub(crate) mod local_storage;
pub(crate) mod network_disks;
pub(crate) mod operation_metrics;
pub(crate) mod ownership_progress;
mod payload;
pub(crate) mod plugin;
pub(crate) mod plugins;
pub(crate) mod referenced_objects;
pub(crate) mod selinux;
pub(crate) mod tokens;
pub(crate) mod volume_manager;
