//! `current-context`, `get-contexts`, `get-clusters`, `get-users`.
//! Subcommands of `config`.
//! Read only.

use super::merged;
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    kubeconfig::Entry,
    printers::table::TabWriter,
    run,
    session::Session,
};

pub static CURRENT_CONTEXT: Command = Command {
    name: "current-context",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Display the current-context",
    flags: &[],
    commands: &[],
    run: run!(current_context),
};

pub static GET_CLUSTERS: Command = Command {
    name: "get-clusters",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Display clusters defined in the kubeconfig",
    flags: &[],
    commands: &[],
    run: run!(get_clusters),
};

pub static GET_USERS: Command = Command {
    name: "get-users",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Display users defined in the kubeconfig",
    flags: &[],
    commands: &[],
    run: run!(get_users),
};

const FLAGS: &[Flag] =
    &[boolean("no-headers", "false", "Leave out the headers"), string("output", "", "name: only the names").short('o')];

pub static GET_CONTEXTS: Command = Command {
    name: "get-contexts",
    aliases: &[],
    usage: "[(-o|--output=)name)] [options]",
    about: "Describe one or many contexts",
    flags: &[FLAGS],
    commands: &[],
    run: run!(get_contexts),
};

async fn current_context(session: &Session, _: &Matches) -> Result<()> {
    let config = merged(session)?;
    match config.current_context.as_str() {
        "" => Err(Failure::message("current-context is not set")),
        name => {
            session.output.line(name);
            Ok(())
        }
    }
}

fn names(session: &Session, entries: &[Entry]) {
    let mut names: Vec<&str> = entries.iter().map(|e| e.name.as_str()).collect();
    names.sort_unstable();
    session.output.line("NAME");
    names.iter().for_each(|name| session.output.line(name));
}

async fn get_clusters(session: &Session, _: &Matches) -> Result<()> {
    names(session, &merged(session)?.clusters);
    Ok(())
}

async fn get_users(session: &Session, _: &Matches) -> Result<()> {
    names(session, &merged(session)?.users);
    Ok(())
}

async fn get_contexts(session: &Session, matches: &Matches) -> Result<()> {
    let output = matches.str("output");
    if !["", "name", "wide"].contains(&output) {
        return Err(Failure::message(format!(
            "--output {output} is not available in kubectl config get-contexts; resetting to default output format"
        )));
    }
    let config = merged(session)?;
    let mut entries: Vec<&Entry> = Vec::new();
    let mut failures = Vec::new();
    if matches.args.is_empty() {
        entries.extend(&config.contexts);
    }
    for name in &matches.args {
        match config.context(name) {
            Some(entry) => entries.push(entry),
            None => failures.push(Failure::message(format!("context {name} not found"))),
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if output == "name" {
        entries.iter().for_each(|entry| session.output.line(&entry.name));
        return Failure::aggregate(failures);
    }
    let mut writer = TabWriter::default();
    if !matches.bool("no-headers") {
        writer.row(["CURRENT", "NAME", "CLUSTER", "AUTHINFO", "NAMESPACE"].map(str::to_string).to_vec());
    }
    for entry in entries {
        let text = |field: &str| entry.value[field].as_str().unwrap_or_default().to_string();
        let mark = if entry.name == config.current_context { "*" } else { "" };
        writer.row(vec![mark.to_string(), entry.name.clone(), text("cluster"), text("user"), text("namespace")]);
    }
    session.output.print(&writer.flush());
    Failure::aggregate(failures)
}
