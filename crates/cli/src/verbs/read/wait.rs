//! `kubectl wait`: until objects are deleted, created, or as a condition or a JSONPath says.
//! A row of `verbs::ROOT`.
//! Each object is watched from what was read of it; nothing is polled but for `--for=create`.

use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, array, boolean, duration},
    printers::{Operation, PRINT},
    resource::{ALL_NAMESPACES, FIELD_SELECTOR, Info, PLAIN_FILENAME, SELECTOR, Selection, WatchPause},
    run,
    session::Session,
    template::{custom_columns::relaxed_expression, jsonpath::JsonPath},
    terminal,
    verbs::change::delete::until_gone,
};

const FLAGS: &[Flag] = &[
    boolean("all", "false", "All objects of the types, in the namespace"),
    array("for", "create, delete, condition=NAME[=VALUE] or jsonpath='{EXPRESSION}'[=VALUE]"),
    boolean("local", "false", "Ask no server").hidden(),
    duration("timeout", "30s", "How long; 0 looks once, less than 0 waits a week"),
];

pub static COMMAND: Command = Command {
    name: "wait",
    aliases: &[],
    usage: "([-f FILENAME] | resource.group/resource.name | resource.group [(-l label | --all)]) [--for=create|--for=delete|--for condition=available|--for=jsonpath='{}'[=value]] [options]",
    about: "Wait for a specific condition on one or many resources",
    flags: &[FLAGS, PRINT, PLAIN_FILENAME, SELECTOR, FIELD_SELECTOR, ALL_NAMESPACES],
    commands: &[],
    run: run!(wait),
};

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

enum Condition {
    Created,
    Deleted,
    Status { name: String, value: String },
    JsonPath { path: JsonPath, text: String, value: Option<String> },
}

fn condition(text: &str) -> Result<Condition> {
    if text.eq_ignore_ascii_case("create") {
        return Ok(Condition::Created);
    }
    if text.eq_ignore_ascii_case("delete") {
        return Ok(Condition::Deleted);
    }
    if let Some(rest) = text.strip_prefix("condition=") {
        let (name, value) = rest.split_once('=').unwrap_or((rest, "true"));
        return Ok(Condition::Status { name: name.to_string(), value: value.to_string() });
    }
    if let Some(rest) = text.strip_prefix("jsonpath=") {
        let parts = split_at_equals(rest);
        let (path, value) = match parts.as_slice() {
            [path] => (path, None),
            [path, value] => (path, Some(value.trim_matches(['\'', '"']))),
            _ => {
                return Err(Failure::message(
                    "jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3 or --for=jsonpath='{.status.readyReplicas}'",
                ));
            }
        };
        let path = path.trim_matches(['\'', '"']);
        if value == Some("") {
            return Err(Failure::message(
                "jsonpath wait has to have a value after equal sign, like --for=jsonpath='{.status.readyReplicas}'=3",
            ));
        }
        let relaxed = relaxed_expression(path).map_err(Failure::Message)?;
        let parsed = JsonPath::parse(&relaxed).map_err(Failure::Message)?.allow_missing_keys(true);
        return Ok(Condition::JsonPath { path: parsed, text: relaxed, value: value.map(str::to_string) });
    }
    Err(Failure::message(format!("unrecognized condition: {text:?}")))
}

/// Split where one equal sign stands alone: two belong to a filter of the expression.
fn split_at_equals(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '=' && letters.next_if_eq(&'=').is_none() {
            parts.push(String::new());
            continue;
        }
        if let Some(part) = parts.last_mut() {
            part.extend(std::iter::repeat_n(letter, if letter == '=' { 2 } else { 1 }));
        }
    }
    parts
}

