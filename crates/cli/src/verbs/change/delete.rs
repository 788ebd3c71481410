//! `kubectl delete`: objects by file, name, label or all; waits until they are gone.
//! A row of `verbs::ROOT`; also used by `replace --force`, `apply --prune` and `run --rm`.
//! What is asked for is deleted; what belongs to it goes by the garbage collector's rules.

use std::time::Duration;

use futures::StreamExt;
use http::Method;
use serde_json::{Value, json};

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, duration, int, string},
    printers::operation::{DRY_RUN, DryRun},
    resource::{ALL_NAMESPACES, FIELD_SELECTOR, FILENAME, Info, SELECTOR, Selection, WatchPause},
    run,
    session::Session,
    terminal,
};

const FLAGS: &[Flag] = &[
    boolean("all", "false", "All objects of the types, in the namespace"),
    string("cascade", "background", "background, orphan or foreground: what becomes of dependents").bare("background"),
    boolean("force", "false", "With --grace-period=0: do not wait for confirmation by the node"),
    int("grace-period", "-1", "Seconds a pod gets to end; 1 at once, 0 only with --force"),
    boolean("ignore-not-found", "false", "An object that is not there is no error"),
    boolean("interactive", "false", "Ask before deleting").short('i'),
    boolean("now", "false", "As --grace-period=1"),
    string("output", "", "name: short output").short('o'),
    string("raw", "", "Path to delete, as it is"),
    duration("timeout", "0s", "How long to wait; 0 is by the object's own measure"),
    boolean("wait", "true", "Wait until the objects are gone"),
];

pub static COMMAND: Command = Command {
    name: "delete",
    aliases: &[],
    usage: "([-f FILENAME] | [-k DIRECTORY] | TYPE [(NAME | -l label | --all)]) [options]",
    about: "Delete resources by file names, stdin, resources and names, or by resources and label selector",
    flags: &[FLAGS, FILENAME, SELECTOR, FIELD_SELECTOR, ALL_NAMESPACES, DRY_RUN],
    commands: &[],
    run: run!(delete),
};

#[derive(Default)]
pub struct Plan {
    pub grace_period_seconds: Option<i64>,
    pub cascade: &'static str,
    pub wait: bool,
    pub ignore_not_found: bool,
    pub dry_run: Option<DryRun>,
    /// `deleted`, `force deleted`; empty prints nothing.
    pub word: &'static str,
    pub short: bool,
}

pub fn cascade(word: &str) -> Result<&'static str> {
    match word {
        "background" | "true" => Ok("Background"),
        "foreground" => Ok("Foreground"),
        "orphan" | "false" => Ok("Orphan"),
        other => Err(Failure::message(format!(
            "invalid cascade value ({other}). Must be \"background\", \"foreground\", or \"orphan\""
        ))),
    }
}

