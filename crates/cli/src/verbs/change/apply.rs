//! `kubectl apply`: brings objects to what files say, by a three-way patch or on the server.
//! A row of `verbs::ROOT`; the patches are in `crate::apply`, `--prune` in `prune`.
//! Fields that no file named stay as they are.

use serde_json::{Value, json};

use super::{
    Change, MERGE, STRATEGIC, VALIDATE, apply_server_side, field_validation, is_builtin, last_applied, prune,
    record::{RECORD, record},
};
use crate::{
    apply::{self, LAST_APPLIED, annotated, merge_three_way, strategic_three_way},
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, boolean, duration, int, string},
    printers::{
        Operation, PRINT,
        operation::{DRY_RUN, DryRun},
    },
    resource::{FILENAME, Info, SELECTOR, Selection},
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    boolean("overwrite", "true", "The file's values win over those of the live object"),
    boolean("server-side", "false", "Apply on the server"),
    boolean("force-conflicts", "false", "With --server-side: take fields from other managers"),
    string("field-manager", "kubectl-client-side-apply", "Name of the field manager"),
    boolean("force", "false", "Delete and create anew what can't be patched"),
    string("cascade", "background", "background, orphan or foreground: what becomes of dependents").bare("background"),
    int("grace-period", "-1", "Seconds a deleted pod gets to end"),
    duration("timeout", "0s", "How long to wait for a deletion"),
    boolean("wait", "false", "Wait until deleted objects are gone"),
    boolean("openapi-patch", "true", "Make the patch by the types' own rules"),
    boolean("prune", "false", "Delete what was applied before and is in no file now"),
    boolean("all", "false", "With --prune: of all that was applied"),
    array("prune-allowlist", "group/version/kind that --prune may delete; may be repeated"),
    string("applyset", "", "Parent of the set of objects that --prune keeps: [RESOURCE][.GROUP]/NAME"),
    string("subresource", "", "With --server-side: subresource to apply"),
];

pub static COMMAND: Command = Command {
    name: "apply",
    aliases: &[],
    usage: "(-f FILENAME | -k DIRECTORY) [options]",
    about: "Apply a configuration to a resource by file name or stdin",
    flags: &[FLAGS, PRINT, FILENAME, SELECTOR, DRY_RUN, VALIDATE, RECORD],
    commands: &[&last_applied::VIEW, &last_applied::SET, &last_applied::EDIT],
    run: run!(apply),
};

/// How often a conflict with somebody else is tried again.
const CONFLICT_RETRIES: usize = 5;

async fn apply(session: &Session, matches: &Matches) -> Result<()> {
    if !matches.args.is_empty() {
        return Err(Failure::usage(format!("Unexpected args: [{}]", matches.args.join(" "))));
    }
    let server_side = matches.bool("server-side");
    let selection = Selection::of(session, matches)?;
    if !selection.has_files() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    let mut operation = Operation::of(session, matches)?;
    if matches.bool("force-conflicts") && !server_side {
        return Err(Failure::message("--force-conflicts only works with --server-side"));
    }
    if operation.dry_run == DryRun::Client && server_side {
        return Err(Failure::message(
            "--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)",
        ));
    }
    if matches.bool("force") && server_side {
        return Err(Failure::message("--force cannot be used with --server-side"));
    }
    if matches.bool("force") && operation.dry_run == DryRun::Server {
        return Err(Failure::message("--dry-run=server cannot be used with --force"));
    }
    if matches.bool("all") && !selection.selector.is_empty() {
        return Err(Failure::message("cannot set --all and --selector at the same time"));
    }
    if matches.changed("applyset") && std::env::var("KUBECTL_APPLYSET").ok().as_deref() != Some("true") {
        return Err(Failure::flag("unknown flag: --applyset"));
    }
    if !matches.str("applyset").is_empty() && !matches.bool("prune") {
        return Err(Failure::message("--applyset requires --prune"));
    }
    if matches.bool("force") && matches.bool("prune") {
        return Err(Failure::message("--force cannot be used with --prune"));
    }
    if !matches.str("subresource").is_empty() && !server_side {
        return Err(Failure::message("--subresource can only be specified for --server-side"));
    }
    field_validation(matches)?;
    let pruning = matches.bool("prune").then(|| prune::Pruning::of(matches, &selection)).transpose()?;
    let (infos, mut failures) = selection.select(session).await?;
    if infos.is_empty() && failures.is_empty() {
        return Err(Failure::message("no objects passed to apply"));
    }
    if let Some(pruning) = &pruning {
        pruning.before(session, &infos).await?;
    }
    let mut applied = Vec::new();
    let mut results: Vec<Value> = Vec::new();
    let count = infos.len();
    for mut info in infos {
        if let Some(pruning) = &pruning {
            pruning.label(&mut info)?;
        }
        record(&mut info.object, matches);
        let outcome = match server_side {
            true => apply_server_side::apply(session, matches, &info, operation.dry_run).await,
            false => apply_one(session, matches, &info, operation.dry_run).await,
        };
        match outcome {
            Ok((object, done)) => {
                info.object = object.clone();
                match operation.prints_objects() && count > 1 {
                    true => results.push(object),
                    false => operation.print(session, &info, &object, done)?,
                }
                applied.push(info);
            }
            Err(failure @ Failure::Connection { .. }) => return Err(failure),
            Err(failure) => failures.push(failure),
        }
    }
    if !results.is_empty() {
        let list = crate::resource::list_of(results);
        operation.print(session, &applied[0], &list, "")?;
    }
    if failures.is_empty()
        && let Some(pruning) = &pruning
    {
        pruning.after(session, &applied, operation.dry_run).await?;
    }
    Failure::aggregate(failures)
}