impl Condition {
    fn met(&self, object: &Value) -> Result<bool> {
        match self {
            Self::Created => Ok(true),
            Self::Deleted => Ok(false),
            Self::Status { name, value } => {
                let observed = object["status"]["observedGeneration"].as_i64();
                if observed.is_some_and(|seen| seen < object["metadata"]["generation"].as_i64().unwrap_or(0)) {
                    return Ok(false);
                }
                let all = object["status"]["conditions"].as_array().into_iter().flatten();
                let mut named = all.filter(|c| c["type"].as_str().is_some_and(|t| t.eq_ignore_ascii_case(name)));
                Ok(named.any(|c| c["status"].as_str().is_some_and(|s| s.eq_ignore_ascii_case(value))))
            }
            Self::JsonPath { path, text, value } => {
                let found = path.results(object).map_err(Failure::Message)?;
                let found: Vec<Value> = found.into_iter().flatten().map(|v| v.into_owned()).collect();
                match (found.as_slice(), value) {
                    ([], _) => Ok(false),
                    ([..], None) => Ok(true),
                    ([one], Some(value)) => match one {
                        Value::String(text) => Ok(text == value),
                        Value::Object(_) | Value::Array(_) => {
                            Err(Failure::message("jsonpath leads to a nested object or list which is not supported"))
                        }
                        other => {
                            let shown = other.to_string();
                            Ok(shown == *value)
                        }
                    },
                    (_, Some(_)) => {
                        Err(Failure::message(format!("given jsonpath expression {text:?} matches more than one list")))
                    }
                }
            }
        }
    }
}

async fn wait(session: &Session, matches: &Matches) -> Result<()> {
    let words = matches.list("for");
    let Some(word) = words.last() else {
        return Err(Failure::message("unrecognized condition: \"\""));
    };
    let wanted = condition(word)?;
    let timeout = match matches.str("timeout").starts_with('-') {
        true => WEEK,
        false => matches.duration("timeout"),
    };
    let mut selection = Selection::of(session, matches)?;
    let mut operation = Operation::of(session, matches)?;
    let deadline = session.env.monotonic() + timeout;
    if matches!(wanted, Condition::Created) {
        return created(session, &mut selection, &mut operation, timeout).await;
    }
    if matches!(wanted, Condition::Deleted) {
        selection.ignore_not_found = true;
    }
    let infos = selection.all_or_nothing(session).await?;
    terminal::end_at_signals(&session.output)?;
    if infos.is_empty() && !matches!(wanted, Condition::Deleted) {
        return Err(Failure::message("no matching resources found"));
    }
    let mut failures = Vec::new();
    for info in infos {
        let left = deadline.saturating_sub(session.env.monotonic());
        let waited = match &wanted {
            Condition::Deleted => {
                let uid = info.object["metadata"]["uid"].as_str().unwrap_or_default().to_string();
                env::timeout(left, async { until_gone(session, &info, &uid).await.map(|()| info.object.clone()) }).await
            }
            wanted if timeout.is_zero() => match wanted.met(&info.object)? {
                true => Some(Ok(info.object.clone())),
                false => None,
            },
            wanted => env::timeout(left, until_met(session, &info, wanted)).await,
        };
        match waited {
            Some(Ok(object)) => {
                operation.print(session, &info, &object, "condition met")?;
                session.output.flush();
            }
            Some(Err(failure)) => failures.push(failure),
            None => failures.push(Failure::message(format!(
                "timed out waiting for the condition on {}/{}",
                info.resource.name, info.name
            ))),
        }
    }
    Failure::aggregate(failures)
}

async fn until_met(session: &Session, info: &Info, wanted: &Condition) -> Result<Value> {
    if wanted.met(&info.object)? {
        return Ok(info.object.clone());
    }
    let mut pause = WatchPause::new(&session.env);
    loop {
        let mut lines = info.watch(session).await?;
        while let Some(line) = lines.next().await {
            let Ok(line) = line else { break };
            let event: Value = serde_json::from_slice(&line)?;
            match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") if wanted.met(&event["object"])? => return Ok(event["object"].clone()),
                Some("ERROR") => break,
                _ => {}
            }
        }
        pause.wait().await;
    }
}

/// A watch of what is not there yet would need its name; each is looked for again after a moment.
const CREATE_INTERVAL: Duration = Duration::from_millis(500);

