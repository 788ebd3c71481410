//! `kubectl diff`: what an apply would change, shown by the system's diff.
//! A row of `verbs::ROOT`.
//! Exit code 0 is no difference, 1 is a difference, more is an error.

use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::{Change, apply, apply_server_side, prune::Pruning};
use crate::{
    apply::annotated,
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, boolean, int, string},
    printers::{operation::DryRun, yaml},
    resource::{FILENAME, Info, SELECTOR, Selection},
    run,
    session::Session,
};

const FLAGS: &[Flag] = &[
    int("concurrency", "1", "How many objects at once"),
    boolean("prune", "false", "Also what would be pruned"),
    array("prune-allowlist", "group/version/kind that would be pruned"),
    boolean("server-side", "false", "As apply --server-side would"),
    boolean("force-conflicts", "false", "With --server-side: take fields from other managers"),
    string("field-manager", "kubectl-client-side-apply", "Name of the field manager"),
    boolean("show-managed-fields", "false", "Also managedFields"),
    string("subresource", "", "").hidden(),
    string("validate", "strict", "").bare("strict").hidden(),
];

pub static COMMAND: Command = Command {
    name: "diff",
    aliases: &[],
    usage: "-f FILENAME [options]",
    about: "Diff the live version against a would-be applied version",
    flags: &[FLAGS, FILENAME, SELECTOR],
    commands: &[],
    run: run!(diff),
};

async fn diff(session: &Session, matches: &Matches) -> Result<()> {
    compare(session, matches).await.map_err(|failure| match failure {
        Failure::Exit(code) => Failure::Exit(code),
        other => {
            let (text, code) = other.report(&matches.command);
            session.output.warn(&text);
            Failure::Exit(code + 1)
        }
    })
}

async fn compare(session: &Session, matches: &Matches) -> Result<()> {
    let selection = Selection::of(session, matches)?;
    if !selection.has_files() {
        return Err(Failure::message("must specify one of -f and -k"));
    }
    let (live, merged) =
        (tempfile::Builder::new().prefix("LIVE-").tempdir()?, tempfile::Builder::new().prefix("MERGED-").tempdir()?);
    if matches.bool("force-conflicts") && !matches.bool("server-side") {
        return Err(Failure::message("--force-conflicts only works with --server-side"));
    }
    let pruning = matches.bool("prune").then(|| Pruning::by_kinds(matches, &selection));
    let keep = matches.bool("show-managed-fields");
    let at_once = matches.int("concurrency").max(1) as usize;
    let infos = selection.all_or_nothing(session).await?;
    let versions = stream::iter(infos)
        .map(|info| async move {
            let before = match info.get(session).await {
                Ok(object) => Some(object),
                Err(failure) if failure.is_not_found() => None,
                Err(failure) => return Err(failure),
            };
            let after = would_be(session, matches, &info, before.as_ref()).await?;
            Ok((info, before, after))
        })
        .buffered(at_once)
        .try_collect::<Vec<_>>()
        .await?;
    let mut visited = Vec::new();
    for (mut info, before, after) in versions {
        info.object = before.clone().unwrap_or_default();
        let (before, after) = masked(&info, before, after);
        let file = file_name(&info);
        std::fs::write(live.path().join(&file), before.map(|o| shown(o, keep)).unwrap_or_default())?;
        std::fs::write(merged.path().join(&file), shown(after, keep))?;
        visited.push(info);
    }
    // What would go stands on one side only.
    for info in match &pruning {
        Some(pruning) => pruning.left_over(session, &visited).await?,
        None => Vec::new(),
    } {
        std::fs::write(live.path().join(file_name(&info)), shown(hidden(&info), true))?;
    }
    session.output.flush();
    let words = std::env::var("KUBECTL_EXTERNAL_DIFF").unwrap_or_default();
    let mut words = words.split_whitespace();
    let program = words.next().unwrap_or("diff").to_string();
    let mut command = std::process::Command::new(&program);
    match program == "diff" {
        true => command.args(["-u", "-N"]),
        false => command.args(words),
    };
    let output = command
        .arg(live.path())
        .arg(merged.path())
        .output()
        .map_err(|e| Failure::message(format!("failed to run {program:?}: {e}")))?;
    session.output.bytes(&output.stdout);
    session.output.error_bytes(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::Exit(code as u8)),
        None => Err(Failure::message(format!("{program} was ended by a signal"))),
    }
}

fn file_name(info: &Info) -> String {
    let group = match info.resource.group.as_str() {
        "" => String::new(),
        group => format!("{group}."),
    };
    format!("{group}{}.{}.{}.{}", info.resource.version, info.resource.kind, info.namespace, info.name)
}

/// An object of which only one version is shown.
fn hidden(info: &Info) -> Value {
    masked(info, None, info.object.clone()).1
}

fn shown(mut object: Value, keep_managed_fields: bool) -> String {
    if !keep_managed_fields {
        crate::printers::format::without_managed_fields(&mut object);
    }
    yaml::to_string(&object)
}

/// Values of Secrets are not shown, only whether they differ.
fn masked(info: &Info, mut before: Option<Value>, mut after: Value) -> (Option<Value>, Value) {
    if info.resource.kind != "Secret" || !info.resource.group.is_empty() {
        return (before, after);
    }
    let old = before.as_ref().map(|o| o["data"].clone()).unwrap_or_default();
    let new = after["data"].clone();
    let differs = |key: &String| old.get(key) != new.get(key) && old.get(key).is_some() && new.get(key).is_some();
    let hide = |object: &mut Value, mark: &str| {
        for (key, value) in object["data"].as_object_mut().into_iter().flatten() {
            *value = if differs(key) { format!("*** ({mark})").into() } else { "***".into() };
        }
    };
    if let Some(before) = &mut before {
        hide(before, "before");
    }
    hide(&mut after, "after");
    (before, after)
}

async fn would_be(session: &Session, matches: &Matches, info: &Info, before: Option<&Value>) -> Result<Value> {
    if matches.bool("server-side") {
        return apply_server_side::apply(session, matches, info, DryRun::Server).await.map(|(object, _)| object);
    }
    let change = Change { session, manager: matches.str("field-manager"), validation: "", dry_run: DryRun::Server };
    let modified = annotated(&info.object);
    let Some(before) = before else { return change.create(info, &info.object).await };
    let (patch, content) = apply::patch_of(info, &modified, before);
    // The annotation is not what people look for.
    let mut after = match patch == json!({}) {
        true => before.clone(),
        false => change.patch(info, content, &patch).await?,
    };
    after["metadata"]["annotations"][crate::apply::LAST_APPLIED] =
        before["metadata"]["annotations"][crate::apply::LAST_APPLIED].clone();
    if after["metadata"]["annotations"][crate::apply::LAST_APPLIED].is_null()
        && let Some(annotations) = after["metadata"]["annotations"].as_object_mut()
    {
        annotations.remove(crate::apply::LAST_APPLIED);
        if annotations.is_empty() && before["metadata"]["annotations"].is_null() {
            after["metadata"].as_object_mut().map(|m| m.remove("annotations"));
        }
    }
    Ok(after)
}
