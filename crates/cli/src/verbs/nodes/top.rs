//! `kubectl top`: what nodes and pods use, from the metrics API.
//! A row of `verbs::ROOT`.
//! Reads only.

use std::{cmp::Reverse, collections::BTreeMap};

use api::quantity::Quantity;
use serde_json::Value;

use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, string},
    printers::columns::TabWriter,
    resource::{ALL_NAMESPACES, FIELD_SELECTOR, SELECTOR, items_of, metadata},
    run,
    session::Session,
};

pub static COMMAND: Command = Command {
    name: "top",
    aliases: &[],
    usage: "[flags] [options]",
    about: "Display resource (CPU/memory) usage",
    flags: &[],
    commands: &[&NODE, &POD],
    run: None,
};

const SHARED: &[Flag] = &[
    boolean("no-headers", "false", "Leave out the headers"),
    string("sort-by", "", "cpu or memory"),
    boolean("use-protocol-buffers", "true", "").hidden(),
    boolean("show-swap", "false", "Also swap"),
];
const NODE_FLAGS: &[Flag] =
    &[boolean("show-capacity", "false", "Percentages of the capacity, not of what is allocatable")];
const POD_FLAGS: &[Flag] =
    &[boolean("containers", "false", "Each container on its own line"), boolean("sum", "false", "Also the sum")];

static NODE: Command = Command {
    name: "node",
    aliases: &["nodes", "no"],
    usage: "[NAME | -l label] [options]",
    about: "Display resource (CPU/memory) usage of nodes",
    flags: &[NODE_FLAGS, SHARED, SELECTOR],
    commands: &[],
    run: run!(node),
};

static POD: Command = Command {
    name: "pod",
    aliases: &["pods", "po"],
    usage: "[NAME | -l label] [options]",
    about: "Display resource (CPU/memory) usage of pods",
    flags: &[POD_FLAGS, SHARED, SELECTOR, FIELD_SELECTOR, ALL_NAMESPACES],
    commands: &[],
    run: run!(pod),
};

/// How long a pod may be without metrics.
const METRICS_DELAY_SECONDS: i64 = 120;

fn milli(value: &Value) -> i64 {
    Quantity::from_value(value).map_or(0, |q| q.milli_value())
}

fn bytes(value: &Value) -> i64 {
    Quantity::from_value(value).map_or(0, |q| q.value())
}

/// The resources that have columns.
fn measured(matches: &Matches) -> Vec<&'static str> {
    let mut measured = vec!["cpu", "memory"];
    if matches.bool("show-swap") {
        measured.push("swap");
    }
    measured
}

fn header(resource: &str) -> &'static str {
    match resource {
        "cpu" => "CPU",
        "memory" => "MEMORY",
        _ => "SWAP",
    }
}

fn unit(resource: &str) -> &'static str {
    if resource == "cpu" { "cores" } else { "bytes" }
}

/// Thousandths of a core, or bytes.
fn amount(resource: &str, usage: &Value) -> i64 {
    if resource == "cpu" { milli(&usage["cpu"]) } else { bytes(&usage[resource]) }
}

fn amount_text(resource: &str, amount: i64) -> String {
    if resource == "cpu" { format!("{amount}m") } else { format!("{}Mi", amount / (1 << 20)) }
}

async fn metrics(session: &Session, path: &str, selector: &str, fields: &str) -> Result<Value> {
    let served = session.discovery().await?.groups.iter().any(|g| g.name == "metrics.k8s.io");
    if !served && !session.rediscovered().await?.groups.iter().any(|g| g.name == "metrics.k8s.io") {
        return Err(Failure::message("Metrics API not available"));
    }
    let call = session.rest().await?.get(format!("/apis/metrics.k8s.io/v1beta1{path}"));
    call.query_opt("labelSelector", selector).query_opt("fieldSelector", fields).value().await
}

fn check_sort(matches: &Matches) -> Result<()> {
    match matches.str("sort-by") {
        "" | "cpu" | "memory" => Ok(()),
        _ => Err(Failure::message("--sort-by accepts only cpu or memory")),
    }
}

async fn node(session: &Session, matches: &Matches) -> Result<()> {
    check_sort(matches)?;
    let path = match matches.args.as_slice() {
        [] => "/nodes".to_string(),
        [name] => format!("/nodes/{name}"),
        args => return Err(Failure::usage(crate::verbs::info::version::go_list(args))),
    };
    let answer = metrics(session, &path, matches.str("selector"), "").await?;
    let single = !matches.args.is_empty();
    let mut used = if single { vec![answer] } else { items_of(answer) };
    let rest = session.rest().await?;
    let nodes = items_of(rest.get("/api/v1/nodes").query_opt("labelSelector", matches.str("selector")).value().await?);
    let field = if matches.bool("show-capacity") { "capacity" } else { "allocatable" };
    let total: BTreeMap<&str, &Value> = nodes.iter().map(|n| (metadata(n, "name"), n)).collect();
    match matches.str("sort-by") {
        "cpu" => used.sort_by_key(|m| Reverse(milli(&m["usage"]["cpu"]))),
        "memory" => used.sort_by_key(|m| Reverse(bytes(&m["usage"]["memory"]))),
        _ => used.sort_by(|a, b| metadata(a, "name").cmp(metadata(b, "name"))),
    }
    let mut writer = TabWriter::default();
    let measured = measured(matches);
    if !matches.bool("no-headers") {
        let mut cells = vec!["NAME".to_string()];
        for resource in &measured {
            let name = header(resource);
            cells.extend([format!("{name}({})", unit(resource)), format!("{name}(%)")]);
        }
        cells.push(String::new());
        writer.row(cells);
    }
    const UNKNOWN: &str = "<unknown>";
    for item in &used {
        let name = metadata(item, "name");
        let node = total.get(name).copied();
        let mut cells = vec![name.to_string()];
        for resource in &measured {
            let of = match *resource {
                "swap" => node.map(|node| &node["status"]["nodeInfo"]["swap"]["capacity"]).map_or(0, bytes),
                resource => node.map_or(0, |node| amount(resource, &node["status"][field])),
            };
            let part = amount(resource, &item["usage"]);
            cells.extend(match of {
                0 if *resource == "swap" => [UNKNOWN.to_string(), UNKNOWN.to_string()],
                0 => [amount_text(resource, part), UNKNOWN.to_string()],
                of => [amount_text(resource, part), format!("{}%", part * 100 / of)],
            });
        }
        cells.push(String::new());
        writer.row(cells);
    }
    for node in nodes.iter().filter(|n| !single && !used.iter().any(|m| metadata(m, "name") == metadata(n, "name"))) {
        let mut cells = vec![metadata(node, "name").to_string()];
        cells.extend(vec![UNKNOWN.to_string(); 2 * measured.len()]);
        cells.push(String::new());
        writer.row(cells);
    }
    session.output.print(&writer.flush());
    Ok(())
}

