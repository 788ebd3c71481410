//! `kubectl logs`: of a container, of all containers of a pod, of all pods of a selector or workload.
//! A row of `verbs::ROOT`.
//! Streams are followed side by side; lines of one are never mixed into lines of another.

use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::Value;

use super::containers::{all_names, choose, names, object, pod_of, pod_selector, pods, without_selector};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, duration, int, string},
    resource::{SELECTOR, metadata},
    run,
    session::Session,
    terminal,
};

const FLAGS: &[Flag] = &[
    boolean("all-containers", "false", "Of all containers of the pods"),
    boolean("all-pods", "false", "Of all pods of the workload; implies --prefix"),
    string("container", "", "Container of the pod").short('c'),
    boolean("follow", "false", "Go on with what comes").short('f'),
    boolean("ignore-errors", "false", "With --follow: a stream that fails is no error"),
    boolean("insecure-skip-tls-verify-backend", "false", "Do not check the kubelet's certificate"),
    int("limit-bytes", "0", "At most this many bytes; 0 is all"),
    int("max-log-requests", "5", "At most this many streams at once"),
    duration("pod-running-timeout", "20s", "How long to wait for a pod"),
    boolean("prefix", "false", "The pod and container in front of each line"),
    boolean("previous", "false", "Of the container before the last restart").short('p'),
    duration("since", "0s", "Only what is younger"),
    string("since-time", "", "Only what is later than this time (RFC3339)"),
    int("tail", "-1", "Only this many lines from the end; -1 is all"),
    boolean("timestamps", "false", "The time in front of each line"),
];

pub static COMMAND: Command = Command {
    name: "logs",
    aliases: &["log"],
    usage: "[-f] [-p] (POD | TYPE/NAME) [-c CONTAINER] [options]",
    about: "Print the logs for a container in a pod",
    flags: &[FLAGS, SELECTOR],
    commands: &[],
    run: run!(logs),
};

const USAGE: &str = "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command";

/// One stream.
struct Source {
    pod: String,
    container: String,
    prefix: String,
}

async fn logs(session: &Session, matches: &Matches) -> Result<()> {
    check_time(matches)?;
    let selector = matches.str("selector");
    let (words, mut container) = match (matches.args.as_slice(), selector) {
        ([], "") => return Err(Failure::usage(USAGE)),
        ([_, ..], s) if !s.is_empty() => return Err(Failure::usage("only a selector (-l) or a POD name is allowed")),
        ([one, two], _) if !one.contains('/') => (vec![one.clone()], two.clone()),
        ([_, _, ..], _) => return Err(Failure::usage(USAGE)),
        (words, _) => (words.to_vec(), String::new()),
    };
    if matches.opt("container").is_some() {
        if !container.is_empty() {
            return Err(Failure::usage("only one of -c or an inline [CONTAINER] arg is allowed"));
        }
        container = matches.str("container").to_string();
    }
    let (namespace, _) = session.namespace()?;
    let mut found = match selector {
        "" => {
            let info = object(session, &words).await.map_err(|failure| not_found(failure, &namespace))?;
            match (matches.bool("all-pods"), pod_selector(&info.object)) {
                (true, Some(selector)) if info.resource.name != "pods" => pods(session, &namespace, &selector).await?,
                _ => {
                    if info.resource.name != "pods" && pod_selector(&info.object).is_none() {
                        return Err(without_selector("cannot get the logs from", &info));
                    }
                    let all = match info.resource.name.as_str() {
                        "pods" => Vec::new(),
                        _ => pods(session, &namespace, &pod_selector(&info.object).unwrap_or_default()).await?,
                    };
                    if all.len() > 1 {
                        let first = metadata(&all[0], "name");
                        session.output.warn(&format!("Found {} pods, using pod/{first}", all.len()));
                    }
                    vec![pod_of(session, &info, matches.duration("pod-running-timeout")).await?]
                }
            }
        }
        selector => {
            let mut all = pods(session, &namespace, selector).await?;
            all.sort_by(|a, b| metadata(a, "name").cmp(metadata(b, "name")));
            all
        }
    };
    check(matches, &container)?;
    if found.is_empty() {
        session.output.warn(&format!("No resources found in {namespace} namespace."));
        return Ok(());
    }
    if matches.bool("all-pods") {
        found.sort_by(|a, b| metadata(a, "name").cmp(metadata(b, "name")));
    }
    let sources = sources(session, matches, &found, &container)?;
    let follow = matches.bool("follow");
    let most = matches.int("max-log-requests") as usize;
    if follow && sources.len() > most {
        return Err(Failure::message(format!(
            "you are attempting to follow {} log streams, but maximum allowed concurrency is {most}, use --max-log-requests to increase the limit",
            sources.len()
        )));
    }
    let tail = match (matches.changed("tail"), selector.is_empty()) {
        (false, false) => 10,
        _ => matches.int("tail"),
    };
    terminal::end_at_signals(&session.output)?;
    let stream = |source| stream(session, matches, &namespace, source, tail);
    if follow && sources.len() > 1 {
        let mut all: FuturesUnordered<_> = sources.into_iter().map(stream).collect();
        while let Some(ended) = all.next().await {
            match ended {
                Err(failure) if matches.bool("ignore-errors") => {
                    session.output.warn(&format!("error: {}", failure.text()))
                }
                other => other?,
            }
        }
        return Ok(());
    }
    for source in sources {
        stream(source).await?;
    }
    Ok(())
}

