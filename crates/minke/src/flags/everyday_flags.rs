//! Flags of the commands that look at a cluster or put minke on a machine: `status`, `doctor`, `logs`, `certs`, `install`, ….
//! Parsed by `main` with the other flags, and carried out in `commands`.
//! Starts nothing; only reads what was typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::DataDirectory;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    Text,
    Json,
}

#[derive(Debug, Clone, Args)]
pub struct Look {
    #[command(flatten)]
    pub data: DataDirectory,
    /// How the answer looks
    #[arg(short = 'o', long, value_name = "FORM", default_value = "text")]
    pub output: OutputForm,
}

#[derive(Debug, Clone, Args)]
pub struct Logs {
    #[command(flatten)]
    pub data: DataDirectory,
    /// Only lines of this component (apiserver, controllers, scheduler, kubelet, proxy, dns, ingress, store, …), or
    /// `containerd` for the log of the container runtime [default: everything]
    pub component: Option<String>,
    /// Go on with new lines as they come
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// How many of the last lines to show; -1 shows all
    #[arg(short = 'n', long, value_name = "LINES", default_value_t = 200, allow_negative_numbers = true)]
    pub tail: i64,
    /// The log of a node that `up --nodes` made on this machine
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct SupportBundle {
    #[command(flatten)]
    pub data: DataDirectory,
    /// File to write [default: minke-support-<time>.tar.gz here]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Certs {
    /// List every certificate of this machine's part of the cluster, the first to end first
    Ls(Look),
    /// Issue the cluster's certificates again, authorities left as they are
    Renew {
        #[command(flatten)]
        data: DataDirectory,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Print a configuration file that has every flag of every command, commented out
    Example,
    /// Check a configuration file
    Check {
        #[arg(value_name = "FILE", default_value = crate::flags::config_file::DEFAULT_FILE)]
        file: PathBuf,
    },
}

#[derive(Debug, Clone, Args)]
pub struct Man {
    /// Write a page for every command into this directory, instead of the first page to the terminal
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct Install {
    /// Write the files only: start and restart nothing
    #[arg(long)]
    pub no_start: bool,
    /// Install below this directory as if it were /
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub struct Uninstall {
    /// Also remove the configuration and the default data directory: every object and image
    #[arg(long)]
    pub purge: bool,
    /// Uninstall below this directory as if it were /
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}
