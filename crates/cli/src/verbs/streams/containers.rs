//! Which pod, and which container in it.
//! Used by the verbs of this folder.
//! A workload stands for one of its pods: a ready one before others, the oldest of those.

use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;

use crate::{
    failure::{Failure, Result},
    resource::{Info, Selection, items_of, metadata},
    session::Session,
};

pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

pub fn names(pod: &Value, field: &str) -> Vec<String> {
    let all = pod["spec"][field].as_array().into_iter().flatten();
    all.filter_map(|c| c["name"].as_str()).map(str::to_string).collect()
}

/// Containers, init containers and ephemeral containers.
pub fn all_names(pod: &Value) -> Vec<String> {
    ["containers", "initContainers", "ephemeralContainers"].iter().flat_map(|field| names(pod, field)).collect()
}

/// The container that `-c` names, or the pod's default one. Says which, if there is a choice.
pub fn choose(session: &Session, pod: &Value, wanted: &str, quiet: bool) -> Result<String> {
    let (pod_name, all) = (metadata(pod, "name"), all_names(pod));
    if !wanted.is_empty() {
        return match all.iter().any(|name| name == wanted) {
            true => Ok(wanted.to_string()),
            false => Err(Failure::message(format!("container {wanted} not found in pod {pod_name}"))),
        };
    }
    let annotated = pod["metadata"]["annotations"][DEFAULT_CONTAINER].as_str().unwrap_or_default();
    if all.iter().any(|name| name == annotated) {
        return Ok(annotated.to_string());
    }
    let first = names(pod, "containers").into_iter().next();
    let first = first.ok_or_else(|| Failure::message(format!("no container found in pod {pod_name}")))?;
    if all.len() > 1 && !quiet {
        let shown = shown_names(pod);
        session.output.warn(&format!("Defaulted container {first:?} out of: {shown}"));
    }
    Ok(first)
}

fn shown_names(pod: &Value) -> String {
    let mut shown = names(pod, "containers");
    shown.extend(names(pod, "ephemeralContainers").into_iter().map(|n| format!("{n} (ephem)")));
    shown.extend(names(pod, "initContainers").into_iter().map(|n| format!("{n} (init)")));
    shown.join(", ")
}

/// The label selector of a workload's pods.
pub fn pod_selector(object: &Value) -> Option<String> {
    let selector = &object["spec"]["selector"];
    let labels = match object["kind"].as_str() {
        Some("Service" | "ReplicationController") => selector.as_object()?,
        _ => selector["matchLabels"].as_object()?,
    };
    let pairs: Vec<String> = labels.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    (!pairs.is_empty()).then(|| pairs.join(","))
}

pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Pods of a selector, the best to talk to first.
pub async fn pods(session: &Session, namespace: &str, selector: &str) -> Result<Vec<Value>> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let listed = session.rest().await?.get(path).query_opt("labelSelector", selector).value().await?;
    let mut pods = items_of(listed);
    pods.sort_by_key(|pod| {
        (!is_ready(pod), pod["status"]["phase"] != "Running", metadata(pod, "creationTimestamp").to_string())
    });
    Ok(pods)
}

/// The object that the words name: `POD`, `TYPE/NAME` or `TYPE NAME`.
pub async fn object(session: &Session, words: &[String]) -> Result<Info> {
    let mut selection = Selection::of(session, &session.matches)?;
    selection.filenames.clear();
    selection.selector.clear();
    selection.arguments = match words {
        [one] if !one.contains('/') => vec!["pods".to_string(), one.clone()],
        words => words.to_vec(),
    };
    let mut infos = selection.all_or_nothing(session).await?;
    match infos.len() {
        1 => Ok(infos.remove(0)),
        _ => Err(Failure::message("you must specify only one resource")),
    }
}

/// One pod that stands for what the words name; waits for one if there is none yet.
pub async fn pod(session: &Session, words: &[String], timeout: Duration) -> Result<Value> {
    let info = object(session, words).await?;
    pod_of(session, &info, timeout).await
}

/// Of a kind that stands for no pods; `what` is what can't be done.
pub fn without_selector(what: &str, info: &Info) -> Failure {
    let of_type = format!("*{}.{}", info.resource.version, info.resource.kind);
    Failure::message(format!("{what} {of_type}: selector for {of_type} not implemented"))
}

pub async fn pod_of(session: &Session, info: &Info, timeout: Duration) -> Result<Value> {
    if info.resource.name == "pods" {
        return Ok(info.object.clone());
    }
    let selector = pod_selector(&info.object).ok_or_else(|| without_selector("cannot attach to", info))?;
    if let Some(found) = pods(session, &info.namespace, &selector).await?.into_iter().next() {
        return Ok(found);
    }
    let path = format!("/api/v1/namespaces/{}/pods", info.namespace);
    let rest = session.rest().await?;
    let watched = env::timeout(timeout, async {
        let mut lines = rest.get(path).query("labelSelector", selector.as_str()).query("watch", "true").lines().await?;
        while let Some(line) = lines.next().await {
            let event: Value = serde_json::from_slice(&line?)?;
            if event["type"] == "ADDED" {
                return Ok(event["object"].clone());
            }
        }
        Err(Failure::message("the watch of pods ended"))
    });
    match watched.await {
        Some(found) => found,
        None => Err(Failure::message("timed out waiting for the condition")),
    }
}