async fn delete(session: &Session, matches: &Matches) -> Result<()> {
    for (old, new) in [("true", "background"), ("false", "orphan")] {
        if matches.str("cascade") == old {
            session.output.warn(&format!(
                "warning: --cascade={old} is deprecated (boolean value) and can be replaced with --cascade={new}."
            ));
        }
    }
    let mut selection = Selection::of(session, matches)?;
    let output = matches.str("output");
    if !["", "name"].contains(&output) {
        return Err(Failure::message(format!("unexpected -o output mode: {output}. We only support '-o name'")));
    }
    let force = matches.bool("force");
    let mut grace = matches.int("grace-period");
    if matches.bool("now") {
        if grace != -1 {
            return Err(Failure::message("--now and --grace-period cannot be specified together"));
        }
        grace = 1;
    }
    let mut wait = matches.bool("wait");
    if force && grace < 0 {
        grace = 0;
    }
    if grace == 0 && !force {
        // Without --force, what has no grace period is at least seen to go.
        wait = true;
        grace = 1;
    }
    if force && grace == 0 && !matches.changed("wait") {
        wait = false;
    }
    if force && grace > 0 {
        return Err(Failure::message("--force and --grace-period greater than 0 cannot be specified together"));
    }
    if force && grace == 0 {
        session.output.warn("Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely.");
    }
    if let Some(raw) = matches.opt("raw") {
        let answer = session.rest().await?.call(Method::DELETE, raw).bytes().await?;
        session.output.bytes(&answer);
        return Ok(());
    }
    let dry_run = DryRun::of(session, matches)?;
    selection.no_fetch = true;
    selection.ignore_not_found = matches.bool("ignore-not-found");
    let (infos, mut failures) = selection.select(session).await?;
    if selection.enforce_namespace && infos.iter().any(|i| !i.resource.namespaced) && !selection.has_files() {
        session.output.warn("Warning: deleting cluster-scoped resources, not scoped to the provided namespace");
    }
    if matches.bool("interactive") && !infos.is_empty() && !confirmed(session, &infos)? {
        session.output.line("deletion is cancelled");
        return Ok(());
    }
    let plan = Plan {
        grace_period_seconds: (grace >= 0).then_some(grace),
        cascade: cascade(matches.str("cascade"))?,
        wait: wait && dry_run == DryRun::None,
        ignore_not_found: matches.bool("ignore-not-found") || selection.all || !selection.selector.is_empty(),
        dry_run: Some(dry_run),
        word: if force { "force deleted" } else { "deleted" },
        short: output == "name",
    };
    let found = infos.len();
    if let Err(failure) = delete_all(session, &plan, &infos, matches.duration("timeout")).await {
        match failure {
            Failure::Several(all) => failures.extend(all),
            one => failures.push(one),
        }
    }
    if found == 0 && failures.is_empty() && !matches.bool("ignore-not-found") {
        session.output.line("No resources found");
    }
    Failure::aggregate(failures)
}

