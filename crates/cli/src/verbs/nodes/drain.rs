//! `kubectl drain`: no new pods on a node, and those that are there evicted.
//! A row of `verbs::ROOT`; which pods go is decided in `drain_pods`.
//! An eviction that a disruption budget refuses is tried again every five seconds until the timeout.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};

use super::{
    cordon,
    drain_pods::{Rules, Verdict, verdict},
};
use crate::{
    command::Command,
    failure::{Failure, Result},
    flags::{Flag, Matches, boolean, duration, int, string},
    printers::operation::{DRY_RUN, DryRun},
    resource::{CHUNK_SIZE, Info, SELECTOR, items_of, metadata},
    run,
    session::Session,
    verbs::change::delete::until_gone,
};

const FLAGS: &[Flag] = &[
    boolean("delete-emptydir-data", "false", "Also pods with emptyDir volumes; their data is lost"),
    boolean("disable-eviction", "false", "Delete the pods instead of evicting them, whatever budgets say"),
    boolean("force", "false", "Also pods that no controller would make anew"),
    int("grace-period", "-1", "Seconds a pod gets to end"),
    boolean("ignore-daemonsets", "false", "Leave pods of DaemonSets alone"),
    string("pod-selector", "", "Only pods with these labels"),
    int("skip-wait-for-delete-timeout", "0", "Do not wait for pods that have been terminating for this many seconds"),
    duration("timeout", "0s", "How long; 0 is for ever"),
];

pub static COMMAND: Command = Command {
    name: "drain",
    aliases: &[],
    usage: "NODE [options]",
    about: "Drain node in preparation for maintenance",
    flags: &[FLAGS, SELECTOR, CHUNK_SIZE, DRY_RUN],
    commands: &[],
    run: run!(drain),
};

const EVICTION_RETRY_INTERVAL: Duration = Duration::from_secs(5);

async fn drain(session: &Session, matches: &Matches) -> Result<()> {
    if api::selectors::LabelSelector::parse(matches.str("pod-selector")).is_err() {
        return Err(Failure::message("--pod-selector=<pod_selector> must be a valid label selector"));
    }
    let dry_run = DryRun::of(session, matches)?;
    let nodes = cordon::nodes(session, matches).await?;
    for node in &nodes {
        cordon::set(session, node, true, dry_run).await?;
    }
    for node in &nodes {
        drain_node(session, matches, node, dry_run).await?;
        let suffix = match dry_run {
            DryRun::None => "",
            DryRun::Client => " (dry run)",
            DryRun::Server => " (server dry run)",
        };
        session.output.line(&format!("node/{} drained{suffix}", node.name));
    }
    Ok(())
}

async fn daemon_set_exists(session: &Session, pod: &Value) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let Some(owner) = owners.into_iter().find(|o| o["controller"] == true && o["kind"] == "DaemonSet") else {
        return false;
    };
    let Ok(rest) = session.rest().await else { return false };
    let name = owner["name"].as_str().unwrap_or_default();
    rest.get(format!("/apis/apps/v1/namespaces/{}/daemonsets/{name}", metadata(pod, "namespace"))).value().await.is_ok()
}

/// The pods of a node, in as many chunks as it takes.
async fn pods_of(session: &Session, matches: &Matches, node: &Info) -> Result<Vec<Value>> {
    let rest = session.rest().await?;
    let limit = matches.int("chunk-size").max(0);
    let (mut pods, mut token) = (Vec::new(), String::new());
    loop {
        let mut call = rest.get("/api/v1/pods").query_opt("continue", &token);
        call = call.query("fieldSelector", format!("spec.nodeName={}", node.name));
        call = call.query_opt("labelSelector", matches.str("pod-selector"));
        if limit > 0 {
            call = call.query("limit", limit.to_string());
        }
        let listed = call.value().await?;
        token = listed["metadata"]["continue"].as_str().unwrap_or_default().to_string();
        pods.extend(items_of(listed));
        if token.is_empty() {
            return Ok(pods);
        }
    }
}

