//! Starts any subset of the components in one process.
//! Every other crate is a library; this one knows which of them run together.
//! Invariant: no behaviour of a component lives here.

mod access;
mod agent;
mod authorities;
mod ca_pin;
mod clusters;
mod commands;
mod component_port;
mod components;
mod container_runtime;
mod demo;
mod dns_endpoints;
mod dns_service;
mod down;
mod file_modes;
mod flags;
mod host;
mod images;
mod instance;
mod join;
mod join_token;
mod kept_rules;
mod kubeconfigs;
mod kubelet_flags;
mod kubelet_serving_ca;
mod leader_identity;
mod logging;
mod lost_attachments;
mod nodes;
mod own_node;
mod perseverance;
mod pki;
mod pod_network;
mod ports;
mod preflight;
mod process;
mod ranges;
mod report;
mod security_flags;
mod server;
mod service_proxy;
mod serving_approver;
mod store_flags;
mod sysctls;
mod up;
mod withdrawal;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let called_as = std::env::args().next().unwrap_or_default();
    if cni::called_as_plugin(&called_as) {
        file_modes::set_umask(false);
        return ExitCode::from(cni::main() as u8);
    }
    let flags = flags::Flags::parse();
    file_modes::set_umask(flags.command.runs_kubelet());
    flags.logging.start();
    if flags.command.only_prints() {
        end_quietly_without_reader();
    }
    match commands::run(flags.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("minke: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `minke image ls | head` ends like any other program when nobody reads on.
#[allow(unsafe_code)]
fn end_quietly_without_reader() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no other thread runs yet, and the default action is no handler of ours.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
}

/// Few threads: nothing here computes for long, and idle threads cost memory.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    // Every connection, watch of a file and log is a descriptor.
    if let Err(error) = env::open_files::raise_limit() {
        tracing::warn!(%error, "failed to raise the limit of open files");
    }
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?)
}
