//! The table of commands.
//! One file per verb, grouped as `kubectl --help` groups them; found by `command`, run by `lib`.
//! A verb reads its flags, asks through its `session`, prints through its `output`, and returns what went wrong.

mod change;
mod generators;
mod info;
mod read;
mod settings;

use crate::command::Command;

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
        &info::version::COMMAND,
        &info::options::COMMAND,
    ],
    run: None,
};
