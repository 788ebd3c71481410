//! Commands under `minke node`, `server`, `etcd`, `image` and `store`, and `minke console`.
//! Parsed by `main` with the other flags, and carried out in `commands`.
//! Starts nothing; only reads what was typed.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{DataDirectory, Join, Server, component_flags::LeaderElectionTimes, store_flags::StoreFlags};

#[derive(Debug, Clone, Args)]
pub struct NamedMember {
    #[command(flatten)]
    pub data: DataDirectory,
    pub name: String,
}

/// Of nodes, servers and etcd servers on one machine.
#[derive(Debug, Clone, Subcommand)]
pub enum MemberCommand {
    /// List those of this machine, and how each is
    Ls {
        #[command(flatten)]
        data: DataDirectory,
    },
    /// End one with all that it runs, as if its machine lost power
    Stop(NamedMember),
    /// Start one that was stopped
    Start(NamedMember),
    /// Pull the network cable of one
    Cut(NamedMember),
    /// Plug it in again
    Heal(NamedMember),
}

#[derive(Debug, Clone, Subcommand)]
pub enum NodeCommand {
    #[command(flatten)]
    Member(MemberCommand),
    /// Print the command that joins another machine to this cluster
    JoinCommand {
        #[command(flatten)]
        data: DataDirectory,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum ServerSubcommand {
    #[command(flatten)]
    Member(MemberCommand),
    /// Print the command that makes another machine a further server of this cluster, on the same etcd
    JoinCommand {
        #[command(flatten)]
        data: DataDirectory,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum EtcdCommand {
    #[command(flatten)]
    Member(MemberCommand),
    /// Become one of them
    #[command(hide = true)]
    Run {
        #[command(flatten)]
        data: DataDirectory,
        #[arg(last = true)]
        arguments: Vec<String>,
    },
}

// No doc comment: clap would show it as --help.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ServerCommand {
    #[command(subcommand)]
    pub command: Option<ServerSubcommand>,
    #[command(flatten)]
    pub server: Server,
    /// API server of a cluster to become a further server of, as https://HOST:PORT (`minke server join-command` on it
    /// prints the whole command); flags of the cluster's servers come from there
    #[arg(long = "join", value_name = "URL")]
    pub join_server: Option<String>,
    #[command(flatten)]
    pub join: Join,
    #[command(flatten)]
    pub election: LeaderElectionTimes,
    /// Network namespace to run in
    #[arg(long, value_name = "PATH", hide = true, requires = "host_name")]
    pub netns: Option<PathBuf>,
    /// Host name there
    #[arg(long, value_name = "NAME", hide = true)]
    pub host_name: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct Console {
    #[command(flatten)]
    pub data: DataDirectory,
    /// ClusterRole of whoever opens the address: cluster-admin, admin, edit, view or one of your own
    #[arg(long, value_name = "NAME", default_value = "cluster-admin")]
    pub cluster_role: String,
    /// How long the address is good for, ten minutes at least
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = super::security_flags::duration)]
    pub duration: Duration,
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
    /// Write a consistent snapshot of a cluster's objects to a file, also while the cluster runs, and verify it; of the
    /// embedded store, or of an etcd that is given or that `up --servers` made
    Backup {
        #[command(flatten)]
        data: DataDirectory,
        #[command(flatten)]
        store: Box<StoreFlags>,
        file: PathBuf,
    },
    /// Fill an empty store from a snapshot, whichever kind of store that was of. The revision rises above the old one's, so
    /// that watches start again
    Restore {
        #[command(flatten)]
        data: DataDirectory,
        #[command(flatten)]
        store: Box<StoreFlags>,
        /// Remove what the etcd holds of the cluster first; no API server may run on it
        #[arg(long)]
        replace: bool,
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
    /// Copy all objects from the embedded store into etcd, or back; the cluster is to be stopped, and both are compared
    /// by hash in the end
    Migrate {
        #[command(flatten)]
        data: DataDirectory,
        /// Where to: `etcd` (given by --etcd-servers) or `embedded` (in the data directory)
        #[arg(long, value_name = "STORE")]
        to: String,
        #[command(flatten)]
        store: Box<StoreFlags>,
    },
}
