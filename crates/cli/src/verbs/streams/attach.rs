//! `kubectl attach`: the streams of a container's main process.
//! A row of `verbs::ROOT`; the protocol is in `channels`.
//! Used by `run -it` and `debug -it` too.

use serde_json::Value;

use super::{
    containers::{choose, pod},
    exec::{Remote, talk},
};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, duration, string},
    run,
    session::Session,
    terminal,
};

const FLAGS: &[Flag] = &[
    string("container", "", "Container of the pod").short('c'),
    duration("pod-running-timeout", "1m0s", "How long to wait for a pod"),
    boolean("quiet", "false", "Only what the process prints").short('q'),
    boolean("stdin", "false", "Pass standard input on").short('i'),
    boolean("tty", "false", "Standard input is a terminal").short('t'),
];

pub static COMMAND: Command = Command {
    name: "attach",
    aliases: &[],
    usage: "(POD | TYPE/NAME) -c CONTAINER [options]",
    about: "Attach to a running container",
    flags: &[FLAGS],
    commands: &[],
    run: run!(attach),
};

async fn attach(session: &Session, matches: &Matches) -> Result<()> {
    if matches.args.is_empty() {
        return Err(Failure::message("at least 1 argument is required for attach"));
    }
    if matches.args.len() > 2 {
        return Err(Failure::message(
            "expected POD, TYPE/NAME, or TYPE NAME, (at most 2 arguments) saw ".to_string()
                + &format!("{}: {}", matches.args.len(), crate::verbs::info::version::go_list(&matches.args)),
        ));
    }
    let pod = pod(session, &matches.args, matches.duration("pod-running-timeout")).await?;
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if ["Succeeded", "Failed"].contains(&phase) {
        return Err(Failure::message(format!(
            "cannot attach a container in a completed pod; current phase is {phase}"
        )));
    }
    let container = choose(session, &pod, matches.str("container"), matches.bool("quiet"))
        .map_err(|failure| failure.behind("cannot attach to the container: "))?;
    attach_to(session, &pod, &container, matches.bool("stdin"), matches.bool("tty"), matches.bool("quiet"))
        .await
        .map(drop)
}

/// Attaches; the person is told how to begin, because a shell has printed its prompt already.
/// Says whether the container was heard: one that is quick may have said everything before.
pub async fn attach_to(
    session: &Session,
    pod: &Value,
    container: &str,
    stdin: bool,
    tty: bool,
    quiet: bool,
) -> Result<bool> {
    let spec = ["containers", "initContainers", "ephemeralContainers"]
        .iter()
        .flat_map(|field| pod["spec"][*field].as_array().into_iter().flatten())
        .find(|c| c["name"] == container)
        .cloned()
        .unwrap_or_default();
    let mut tty = tty;
    if tty && spec["tty"] != true {
        tty = false;
        if !quiet {
            session.output.warn(&format!("error: Unable to use a TTY - container {container} did not allocate one"));
        }
    } else if !tty && spec["tty"] == true {
        tty = true;
    }
    if tty && stdin && !terminal::is_terminal() {
        session.output.warn("Unable to use a TTY - input is not a terminal or the right kind of file");
        tty = false;
    }
    if !quiet {
        session.output.warn("All commands and output from this session will be recorded in container logs, including credentials and sensitive information passed through the command prompt.");
        session.output.warn("If you don't see a command prompt, try pressing enter.");
    }
    let remote = Remote { pod, container, subresource: "attach", command: &[], stdin, tty };
    let talked = talk(session, &remote).await?;
    match talked.code {
        0 => Ok(talked.was_heard),
        code => Err(Failure::Exit(code)),
    }
}
