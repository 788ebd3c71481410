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
    edit::{self as editor, Edited, Reason},
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    printers::{
        Operation, PRINT,
        format::{json_text, without_managed_fields},
        operation::DryRun,
        yaml,
    },
    resource::{FILENAME, Info, Selection, items_of, list_of, metadata},
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
    selection.allow_empty_selector = true;
    // What the editor brings back is checked, not the file that names the object.
    selection.validate = false;
    let mut operation = Operation::of(session, matches)?;
    let mut infos = selection.all_or_nothing(session).await?;
    if infos.is_empty() {
        return Err(Failure::message("edit cancelled, no objects found"));
    }
    infos.iter_mut().for_each(|info| without_managed_fields(&mut info.object));
    let shown = match infos.as_slice() {
        [one] => one.object.clone(),
        several => list_of(several.iter().map(|info| info.object.clone()).collect()),
    };
    let (original, suffix) = match matches.str("output") {
        "json" => (json_text(&shown), ".json"),
        _ => (yaml::to_string(&shown), ".yaml"),
    };
    let mut rounds = Rounds { session, matches, infos, results: Results::default() };
    // What was left in the last round, if that could not be used.
    let mut before: Option<Edited> = None;
    loop {
        let text = before.as_ref().map_or_else(|| original.clone(), |edited| editor::without_comments(&edited.text));
        let text = format!("{}{text}", editor::header(&rounds.results.reasons));
        let edited = match editor::edit_file(session, matches, &text, suffix).await {
            Ok(edited) => edited,
            Err(failure) => return Err(rounds.kept(before.as_ref(), failure)),
        };
        if before.as_ref().is_some_and(|before| says(&before.text) == says(&edited.text)) {
            let nothing = Failure::message("Edit cancelled, no valid changes were saved.");
            return Err(rounds.kept(Some(&edited), nothing));
        }
        if let Some(before) = before.take() {
            std::fs::remove_file(before.file)?;
        }
        let cancelled = match (says(&edited.text) == says(&original), editor::without_comments(&edited.text).trim()) {
            (true, _) => Some("Edit cancelled, no changes made."),
            (_, "") => Some("Edit cancelled, saved file was empty."),
            _ => None,
        };
        if let Some(text) = cancelled {
            std::fs::remove_file(edited.file)?;
            session.output.warn(text);
            return Ok(());
        }
        rounds.results = Results::default();
        let updated = match objects_of(&edited.text) {
            Ok(updated) => updated,
            Err(why) => {
                let head = format!("The edited file had a syntax error: {why}");
                rounds.results.reasons.push(Reason { head, causes: Vec::new() });
                before = Some(edited);
                continue;
            }
        };
        if let Err(failure) = rounds.send(&mut operation, updated).await {
            return Err(rounds.kept(Some(&edited), failure));
        }
        let file = edited.file.display();
        if rounds.results.retryable {
            session.output.warn(&format!("You can run `kubectl replace -f {file}` to try this update again."));
            return Err(Failure::Exit(1));
        }
        if rounds.results.not_found {
            session.output.warn(&format!("The edits you made on deleted resources have been saved to \"{file}\""));
            return Err(Failure::Exit(1));
        }
        if rounds.results.reasons.is_empty() {
            std::fs::remove_file(edited.file)?;
            return Ok(());
        }
        before = Some(edited);
    }
}

/// What a text says, whatever its comments and the order of its fields; its lines, if it is no YAML.
fn says(text: &str) -> std::result::Result<Value, String> {
    crate::resource::yaml::read(text.as_bytes()).map_err(|_| editor::without_comments(text))
}

/// The objects of an edited file.
fn objects_of(text: &str) -> std::result::Result<Vec<Value>, String> {
    let mut objects = Vec::new();
    for document in crate::resource::yaml::documents(text) {
        let value = crate::resource::yaml::read(document.as_bytes())
            .map_err(|why| format!("error parsing edited-file: {why}"))?;
        match value["kind"].as_str() {
            None | Some("") => {
                let shown = crate::template::go_format::json(&value);
                return Err(format!("unable to decode \"edited-file\": Object 'Kind' is missing in '{shown}'"));
            }
            Some("List") => objects.extend(items_of(value)),
            Some(_) => objects.push(value),
        }
    }
    Ok(objects)
}

/// What came of sending the objects of one round.
#[derive(Default)]
struct Results {
    /// Why the file is opened again.
    reasons: Vec<Reason>,
    retryable: bool,
    not_found: bool,
}

impl Results {
    fn add(&mut self, failure: &Failure, info: &Info) -> String {
        let (resource, name) = (info.resource.qualified(), &info.name);
        match failure {
            Failure::Status(status) if status.reason == "Invalid" => {
                let causes = status.details["causes"].as_array().into_iter().flatten();
                let word = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_string();
                let causes = causes.map(|cause| format!("{}: {}", word(cause, "field"), word(cause, "message")));
                let head = format!("{resource} {name:?} was not valid");
                self.reasons.push(Reason { head, causes: causes.collect() });
                format!("error: {resource} {name:?} is invalid")
            }
            failure if failure.is_not_found() => {
                self.not_found = true;
                format!("error: {resource} {name:?} could not be found on the server")
            }
            failure => {
                self.retryable = true;
                format!("error: {resource} {name:?} could not be patched: {}", failure.text())
            }
        }
    }
}