async fn created(
    session: &Session,
    selection: &mut Selection,
    operation: &mut Operation,
    timeout: Duration,
) -> Result<()> {
    selection.latest = true;
    let deadline = session.env.monotonic() + timeout;
    // Looks once whatever the timeout.
    let infos = loop {
        match selection.all_or_nothing(session).await {
            Ok(infos) if !infos.is_empty() => break infos,
            Ok(_) => {}
            Err(failure) if failure.is_not_found() => {}
            Err(failure) => return Err(failure),
        }
        if session.env.monotonic() + CREATE_INTERVAL >= deadline {
            session.env.sleep(deadline.saturating_sub(session.env.monotonic())).await;
            return Err(Failure::message("timed out waiting for the condition"));
        }
        session.env.sleep(CREATE_INTERVAL).await;
    };
    for info in infos {
        operation.print(session, &info, &info.object, "condition met")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_read_and_met() {
        let pod = json!({"metadata": {"generation": 1}, "status": {"phase": "Running", "n": 3,
            "conditions": [{"type": "Ready", "status": "True"}]}});
        let check = |text: &str, wanted: bool| {
            let met = condition(text).and_then(|c| c.met(&pod)).unwrap_or_else(|e| panic!("{text}: {}", e.text()));
            assert_eq!(met, wanted, "{text}");
        };
        check("condition=Ready", true);
        check("condition=ready=true", true);
        check("condition=Ready=False", false);
        check("condition=Other", false);
        check("jsonpath={.status.phase}=Running", true);
        check("jsonpath='{.status.phase}'=Pending", false);
        check("jsonpath={.status.n}=3", true);
        check("jsonpath={.status.phase}", true);
        check("jsonpath={.status.absent}", false);
        check("jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=True", true);
    }

    #[test]
    fn what_is_no_condition_is_said_as_upstream_does() {
        let check = |text: &str, wanted: &str| {
            let why = condition(text).err().map(|e| e.text());
            assert_eq!(why.as_deref(), Some(wanted), "{text}");
        };
        check("nonsense", "unrecognized condition: \"nonsense\"");
        check("created", "unrecognized condition: \"created\"");
        check(
            "jsonpath={.a}=",
            "jsonpath wait has to have a value after equal sign, like --for=jsonpath='{.status.readyReplicas}'=3",
        );
        check(
            "jsonpath={.a}=b=c",
            "jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3 or --for=jsonpath='{.status.readyReplicas}'",
        );
    }

    #[test]
    fn a_server_that_ends_every_watch_is_not_asked_without_end() {
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default"}});
        let watch = "GET /api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Da&watch=true";
        let server = crate::fake::FakeServer::of_pods().on("GET /api/v1/namespaces/default/pods/a", 200, pod).on_text(
            watch,
            200,
            String::new(),
        );
        let (_, err, code) = server.run(&["wait", "pod/a", "--for=condition=Ready", "--timeout=1s"]);
        assert_eq!((err.as_str(), code), ("error: timed out waiting for the condition on pods/a\n", 1));
        let asked = server.asked.borrow().iter().filter(|(line, _)| line == watch).count();
        assert!((1..4).contains(&asked), "{asked} watches in a second");
    }

    #[test]
    fn create_waits_for_what_a_selector_finds() {
        let found = json!({"kind": "PodList", "apiVersion": "v1", "items": [
            {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "default"}}]});
        let none = json!({"kind": "PodList", "apiVersion": "v1", "items": []});
        let request = "GET /api/v1/namespaces/default/pods?labelSelector=a%3Db";
        let check = |list: serde_json::Value, wanted: (&str, &str, u8)| {
            let server = crate::fake::FakeServer::of_pods().on(request, 200, list);
            let (out, err, code) = server.run(&["wait", "pods", "--for=create", "-l", "a=b", "--timeout=0"]);
            assert_eq!((out.as_str(), err.as_str(), code), wanted);
        };
        check(found, ("pod/a condition met\n", "", 0));
        check(none, ("", "error: timed out waiting for the condition\n", 1));
    }
}
