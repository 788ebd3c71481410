//! `kubectl edit`: an object in the person's editor, sent back as a patch.
//! A row of `verbs::ROOT`; the editor is in `crate::edit`.
//! What the server refuses is opened again with its words at the top.

use serde_json::Value;

use super::{
    Change, MERGE, STRATEGIC, VALIDATE,
    create::SAVE_CONFIG,
    field_validation, is_builtin,
    record::{RECORD, record},
};
use crate::{
    apply::{annotated, strategic_two_way},
    command::Command,
    edit as editor,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    printers::{
        Operation, PRINT,
        format::{json_text, without_managed_fields},
        operation::DryRun,
        yaml,
    },
    resource::{FILENAME, Info, Selection},
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    boolean("output-patch", "false", "Print the patch"),
    boolean("windows-line-endings", "false", "Lines end as Windows wants them"),
    string("subresource", "", "Subresource to edit"),
    string("field-manager", "kubectl-edit", "Name of the field manager"),
];

pub static COMMAND: Command = Command {
    name: "edit",
    aliases: &[],
    usage: "(RESOURCE/NAME | -f FILENAME) [options]",
    about: "Edit a resource on the server",
    flags: &[FLAGS, SAVE_CONFIG, PRINT, FILENAME, VALIDATE, RECORD],
    commands: &[],
    run: run!(edit),
};

async fn edit(session: &Session, matches: &Matches) -> Result<()> {
    let mut selection = Selection::of(session, matches)?;
    selection.latest = true;
    // What the editor brings back is checked, not the file that names the object.
    selection.validate = false;
    let mut operation = Operation::of(session, matches)?;
    let infos = selection.all_or_nothing(session).await?;
    if infos.is_empty() {
        return Err(Failure::message("edit cancelled, no objects found"));
    }
    for mut info in infos {
        if !matches.bool("show-managed-fields") {
            without_managed_fields(&mut info.object);
        }
        one(session, matches, &mut operation, &info).await?;
    }
    Ok(())
}

async fn one(session: &Session, matches: &Matches, operation: &mut Operation, info: &Info) -> Result<()> {
    let original = match matches.str("output") {
        "json" => json_text(&info.object),
        _ => yaml::to_string(&info.object),
    };
    let (mut text, mut problem) = (original.clone(), String::new());
    loop {
        let edited = editor::edit_text(session, matches, &text, &problem)?;
        let Some(edited) = edited.filter(|edited| *edited != original) else {
            session.output.warn(match problem.is_empty() {
                true => "Edit cancelled, no changes made.",
                false => "Edit cancelled, no valid changes were saved.",
            });
            return match problem.is_empty() {
                true => Ok(()),
                false => Err(Failure::Exit(1)),
            };
        };
        let mut value = match crate::resource::yaml::read(edited.as_bytes()) {
            Ok(value) => value,
            Err(why) => {
                problem = format!("The edited file had a syntax error: error parsing edited-file: {why}");
                text = edited;
                continue;
            }
        };
        if matches.bool("save-config") {
            value = annotated(&value);
        }
        if value != info.object {
            record(&mut value, matches);
        }
        match send(session, matches, info, &value).await {
            Ok(None) => {
                session.output.warn("Edit cancelled, no changes made.");
                return Ok(());
            }
            Ok(Some((object, patch))) => {
                if matches.bool("output-patch") {
                    session.output.line(&format!("Patch: {patch}"));
                }
                return operation.print(session, info, &object, "edited");
            }
            Err(failure @ Failure::Connection { .. }) => return Err(failure),
            Err(failure) => {
                let (words, _) = failure.report(&matches.command);
                session.output.warn(&words);
                problem = words;
                text = edited;
            }
        }
    }
}

async fn send(session: &Session, matches: &Matches, info: &Info, value: &Value) -> Result<Option<(Value, Value)>> {
    for (field, word) in [("name", "name"), ("namespace", "namespace")] {
        if value["metadata"][field] != info.object["metadata"][field] {
            return Err(Failure::message(format!("At least one of apiVersion, kind and name was changed ({word})")));
        }
    }
    let resource = &info.resource;
    let kind = (resource.group.as_str(), resource.version.as_str(), resource.kind.as_str());
    let strategic = is_builtin(info).then(|| strategic_two_way(kind, &info.object, value)).flatten();
    let (patch, content) = match strategic {
        Some(patch) => (patch, STRATEGIC),
        None => (api::patch::merge_diff(&info.object, value), MERGE),
    };
    if patch.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(None);
    }
    let change = Change {
        session,
        manager: matches.str("field-manager"),
        validation: field_validation(matches)?,
        dry_run: DryRun::None,
    };
    let sub = matches.str("subresource");
    let object = change.patch_subresource(info, sub, content, patch.to_string().into_bytes()).await?;
    Ok(Some((object, patch)))
}