struct Rounds<'a> {
    session: &'a Session,
    matches: &'a Matches,
    /// The objects as they were read, without managed fields.
    infos: Vec<Info>,
    results: Results,
}

impl Rounds<'_> {
    /// Tells where the person's work is before the failure ends the command.
    fn kept(&self, edited: Option<&Edited>, failure: Failure) -> Failure {
        if let Some(edited) = edited {
            self.session.output.warn(&editor::preserved(&edited.file));
        }
        failure
    }

    async fn send(&mut self, operation: &mut Operation, updated: Vec<Value>) -> Result<()> {
        for mut value in updated {
            let uid = &value["metadata"]["uid"];
            let Some(info) = self.infos.iter().find(|info| &info.object["metadata"]["uid"] == uid).cloned() else {
                let shown = crate::template::go_format::json(&value);
                return Err(Failure::message(format!("no original object found for {shown}")));
            };
            let own = metadata(&value, "namespace");
            if info.resource.namespaced && !own.is_empty() && own != info.namespace {
                return Err(Failure::message(format!(
                    "the namespace from the provided object {own:?} does not match the namespace {:?}. You must pass '--namespace={own}' to perform this operation.",
                    info.namespace
                )));
            }
            if self.matches.bool("save-config") {
                value = annotated(&value);
            }
            if value == info.object {
                operation.print(self.session, &info, &info.object, "skipped")?;
                continue;
            }
            record(&mut value, self.matches);
            let (patch, content) = patch_of(&info, &value)?;
            if self.matches.bool("output-patch") {
                self.session.output.line(&format!("Patch: {}", crate::template::go_format::json(&patch)));
            }
            let change = Change {
                session: self.session,
                manager: self.matches.str("field-manager"),
                validation: field_validation(self.matches)?,
                dry_run: DryRun::None,
            };
            let sub = self.matches.str("subresource");
            match change.patch_subresource(&info, sub, content, patch.to_string().into_bytes()).await {
                Ok(object) => operation.print(self.session, &info, &object, "edited")?,
                Err(failure @ Failure::Connection { .. }) => return Err(failure),
                Err(failure) => self.session.output.warn(&self.results.add(&failure, &info)),
            }
        }
        Ok(())
    }
}

/// The patch from what was read to what was edited. The identity of an object can't be edited.
fn patch_of(info: &Info, value: &Value) -> Result<(Value, &'static str)> {
    let same = |pointer: &str| info.object.pointer(pointer) == value.pointer(pointer);
    if !["/apiVersion", "/kind", "/metadata/name"].into_iter().all(same) {
        return Err(Failure::message("At least one of apiVersion, kind and name was changed"));
    }
    let resource = &info.resource;
    let kind = (resource.group.as_str(), resource.version.as_str(), resource.kind.as_str());
    let strategic = is_builtin(info).then(|| strategic_two_way(kind, &info.object, value)).flatten();
    Ok(match strategic {
        Some(patch) => (patch, STRATEGIC),
        None => (api::patch::merge_diff(&info.object, value), MERGE),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::failure::Status;

    fn info() -> Info {
        Info {
            resource: crate::resource::files::local_resource("v1", "Service").into(),
            namespace: "default".into(),
            name: "a".into(),
            source: String::new(),
            object: json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}),
        }
    }

    #[test]
    fn an_edited_file_is_read_as_objects() {
        let check = |text: &str, wanted: std::result::Result<usize, &str>| {
            assert_eq!(objects_of(text).map(|all| all.len()), wanted.map_err(str::to_string), "{text}");
        };
        check("kind: Pod\n", Ok(1));
        check("kind: List\nitems: [{kind: Pod}, {kind: Pod}]\n", Ok(2));
        check("a: b\n", Err("unable to decode \"edited-file\": Object 'Kind' is missing in '{\"a\":\"b\"}'"));
        assert_eq!(says("# x\nb: 1\na: 2\n"), says("a: 2\nb: 1\n"));
        assert_ne!(says("a: 2\n"), says("a: 3\n"));
    }

    #[test]
    fn what_a_server_refuses_says_what_to_do() {
        let refused = |reason: &str| {
            Failure::Status(Box::new(Status {
                code: 400,
                reason: reason.into(),
                message: "no".into(),
                details: json!({"causes": [{"field": "spec.x", "message": "odd"}]}),
            }))
        };
        let check = |reason: &str, wanted: &str, state: (usize, bool, bool)| {
            let mut results = Results::default();
            let resource = info().resource.qualified();
            assert_eq!(results.add(&refused(reason), &info()), format!("error: {resource} \"a\" {wanted}"), "{reason}");
            assert_eq!((results.reasons.len(), results.retryable, results.not_found), state, "{reason}");
        };
        check("Invalid", "is invalid", (1, false, false));
        check("NotFound", "could not be found on the server", (0, false, true));
        check("Conflict", "could not be patched: no", (0, true, false));
    }

    #[test]
    fn the_identity_of_an_object_stays() {
        let check = |pointer: &str, fine: bool| {
            let mut value = info().object;
            value["metadata"]["labels"] = json!({});
            if let Some(place) = value.pointer_mut(pointer) {
                *place = "other".into();
            }
            assert_eq!(patch_of(&info(), &value).is_ok(), fine, "{pointer}");
        };
        check("/metadata/labels", true);
        check("/kind", false);
        check("/apiVersion", false);
        check("/metadata/name", false);
    }
}
