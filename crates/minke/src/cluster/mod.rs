//! One cluster on this machine: its names and places, addresses and ports, files, processes and further members.
//! Used by `commands`, `control_plane` and `node` before and while they run something.

pub mod clusters;
pub mod data_version;
pub mod file_modes;
pub mod host;
pub mod instance;
pub mod leader_identity;
pub mod members;
pub mod ports;
pub mod preflight;
pub mod process;
pub mod ranges;
pub mod sysctls;