/// A pod that is not there is looked for in its namespace.
fn not_found(failure: Failure, namespace: &str) -> Failure {
    match failure.is_not_found() {
        true => {
            Failure::message(format!("error from server (NotFound): {} in namespace {namespace:?}", failure.text()))
        }
        false => failure,
    }
}

fn check(matches: &Matches, container: &str) -> Result<()> {
    if matches.changed("since-time") && matches.changed("since") {
        return Err(Failure::message("at most one of `sinceTime` or `sinceSeconds` may be specified"));
    }
    if matches.int("tail") < -1 {
        return Err(Failure::message("--tail must be greater than or equal to -1"));
    }
    if matches.changed("limit-bytes") && matches.int("limit-bytes") <= 0 {
        return Err(Failure::message("--limit-bytes must be greater than 0"));
    }
    if matches.bool("all-containers") && !container.is_empty() {
        return Err(Failure::message(
            "--all-containers=true should not be specified with container name ".to_string() + container,
        ));
    }
    if matches.bool("previous") && matches.bool("follow") {
        return Err(Failure::message("only one of follow (-f) or previous (-p) is allowed"));
    }
    Ok(())
}

/// Before anything is asked of the server.
fn check_time(matches: &Matches) -> Result<()> {
    if let Some(text) = matches.opt("since-time") {
        text.parse::<jiff::Timestamp>().map_err(|_| {
            // Go names what it could not go on with; of most wrong times that is all of it.
            let layout = "2006-01-02T15:04:05Z07:00";
            Failure::message(format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\""))
        })?;
    }
    Ok(())
}

fn sources(session: &Session, matches: &Matches, pods: &[Value], container: &str) -> Result<Vec<Source>> {
    let prefix = matches.bool("prefix") || matches.bool("all-pods");
    let mut found = Vec::new();
    for pod in pods {
        let name = metadata(pod, "name").to_string();
        let chosen = match matches.bool("all-containers") {
            true => {
                let mut all = names(pod, "initContainers");
                all.extend(names(pod, "containers"));
                all.extend(names(pod, "ephemeralContainers"));
                all
            }
            false if !container.is_empty() && !all_names(pod).iter().any(|n| n == container) => {
                return Err(Failure::message(format!("container {container} is not valid for pod {name}")));
            }
            false => vec![choose(session, pod, container, false)?],
        };
        for container in chosen {
            let shown = if prefix { format!("[pod/{name}/{container}] ") } else { String::new() };
            found.push(Source { pod: name.clone(), container, prefix: shown });
        }
    }
    Ok(found)
}

async fn stream(session: &Session, matches: &Matches, namespace: &str, source: Source, tail: i64) -> Result<()> {
    let mut call = session
        .rest()
        .await?
        .get(format!("/api/v1/namespaces/{namespace}/pods/{}/log", source.pod))
        .query("container", source.container.as_str());
    for (flag, name) in [
        ("follow", "follow"),
        ("previous", "previous"),
        ("timestamps", "timestamps"),
        ("insecure-skip-tls-verify-backend", "insecureSkipTLSVerifyBackend"),
    ] {
        if matches.bool(flag) {
            call = call.query(name, "true");
        }
    }
    if matches.int("limit-bytes") > 0 {
        call = call.query("limitBytes", matches.int("limit-bytes").to_string());
    }
    if !matches.duration("since").is_zero() {
        call = call.query("sinceSeconds", matches.duration("since").as_secs_f64().ceil().to_string());
    }
    call = call.query_opt("sinceTime", matches.str("since-time"));
    if tail >= 0 {
        call = call.query("tailLines", tail.to_string());
    }
    let follow = matches.bool("follow");
    if source.prefix.is_empty() {
        let mut body = call.unlimited().open().await?.into_body();
        while let Some(chunk) = body.next().await {
            session.output.bytes(&chunk?);
            if follow {
                session.output.flush();
            }
        }
        return Ok(());
    }
    let mut lines = call.lines().await?;
    while let Some(line) = lines.next().await {
        session.output.print(&source.prefix);
        session.output.bytes(&line?);
        session.output.print("\n");
        if follow {
            session.output.flush();
        }
    }
    Ok(())
}
