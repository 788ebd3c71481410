//! `kubectl replace`: whole objects from files; with `--force` deleted and created anew.
//! A row of `verbs::ROOT`.
//! An object that is not there is an error, unless forced.

use super::{
    Change, VALIDATE,
    create::SAVE_CONFIG,
    delete, field_validation,
    record::{RECORD, record},
};
use crate::{
    apply,
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, duration, int, string},
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{FILENAME, Selection},
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    boolean("force", "false", "Delete and create anew"),
    string("cascade", "background", "background, orphan or foreground: what becomes of dependents").bare("background"),
    int("grace-period", "-1", "Seconds a pod gets to end"),
    duration("timeout", "0s", "How long to wait for the deletion"),
    boolean("wait", "false", "Wait until the old object is gone"),
    string("raw", "", "Path to put to, as it is"),
    string("subresource", "", "Subresource to replace"),
    string("field-manager", "kubectl-replace", "Name of the field manager"),
];

pub static COMMAND: Command = Command {
    name: "replace",
    aliases: &[],
    usage: "-f FILENAME [options]",
    about: "Replace a resource by file name or stdin",
    flags: &[FLAGS, SAVE_CONFIG, PRINT, FILENAME, DRY_RUN, VALIDATE, RECORD],
    commands: &[],
    run: run!(replace),
};

async fn replace(session: &Session, matches: &Matches) -> Result<()> {
    let selection = Selection::of(session, matches)?;
    if !selection.has_files() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    let force = matches.bool("force");
    if matches.int("grace-period") >= 0 && !force {
        return Err(Failure::message("--grace-period must have --force specified"));
    }
    if matches.duration("timeout").as_nanos() > 0 && !force {
        return Err(Failure::message("--timeout must have --force specified"));
    }
    if matches.bool("wait") && matches.changed("wait") && !force {
        return Err(Failure::message("--wait must have --force specified"));
    }
    if let Some(raw) = matches.opt("raw") {
        if selection.filenames.len() != 1 || selection.filenames[0].contains("://") {
            return Err(Failure::message("--raw can only use a single local file or stdin"));
        }
        let body = super::create::raw_file(&selection.filenames[0])?;
        let answer = session.rest().await?.call(http::Method::PUT, raw).body("application/json", body).bytes().await?;
        session.output.bytes(&answer);
        return Ok(());
    }
    let mut operation = Operation::of(session, matches)?;
    let (infos, mut failures) = selection.select(session).await?;
    if force && !infos.is_empty() {
        let plan = delete::Plan {
            grace_period_seconds: (matches.int("grace-period") >= 0).then(|| matches.int("grace-period")),
            cascade: delete::cascade(matches.str("cascade"))?,
            wait: true,
            ignore_not_found: true,
            word: "deleted",
            ..delete::Plan::default()
        };
        delete::delete_all(session, &plan, &infos, matches.duration("timeout")).await?;
    }
    let change = Change {
        session,
        manager: matches.str("field-manager"),
        validation: field_validation(matches)?,
        dry_run: operation.dry_run,
    };
    for mut info in infos {
        record(&mut info.object, matches);
        if matches.bool("save-config") {
            info.object = apply::annotated(&info.object);
        }
        if operation.dry_run == DryRun::Client {
            let object = info.object.clone();
            operation.print(session, &info, &object, "replaced")?;
            continue;
        }
        let sent = match force {
            true => change.create(&info, &info.object).await,
            false => {
                // A file that keeps apply's annotation goes on keeping it.
                if apply::last_applied(&info.object).is_some() {
                    info.object = apply::annotated(&info.object);
                }
                match matches.str("subresource") {
                    "" => change.update(&info, &info.object).await,
                    sub => {
                        let path = format!("{}/{sub}", info.path()?);
                        change
                            .send(http::Method::PUT, path, &info, "application/json", info.object.to_string().into())
                            .await
                    }
                }
            }
        };
        match sent {
            Ok(object) => operation.print(session, &info, &object, "replaced")?,
            Err(failure) => failures.push(failure.with_source("replacing", &info.source)),
        }
    }
    Failure::aggregate(failures)
}
