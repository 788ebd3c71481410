//! Flags of the registry that a cluster can have of its own.
//! Part of the flags of every command that runs a control plane; opened by `control_plane::registry`.
//! Starts nothing; only reads what was typed.

use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct RegistryFlags {
    /// Also run an image registry: what is pushed to localhost:5000 on this machine runs on every node at once
    #[arg(long)]
    pub registry: bool,
    /// Port of that registry
    #[arg(long, value_name = "PORT", default_value_t = 5000, value_parser = clap::value_parser!(u16).range(1..))]
    pub registry_port: u16,
}
