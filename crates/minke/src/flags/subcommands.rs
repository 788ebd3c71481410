//! Commands under `minke node`, `minke image` and `minke store`.
//! Parsed by `main` with the other flags, and carried out in `commands`.
//! Starts nothing; only reads what was typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::DataDirectory;

#[derive(Debug, Clone, Args)]
pub struct NamedNode {
    #[command(flatten)]
    pub data: DataDirectory,
    pub name: String,
}

#[derive(Debug, Clone, Subcommand)]
pub enum NodeCommand {
    /// List the cluster's nodes on this machine
    Ls {
        #[command(flatten)]
        data: DataDirectory,
    },
    /// End a node with all its containers, as if its machine lost power
    Stop(NamedNode),
    /// Start a stopped node
    Start(NamedNode),
    /// Pull a node's network cable
    Cut(NamedNode),
    /// Plug it in again
    Heal(NamedNode),
    /// Print the command that joins another machine to this cluster
    JoinCommand {
        #[command(flatten)]
        data: DataDirectory,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum Image {
    /// Import OCI or docker archives, plain or compressed (gzip, zstd)
    Import {
        #[command(flatten)]
        data: DataDirectory,
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List the images of every node
    Ls {
        #[command(flatten)]
        data: DataDirectory,
    },
    /// Remove images from every node
    Rm {
        #[command(flatten)]
        data: DataDirectory,
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Pull images onto every node
    Pull {
        #[command(flatten)]
        data: DataDirectory,
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Push an image of a node to a registry; credentials are those of <data-dir>/registries/HOST/hosts.toml
    Push {
        #[command(flatten)]
        data: DataDirectory,
        image: String,
        /// Another name for it there, such as localhost:5000/NAME
        target: Option<String>,
    },
    /// Write images of a node to an archive, which `import` and docker read
    Save {
        #[command(flatten)]
        data: DataDirectory,
        /// Archive to write
        #[arg(short = 'o', long, value_name = "FILE")]
        output: PathBuf,
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum Store {
    /// Write a consistent snapshot of a cluster's store to a file, also while the cluster runs, and verify it
    Backup {
        #[command(flatten)]
        data: DataDirectory,
        file: PathBuf,
    },
    /// Fill an empty store from a snapshot. Its revision rises far above the old one's, so that watches start again
    Restore {
        #[command(flatten)]
        data: DataDirectory,
        file: PathBuf,
    },
    /// Read everything and verify every checksum
    Check {
        #[command(flatten)]
        data: DataDirectory,
        /// If something that is needed is damaged, keep the rest, so that the store starts again, and say what is lost
        #[arg(long)]
        salvage: bool,
    },
    /// Have the running cluster write every object again that is not encrypted as --encryption-provider-config says now
    Reencrypt {
        #[command(flatten)]
        data: DataDirectory,
    },
}
