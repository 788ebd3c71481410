//! `kubectl events`: events in the order they happened, of all objects or of one.
//! A row of `verbs::ROOT`.
//! Reads only; with `--watch` until the server or Ctrl-C ends it.

use api::printing::human_duration;
use futures::StreamExt;
use serde_json::Value;

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, list, string},
    printers::{PRINT, columns::TabWriter, format::Printer, operation::ALLOWED},
    resource::{ALL_NAMESPACES, CHUNK_SIZE, items_of, list_of, metadata},
    run,
    session::Session,
    terminal,
};

const FLAGS: &[Flag] = &[
    string("for", "", "Only of this object: TYPE/NAME"),
    boolean("no-headers", "false", "Leave out the headers"),
    list("types", "Only of these types: Normal, Warning"),
    boolean("watch", "false", "Go on with what comes").short('w'),
];

pub static COMMAND: Command = Command {
    name: "events",
    aliases: &[],
    usage: "[(-o|--output=)json|yaml|kyaml|name|go-template|go-template-file|template|templatefile|jsonpath|jsonpath-as-json|jsonpath-file] [--for TYPE/NAME] [--watch] [--types=Normal,Warning] [options]",
    about: "List events",
    flags: &[FLAGS, PRINT, ALL_NAMESPACES, CHUNK_SIZE],
    commands: &[],
    run: run!(events),
};

fn time(event: &Value) -> Option<i128> {
    let fields =
        [&event["series"]["lastObservedTime"], &event["lastTimestamp"], &event["eventTime"], &event["firstTimestamp"]];
    fields.iter().find_map(|v| v.as_str()).and_then(|t| t.parse::<jiff::Timestamp>().ok()).map(|t| t.as_nanosecond())
}

fn first_time(event: &Value) -> Option<i128> {
    let fields = [&event["firstTimestamp"], &event["eventTime"]];
    fields.iter().find_map(|v| v.as_str()).and_then(|t| t.parse::<jiff::Timestamp>().ok()).map(|t| t.as_nanosecond())
}

fn last_seen(event: &Value, now: i64) -> String {
    let ago = |at: Option<i128>| {
        at.map_or_else(|| "<unknown>".to_string(), |at| human_duration(now - (at / 1_000_000_000) as i64))
    };
    let count = event["series"]["count"].as_i64().or(event["count"].as_i64()).unwrap_or(0);
    match count > 1 {
        true => format!("{} (x{count} over {})", ago(time(event)), ago(first_time(event))),
        false => ago(time(event).or(first_time(event))),
    }
}

fn row(event: &Value, all: bool, now: i64) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let object = &event["involvedObject"];
    let mut cells = Vec::new();
    if all {
        cells.push(metadata(event, "namespace").to_string());
    }
    cells.extend([
        last_seen(event, now),
        text(&event["type"]),
        text(&event["reason"]),
        format!("{}/{}", text(&object["kind"]), text(&object["name"])),
        text(&event["message"]).trim().to_string(),
    ]);
    cells
}

async fn events(session: &Session, matches: &Matches) -> Result<()> {
    let (namespace, _) = session.namespace()?;
    let all = matches.bool("all-namespaces");
    let types = matches.list("types");
    if types.iter().any(|t| !["Normal", "Warning"].iter().any(|known| known.eq_ignore_ascii_case(t))) {
        return Err(Failure::message("valid --types are Normal or Warning"));
    }
    let mut fields = Vec::new();
    if let Some(target) = matches.opt("for") {
        let (word, name) =
            target.split_once('/').ok_or_else(|| Failure::message("--for must be in resource/name form"))?;
        let resource = session.resource(word).await.map_err(|failure| Failure::Plain(failure.text()))?;
        fields.push(format!("involvedObject.kind={}", resource.kind));
        fields.push(format!("involvedObject.name={name}"));
        if !resource.group.is_empty() {
            fields.push(format!("involvedObject.apiVersion={}", resource.group_version()));
        }
    }
    let path = if all { "/api/v1/events".to_string() } else { format!("/api/v1/namespaces/{namespace}/events") };
    let rest = session.rest().await?;
    let mut printer = Printer::of(matches, ALLOWED)?;
    let answer = rest
        .get(path.as_str())
        .query_opt("fieldSelector", &fields.join(","))
        .query("limit", matches.int("chunk-size").max(0).to_string())
        .value()
        .await?;
    let version = answer["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_string();
    let fits = |event: &Value| {
        types.is_empty() || types.iter().any(|t| t.eq_ignore_ascii_case(event["type"].as_str().unwrap_or_default()))
    };
    let mut found: Vec<Value> = items_of(answer).into_iter().filter(fits).collect();
    found.sort_by_key(|event| time(event).unwrap_or(0));
    let now = session.env.now().as_second();
    if found.is_empty() && !matches.bool("watch") {
        match all {
            true => session.output.warn("No events found."),
            false => session.output.warn(&format!("No events found in {namespace} namespace.")),
        }
        return Ok(());
    }
    let mut writer = TabWriter::default();
    match &mut printer {
        Some(printer) => session.output.print(&printer.text(&list_of(found))?),
        None => {
            if !matches.bool("no-headers") {
                let mut headers = if all { vec!["NAMESPACE".to_string()] } else { Vec::new() };
                headers.extend(["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"].map(str::to_string));
                writer.row(headers);
            }
            found.iter().for_each(|event| writer.row(row(event, all, now)));
            session.output.print(&writer.flush());
        }
    }
    if !matches.bool("watch") {
        return Ok(());
    }
    session.output.flush();
    terminal::end_at_signals(&session.output)?;
    let call = rest.get(path.as_str()).query_opt("fieldSelector", &fields.join(","));
    let mut lines = call.query("resourceVersion", version).query("watch", "true").lines().await?;
    while let Some(line) = lines.next().await {
        let change: Value = serde_json::from_slice(&line?)?;
        let event = &change["object"];
        if change["type"] == "DELETED" || !fits(event) {
            continue;
        }
        match &mut printer {
            Some(printer) => session.output.print(&printer.text(event)?),
            None => {
                writer.row(row(event, all, session.env.now().as_second()));
                session.output.print(&writer.flush());
            }
        }
        session.output.flush();
    }
    Ok(())
}
