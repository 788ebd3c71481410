//! `kubectl options`: the flags that every command takes.
//! A row of `verbs::ROOT`.
//! Asks no server.

use crate::{
    command::{Command, global_flags_text},
    failure::Result,
    flags::Matches,
    run,
    session::Session,
};

pub static COMMAND: Command = Command {
    name: "options",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Print the list of flags inherited by all commands",
    flags: &[],
    commands: &[],
    run: run!(options),
};

async fn options(session: &Session, _: &Matches) -> Result<()> {
    session.output.line(&global_flags_text());
    Ok(())
}
