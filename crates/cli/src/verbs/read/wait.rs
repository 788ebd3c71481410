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
    resource::{ALL_NAMESPACES, FIELD_SELECTOR, Info, PLAIN_FILENAME, SELECTOR, Selection},
    run,
    session::Session,
    template::{custom_columns::relaxed_expression, jsonpath::JsonPath},
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
    if text == "create" || text == "created" {
        return Ok(Condition::Created);
    }
    if text.eq_ignore_ascii_case("delete") || text.eq_ignore_ascii_case("deleted") {
        return Ok(Condition::Deleted);
    }
    if let Some(rest) = text.strip_prefix("condition=") {
        let (name, value) = rest.split_once('=').unwrap_or((rest, "true"));
        return Ok(Condition::Status { name: name.to_string(), value: value.to_string() });
    }
    if let Some(rest) = text.strip_prefix("jsonpath=") {
        let split = match rest.rfind('}') {
            Some(end) => (&rest[..=end], rest[end + 1..].trim_start_matches(['\'', '"']).strip_prefix('=')),
            None => match rest.split_once('=') {
                Some((path, value)) => (path, Some(value)),
                None => (rest, None),
            },
        };
        let (path, value) = (split.0.trim_matches(['\'', '"']), split.1.map(|v| v.trim_matches(['\'', '"'])));
        if value == Some("") {
            return Err(Failure::message("jsonpath wait value cannot be empty"));
        }
        let relaxed = relaxed_expression(path).map_err(Failure::Message)?;
        let parsed = JsonPath::parse(&relaxed).map_err(Failure::Message)?.allow_missing_keys(true);
        return Ok(Condition::JsonPath { path: parsed, text: relaxed, value: value.map(str::to_string) });
    }
    Err(Failure::message(format!("unrecognized condition: {text:?}")))
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
        if !selection.selector.is_empty() || !selection.field_selector.is_empty() || matches.bool("all") {
            return Err(Failure::message("--for=create cannot be used with --selector, --field-selector or --all"));
        }
        return created(session, &mut selection, &mut operation, timeout).await;
    }
    if matches!(wanted, Condition::Deleted) {
        selection.ignore_not_found = true;
    }
    let infos = selection.all_or_nothing(session).await?;
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
    let rest = session.rest().await?;
    loop {
        let call = rest.get(info.resource.path(&info.namespace, ""));
        let mut lines =
            call.query("fieldSelector", format!("metadata.name={}", info.name)).query("watch", "true").lines().await?;
        while let Some(line) = lines.next().await {
            let Ok(line) = line else { break };
            let event: Value = serde_json::from_slice(&line)?;
            match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") if wanted.met(&event["object"])? => return Ok(event["object"].clone()),
                Some("ERROR") => break,
                _ => {}
            }
        }
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
    let looked = env::timeout(timeout.max(Duration::from_millis(1)), async {
        loop {
            match selection.all_or_nothing(session).await {
                Ok(infos) => return Ok(infos),
                Err(failure) if failure.is_not_found() => session.env.sleep(CREATE_INTERVAL).await,
                Err(failure) => return Err(failure),
            }
        }
    });
    match looked.await {
        Some(infos) => {
            for info in infos? {
                operation.print(session, &info, &info.object, "condition met")?;
            }
            Ok(())
        }
        None => {
            let what = selection.arguments.join("/");
            Err(Failure::message(format!("timed out waiting for the condition on {what}")))
        }
    }
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
        assert!(condition("nonsense").is_err());
    }
}
