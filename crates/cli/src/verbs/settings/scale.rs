//! `kubectl scale`: how many replicas.
//! A row of `verbs::ROOT`.
//! Through the scale subresource, so that it works for every kind that has one.

use std::time::Duration;

use serde_json::{Value, json};

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
    verbs::change::{
        Change, MERGE,
        record::{RECORD, record_after},
    },
};

const FLAGS: &[Flag] = &[
    boolean("all", "false", "All objects of the types, in the namespace"),
    int("replicas", "0", "How many; required"),
    int("current-replicas", "-1", "Only if there are this many now"),
    string("resource-version", "", "Only if the object has this version"),
    duration("timeout", "0s", "How long to wait until it is so; 0 does not wait"),
];

pub static COMMAND: Command = Command {
    name: "scale",
    aliases: &[],
    usage: "[--resource-version=version] [--current-replicas=count] --replicas=COUNT (-f FILENAME | TYPE NAME) [options]",
    about: "Set a new size for a deployment, replica set, or replication controller",
    flags: &[FLAGS, PRINT, FILENAME, SELECTOR, DRY_RUN, RECORD],
    commands: &[],
    run: run!(scale),
};

async fn scale(session: &Session, matches: &Matches) -> Result<()> {
    if !matches.changed("replicas") {
        return Err(Failure::message("required flag(s) \"replicas\" not set"));
    }
    let replicas = matches.int("replicas");
    if replicas < 0 {
        return Err(Failure::message(
            "The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0",
        ));
    }
    let mut operation = Operation::of(session, matches)?;
    let mut selection = Selection::of(session, matches)?;
    selection.latest = true;
    // What can't be read keeps no other object from it; what can't be scaled ends it.
    let (infos, failures) = selection.select(session).await?;
    if infos.is_empty() && failures.is_empty() {
        return Err(Failure::message("no objects passed to scale"));
    }
    if infos.len() > 1 && matches.opt("resource-version").is_some() {
        return Err(Failure::message("cannot use --resource-version with multiple resources"));
    }
    for info in infos {
        one(session, matches, operation.dry_run, &info, replicas).await?;
        operation.print(session, &info, &info.object, "scaled")?;
    }
    Failure::aggregate(failures)
}

async fn one(session: &Session, matches: &Matches, dry_run: DryRun, info: &Info, replicas: i64) -> Result<()> {
    if dry_run == DryRun::Client {
        return Ok(());
    }
    let rest = session.rest().await?;
    let mut patch = json!({"spec": {"replicas": replicas}});
    if matches.int("current-replicas") >= 0 || matches.opt("resource-version").is_some() {
        let now = rest.get(format!("{}/scale", info.path()?)).value().await?;
        let found = now["spec"]["replicas"].as_i64().unwrap_or(0);
        let wanted = matches.int("current-replicas");
        if wanted >= 0 && found != wanted {
            return Err(Failure::message(format!("Expected replicas to be {wanted}, was {found}")));
        }
        let version = now["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if let Some(wanted) = matches.opt("resource-version").filter(|w| *w != version) {
            return Err(Failure::message(format!("Expected resource version to be {wanted}, was {version}")));
        }
        patch["metadata"] = json!({"resourceVersion": version});
    }
    let change = Change { session, manager: "kubectl-scale", validation: "", dry_run };
    change.patch_subresource(info, "scale", MERGE, patch.to_string().into_bytes()).await.map_err(|failure| {
        match failure.is_not_found() && failure.text().contains("could not find the requested resource") {
            // The scale client asks about no resource by name.
            true => match failure {
                Failure::Status(mut status) => {
                    status.message = "the server could not find the requested resource".to_string();
                    Failure::Status(status)
                }
                failure => failure,
            },
            false => failure,
        }
    })?;
    record_after(session, matches, "kubectl-scale", dry_run, info).await?;
    let timeout = matches.duration("timeout");
    if timeout > Duration::ZERO && dry_run == DryRun::None {
        let waited = env::timeout(timeout, until_scaled(session, info, replicas)).await;
        return waited
            .unwrap_or_else(|| Err(Failure::message(format!("timed out waiting for {:?} to be synced", info.name))));
    }
    Ok(())
}

async fn until_scaled(session: &Session, info: &Info, replicas: i64) -> Result<()> {
    let there = |object: &Value| {
        object["status"]["replicas"].as_i64().unwrap_or(0) == replicas
            && object["status"]["observedGeneration"].as_i64() >= object["metadata"]["generation"].as_i64()
    };
    if there(&info.get(session).await?) {
        return Ok(());
    }
    info.watch_until(session, there).await.map(drop)
}
