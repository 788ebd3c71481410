//! `kubectl rollout status`: how far a rollout is, until it is done.
//! A subcommand of `rollout`.
//! Decides from one object at a time; the watch only brings the next.

use futures::StreamExt;
use serde_json::Value;

use super::rollout::selected;
use crate::{
    failure::{Failure, Result},
    flags::Matches,
    resource::{Info, WatchPause, each},
    session::Session,
    terminal,
};

pub async fn status(session: &Session, matches: &Matches) -> Result<()> {
    let (infos, failures) = selected(session, matches).await?;
    if infos.is_empty() && failures.is_empty() {
        session.output.warn("No resources found in default namespace.");
        return Ok(());
    }
    let timeout = matches.duration("timeout");
    each(infos, failures, async |info| {
        let waited = one(session, matches, &info);
        match timeout.is_zero() {
            true => waited.await,
            false => match env::timeout(timeout, waited).await {
                Some(ended) => ended,
                None => Err(Failure::message("timed out waiting for the condition")),
            },
        }
    })
    .await
}

async fn one(session: &Session, matches: &Matches, info: &Info) -> Result<()> {
    let revision = matches.int("revision");
    let (text, done) = verdict(&info.resource.kind, &info.object, revision)?;
    session.output.print(&text);
    session.output.flush();
    if done || !matches.bool("watch") {
        return Ok(());
    }
    let mut last = text;
    terminal::end_at_signals(&session.output)?;
    let mut pause = WatchPause::new(&session.env);
    loop {
        let mut lines = info.watch(session).await?;
        while let Some(line) = lines.next().await {
            let Ok(line) = line else { break };
            let event: Value = serde_json::from_slice(&line)?;
            match event["type"].as_str() {
                Some("DELETED") => return Err(Failure::message("object has been deleted")),
                Some("ADDED" | "MODIFIED") => {}
                _ => continue,
            }
            let (text, done) = verdict(&info.resource.kind, &event["object"], revision)?;
            if text != last {
                session.output.print(&text);
                session.output.flush();
                last = text;
            }
            if done {
                return Ok(());
            }
        }
        pause.wait().await;
    }
}