/// The object after the apply, and the word for it.
async fn apply_one(
    session: &Session,
    matches: &Matches,
    info: &Info,
    dry_run: DryRun,
) -> Result<(Value, &'static str)> {
    let change =
        Change { session, manager: matches.str("field-manager"), validation: field_validation(matches)?, dry_run };
    let modified = annotated(&info.object);
    if info.name.is_empty() {
        let prefix = crate::resource::metadata(&info.object, "generateName");
        return Err(Failure::message(match prefix {
            "" => "resource name may not be empty".to_string(),
            prefix => format!("from {prefix}: cannot use generate name with apply"),
        }));
    }
    let current = match info.get(session).await {
        Ok(current) => current,
        Err(failure) if failure.is_not_found() => {
            if dry_run == DryRun::Client {
                return Ok((modified, "created"));
            }
            let mut created = modified;
            without_nulls(&mut created);
            let created = change.create(info, &created).await;
            return created.map(|o| (o, "created")).map_err(|f| f.with_source("creating", &info.source));
        }
        Err(failure) => {
            let told = described(info);
            let words = "error when retrieving current configuration of:";
            return Err(failure.behind(&format!("{words}\n{told}\nfrom server for: {:?}: ", info.source)));
        }
    };
    if apply::last_applied(&current).is_none() {
        session.output.warn(&format!(
            "Warning: resource {}/{} is missing the {LAST_APPLIED} annotation which is required by kubectl apply. kubectl apply should only be used on resources created declaratively by either kubectl create --save-config or kubectl apply. The missing annotation will be patched automatically.",
            info.resource.name, info.name
        ));
    }
    let (object, changed) = patch_live(&change, matches, info, &modified, current).await?;
    if !object["metadata"]["deletionTimestamp"].is_null() && changed {
        session
            .output
            .warn(&format!("Warning: Detected changes to resource {} which is currently being deleted.", info.name));
    }
    Ok((object, if changed { "configured" } else { "unchanged" }))
}

/// What is null in a file is absent from a new object, as it would be from one that is patched.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// The patch from the live object to the file, and its content type.
pub fn patch_of(info: &Info, modified: &Value, current: &Value) -> (Value, &'static str) {
    let original: Value =
        apply::last_applied(current).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| json!({}));
    let resource = &info.resource;
    let kind = (resource.group.as_str(), resource.version.as_str(), resource.kind.as_str());
    let built_in = is_builtin(info).then(|| strategic_three_way(kind, &original, modified, current)).flatten();
    match built_in {
        Some(patch) => (patch, STRATEGIC),
        None => (merge_three_way(&original, modified, current), MERGE),
    }
}

/// Puts back what was deleted for a replacement that the server refuses; why it refuses.
async fn restored(change: &Change<'_>, info: &Info, original: &Value, refused: Failure) -> Failure {
    match change.create(info, original).await {
        Ok(_) => refused,
        Err(failure) => Failure::message(format!(
            "An error occurred force-replacing the existing object with the newly provided one:\n\n{}.\n\nAdditionally, an error occurred attempting to restore the original object:\n\n{}",
            refused.text(),
            failure.text()
        )),
    }
}

