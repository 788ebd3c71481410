//! CSI drivers on this node: `registration` takes them in when the plugin watcher finds them, `csi_node` tells the cluster of
//! them, `driver_client` calls them, `volume` says what is asked of one for a volume, `mounter` stages and publishes,
//! `unmounter` takes down, `volume_stats` asks how full volumes are.
//! Used by `volumes::volume_manager`; `messages` are the published protocol's.
//! Every call has a deadline; what a driver may have mounted is taken down by the driver, never by force.

mod allocatable;
pub mod csi_node;
pub mod driver_client;
pub mod messages;
pub mod mounter;
mod places;
pub mod registration;
mod unmounter;
pub mod volume;
pub mod volume_data;
pub mod volume_stats;

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod test_driver;
#[cfg(test)]
mod tests;