/// What is to be said, and whether the rollout is done.
fn verdict(kind: &str, object: &Value, revision: i64) -> Result<(String, bool)> {
    match kind {
        "Deployment" => deployment(object, revision),
        "DaemonSet" => daemon_set(object),
        "StatefulSet" => stateful_set(object),
        other => Err(Failure::message(format!("no status viewer has been implemented for {other}"))),
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

fn observed(object: &Value) -> bool {
    number(&object["metadata"]["generation"]) <= number(&object["status"]["observedGeneration"])
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn deployment(object: &Value, revision: i64) -> Result<(String, bool)> {
    let name = name(object);
    if revision > 0 {
        let now = object["metadata"]["annotations"]["deployment.kubernetes.io/revision"].as_str().unwrap_or_default();
        if now.parse::<i64>().ok() != Some(revision) {
            return Err(Failure::message(format!(
                "desired revision ({revision}) is different from the running revision ({now})"
            )));
        }
    }
    if !observed(object) {
        return Ok(("Waiting for deployment spec update to be observed...\n".to_string(), false));
    }
    let late = object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "Progressing" && c["reason"] == "ProgressDeadlineExceeded");
    if late {
        return Err(Failure::message(format!("deployment {name:?} exceeded its progress deadline")));
    }
    let (spec, status) = (&object["spec"], &object["status"]);
    let (wanted, updated) = (spec["replicas"].as_i64(), number(&status["updatedReplicas"]));
    let (total, available) = (number(&status["replicas"]), number(&status["availableReplicas"]));
    if let Some(wanted) = wanted.filter(|wanted| updated < *wanted) {
        return Ok((
            format!(
                "Waiting for deployment {name:?} rollout to finish: {updated} out of {wanted} new replicas have been updated...\n"
            ),
            false,
        ));
    }
    if total > updated {
        return Ok((
            format!(
                "Waiting for deployment {name:?} rollout to finish: {} old replicas are pending termination...\n",
                total - updated
            ),
            false,
        ));
    }
    if available < updated {
        return Ok((
            format!(
                "Waiting for deployment {name:?} rollout to finish: {available} of {updated} updated replicas are available...\n"
            ),
            false,
        ));
    }
    Ok((format!("deployment {name:?} successfully rolled out\n"), true))
}

fn daemon_set(object: &Value) -> Result<(String, bool)> {
    let name = name(object);
    if object["spec"]["updateStrategy"]["type"] != "RollingUpdate" {
        return Err(Failure::message("rollout status is only available for RollingUpdate strategy type"));
    }
    if !observed(object) {
        return Ok(("Waiting for daemon set spec update to be observed...\n".to_string(), false));
    }
    let status = &object["status"];
    let (wanted, updated) = (number(&status["desiredNumberScheduled"]), number(&status["updatedNumberScheduled"]));
    if updated < wanted {
        return Ok((
            format!(
                "Waiting for daemon set {name:?} rollout to finish: {updated} out of {wanted} new pods have been updated...\n"
            ),
            false,
        ));
    }
    let available = number(&status["numberAvailable"]);
    if available < wanted {
        return Ok((
            format!(
                "Waiting for daemon set {name:?} rollout to finish: {available} of {wanted} updated pods are available...\n"
            ),
            false,
        ));
    }
    Ok((format!("daemon set {name:?} successfully rolled out\n"), true))
}

fn stateful_set(object: &Value) -> Result<(String, bool)> {
    let (spec, status) = (&object["spec"], &object["status"]);
    if spec["updateStrategy"]["type"] != "RollingUpdate" {
        return Err(Failure::message("rollout status is only available for RollingUpdate strategy type"));
    }
    if status["observedGeneration"].is_null() || !observed(object) {
        return Ok(("Waiting for statefulset spec update to be observed...\n".to_string(), false));
    }
    let wanted = spec["replicas"].as_i64();
    if let Some(wanted) = wanted.filter(|wanted| number(&status["readyReplicas"]) < *wanted) {
        return Ok((format!("Waiting for {} pods to be ready...\n", wanted - number(&status["readyReplicas"])), false));
    }
    let partition = spec["updateStrategy"]["rollingUpdate"]["partition"].as_i64();
    if let (Some(partition), Some(wanted)) = (partition.filter(|p| *p > 0), wanted) {
        let updated = number(&status["updatedReplicas"]);
        if updated < wanted - partition {
            return Ok((
                format!(
                    "Waiting for partitioned roll out to finish: {updated} out of {} new pods have been updated...\n",
                    wanted - partition
                ),
                false,
            ));
        }
        return Ok((format!("partitioned roll out complete: {updated} new pods have been updated...\n"), true));
    }
    if status["updateRevision"] != status["currentRevision"] {
        let (updated, revision) =
            (number(&status["updatedReplicas"]), status["updateRevision"].as_str().unwrap_or_default());
        return Ok((
            format!("waiting for statefulset rolling update to complete {updated} pods at revision {revision}...\n"),
            false,
        ));
    }
    let current = number(&status["currentReplicas"]);
    let revision = status["currentRevision"].as_str().unwrap_or_default();
    Ok((format!("statefulset rolling update complete {current} pods at revision {revision}...\n"), true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deployment_is_done_when_all_are_new_and_available() {
        let check = |updated: i64, total: i64, available: i64, wanted: &str| {
            let object = json!({"metadata": {"name": "web", "generation": 2}, "spec": {"replicas": 3},
                "status": {"observedGeneration": 2, "updatedReplicas": updated, "replicas": total, "availableReplicas": available}});
            let (text, _) = verdict("Deployment", &object, 0).unwrap_or_else(|e| panic!("{}", e.text()));
            assert_eq!(text, wanted);
        };
        check(
            1,
            3,
            3,
            "Waiting for deployment \"web\" rollout to finish: 1 out of 3 new replicas have been updated...\n",
        );
        check(3, 4, 3, "Waiting for deployment \"web\" rollout to finish: 1 old replicas are pending termination...\n");
        check(3, 3, 2, "Waiting for deployment \"web\" rollout to finish: 2 of 3 updated replicas are available...\n");
        check(3, 3, 3, "deployment \"web\" successfully rolled out\n");
    }
}