async fn pod(session: &Session, matches: &Matches) -> Result<()> {
    check_sort(matches)?;
    let (namespace, _) = session.namespace()?;
    let all = matches.bool("all-namespaces");
    let place = if all { String::new() } else { format!("/namespaces/{namespace}") };
    let path = match matches.args.as_slice() {
        [] => format!("{place}/pods"),
        [_] if matches.opt("selector").is_some() => {
            return Err(Failure::message("only one of NAME or selector can be provided"));
        }
        [name] => format!("{place}/pods/{name}"),
        args => return Err(Failure::usage(crate::verbs::info::version::go_list(args))),
    };
    let answer = metrics(session, &path, matches.str("selector"), matches.str("field-selector")).await?;
    let mut used = if matches.args.is_empty() { items_of(answer) } else { vec![answer] };
    if used.is_empty() {
        // Metrics of a young pod are yet to come; of an old one they should be there.
        let pods = session
            .rest()
            .await?
            .get(format!("/api/v1{place}/pods"))
            .query_opt("labelSelector", matches.str("selector"));
        let pods = items_of(pods.value().await?);
        let age = |pod: &Value| {
            let made = metadata(pod, "creationTimestamp").parse::<jiff::Timestamp>();
            made.map_or(0, |made| session.env.now().as_second() - made.as_second())
        };
        if let Some(pod) = pods.iter().find(|pod| age(pod) > METRICS_DELAY_SECONDS) {
            let (namespace, name) = (metadata(pod, "namespace"), metadata(pod, "name"));
            return Err(Failure::message(format!(
                "Metrics not available for pod {namespace}/{name}, age: {}s",
                age(pod)
            )));
        }
        if !pods.is_empty() {
            return Err(Failure::message("metrics not available yet"));
        }
        match all {
            true => session.output.warn("No resources found"),
            false => session.output.warn(&format!("No resources found in {namespace} namespace.")),
        }
        return Ok(());
    }
    let measured = measured(matches);
    let sum = |m: &Value, resource: &str| -> i64 {
        let containers = m["containers"].as_array().into_iter().flatten();
        containers.map(|container| amount(resource, &container["usage"])).sum()
    };
    match matches.str("sort-by") {
        "" => used.sort_by(|a, b| {
            (metadata(a, "namespace"), metadata(a, "name")).cmp(&(metadata(b, "namespace"), metadata(b, "name")))
        }),
        resource => used.sort_by_key(|m| Reverse(sum(m, resource))),
    }
    let mut writer = TabWriter::default();
    let each = matches.bool("containers");
    // Without headers kubectl does not count the columns in front.
    let mut columns = 1 + measured.len();
    if !matches.bool("no-headers") {
        let mut headers = Vec::new();
        if all {
            headers.push("NAMESPACE".to_string());
        }
        if each {
            headers.push("POD".to_string());
        }
        headers.push("NAME".to_string());
        headers.extend(measured.iter().map(|resource| format!("{}({})", header(resource), unit(resource))));
        columns = headers.len();
        headers.push(String::new());
        writer.row(headers);
    }
    for item in &used {
        let mut front = Vec::new();
        if all {
            front.push(metadata(item, "namespace").to_string());
        }
        front.push(metadata(item, "name").to_string());
        if !each {
            front.extend(measured.iter().map(|resource| amount_text(resource, sum(item, resource))));
            front.push(String::new());
            writer.row(front);
            continue;
        }
        for container in item["containers"].as_array().into_iter().flatten() {
            let mut cells = front.clone();
            cells.push(container["name"].as_str().unwrap_or_default().to_string());
            cells.extend(measured.iter().map(|resource| amount_text(resource, amount(resource, &container["usage"]))));
            cells.push(String::new());
            writer.row(cells);
        }
    }
    if matches.bool("sum") {
        let blank = vec![String::new(); columns - 2];
        writer.row([blank, vec!["________".into(), "________".into(), String::new()]].concat());
        let blank = vec![String::new(); columns - measured.len()];
        let total = |resource: &&str| amount_text(resource, used.iter().map(|item| sum(item, resource)).sum());
        writer.row([blank, measured.iter().map(total).collect(), vec![String::new()]].concat());
    }
    session.output.print(&writer.flush());
    Ok(())
}