async fn drain_node(session: &Session, matches: &Matches, node: &Info, dry_run: DryRun) -> Result<()> {
    let rules = Rules {
        force: matches.bool("force"),
        ignore_daemonsets: matches.bool("ignore-daemonsets"),
        delete_emptydir_data: matches.bool("delete-emptydir-data"),
        skip_wait_for_delete_seconds: matches.int("skip-wait-for-delete-timeout"),
    };
    let pods = pods_of(session, matches, node).await?;
    let mut going = Vec::new();
    let mut blocked: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut warned: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in pods {
        let shown = format!("{}/{}", metadata(&pod, "namespace"), metadata(&pod, "name"));
        let exists = daemon_set_exists(session, &pod).await;
        match verdict(&pod, exists, rules, session.env.now().as_second()) {
            Verdict::Go => going.push(pod),
            Verdict::GoWithWarning(text) => {
                warned.entry(text).or_default().push(shown);
                going.push(pod);
            }
            Verdict::Stay => {}
            Verdict::StayWithWarning(text) => warned.entry(text).or_default().push(shown),
            Verdict::Blocks(text) => blocked.entry(text).or_default().push(shown),
        }
    }
    let told = |found: &BTreeMap<&str, Vec<String>>| -> Vec<String> {
        found.iter().map(|(text, pods)| format!("{text}: {}", pods.join(", "))).collect()
    };
    if !blocked.is_empty() {
        session.output.warn(&format!(
            "error: unable to drain node {:?} due to error: {}, continuing command...",
            node.name,
            told_errors(&told(&blocked))
        ));
        session.output.warn("There are pending nodes to be drained:");
        session.output.warn(&format!(" {}", node.name));
        return Err(Failure::Plain(told(&blocked).join("\n")));
    }
    if !warned.is_empty() {
        session.output.warn(&format!("Warning: {}", told(&warned).join("; ")));
    }
    if dry_run != DryRun::None {
        for pod in &going {
            let suffix = if dry_run == DryRun::Client { "(dry run)" } else { "(server dry run)" };
            session.output.line(&format!(
                "evicting pod {}/{} {suffix}",
                metadata(pod, "namespace"),
                metadata(pod, "name")
            ));
        }
        return Ok(());
    }
    let all = join_all(going.iter().map(|pod| remove(session, matches, pod)));
    let ended = match matches.duration("timeout") {
        limit if limit.is_zero() => all.await,
        limit => match env::timeout(limit, all).await {
            Some(ended) => ended,
            None => {
                return Err(Failure::message(format!(
                    "unable to drain node {:?} due to error: global timeout reached: {}, continuing command...",
                    node.name,
                    matches.str("timeout")
                )));
            }
        },
    };
    Failure::aggregate(ended.into_iter().filter_map(std::result::Result::err).collect())
}

fn told_errors(lines: &[String]) -> String {
    match lines {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

async fn remove(session: &Session, matches: &Matches, pod: &Value) -> Result<()> {
    let (namespace, name) = (metadata(pod, "namespace"), metadata(pod, "name"));
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let rest = session.rest().await?;
    let mut options = json!({});
    if matches.int("grace-period") >= 0 {
        options["gracePeriodSeconds"] = matches.int("grace-period").into();
    }
    loop {
        let verb = if matches.bool("disable-eviction") { "deleting" } else { "evicting" };
        session.output.line(&format!("{verb} pod {namespace}/{name}"));
        session.output.flush();
        let sent = match matches.bool("disable-eviction") {
            true => rest.call(Method::DELETE, path.as_str()).json(&options).bytes().await,
            false => {
                let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
                    "metadata": {"name": name, "namespace": namespace}, "deleteOptions": options});
                rest.call(Method::POST, format!("{path}/eviction")).json(&eviction).bytes().await
            }
        };
        match sent {
            Ok(_) => break,
            Err(failure) if failure.is_not_found() => return Ok(()),
            Err(failure) if failure.code() == 429 => {
                session.output.warn(&format!(
                    "error when evicting pods/{name:?} -n {namespace:?} (will retry after 5s): {}",
                    failure.text()
                ));
                session.env.sleep(EVICTION_RETRY_INTERVAL).await;
            }
            Err(failure) => {
                return Err(Failure::message(format!(
                    "error when evicting pods/{name:?} -n {namespace:?}: {}",
                    failure.text()
                )));
            }
        }
    }
    let resource = session.resource("pods").await?;
    let info =
        Info { resource, namespace: namespace.into(), name: name.into(), source: String::new(), object: Value::Null };
    let gone = until_gone(session, &info, metadata(pod, "uid"));
    match matches.int("skip-wait-for-delete-timeout") {
        0 => gone.await?,
        // Its node may never say that it ended.
        seconds => {
            let live = info.get(session).await.unwrap_or_default();
            let asked: Option<jiff::Timestamp> = metadata(&live, "deletionTimestamp").parse().ok();
            let left = asked.map_or(0, |asked| asked.as_second() + seconds + 1 - session.env.now().as_second());
            env::timeout(Duration::from_secs(left.max(0) as u64), gone).await.unwrap_or(Ok(()))?;
        }
    }
    let done = if matches.bool("disable-eviction") { "deleted" } else { "evicted" };
    session.output.line(&format!("pod/{name} {done}"));
    session.output.flush();
    Ok(())
}
