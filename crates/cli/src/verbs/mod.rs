//! The table of commands.
//! One file per verb, grouped as `kubectl --help` groups them; found by `command`, run by `lib`.
//! A verb reads its flags, asks through its `session`, prints through its `output`, and returns what went wrong.

mod access;
mod change;
mod config;
mod diagnose;
mod generators;
pub(crate) mod info;
mod nodes;
mod read;
mod settings;
mod streams;

use crate::command::Command;

pub use info::{completion::candidates, kustomize::must_be_there, plugin::become_plugin};

pub static ROOT: Command = Command {
    name: "kubectl",
    aliases: &[],
    usage: "[flags] [options]",
    about: "kubectl controls the Kubernetes cluster manager",
    flags: &[],
    commands: &[
        &change::create::COMMAND,
        &read::get::COMMAND,
        &read::describe::COMMAND,
        &change::delete::COMMAND,
        &change::apply::COMMAND,
        &change::patch::COMMAND,
        &change::replace::COMMAND,
        &settings::scale::COMMAND,
        &settings::rollout::COMMAND,
        &settings::label::COMMAND,
        &settings::annotate::COMMAND,
        &read::wait::COMMAND,
        &streams::logs::COMMAND,
        &streams::attach::COMMAND,
        &streams::exec::COMMAND,
        &streams::port_forward::COMMAND,
        &streams::proxy::COMMAND,
        &streams::cp::COMMAND,
        &streams::debug::COMMAND,
        &nodes::top::COMMAND,
        &nodes::cordon::CORDON,
        &nodes::cordon::UNCORDON,
        &nodes::drain::COMMAND,
        &nodes::taint::COMMAND,
        &info::cluster_info::COMMAND,
        &info::api_resources::COMMAND,
        &info::api_versions::COMMAND,
        &config::COMMAND,
        &info::plugin::COMMAND,
        &change::diff::COMMAND,
        &change::edit::COMMAND,
        &read::events::COMMAND,
        &access::auth::COMMAND,
        &access::certificate::COMMAND,
        &generators::run::COMMAND,
        &generators::expose::COMMAND,
        &generators::autoscale::COMMAND,
        &generators::set::COMMAND,
        &info::completion::COMMAND,
        &info::explain::COMMAND,
        &info::kustomize::COMMAND,
        &diagnose::why::COMMAND,
        &diagnose::timeline::COMMAND,
        &diagnose::live_top::COMMAND,
        &config::kuberc::ALPHA,
        &info::version::COMMAND,
        &info::options::COMMAND,
    ],
    run: None,
};