fn confirmed(session: &Session, infos: &[Info]) -> Result<bool> {
    session.output.line(&format!("You are about to delete the following {} resource(s):", infos.len()));
    for info in infos {
        session.output.line(&info.shown());
    }
    session.output.print("Do you want to continue? (y/N): ");
    session.output.flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Deletes, prints, and waits if the plan says so.
pub async fn delete_all(session: &Session, plan: &Plan, infos: &[Info], timeout: Duration) -> Result<()> {
    let (mut failures, mut deleted) = (Vec::new(), Vec::new());
    for info in infos {
        let dry_run = plan.dry_run.unwrap_or(DryRun::None);
        let answer = match dry_run {
            DryRun::Client => Ok(Value::Null),
            _ => delete_one(session, plan, info, dry_run).await,
        };
        match answer {
            Ok(answer) => {
                print(session, plan, info, dry_run);
                let uid = answer["details"]["uid"].as_str().or(answer["metadata"]["uid"].as_str()).unwrap_or_default();
                deleted.push((info, uid.to_string()));
            }
            Err(failure) if failure.is_not_found() && plan.ignore_not_found => {}
            Err(failure) => failures.push(failure.with_source("deleting", &info.source)),
        }
    }
    if plan.wait && failures.is_empty() {
        session.output.flush();
        let limit = if timeout.is_zero() { Duration::from_secs(7 * 24 * 3600) } else { timeout };
        let waited = env::timeout(limit, async {
            for (info, uid) in &deleted {
                until_gone(session, info, uid).await?;
            }
            Ok(())
        });
        match waited.await {
            Some(Ok(())) => {}
            Some(Err(failure)) => failures.push(failure),
            None => failures.push(Failure::message(match deleted.first() {
                Some((info, _)) => {
                    format!("timed out waiting for the condition on {}/{}", info.resource.name, info.name)
                }
                None => "timed out waiting for the condition".to_string(),
            })),
        }
    }
    Failure::aggregate(failures)
}

async fn delete_one(session: &Session, plan: &Plan, info: &Info, dry_run: DryRun) -> Result<Value> {
    let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": plan.cascade});
    if let Some(grace) = plan.grace_period_seconds {
        options["gracePeriodSeconds"] = grace.into();
    }
    if dry_run == DryRun::Server {
        options["dryRun"] = json!(["All"]);
    }
    let call = session.rest().await?.call(Method::DELETE, info.path()?);
    call.json(&options).about(&info.resource.qualified(), &info.name).value().await
}

fn print(session: &Session, plan: &Plan, info: &Info, dry_run: DryRun) {
    if plan.word.is_empty() {
        return;
    }
    let kind = info.resource.qualified_kind();
    if plan.short {
        return session.output.line(&format!("{kind}/{}", info.name));
    }
    let suffix = match dry_run {
        DryRun::None => "",
        DryRun::Client => " (dry run)",
        DryRun::Server => " (server dry run)",
    };
    let place = match info.namespace.as_str() {
        "" => String::new(),
        namespace => format!(" from {namespace} namespace"),
    };
    session.output.line(&format!("{kind} {:?} {}{place}{suffix}", info.name, plan.word));
}

/// Waits until the object of that UID is gone.
pub async fn until_gone(session: &Session, info: &Info, uid: &str) -> Result<()> {
    let rest = session.rest().await?;
    terminal::end_at_signals(&session.output)?;
    let mut pause = WatchPause::new(&session.env);
    loop {
        let selector = format!("metadata.name={}", info.name);
        let list =
            rest.get(info.resource.path(&info.namespace, "")).query("fieldSelector", selector.as_str()).value().await;
        let list = match list {
            Ok(list) => list,
            Err(failure) if failure.is_not_found() => return Ok(()),
            // Who may delete may not always list.
            Err(failure) if failure.reason() == "Forbidden" || failure.reason() == "MethodNotAllowed" => return Ok(()),
            Err(failure) => return Err(failure),
        };
        let there = list["items"].as_array().into_iter().flatten().next();
        let gone = there.is_none_or(|object| !uid.is_empty() && object["metadata"]["uid"] != uid);
        if gone {
            return Ok(());
        }
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let watch = rest.get(info.resource.path(&info.namespace, ""));
        let mut lines = watch
            .query("fieldSelector", selector.as_str())
            .query("resourceVersion", version)
            .query("watch", "true")
            .lines()
            .await?;
        while let Some(line) = lines.next().await {
            let Ok(line) = line else { break };
            let event: Value = serde_json::from_slice(&line)?;
            if event["type"] == "DELETED"
                || (!uid.is_empty() && event["object"]["metadata"]["uid"].as_str().is_some_and(|u| u != uid))
            {
                return Ok(());
            }
            if event["type"] == "ERROR" {
                break;
            }
        }
        pause.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fake::FakeServer;

    fn server() -> FakeServer {
        FakeServer::default()
            .on(
                "GET /api",
                200,
                json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": ""}, "versions": [
                {"version": "v1", "resources": [{"resource": "configmaps", "singularResource": "configmap",
                    "scope": "Namespaced", "shortNames": ["cm"], "responseKind": {"kind": "ConfigMap"},
                    "verbs": ["delete", "get", "list", "patch"]}]}]}]}),
            )
            .on("GET /apis", 200, json!({"kind": "APIGroupDiscoveryList", "items": []}))
            .on("GET /api/v1/namespaces/default/configmaps", 200, json!({"kind": "ConfigMapList", "items": []}))
            .on("DELETE /api/v1/namespaces/default/configmaps", 200, json!({"kind": "ConfigMapList", "items": []}))
            .on("PATCH /api/v1/namespaces/default/configmaps", 200, json!({"kind": "ConfigMap"}))
    }

    #[test]
    fn without_a_name_nothing_is_touched() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let manifest = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "made-"}});
        std::fs::write(file.path(), manifest.to_string()).expect("a manifest");
        let path = file.path().to_str().expect("a path");
        let check = |words: &[&str], message: &str| {
            let server = server();
            let (out, err, code) = server.run(words);
            assert_eq!(
                (out.as_str(), err.as_str(), code),
                ("", format!("error: {message}\n").as_str(), 1),
                "{words:?}"
            );
            let asked = server.asked.borrow();
            let sent: Vec<_> = asked.iter().filter(|(request, _)| request.contains("configmaps")).collect();
            assert!(sent.is_empty(), "{words:?}: {sent:?}");
        };
        let empty = "resource name may not be empty";
        check(&["delete", "-f", path, "--wait=false"], &format!("error when deleting {path:?}: {empty}"));
        check(&["delete", "cm", "", "--wait=false"], empty);
        check(
            &["replace", "--force", "-f", path, "--validate=false"],
            &format!("error when deleting {path:?}: {empty}"),
        );
        check(&["get", "cm", ""], empty);
        check(&["label", "cm", "", "a=b"], empty);
        check(&["patch", "cm", "", "-p", "{}"], empty);
    }
}
