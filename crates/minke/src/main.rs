//! Starts any subset of the components in one process.
//! Every other crate is a library; this one knows which of them run together.
//! Here are commands, flags, certificates and places on the machine. Of the components themselves only what joins several
//! crates that do not see each other (`network`: pod network, DNS of a node, endpoint drain).

mod certificates;
mod cluster;
mod commands;
mod components;
mod control_plane;
mod flags;
mod log_rotation;
mod logging;
mod network;
mod node;

use std::process::ExitCode;

use clap::Parser;

use crate::cluster::file_modes;

fn main() -> ExitCode {
    let called_as = std::env::args().next().unwrap_or_default();
    if cni::called_as_plugin(&called_as) {
        file_modes::set_umask(false);
        return ExitCode::from(cni::main() as u8);
    }
    if cli::called_as_kubectl(&called_as) {
        return ExitCode::from(cli::main(std::env::args().skip(1).collect()));
    }
    // Before the flags are read: kubectl has its own, and starts in milliseconds.
    match std::env::args().nth(1).as_deref() {
        Some("kubectl") => return ExitCode::from(cli::main(std::env::args().skip(2).collect())),
        // With kubectl's flags for the way to the cluster.
        Some("why" | "timeline") => return ExitCode::from(cli::main(std::env::args().skip(1).collect())),
        Some("top") => {
            let arguments = std::iter::once("live-top".to_string()).chain(std::env::args().skip(2));
            return ExitCode::from(cli::main(arguments.collect()));
        }
        _ => {}
    }
    let typed = flags::upstream::arguments(std::env::args().collect()).unwrap_or_else(|problem| {
        eprintln!("Error: {problem}");
        std::process::exit(1);
    });
    if let Some(version) = flags::upstream::version(&typed) {
        println!("{version}");
        return ExitCode::SUCCESS;
    }
    let typed = typed.into_iter().map(Into::into).collect();
    let arguments = match flags::config_file::expand(&flags::config_file::command(), typed) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("minke: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let flags = flags::Flags::parse_from(arguments);
    file_modes::set_umask(flags.command.runs_kubelet());
    flags.logging.start();
    if flags.command.only_prints() {
        end_quietly_without_reader();
    }
    let command = flags.command.name();
    match commands::run(flags.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = format!("{error:#}");
            eprintln!("minke: {error}");
            if let Some(step) = commands::next_step::of(command, &error) {
                eprintln!("minke: {step}");
            }
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