/// Which object an error is about, in kubectl's words.
fn described(info: &Info) -> String {
    let (version, resource) = (info.resource.group_version(), &info.resource);
    format!(
        "Resource: \"{version}, Resource={}\", GroupVersionKind: \"{version}, Kind={}\"\nName: {:?}, Namespace: {:?}",
        resource.name, resource.kind, info.name, info.namespace
    )
}

async fn patch_live(
    change: &Change<'_>,
    matches: &Matches,
    info: &Info,
    modified: &Value,
    mut current: Value,
) -> Result<(Value, bool)> {
    for attempt in 0.. {
        let (patch, content) = patch_of(info, modified, &current);
        if patch.as_object().is_some_and(serde_json::Map::is_empty) {
            return Ok((current, change.dry_run == DryRun::Client));
        }
        if change.dry_run == DryRun::Client {
            let live = Info { object: current, ..info.clone() };
            return Ok((super::patch::patched(&live, content, &patch)?, true));
        }
        match change.patch(info, content, &patch).await {
            Ok(object) => return Ok((object, true)),
            Err(failure) if failure.is_conflict() && attempt < CONFLICT_RETRIES => {
                current = info.get(change.session).await?;
            }
            Err(failure) if matches.bool("force") && ["Conflict", "Invalid"].contains(&failure.reason()) => {
                let plan = super::delete::Plan {
                    grace_period_seconds: (matches.int("grace-period") >= 0).then(|| matches.int("grace-period")),
                    cascade: super::delete::cascade(matches.str("cascade"))?,
                    wait: true,
                    ..super::delete::Plan::default()
                };
                super::delete::delete_all(
                    change.session,
                    &plan,
                    std::slice::from_ref(info),
                    matches.duration("timeout"),
                )
                .await?;
                let mut created = modified.clone();
                without_nulls(&mut created);
                return match change.create(info, &created).await {
                    Ok(object) => Ok((object, true)),
                    Err(failure) => Err(restored(change, info, &current, failure).await),
                };
            }
            Err(failure) => {
                let shown = crate::template::go_format::json(&patch);
                let told = described(info);
                let words = format!("error when applying patch:\n{shown}\nto:\n{told}\nfor: {:?}: ", info.source);
                return Err(match failure.reason() {
                    "Invalid" => failure,
                    _ => failure.behind(&words),
                });
            }
        }
    }
    Ok((current, false))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fake::FakeServer;

    /// What a replacement leaves when the server refuses the new object too.
    #[test]
    fn force_puts_back_what_it_can_not_replace() {
        let place = "/api/v1/namespaces/default/pods";
        let live = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "default", "uid": "7", "resourceVersion": "9"},
            "spec": {"containers": [{"name": "c", "image": "old"}]}});
        let invalid = json!({"kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422,
            "message": "Pod \"a\" is invalid", "details": {"kind": "Pod", "name": "a", "causes": [
                {"field": "spec.x", "message": "Invalid value: 1"}]}});
        let query = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict";
        let leak = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
        let server = FakeServer::of_pods()
            .on(leak(format!("GET {place}/a")), 200, live)
            .on(leak(format!("PATCH {place}/a?{query}")), 422, invalid.clone())
            .on(leak(format!("DELETE {place}/a")), 200, json!({"kind": "Status", "status": "Success"}))
            .on(leak(format!("GET {place}?fieldSelector=metadata.name%3Da")), 200, json!({"items": []}))
            .on(leak(format!("POST {place}?{query}")), 422, invalid);
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("pod.json");
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "resourceVersion": "1"},
            "spec": {"containers": [{"name": "c", "image": "new"}]}});
        std::fs::write(&file, object.to_string()).expect("a file");
        let (_, err, code) = server.run(&["apply", "--force", "-f", &file.display().to_string()]);
        assert!(err.contains("an error occurred attempting to restore the original object"), "{err}");
        assert_eq!(code, 1);
        let asked = server.asked.borrow();
        let created: Vec<&str> =
            asked.iter().filter(|(line, _)| line.starts_with("POST")).map(|(_, b)| b.as_str()).collect();
        assert_eq!(created.len(), 2, "{asked:?}");
        assert!(created[0].contains("\"image\":\"new\"") && created[1].contains("\"image\":\"old\""), "{created:?}");
        assert!(created.iter().all(|body| !body.contains("\"resourceVersion\"")), "{created:?}");
    }
}
