//! `kubectl exec`: runs a command in a container.
//! A row of `verbs::ROOT`; the protocol is in `channels`.
//! Ends with the command's own exit code.

use serde_json::Value;

use super::{
    channels::{self, Streams},
    containers::{self, choose, pod},
};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, duration, string},
    resource::{FILES, Selection, metadata},
    rest::path::query_escape,
    run,
    session::Session,
    terminal,
};

const FLAGS: &[Flag] = &[
    string("container", "", "Container of the pod").short('c'),
    duration("pod-running-timeout", "1m0s", "How long to wait for a pod"),
    boolean("quiet", "false", "Only what the command prints").short('q'),
    boolean("stdin", "false", "Pass standard input on").short('i'),
    boolean("tty", "false", "Standard input is a terminal").short('t'),
];

pub static COMMAND: Command = Command {
    name: "exec",
    aliases: &[],
    usage: "(POD | TYPE/NAME) [-c CONTAINER] [flags] -- COMMAND [args...] [options]",
    about: "Execute a command in a container",
    flags: &[FLAGS, FILES],
    commands: &[],
    run: run!(exec),
};

pub const PROTOCOLS: &str = "v5.channel.k8s.io, v4.channel.k8s.io";

/// What a session is about.
pub struct Remote<'a> {
    pub pod: &'a Value,
    pub container: &'a str,
    /// `exec` or `attach`.
    pub subresource: &'a str,
    pub command: &'a [String],
    pub stdin: bool,
    pub tty: bool,
}

async fn exec(session: &Session, matches: &Matches) -> Result<()> {
    let files = matches.list("filename");
    let Some(dash) = matches.args_before_dash else {
        return Err(match matches.args.is_empty() && files.is_empty() {
            true => Failure::message("pod, type/name or --filename must be specified"),
            false if matches.args.len() == 1 => {
                Failure::message("you must specify at least one command for the container")
            }
            false => {
                Failure::usage("exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead")
            }
        });
    };
    let (words, command) = matches.args.split_at(dash);
    if words.len() > 1 || (words.is_empty() && files.is_empty()) {
        return Err(Failure::message("pod, type/name or --filename must be specified"));
    }
    if command.is_empty() {
        return Err(Failure::message("you must specify at least one command for the container"));
    }
    let timeout = matches.duration("pod-running-timeout");
    let pod = match files.is_empty() {
        true => pod(session, words, timeout).await?,
        false => {
            let mut selection = Selection::of(session, matches)?;
            selection.arguments.clear();
            let (mut infos, failures) = selection.select(session).await?;
            Failure::aggregate(failures)?;
            if infos.len() > 1 {
                return Err(Failure::message("cannot exec into multiple objects at a time"));
            }
            let info = infos.pop();
            let mut info = info.ok_or_else(|| Failure::message("pod, type/name or --filename must be specified"))?;
            info.object = info.get(session).await?;
            containers::pod_of(session, &info, timeout).await?
        }
    };
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if ["Succeeded", "Failed"].contains(&phase) {
        return Err(Failure::message(format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        )));
    }
    // The server knows which containers there are.
    let container = match matches.opt("container") {
        Some(named) => named.to_string(),
        None => choose(session, &pod, "", matches.bool("quiet"))?,
    };
    let mut tty = matches.bool("tty");
    if tty && matches.bool("stdin") && !terminal::is_terminal() {
        tty = false;
        if !matches.bool("quiet") {
            session.output.warn("Unable to use a TTY - input is not a terminal or the right kind of file");
        }
    }
    let remote =
        Remote { pod: &pod, container: &container, subresource: "exec", command, stdin: matches.bool("stdin"), tty };
    match talk(session, &remote).await?.code {
        0 => Ok(()),
        code => {
            session.output.warn(&format!("command terminated with exit code {code}"));
            Err(Failure::Exit(code))
        }
    }
}

pub fn path(remote: &Remote) -> String {
    let (namespace, name) = (metadata(remote.pod, "namespace"), metadata(remote.pod, "name"));
    let mut query = vec![format!("container={}", query_escape(remote.container))];
    query.extend(remote.command.iter().map(|word| format!("command={}", query_escape(word))));
    if remote.stdin {
        query.push("stdin=true".to_string());
    }
    query.push("stdout=true".to_string());
    query.push(if remote.tty { "tty=true" } else { "stderr=true" }.to_string());
    format!("/api/v1/namespaces/{namespace}/pods/{name}/{}?{}", remote.subresource, query.join("&"))
}

/// How a session with a container ended.
pub struct Talked {
    pub code: u8,
    /// Whether the container said anything.
    pub was_heard: bool,
}

/// A session with this process's own streams.
pub async fn talk(session: &Session, remote: &Remote<'_>) -> Result<Talked> {
    let (socket, protocol) = channels::open(session, &path(remote), PROTOCOLS).await?;
    session.output.flush();
    let kept = match (remote.stdin, remote.tty) {
        (false, _) => None,
        (true, false) => terminal::Kept::enter(),
        (true, true) => terminal::Kept::enter_raw(),
    };
    let mut output = session.output.clone();
    let errors = session.output.clone();
    let before = output.bytes_written();
    let ended = channels::carry(
        socket,
        &protocol,
        Streams {
            stdin: remote.stdin.then(terminal::stdin),
            stdout: &mut output,
            stderr: &mut |bytes| errors.error_bytes(bytes),
            sizes: if remote.tty { terminal::sizes() } else { None },
        },
    )
    .await;
    drop(kept);
    Ok(Talked { code: ended?, was_heard: session.output.bytes_written() > before })
}
