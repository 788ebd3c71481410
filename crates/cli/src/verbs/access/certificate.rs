//! `kubectl certificate`: approve or deny signing requests.
//! A row of `verbs::ROOT`.
//! Through the approval subresource.

use http::Method;
use serde_json::{Value, json};

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean},
    printers::{Operation, PRINT},
    resource::{FILENAME, Info, Selection},
    run,
    session::Session,
};

pub static COMMAND: Command = Command {
    name: "certificate",
    aliases: &[],
    usage: "SUBCOMMAND [options]",
    about: "Modify certificate resources",
    flags: &[],
    commands: &[&APPROVE, &DENY],
    run: None,
};

const FLAGS: &[Flag] = &[boolean("force", "false", "Also if it is approved or denied already")];

static APPROVE: Command = Command {
    name: "approve",
    aliases: &[],
    usage: "(-f FILENAME | NAME) [options]",
    about: "Approve a certificate signing request",
    flags: &[FLAGS, PRINT, FILENAME],
    commands: &[],
    run: run!(approve),
};

static DENY: Command = Command {
    name: "deny",
    aliases: &[],
    usage: "(-f FILENAME | NAME) [options]",
    about: "Deny a certificate signing request",
    flags: &[FLAGS, PRINT, FILENAME],
    commands: &[],
    run: run!(deny),
};

async fn approve(session: &Session, matches: &Matches) -> Result<()> {
    decide(
        session,
        matches,
        "Approved",
        "KubectlApprove",
        "This CSR was approved by kubectl certificate approve.",
        "approved",
    )
    .await
}

async fn deny(session: &Session, matches: &Matches) -> Result<()> {
    decide(session, matches, "Denied", "KubectlDeny", "This CSR was denied by kubectl certificate deny.", "denied")
        .await
}

async fn decide(
    session: &Session,
    matches: &Matches,
    condition: &str,
    reason: &str,
    message: &str,
    done: &str,
) -> Result<()> {
    let mut selection = Selection::of(session, matches)?;
    if matches.args.is_empty() && !selection.has_files() {
        return Err(Failure::message("one or more CSRs must be specified as <name> or -f <filename>"));
    }
    if !matches.args.is_empty() {
        selection.arguments =
            std::iter::once("certificatesigningrequests".to_string()).chain(matches.args.clone()).collect();
    }
    selection.latest = true;
    let mut operation = Operation::of(session, matches)?;
    let infos = selection.all_or_nothing(session).await?;
    if infos.is_empty() {
        session.output.line("No resources found");
        return Ok(());
    }
    for info in infos {
        let object = one(session, matches, &info, condition, reason, message).await?;
        operation.print(session, &info, &object, done)?;
    }
    Ok(())
}

async fn one(
    session: &Session,
    matches: &Matches,
    info: &Info,
    condition: &str,
    reason: &str,
    message: &str,
) -> Result<Value> {
    let mut object = info.object.clone();
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let has = |kind: &str| conditions.iter().any(|c| c["type"] == kind);
    let other = if condition == "Approved" { "Denied" } else { "Approved" };
    if has(other) {
        return Err(Failure::message(format!("certificate signing request {:?} is already {}", info.name, other)));
    }
    if has(condition) && !matches.bool("force") {
        return Ok(object);
    }
    let now = session.env.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut kept: Vec<Value> = conditions.into_iter().filter(|c| c["type"] != condition).collect();
    kept.push(
        json!({"type": condition, "status": "True", "reason": reason, "message": message, "lastUpdateTime": now}),
    );
    object["status"]["conditions"] = kept.into();
    let call = session.rest().await?.call(Method::PUT, format!("{}/approval", info.path()?));
    call.json(&object).about(&info.resource.qualified(), &info.name).value().await
}
