//! `kubectl rollout`: pause, resume, restart, undo, and the state of a rollout.
//! A row of `verbs::ROOT`; revisions are in `rollout_history`, waiting in `rollout_status`.
//! Only Deployments, DaemonSets and StatefulSets have rollouts.

use serde_json::{Value, json};

use super::{rollout_history, rollout_status};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, duration, int, string},
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{FILENAME, Info, SELECTOR, Selection},
    run,
    session::Session,
    verbs::change::{Change, MERGE, STRATEGIC},
};

const MANAGER: &[Flag] = &[string("field-manager", "kubectl-rollout", "Name of the field manager")];

pub static COMMAND: Command = Command {
    name: "rollout",
    aliases: &[],
    usage: "SUBCOMMAND [options]",
    about: "Manage the rollout of a resource",
    flags: &[],
    commands: &[&HISTORY, &PAUSE, &RESTART, &RESUME, &STATUS, &UNDO],
    run: None,
};

static HISTORY: Command = Command {
    name: "history",
    aliases: &[],
    usage: "(TYPE NAME | TYPE/NAME) [flags] [options]",
    about: "View rollout history",
    flags: &[&[int("revision", "0", "Show this revision in full")], PRINT, FILENAME, SELECTOR],
    commands: &[],
    run: run!(rollout_history::history),
};

static UNDO: Command = Command {
    name: "undo",
    aliases: &[],
    usage: "(TYPE NAME | TYPE/NAME) [flags] [options]",
    about: "Undo a previous rollout",
    flags: &[
        &[int("to-revision", "0", "The revision to go back to; 0 is the last one")],
        PRINT,
        FILENAME,
        SELECTOR,
        DRY_RUN,
    ],
    commands: &[],
    run: run!(rollout_history::undo),
};

static STATUS: Command = Command {
    name: "status",
    aliases: &[],
    usage: "(TYPE NAME | TYPE/NAME) [flags] [options]",
    about: "Show the status of the rollout",
    flags: &[
        &[
            boolean("watch", "true", "Wait until the rollout is done").short('w'),
            int("revision", "0", "Only for this revision"),
            duration("timeout", "0s", "How long to wait; 0 is for ever"),
        ],
        FILENAME,
        SELECTOR,
    ],
    commands: &[],
    run: run!(rollout_status::status),
};

static PAUSE: Command = Command {
    name: "pause",
    aliases: &[],
    usage: "RESOURCE [options]",
    about: "Mark the provided resource as paused",
    flags: &[MANAGER, PRINT, FILENAME, SELECTOR],
    commands: &[],
    run: run!(pause),
};

static RESUME: Command = Command {
    name: "resume",
    aliases: &[],
    usage: "RESOURCE [options]",
    about: "Resume a paused resource",
    flags: &[MANAGER, PRINT, FILENAME, SELECTOR],
    commands: &[],
    run: run!(resume),
};

static RESTART: Command = Command {
    name: "restart",
    aliases: &[],
    usage: "RESOURCE [options]",
    about: "Restart a resource",
    flags: &[MANAGER, PRINT, FILENAME, SELECTOR],
    commands: &[],
    run: run!(restart),
};

/// The objects that a subcommand is about.
pub async fn selected(session: &Session, matches: &Matches) -> Result<(Vec<Info>, Vec<Failure>)> {
    let mut selection = Selection::of(session, matches)?;
    if selection.arguments.is_empty() && !selection.has_files() && selection.selector.is_empty() {
        return Err(Failure::message("required resource not specified"));
    }
    selection.allow_empty_selector = true;
    selection.latest = true;
    selection.select(session).await
}

pub fn has_rollouts(info: &Info) -> bool {
    info.resource.group == "apps" && ["Deployment", "DaemonSet", "StatefulSet"].contains(&info.resource.kind.as_str())
}

async fn pause(session: &Session, matches: &Matches) -> Result<()> {
    set_paused(session, matches, true).await
}

async fn resume(session: &Session, matches: &Matches) -> Result<()> {
    set_paused(session, matches, false).await
}

async fn set_paused(session: &Session, matches: &Matches, paused: bool) -> Result<()> {
    let mut operation = Operation::of(session, matches)?;
    let (verb, done) = if paused { ("pausing", "paused") } else { ("resuming", "resumed") };
    let (infos, mut failures) = selected(session, matches).await?;
    for info in infos {
        if info.resource.kind != "Deployment" {
            failures.push(Failure::message(format!(
                "{} {:?} {verb} is not supported",
                info.resource.qualified(),
                info.name
            )));
            continue;
        }
        let now = info.object["spec"]["paused"] == true;
        if now == paused {
            let what = if paused { "is already paused" } else { "is not paused" };
            failures.push(Failure::message(format!("{} {:?} {what}", info.resource.qualified(), info.name)));
            continue;
        }
        let patch = json!({"spec": {"paused": if paused { Value::Bool(true) } else { Value::Null }}});
        match patch_one(session, matches, &info, MERGE, &patch).await {
            Ok(object) => operation.print(session, &info, &object, done)?,
            Err(failure) => failures.push(failure),
        }
    }
    Failure::aggregate(failures)
}

async fn patch_one(session: &Session, matches: &Matches, info: &Info, content: &str, patch: &Value) -> Result<Value> {
    Change { session, manager: matches.str("field-manager"), validation: "", dry_run: DryRun::None }
        .patch(info, content, patch)
        .await
}

async fn restart(session: &Session, matches: &Matches) -> Result<()> {
    let mut operation = Operation::of(session, matches)?;
    let (infos, mut failures) = selected(session, matches).await?;
    for info in infos {
        if !has_rollouts(&info) {
            failures.push(Failure::message(format!(
                "{} {:?} restarting is not supported",
                info.resource.qualified(),
                info.name
            )));
            continue;
        }
        if info.object["spec"]["paused"] == true {
            failures.push(Failure::message(format!(
                "{} {:?} can't restart paused deployment (run rollout resume first)",
                info.resource.qualified(),
                info.name
            )));
            continue;
        }
        let now = session.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch =
            json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": now}}}}});
        match patch_one(session, matches, &info, STRATEGIC, &patch).await {
            Ok(object) => operation.print(session, &info, &object, "restarted")?,
            Err(failure) => failures.push(failure),
        }
    }
    Failure::aggregate(failures)
}
