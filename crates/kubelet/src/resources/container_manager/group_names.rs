//! Where groups are, for whoever reads what is counted in them.
//! Part of `container_manager`.
//! Only names; nothing is made here.

use cadvisor::Cgroups;

use super::{ContainerManager, hierarchy::Hierarchy};

impl ContainerManager {
    /// The mounted hierarchies.
    pub fn cgroups(&self) -> Cgroups {
        match &self.hierarchy {
            Hierarchy::Unified { root } => Cgroups::Unified { root: root.clone() },
            Hierarchy::Separate { controllers } => Cgroups::Separate { controllers: controllers.clone() },
        }
    }

    /// What the kernel calls the group of all pods.
    pub fn pods_group(&self) -> String {
        format!("/{}", self.place(&self.top).join("/"))
    }
}
