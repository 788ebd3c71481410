//! Takes volumes down through their drivers: unpublishes them, and unstages them when no pod of the node is left.
//! Part of `mounter`'s CsiManager; called by `volumes::volume_manager` when a pod has ended.
//! A volume that a pod still has is never unstaged, and one that can't be taken down keeps no other.

use std::path::Path;

use super::{
    driver_client::DriverClient,
    messages::{NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest},
    mounter::{CsiManager, DeviceUse, text},
    places::{Places, forget, is_mounted},
    volume::Device,
    volume_data::{VolumeData, directories_in},
};
use crate::volumes::error::VolumeError;

impl CsiManager {
    /// Takes down every volume that drivers have mounted for the pod, by what is on disk.
    pub async fn unmount_pod(&self, uid: &str) -> Result<(), VolumeError> {
        // One that can't be taken down keeps no other.
        let mut failed: Vec<(Device, VolumeError)> = Vec::new();
        for (data, places) in self.published(uid)? {
            let name = data.spec_volume_id;
            let device = Device { driver: data.driver_name, handle: data.volume_handle };
            let operation = if places.link.is_some() { "unmap_volume" } else { "volume_unmount" };
            let unmounted = self.measured(&device, operation, self.unmount(uid, &device, &name, &places)).await;
            failed.extend(unmounted.err().map(|error| (device, error)));
        }
        // Those that were never published.
        let rest: Vec<(Device, String)> = {
            let used = self.used.lock();
            let of = |used: &DeviceUse| used.users.iter().find(|(user, _)| user == uid).map(|(_, name)| name.clone());
            let others = used.iter().filter(|(device, _)| failed.iter().all(|(other, _)| other != *device));
            others.filter_map(|(device, used)| Some((device.clone(), of(used)?))).collect()
        };
        for (device, name) in rest {
            let _turn = self.turns.enter(&device.unique_name()).await;
            let released = match self.driver(&device.driver) {
                Ok(driver) => self.release(&driver, &device, uid, &name).await,
                Err(error) if device.directory(&self.root_dir).exists() => Err(error),
                Err(_) => {
                    self.remove_user(&device, uid, &name);
                    Ok(())
                }
            };
            failed.extend(released.err().map(|error| (device, error)));
        }
        failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    async fn unmount(&self, uid: &str, device: &Device, name: &str, places: &Places) -> Result<(), VolumeError> {
        let driver = self.driver(&device.driver)?;
        let _turn = self.turns.enter(&device.unique_name()).await;
        let target_path = text(&places.target);
        driver.unpublish(NodeUnpublishVolumeRequest { volume_id: device.handle.clone(), target_path }).await?;
        if is_mounted(&places.target)? {
            return Err(VolumeError::Csi(format!(
                "driver {} left volume {} mounted at {}",
                device.driver,
                device.handle,
                places.target.display()
            )));
        }
        places.forget()?;
        self.release(&driver, device, uid, name).await
    }

    /// One user less; unstaged after the last one. The caller has the volume's turn.
    async fn release(&self, driver: &DriverClient, device: &Device, uid: &str, name: &str) -> Result<(), VolumeError> {
        let is_last = {
            let used = self.used.lock();
            let user = (uid.to_string(), name.to_string());
            used.get(device).is_none_or(|used| used.users.iter().all(|other| *other == user))
        };
        let data_dir = device.directory(&self.root_dir);
        if is_last && let Some(data) = VolumeData::load(&data_dir)? {
            let operation = if data.spec_volume_id.is_empty() { "unmount_device" } else { "unmap_device" };
            self.measured(device, operation, self.unstage(driver, device, &data, &data_dir)).await?;
        }
        self.remove_user(device, uid, name);
        Ok(())
    }

    async fn unstage(
        &self,
        driver: &DriverClient,
        device: &Device,
        data: &VolumeData,
        data_dir: &Path,
    ) -> Result<(), VolumeError> {
        let path = match data.spec_volume_id.is_empty() {
            true => data_dir.join("globalmount"),
            false => self.block_dir().join("staging").join(&data.spec_volume_id),
        };
        driver
            .unstage(NodeUnstageVolumeRequest { volume_id: device.handle.clone(), staging_target_path: text(&path) })
            .await?;
        if is_mounted(&path)? {
            let (driver, handle) = (&device.driver, &device.handle);
            return Err(VolumeError::Csi(format!(
                "driver {driver} left volume {handle} mounted at {}",
                path.display()
            )));
        }
        Ok(forget(&path, data_dir)?)
    }

    /// Unstages what an earlier process left behind for no pod.
    pub async fn unstage_unused(&self, driver_name: &str) -> Result<(), VolumeError> {
        let driver = self.driver(driver_name)?;
        for data_dir in directories_in(&self.root_dir.join("plugins/kubernetes.io/csi").join(driver_name))? {
            let Some(data) = VolumeData::load(&data_dir)? else { continue };
            let device = Device { driver: data.driver_name.clone(), handle: data.volume_handle.clone() };
            if device.driver != driver_name || device.directory(&self.root_dir) != data_dir {
                continue;
            }
            let _turn = self.turns.enter(&device.unique_name()).await;
            if !self.used.lock().contains_key(&device) {
                self.unstage(&driver, &device, &data, &data_dir).await?;
            }
        }
        Ok(())
    }
}
