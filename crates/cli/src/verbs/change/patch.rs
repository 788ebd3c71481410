//! `kubectl patch`: a strategic merge, JSON merge or JSON patch from the command line.
//! A row of `verbs::ROOT`.
//! With `--local` or `--dry-run=client` the patch is applied here, to what a file or the server says.

use serde_json::Value;

use super::{
    Change, JSON, MERGE, STRATEGIC,
    record::{RECORD, record, record_after},
};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{FILENAME, Info, Selection, each, files::local_resource},
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    string("patch", "", "The patch, in JSON or YAML").short('p'),
    string("patch-file", "", "File with the patch"),
    string("type", "strategic", "json, merge or strategic"),
    boolean("local", "false", "Patch what the file says; ask no server"),
    string("subresource", "", "Subresource to patch"),
    string("field-manager", "kubectl-patch", "Name of the field manager"),
];

pub static COMMAND: Command = Command {
    name: "patch",
    aliases: &[],
    usage: "(-f FILENAME | TYPE NAME) [-p PATCH|--patch-file FILE] [options]",
    about: "Update fields of a resource",
    flags: &[FLAGS, PRINT, FILENAME, DRY_RUN, RECORD],
    commands: &[],
    run: run!(patch),
};

async fn patch(session: &Session, matches: &Matches) -> Result<()> {
    let (inline, file) = (matches.str("patch"), matches.str("patch-file"));
    if matches.changed("patch") && matches.changed("patch-file") {
        return Err(Failure::message("cannot specify --patch and --patch-file together"));
    }
    if inline.is_empty() && file.is_empty() {
        return Err(Failure::message("must specify --patch or --patch-file containing the contents of the patch"));
    }
    let text = match file {
        "" => inline.to_string(),
        file => std::fs::read_to_string(file).map_err(|e| {
            Failure::message(format!("unable to read patch file: open {file}: {}", crate::failure::go_error(&e)))
        })?,
    };
    let content = match matches.str("type").to_lowercase().as_str() {
        "strategic" => STRATEGIC,
        "merge" => MERGE,
        "json" => JSON,
        other => {
            return Err(Failure::message(format!("--type must be one of [json merge strategic], not {other:?}")));
        }
    };
    // What looks like JSON is for the server to read.
    let (body, sent) = match crate::resource::yaml::read(text.as_bytes()) {
        Ok(body) => {
            let sent = body.to_string();
            (body, sent)
        }
        Err(_) if text.trim_start().starts_with('{') => (Value::Null, text.clone()),
        Err(why) => return Err(Failure::message(format!("unable to parse {text:?}: {why}"))),
    };
    let mut operation = Operation::of(session, matches)?;
    if operation.dry_run == DryRun::Client {
        operation = operation.without_suffix();
    }
    if matches.bool("local") && operation.dry_run == DryRun::Server {
        return Err(Failure::message("cannot specify --local and --dry-run=server - did you mean --dry-run=client?"));
    }
    let mut selection = Selection::of(session, matches)?;
    selection.local = matches.bool("local");
    let (infos, failures) = selection.select(session).await?;
    if infos.is_empty() && failures.is_empty() {
        return Err(Failure::message("no objects passed to patch"));
    }
    each(infos, failures, async |info| {
        let here = matches.bool("local") || operation.dry_run == DryRun::Client;
        let (before, after) = match here {
            true => {
                let mut after = patched(&info, content, &body)?;
                record(&mut after, matches);
                (info.object.clone(), after)
            }
            false => {
                let change = Change {
                    session,
                    manager: matches.str("field-manager"),
                    validation: "",
                    dry_run: operation.dry_run,
                };
                let sub = matches.str("subresource");
                let before = if selection.has_files() { info.get(session).await? } else { info.object.clone() };
                let sent = change.patch_subresource(&info, sub, content, sent.clone().into_bytes()).await;
                let after = sent.map_err(|failure| match failure.code() {
                    415 if content == STRATEGIC => failure.behind("try --type merge. "),
                    _ => failure,
                })?;
                record_after(session, matches, matches.str("field-manager"), operation.dry_run, &info).await?;
                (before, after)
            }
        };
        let done = if before == after { "patched (no change)" } else { "patched" };
        operation.print(session, &answered(&info, &after), &after, done)
    })
    .await
}

/// A subresource may answer with an object of another kind.
fn answered(info: &Info, after: &Value) -> Info {
    let (version, kind) =
        (after["apiVersion"].as_str().unwrap_or_default(), after["kind"].as_str().unwrap_or_default());
    match kind.is_empty() || kind == info.resource.kind {
        true => info.clone(),
        false => Info { resource: std::rc::Rc::new(local_resource(version, kind)), ..info.clone() },
    }
}

/// The patch applied here.
pub fn patched(info: &Info, content: &str, body: &Value) -> Result<Value> {
    let failed = |e: api::ApiError| Failure::message(e.to_string());
    match content {
        JSON => api::patch::json_patch(&info.object, body.to_string().as_bytes()).map_err(failed),
        MERGE => api::patch::merge_patch(&info.object, body).map_err(failed),
        _ => {
            let resource = &info.resource;
            let schema = api::schema::builtin();
            let root = schema.find_kind(&resource.group, &resource.version, &resource.kind);
            let root = root.ok_or_else(|| {
                Failure::message(format!(
                    "strategic merge patch is not supported for {}, try --type merge",
                    resource.kind
                ))
            })?;
            api::patch::strategic(schema, root, &info.object, body).map_err(failed)
        }
    }
}
