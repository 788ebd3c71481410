//! `kubectl create -f`, and the generators as subcommands.
//! A row of `verbs::ROOT`; generated objects come from `generate`.
//! An object that exists is an error.

use serde_json::Value;

use super::{
    Change, VALIDATE, field_validation,
    record::{RECORD, record},
};
use crate::{
    apply,
    command::Command,
    edit as editor,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{FILENAME, Info, SELECTOR, Selection},
    run,
    session::Session,
};

pub const SAVE_CONFIG: &[Flag] =
    &[boolean("save-config", "false", "Keep the configuration in the annotation that apply reads")];
const FLAGS: &[Flag] = &[
    boolean("edit", "false", "Edit what is in the files before it is created"),
    boolean("windows-line-endings", "false", "With --edit: lines end as Windows wants them"),
    string("raw", "", "Path to post to, as it is"),
    string("field-manager", "kubectl-create", "Name of the field manager"),
];

pub static COMMAND: Command = Command {
    name: "create",
    aliases: &[],
    usage: "-f FILENAME [options]",
    about: "Create a resource from a file or from stdin",
    flags: &[FLAGS, SAVE_CONFIG, PRINT, FILENAME, SELECTOR, DRY_RUN, VALIDATE, RECORD],
    commands: crate::verbs::generators::CREATE,
    run: run!(create),
};

async fn create(session: &Session, matches: &Matches) -> Result<()> {
    let selection = Selection::of(session, matches)?;
    if !selection.has_files() {
        if let Some(word) = matches.args.first() {
            return Err(Failure::usage(format!("Unexpected args: [{word}]")));
        }
        return Err(Failure::message("must specify one of -f and -k"));
    }
    if !matches.args.is_empty() {
        return Err(Failure::usage(format!("Unexpected args: [{}]", matches.args.join(" "))));
    }
    if let Some(raw) = matches.opt("raw") {
        if matches.bool("edit") {
            return Err(Failure::message("--raw and --edit are mutually exclusive"));
        }
        if selection.filenames.len() != 1 || selection.filenames[0].contains("://") {
            return Err(Failure::message("--raw can only use a single local file or stdin"));
        }
        let body = raw_file(&selection.filenames[0])?;
        let rest = session.rest().await?;
        let answer = rest.call(http::Method::POST, raw).body("application/json", body).bytes().await?;
        session.output.bytes(&answer);
        return Ok(());
    }
    let mut operation = Operation::of(session, matches)?;
    field_validation(matches)?;
    let (mut infos, of_selection) = selection.select(session).await?;
    if matches.bool("edit") {
        infos = edited(session, matches, infos).await?;
        if infos.is_empty() {
            return Ok(());
        }
    }
    let (mut count, mut failures) = (infos.len(), Vec::new());
    for info in infos {
        let source = info.source.clone();
        if let Err(failure) = create_one(session, matches, &mut operation, info).await {
            count -= 1;
            match failure {
                Failure::Connection { .. } => return Err(failure),
                failure => failures.push(failure.with_source("creating", &source)),
            }
        }
    }
    if count == 0 && failures.is_empty() && of_selection.is_empty() {
        return Err(Failure::message("no objects passed to create"));
    }
    Failure::aggregate_behind(failures, of_selection)
}

/// A file, or standard input, as it is.
pub fn raw_file(name: &str) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    match name {
        "-" => std::io::stdin().read_to_end(&mut bytes).map(drop)?,
        file => {
            let read = std::fs::read(file);
            bytes = read.map_err(|e| Failure::message(format!("open {file}: {}", crate::failure::go_error(&e))))?;
        }
    }
    Ok(bytes)
}

/// The objects as the person leaves them; none if nothing was changed.
async fn edited(session: &Session, matches: &Matches, infos: Vec<Info>) -> Result<Vec<Info>> {
    let mut after = Vec::new();
    for info in infos {
        if let Some(value) = editor::edit_value(session, matches, &info.object).await? {
            let name = crate::resource::metadata(&value, "name").to_string();
            after.push(Info { name, object: value, ..info });
        }
    }
    if after.is_empty() {
        session.output.warn("Edit cancelled, no changes made.");
    }
    Ok(after)
}

/// Also for generated objects.
pub async fn create_one(session: &Session, matches: &Matches, operation: &mut Operation, mut info: Info) -> Result<()> {
    record(&mut info.object, matches);
    if matches.has("save-config") && matches.bool("save-config") {
        info.object = apply::annotated(&info.object);
    }
    let object = create_object(session, matches, operation.dry_run, &info).await?;
    operation.print(session, &info, &object, "created")
}

async fn create_object(session: &Session, matches: &Matches, dry_run: DryRun, info: &Info) -> Result<Value> {
    if dry_run == DryRun::Client {
        return Ok(info.object.clone());
    }
    let manager = if matches.has("field-manager") { matches.str("field-manager") } else { "kubectl-create" };
    let validation = if matches.has("validate") { field_validation(matches)? } else { "Strict" };
    Change { session, manager, validation, dry_run }.create(info, &info.object).await
}
