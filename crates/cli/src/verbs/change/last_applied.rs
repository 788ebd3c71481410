//! `kubectl apply view-last-applied`, `set-last-applied` and `edit-last-applied`.
//! Subcommands of `apply`.
//! Only the annotation is read or written.

use serde_json::{Value, json};

use super::{Change, MERGE, VALIDATE, field_validation};
use crate::{
    apply::{LAST_APPLIED, last_applied},
    command::Command,
    edit,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
        yaml,
    },
    resource::{FILENAME, FILES, Info, SELECTOR, Selection},
    run,
    session::Session,
};

const VIEW_FLAGS: &[Flag] =
    &[string("output", "yaml", "json or yaml").short('o'), boolean("all", "false", "All objects of the types")];

pub static VIEW: Command = Command {
    name: "view-last-applied",
    aliases: &[],
    usage: "(TYPE [NAME | -l label] | TYPE/NAME | -f FILENAME) [options]",
    about: "View the latest last-applied-configuration annotations of a resource/object",
    flags: &[VIEW_FLAGS, FILENAME, SELECTOR],
    commands: &[],
    run: run!(view),
};

const SET_FLAGS: &[Flag] = &[boolean("create-annotation", "false", "Also where there is none yet")];

pub static SET: Command = Command {
    name: "set-last-applied",
    aliases: &[],
    usage: "-f FILENAME [options]",
    about: "Set the last-applied-configuration annotation on a live object to match the contents of a file",
    flags: &[SET_FLAGS, PRINT, FILES, DRY_RUN],
    commands: &[],
    run: run!(set),
};

const EDIT_FLAGS: &[Flag] = &[
    string("field-manager", "kubectl-client-side-apply", "Name of the field manager"),
    boolean("windows-line-endings", "false", "Lines end as Windows wants them"),
];

pub static EDIT: Command = Command {
    name: "edit-last-applied",
    aliases: &[],
    usage: "(RESOURCE/NAME | -f FILENAME) [options]",
    about: "Edit latest last-applied-configuration annotations of a resource/object",
    flags: &[EDIT_FLAGS, PRINT, FILENAME, VALIDATE],
    commands: &[],
    run: run!(edit_annotation),
};

fn configuration(info: &Info) -> Result<Value> {
    let text = last_applied(&info.object).ok_or_else(|| {
        Failure::message(format!("no last-applied-configuration annotation found on resource: {}", info.name))
    })?;
    Ok(serde_json::from_str(text)?)
}

/// The annotation that says of an object what it is, and not, as after `apply`, that it has annotations.
fn as_it_is(object: &Value) -> String {
    format!("{}\n", crate::template::go_format::json(object))
}

async fn view(session: &Session, matches: &Matches) -> Result<()> {
    let output = matches.str("output");
    if !["yaml", "json"].contains(&output) {
        return Err(Failure::usage(format!(
            "Unexpected -o output mode: {output}, the flag 'output' must be one of yaml|json"
        )));
    }
    let mut selection = Selection::of(session, matches)?;
    selection.latest = true;
    for info in selection.all_or_nothing(session).await? {
        // An object without one has nothing to show.
        if last_applied(&info.object).is_none() {
            continue;
        }
        let value = configuration(&info)?;
        match output {
            "json" => session.output.print(&format!("{}\n", crate::template::go_format::json_indent(&value, "  "))),
            _ => session.output.print(&yaml::to_string(&value)),
        }
    }
    Ok(())
}

async fn set(session: &Session, matches: &Matches) -> Result<()> {
    let selection = Selection::of(session, matches)?;
    let mut operation = Operation::of(session, matches)?;
    let infos = selection.all_or_nothing(session).await?;
    if infos.is_empty() {
        return Err(Failure::message("no objects passed to set-last-applied"));
    }
    for info in infos {
        let live = info.get(session).await?;
        if last_applied(&live).is_none() && !matches.bool("create-annotation") {
            return Err(Failure::message(format!(
                "no last-applied-configuration annotation found on resource: {}, to create the annotation, run the command with --create-annotation",
                info.name
            )));
        }
        let wanted = as_it_is(&info.object);
        if last_applied(&live).is_some_and(|there| there.trim_end() == wanted.trim_end()) {
            session.output.line(&format!("set-last-applied {}: no changes required.", info.name));
            continue;
        }
        let patch = json!({"metadata": {"annotations": {LAST_APPLIED: wanted}}});
        let object = match operation.dry_run {
            DryRun::Client => live,
            dry_run => {
                Change { session, manager: "kubectl-client-side-apply", validation: "", dry_run }
                    .patch(&info, MERGE, &patch)
                    .await?
            }
        };
        operation.print(session, &info, &object, "configured")?;
    }
    Ok(())
}

async fn edit_annotation(session: &Session, matches: &Matches) -> Result<()> {
    let mut selection = Selection::of(session, matches)?;
    selection.latest = true;
    // What the editor brings back is checked, not the file that names the object.
    selection.validate = false;
    let mut operation = Operation::of(session, matches)?;
    for info in selection.all_or_nothing(session).await? {
        let before = configuration(&info)?;
        let Some(after) = edit::edit_value(session, matches, &before).await? else {
            session.output.warn("Edit cancelled, no changes made.");
            continue;
        };
        let wanted = as_it_is(&after);
        let patch = json!({"metadata": {"annotations": {LAST_APPLIED: wanted}}});
        let change = Change {
            session,
            manager: matches.str("field-manager"),
            validation: field_validation(matches)?,
            dry_run: DryRun::None,
        };
        let object = change.patch(&info, MERGE, &patch).await?;
        operation.print(session, &info, &object, "edited")?;
    }
    Ok(())
}
