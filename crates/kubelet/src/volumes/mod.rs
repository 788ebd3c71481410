//! Volumes: `volume_manager` mounts and unmounts what pods name, `referenced_objects` holds the ConfigMaps and Secrets
//! that pods name.
//! Used by `pod::pod_workers`.

pub mod referenced_objects;
pub mod volume_manager;
