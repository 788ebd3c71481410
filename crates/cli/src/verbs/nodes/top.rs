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
    printers::table::TabWriter,
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

fn cpu_text(milli: i64) -> String {
    format!("{milli}m")
}

fn memory_text(bytes: i64) -> String {
    format!("{}Mi", bytes / (1 << 20))
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
        args => return Err(Failure::usage(format!("{}", crate::verbs::info::version::go_list(args)))),
    };
    let answer = metrics(session, &path, matches.str("selector"), "").await?;
    let single = !matches.args.is_empty();
    let mut used = if single { vec![answer] } else { items_of(answer) };
    let rest = session.rest().await?;
    let nodes = items_of(rest.get("/api/v1/nodes").query_opt("labelSelector", matches.str("selector")).value().await?);
    let field = if matches.bool("show-capacity") { "capacity" } else { "allocatable" };
    let total: BTreeMap<&str, &Value> = nodes.iter().map(|n| (metadata(n, "name"), &n["status"][field])).collect();
    match matches.str("sort-by") {
        "cpu" => used.sort_by_key(|m| Reverse(milli(&m["usage"]["cpu"]))),
        "memory" => used.sort_by_key(|m| Reverse(bytes(&m["usage"]["memory"]))),
        _ => used.sort_by(|a, b| metadata(a, "name").cmp(metadata(b, "name"))),
    }
    let mut writer = TabWriter::default();
    if !matches.bool("no-headers") {
        writer.row(["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)", ""].map(str::to_string).to_vec());
    }
    for item in &used {
        let name = metadata(item, "name");
        let (cpu, memory) = (milli(&item["usage"]["cpu"]), bytes(&item["usage"]["memory"]));
        let share = |part: i64, of: i64| match of {
            0 => "<unknown>".to_string(),
            of => format!("{}%", part * 100 / of),
        };
        let of = total.get(name).copied().cloned().unwrap_or_default();
        writer.row(vec![
            name.to_string(),
            cpu_text(cpu),
            share(cpu, milli(&of["cpu"])),
            memory_text(memory),
            share(memory, bytes(&of["memory"])),
            String::new(),
        ]);
    }
    for node in nodes.iter().filter(|n| !single && !used.iter().any(|m| metadata(m, "name") == metadata(n, "name"))) {
        let unknown = "<unknown>".to_string();
        writer.row(vec![
            metadata(node, "name").to_string(),
            unknown.clone(),
            unknown.clone(),
            unknown.clone(),
            unknown,
            String::new(),
        ]);
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
            return Err(Failure::message("only one of NAME or --selector can be provided"));
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
    let sum = |m: &Value| {
        let containers = m["containers"].as_array().into_iter().flatten();
        containers.fold((0, 0), |(c, b), x| (c + milli(&x["usage"]["cpu"]), b + bytes(&x["usage"]["memory"])))
    };
    match matches.str("sort-by") {
        "cpu" => used.sort_by_key(|m| Reverse(sum(m).0)),
        "memory" => used.sort_by_key(|m| Reverse(sum(m).1)),
        _ => used.sort_by(|a, b| {
            (metadata(a, "namespace"), metadata(a, "name")).cmp(&(metadata(b, "namespace"), metadata(b, "name")))
        }),
    }
    let mut writer = TabWriter::default();
    let each = matches.bool("containers");
    let mut headers = Vec::new();
    if all {
        headers.push("NAMESPACE".to_string());
    }
    headers.push(if each { "POD" } else { "NAME" }.to_string());
    if each {
        headers.push("NAME".to_string());
    }
    headers.extend(["CPU(cores)", "MEMORY(bytes)"].map(str::to_string));
    let columns = headers.len();
    headers.push(String::new());
    if !matches.bool("no-headers") {
        writer.row(headers);
    }
    let mut total = (0, 0);
    for item in &used {
        let front = |writer_cells: &mut Vec<String>| {
            if all {
                writer_cells.push(metadata(item, "namespace").to_string());
            }
            writer_cells.push(metadata(item, "name").to_string());
        };
        let (cpu, memory) = sum(item);
        total = (total.0 + cpu, total.1 + memory);
        if !each {
            let mut cells = Vec::new();
            front(&mut cells);
            cells.extend([cpu_text(cpu), memory_text(memory), String::new()]);
            writer.row(cells);
            continue;
        }
        for container in item["containers"].as_array().into_iter().flatten() {
            let mut cells = Vec::new();
            front(&mut cells);
            cells.push(container["name"].as_str().unwrap_or_default().to_string());
            cells.extend([
                cpu_text(milli(&container["usage"]["cpu"])),
                memory_text(bytes(&container["usage"]["memory"])),
            ]);
            writer.row(cells);
        }
    }
    if matches.bool("sum") {
        let blank = vec![String::new(); columns - 2];
        writer.row([blank.clone(), vec!["________".into(), "________".into()]].concat());
        writer.row([blank, vec![cpu_text(total.0), memory_text(total.1)]].concat());
    }
    session.output.print(&writer.flush());
    Ok(())
}
